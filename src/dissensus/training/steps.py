"""One training step: outputs, objective, gradients, update, for all members or for some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.stack import tensors_of
from dissensus.objectives import Objective, Terms
from dissensus.objectives.fast import value_and_gradient
from dissensus.training.optim import MemberOptimizer, clip_by_member
from dissensus.training.recipe import Recipe
from dissensus.training.stream import Batch

__all__ = ["StackTrainer", "Trainer", "UnlikeTrainer", "make_trainer"]


class StackTrainer:
    """Steps an ensemble whose members are stacked.

    Where a batch uses some members only, their rows are copied out, run, differentiated and stepped
    in place: the cost does not depend on how many members there are.
    """

    def __init__(self, ens: Ensemble, objective: Objective, recipe: Recipe) -> None:
        assert ens.stack is not None
        self.ens, self.objective, self.recipe = ens, objective, recipe
        parameters, self.buffers = tensors_of(ens.stack)
        self.trained = {name: p for name, p in parameters.items() if p.requires_grad}
        self.fixed = {name: p for name, p in parameters.items() if not p.requires_grad}
        if not self.trained:
            raise ValueError("no parameter requires a gradient: there is nothing to train")
        values = list(self.trained.values())
        self.optimizer = MemberOptimizer(recipe.optimizer, values, ens.members)  # type: ignore[arg-type]
        plain = not (self.fixed or self.buffers or recipe.amp or recipe.compile)
        stacked = ens.resolved_execution() == "stacked"
        self.engine = engine_of(ens.stack) if plain and stacked else None
        self.meet: Meet = evaluate_objective
        self.reduce: Reduce | None = None
        self.run = torch.compile(ens.run) if recipe.compile else ens.run
        self.run_drawn = torch.compile(ens.run_drawn) if recipe.compile else ens.run_drawn

    def step(
        self, batch: Batch, frozen: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train on one batch; returns the outputs and the objective's terms."""
        rows = list(range(self.ens.members)) if batch.drawn is None else batch.drawn
        trained = set(self.objective.trained_members(rows)) - frozen
        return self.step_trained(batch, trained, scale, check=check)

    def step_trained(
        self, batch: Batch, trained: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """As :meth:`step`, with the members that are to be ``trained`` known."""
        rows = list(range(self.ens.members)) if batch.drawn is None else batch.drawn
        keep = [position for position, member in enumerate(rows) if member in trained]
        leaves, index = self._leaves(batch.drawn)
        if self.ens.backbone is not None:
            with autocast(batch.x, self.recipe):
                extra = None if batch.extra is None else self.ens.features(batch.extra)
                batch = batch._replace(x=self.ens.features(batch.x), extra=extra)
        x, extra = batch.x, batch.extra
        with self._as_they_were([member for member in rows if member not in trained]):
            if self.engine is not None and x.ndim >= 2:
                outputs, terms, gradients = self._engine_step(leaves, batch, check)
            else:
                with autocast(x, self.recipe):
                    outputs = self._outputs(leaves, x, index)
                    unlabelled = None if extra is None else self._outputs(leaves, extra, index)
                ends = [outputs] if unlabelled is None else [outputs, unlabelled]
                outputs, terms, at_ends = self.meet(self.objective, ends, batch, check=check)
                gradients = _gradients(ends, list(leaves.values()), at_ends)
        if math.isfinite(terms.loss.detach()):  # if not, the weights of before are worth keeping
            self._update(gradients, rows, keep, batch.drawn is None, scale)
        return outputs, terms

    @contextmanager
    def _as_they_were(self, members: list[int]) -> Iterator[None]:
        """Keep running statistics of members that are run but not trained."""
        before = {n: buffer[members] for n, buffer in self.buffers.items()} if members else {}
        yield
        for name, values in before.items():
            self.buffers[name][members] = values

    def _engine_step(
        self, leaves: dict[str, Tensor], batch: Batch, check: bool
    ) -> tuple[Tensor, Terms, Sequence[Tensor]]:
        """The same through ``ensemble.engine``: only the objective is differentiated by torch."""
        assert self.engine is not None
        extra = batch.extra
        batches = [batch.x] if extra is None else [batch.x, extra]
        passes = [self.engine.vjp(leaves, inputs[None]) for inputs in batches]
        ends = [outputs for outputs, _ in passes]
        outputs, terms, at_ends = self.meet(self.objective, ends, batch, check=check)
        gradients = list(passes[0][1](at_ends[0]).values())
        if extra is not None:
            gradients = [gradient.clone() for gradient in gradients]
            torch._foreach_add_(gradients, list(passes[1][1](at_ends[1]).values()))
        return outputs, terms, gradients

    def _leaves(self, drawn: list[int] | None) -> tuple[dict[str, Tensor], Tensor | None]:
        if drawn is None:
            return dict(self.trained), None
        index = torch.tensor(drawn, device=self.ens.device)
        leaves = {
            name: p.detach().index_select(0, index).requires_grad_()
            for name, p in self.trained.items()
        }
        return leaves, index

    def _outputs(self, leaves: dict[str, Tensor], x: Tensor, index: Tensor | None) -> Tensor:
        if index is None:
            return self.run({**leaves, **self.fixed}, self.buffers, x)
        fixed = {name: p.index_select(0, index) for name, p in self.fixed.items()}
        return self.run_drawn({**leaves, **fixed}, self.buffers, x, index)

    def _update(
        self,
        gradients: Sequence[Tensor],
        rows: list[int],
        keep: list[int],
        everyone: bool,
        scale: float,
    ) -> None:
        if not keep:
            return
        if self.reduce is not None:
            gradients = self.reduce(gradients)
        if self.recipe.clip is not None:
            gradients = clip_by_member(gradients, self.recipe.clip)
        if len(keep) == len(rows):
            self.optimizer.step(gradients, None if everyone else rows, scale)
            return
        kept = [g[keep] for g in gradients]
        self.optimizer.step(kept, [rows[position] for position in keep], scale)

    def where(self, outputs: Tensor) -> str:
        """Which process a loss that is not finite comes from, in front of the error's text."""
        return ""

    def tensors(self) -> dict[str, Tensor]:
        """What has to be saved of the optimiser."""
        return self.optimizer.state()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what :meth:`tensors` returned."""
        self.optimizer.load(tensors)


class UnlikeTrainer:
    """Steps an ensemble of unlike members: one optimiser each, on stacks of one."""

    def __init__(self, ens: Ensemble, objective: Objective, recipe: Recipe) -> None:
        assert ens.unlike is not None
        self.ens, self.objective, self.recipe = ens, objective, recipe
        self.meet: Meet = evaluate_objective
        self.reduce: Reduce | None = None
        self.parameters: list[list[nn.Parameter]] = []
        self.optimizers: list[MemberOptimizer] = []
        rates, decays = recipe.optimizer.for_members(ens.members)  # type: ignore[union-attr]
        for member, module in enumerate(ens.unlike):
            own = [p for p in module.parameters() if p.requires_grad]
            settings = type(recipe.optimizer)(
                **{**vars(recipe.optimizer), "lr": rates[member], "weight_decay": decays[member]}
            )
            self.parameters.append(own)
            stacks = [p.detach()[None] for p in own]  # views: stepping them steps the parameters
            self.optimizers.append(MemberOptimizer(settings, stacks, 1))  # type: ignore[arg-type]
        if not any(self.parameters):
            raise ValueError("no parameter requires a gradient: there is nothing to train")

    def step(
        self, batch: Batch, frozen: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train on one batch; returns the outputs and the objective's terms."""
        rows = list(range(self.ens.members)) if batch.drawn is None else batch.drawn
        trained = set(self.objective.trained_members(rows)) - frozen
        return self.step_trained(batch, trained, scale, check=check)

    def step_trained(
        self, batch: Batch, trained: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """As :meth:`step`, with the members that are to be ``trained`` known."""
        x, extra = batch.x, batch.extra
        rows = list(range(self.ens.members)) if batch.drawn is None else batch.drawn
        update = [m for m in rows if m in trained and self.parameters[m]]
        before = [(b, b.clone()) for m in rows if m not in update for b in self._buffers(m)]
        with autocast(x, self.recipe):
            outputs = self.ens(x, rows)
            unlabelled = None if extra is None else self.ens(extra, rows)
        ends = [outputs] if unlabelled is None else [outputs, unlabelled]
        outputs, terms, at_ends = self.meet(self.objective, ends, batch, check=check)
        for buffer, values in before:
            buffer.copy_(values)
        leaves = [p for member in update for p in self.parameters[member]]
        if not leaves or not math.isfinite(terms.loss.detach()):
            return outputs, terms
        found = _gradients(ends, leaves, at_ends)
        gradients = iter(found if self.reduce is None else self.reduce(found))
        for member in update:
            own = [next(gradients)[None] for _ in self.parameters[member]]
            if self.recipe.clip is not None:
                own = clip_by_member(own, self.recipe.clip)
            self.optimizers[member].step(own, None, scale)
        return outputs, terms

    def _buffers(self, member: int) -> list[Tensor]:
        assert self.ens.unlike is not None
        return list(self.ens.unlike[member].buffers())

    def where(self, outputs: Tensor) -> str:
        """Which process a loss that is not finite comes from, in front of the error's text."""
        return ""

    def tensors(self) -> dict[str, Tensor]:
        """What has to be saved of the optimisers."""
        return {
            f"{member}.{name}": tensor
            for member, optimizer in enumerate(self.optimizers)
            for name, tensor in optimizer.state().items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what :meth:`tensors` returned."""
        for member, optimizer in enumerate(self.optimizers):
            prefix = f"{member}."
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            optimizer.load(own)


Trainer = StackTrainer | UnlikeTrainer


def _gradients(
    ends: Sequence[Tensor], leaves: Sequence[Tensor], at_ends: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Gradients at leaves from those at outputs; zero for a layer that is never called."""
    return torch.autograd.grad(ends, leaves, at_ends, allow_unused=True, materialize_grads=True)


def autocast(x: Tensor, recipe: Recipe) -> AbstractContextManager[object]:
    """The precision that a recipe asks for."""
    if not recipe.amp:
        return nullcontext()
    return torch.autocast(x.device.type, dtype=torch.bfloat16)


def make_trainer(ens: Ensemble, objective: Objective, recipe: Recipe) -> Trainer:
    """The trainer that suits how the ensemble keeps its members."""
    kind = UnlikeTrainer if ens.stack is None else StackTrainer
    return kind(ens, objective, recipe)


class Meet(Protocol):
    """The objective on a batch's outputs, and on unlabelled ones where there are some.

    Returns the outputs that it saw, its terms, and the gradient of its loss at each of ``ends``.
    """

    def __call__(
        self, objective: Objective, ends: Sequence[Tensor], batch: Batch, *, check: bool
    ) -> tuple[Tensor, Terms, Sequence[Tensor]]: ...


Reduce = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def evaluate_objective(
    objective: Objective, ends: Sequence[Tensor], batch: Batch, *, check: bool
) -> tuple[Tensor, Terms, Sequence[Tensor]]:
    """The outputs, the objective's terms and gradients; ``check`` looks at shapes and labels."""
    seen = [_at_least_single(outputs) for outputs in ends]
    unlabelled = seen[1] if len(seen) > 1 else None
    if check:
        objective.check_inputs(seen[0], batch.y, unlabelled, example_weights=batch.weights)
    terms, gradients = value_and_gradient(
        objective, seen[0], batch.y, unlabelled, example_weights=batch.weights
    )
    at_ends = [gradient.to(end.dtype) for gradient, end in zip(gradients, ends, strict=True)]
    return ends[0], terms, at_ends


def _at_least_single(outputs: Tensor) -> Tensor:
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs

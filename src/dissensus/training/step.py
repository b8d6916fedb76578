"""The training step: outputs, objective, gradients, update; for all members or for some of them.

:class:`Trainer` is the step. How members are held is apart from it: stacked
(:class:`StackedMembers`), or as separate modules where their structures differ
(:class:`SeparateMembers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.ensemble.adapters import rows_of
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.stack import tensors_of
from dissensus.objectives import Objective, Terms
from dissensus.objectives.fast import fleet_value_and_gradient, value_and_gradient
from dissensus.training.optim import OptimizerParts, clip_by_member
from dissensus.training.recipe import Recipe
from dissensus.training.shared_weights import Backward, mean_gradients, stack_optimizer
from dissensus.training.stream import TrainingBatch

#: Parts of an objective that need the outputs of several members on the same examples.
_COMMON = ("ensemble_error", "diversity")


class Trainer:
    """Steps the members of an ensemble on one batch after the other."""

    def __init__(self, ens: Ensemble, objective: Objective, recipe: Recipe) -> None:
        self.ens, self.objective, self.recipe = ens, objective, recipe
        self.members = (SeparateMembers if ens.stack is None else StackedMembers)(ens, recipe)

    def step(
        self, batch: TrainingBatch, frozen: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train on one batch; returns the outputs and the objective's terms.

        ``frozen`` members are run but not updated, ``scale`` multiplies the learning rate, and
        ``check`` has the objective look at shapes and labels.
        """
        drawn = range(self.ens.members) if batch.drawn is None else batch.drawn
        trained = set(self.objective.trained_members(drawn)) - frozen
        outputs, backward = self.members.forward(batch, trained)
        terms, gradients = self.evaluate(outputs, batch, check=check)
        # Where the loss is not finite, the weights of before are worth keeping.
        if trained and math.isfinite(terms.loss):
            self.members.update(backward(gradients), batch.drawn, trained, scale)
        return outputs[0].detach(), terms

    def evaluate(
        self, outputs: Sequence[Tensor], batch: TrainingBatch, *, check: bool
    ) -> tuple[Terms, Sequence[Tensor]]:
        """The objective's terms and its gradient at ``outputs``.

        ``outputs`` are those on the batch and, where there are any, on unlabelled inputs. The
        gradient is scaled so that each member takes the step of its own loss.
        """
        logits, *unlabelled = map(single_precision, outputs)
        if batch.own:
            return self._evaluate_own(logits, batch, check=check)
        extra = unlabelled[0] if unlabelled else None
        if check:
            self.objective.check_inputs(logits, batch.y, extra, None, batch.weights)
        terms, gradients = value_and_gradient(
            self.objective, logits, batch.y, extra, None, batch.weights
        )
        scale = self.objective.step_scale(len(logits))
        return terms, [gradient * scale for gradient in gradients]

    def _evaluate_own(
        self, logits: Tensor, batch: TrainingBatch, *, check: bool
    ) -> tuple[Terms, list[Tensor]]:
        """The same where each member has its own examples: a fleet of ensembles of one member."""
        weights = [] if batch.weights is None else [batch.weights]
        for own, *others in zip(logits, batch.y, *weights, strict=True) if check else ():
            self.objective.check_inputs(own[None], others[0], None, None, *others[1:])
        terms, (gradient,) = fleet_value_and_gradient(
            self.objective, {}, logits[:, None], batch.y, *weights
        )
        parts = {name: part.mean() for name, part in terms.parts.items() if name not in _COMMON}
        scale = self.objective.step_scale(1)
        return Terms(terms.loss.mean(), parts), [gradient[:, 0] * scale]


class StackedMembers:
    """Members held as one stack ``[members, …]``.

    Where a batch uses some members only, their rows are copied out, run, differentiated and stepped
    in place: the cost does not depend on how many members there are.
    """

    def __init__(self, ens: Ensemble, recipe: Recipe) -> None:
        assert ens.stack is not None
        self.ens, self.recipe = ens, recipe
        parameters, self.buffers = tensors_of(ens.stack)
        self.parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        self.fixed = {name: p for name, p in parameters.items() if not p.requires_grad}
        if not self.parameters:
            raise ValueError("no parameter requires a gradient: there is nothing to train")
        self.optimizer = stack_optimizer(recipe, self.parameters, ens.stack)
        plain = not (self.fixed or self.buffers or recipe.amp or recipe.compile)
        stacked = ens.resolved_execution() == "stacked"
        self.engine = engine_of(ens.stack) if plain and stacked else None
        self.run = torch.compile(ens.run) if recipe.compile else ens.run
        self.run_drawn = torch.compile(ens.run_drawn) if recipe.compile else ens.run_drawn

    def forward(self, batch: TrainingBatch, trained: set[int]) -> tuple[list[Tensor], Backward]:
        """Outputs of the drawn members for each of the batch's inputs, and the way back.

        Running statistics change for trained members only.
        """
        outputs, backward = self._forward(batch, trained)
        if not self.ens.sharing:
            return outputs, backward
        rows = range(self.ens.members) if batch.drawn is None else batch.drawn
        taking_part = [member in trained for member in rows]
        shared = [name in self.ens.shared for name in self.parameters]
        return outputs, mean_gradients(backward, shared, taking_part)

    def _forward(self, batch: TrainingBatch, trained: set[int]) -> tuple[list[Tensor], Backward]:
        inputs, drawn, own = batch.inputs(), batch.drawn, batch.own
        index = None if drawn is None else torch.tensor(drawn, device=self.ens.device)
        leaves = self.parameters if index is None else self._rows(self.parameters, index)
        if self.ens.backbone is not None:
            with autocast(inputs[0], self.recipe):
                inputs = [self._features(x, own=own) for x in inputs]
        if self.engine is not None and inputs[0].ndim >= 2 + own:
            return self.engine.vjp(leaves, [x if own else x[None] for x in inputs])
        return self._differentiated(inputs, leaves, index, trained, own=own)

    def _features(self, x: Tensor, *, own: bool) -> Tensor:
        """What the backbone makes of a batch, or of each member's batch."""
        if not own:
            return self.ens.features(x)
        features: Tensor = self.ens.features(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return features

    def _differentiated(
        self,
        inputs: Sequence[Tensor],
        leaves: dict[str, Tensor],
        index: Tensor | None,
        trained: set[int],
        *,
        own: bool,
    ) -> tuple[list[Tensor], Backward]:
        """The same by automatic differentiation."""
        drawn = range(self.ens.members) if index is None else index.tolist()
        idle = [member for member in drawn if member not in trained]
        before = {n: buffer[idle] for n, buffer in self.buffers.items()} if idle else {}
        with autocast(inputs[0], self.recipe):
            if index is None:
                tensors = {**leaves, **self.fixed}
                outputs = _run_each(
                    lambda x: self.run(tensors, self.buffers, x, own=own), inputs, self.buffers
                )
            else:
                leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
                tensors = {**leaves, **self._rows(self.fixed, index)}
                outputs = _run_each(
                    lambda x: self.run_drawn(tensors, self.buffers, x, index, own=own),
                    inputs,
                    self.buffers,
                )
        for name, values in before.items():
            self.buffers[name].data[idle] = values  # .data: the way back does not use them
        return outputs, _autograd(outputs, list(leaves.values()))

    def update(
        self, gradients: Sequence[Tensor], drawn: list[int] | None, trained: set[int], scale: float
    ) -> None:
        """Step the ``trained`` ones of the drawn members, from what the way back returned."""
        rows = range(self.ens.members) if drawn is None else drawn
        positions = [position for position, member in enumerate(rows) if member in trained]
        if not positions:
            return
        if len(positions) < len(rows):
            named = dict(zip(self.parameters, gradients, strict=True))
            picked = rows_of(named, self.ens.shared, lambda gradient: gradient[positions])
            gradients = list(picked.values())
            drawn = [rows[position] for position in positions]
        if self.recipe.clip is not None:
            gradients = clip_by_member(gradients, self.recipe.clip)
        self.optimizer.step(gradients, drawn, scale)

    def _rows(self, tensors: dict[str, Tensor], index: Tensor) -> dict[str, Tensor]:
        """Copies of the rows of some members; what they share is not copied."""
        apart = {name: tensor.detach() for name, tensor in tensors.items()}
        return rows_of(apart, self.ens.shared, lambda tensor: tensor.index_select(0, index))


class SeparateMembers:
    """Members held as modules of their own: one optimiser each, on stacks of one."""

    def __init__(self, ens: Ensemble, recipe: Recipe) -> None:
        assert ens.unlike is not None
        self.ens, self.recipe, self.modules = ens, recipe, ens.unlike
        self.parameters = [[p for p in m.parameters() if p.requires_grad] for m in self.modules]
        if not any(self.parameters):
            raise ValueError("no parameter requires a gradient: there is nothing to train")
        optimizers = {}
        for member, module in enumerate(self.modules):
            named = {n: p for n, p in module.named_parameters() if p.requires_grad}
            stacks = {n: p.detach()[None] for n, p in named.items()}  # views: they share memory
            alone = recipe.of_members([member], ens.members)
            if stacks:
                optimizers[str(member)] = stack_optimizer(alone, stacks, module)
        self.optimizer = OptimizerParts(optimizers)

    def forward(self, batch: TrainingBatch, trained: set[int]) -> tuple[list[Tensor], Backward]:
        inputs, own = batch.inputs(), batch.own
        rows = range(self.ens.members) if batch.drawn is None else batch.drawn
        updated = self._updated(batch.drawn, trained)
        idle = [b for m in rows if m not in updated for b in self.modules[m].buffers()]
        before = [buffer.clone() for buffer in idle]
        with autocast(inputs[0], self.recipe):
            outputs = _run_each(
                lambda x: self._outputs(x, list(rows), own=own),
                inputs,
                {f"{m}.{n}": b for m in rows for n, b in self.modules[m].named_buffers()},
            )
        for buffer, values in zip(idle, before, strict=True):
            buffer.copy_(values)
        leaves = [parameter for member in updated for parameter in self.parameters[member]]
        return outputs, _autograd(outputs, leaves)

    def _outputs(self, x: Tensor, rows: list[int], *, own: bool) -> Tensor:
        if not own:
            return self.ens(x, rows)  # type: ignore[no-any-return]
        return torch.cat([self.ens(batch, [j]) for batch, j in zip(x, rows, strict=True)])

    def _updated(self, drawn: list[int] | None, trained: set[int]) -> list[int]:
        rows = range(self.ens.members) if drawn is None else drawn
        return [member for member in rows if member in trained and self.parameters[member]]

    def update(
        self, gradients: Sequence[Tensor], drawn: list[int] | None, trained: set[int], scale: float
    ) -> None:
        left = iter(gradients)
        for member in self._updated(drawn, trained):
            own = [next(left)[None] for _ in self.parameters[member]]
            if self.recipe.clip is not None:
                own = clip_by_member(own, self.recipe.clip)
            self.optimizer.parts[str(member)].step(own, None, scale)


def _run_each(
    run: Callable[[Tensor], Tensor], inputs: Sequence[Tensor], buffers: Mapping[str, Tensor]
) -> list[Tensor]:
    """Outputs for each of the inputs; running statistics are those of the first, labelled ones.

    Predictions are made with them, for inputs like these and not like the unlabelled ones.
    """
    outputs = [run(inputs[0])]
    if len(inputs) > 1:
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        outputs += [run(x) for x in inputs[1:]]
        for name, values in before.items():
            buffers[name].data.copy_(values)  # .data: the way back does not use them
    return outputs


def _autograd(outputs: list[Tensor], leaves: Sequence[Tensor]) -> Backward:
    """Gradients of ``leaves``, zero for a layer that is never called, from those at outputs."""

    def backward(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        if not leaves:
            return []
        cast = [g.to(output.dtype) for g, output in zip(gradients, outputs, strict=True)]
        return torch.autograd.grad(outputs, leaves, cast, allow_unused=True, materialize_grads=True)

    return backward


def single_precision(outputs: Tensor) -> Tensor:
    """Outputs as an objective sees them: in float32 where they were computed in half of it."""
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def autocast(x: Tensor, recipe: Recipe) -> AbstractContextManager[object]:
    """The precision that a recipe asks for."""
    if not recipe.amp:
        return nullcontext()
    return torch.autocast(x.device.type, dtype=torch.bfloat16)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16; a processor that cannot be asked may."""
    features: dict[str, object] = {}
    if device.type == "cpu":
        features = getattr(torch.cpu, "get_capabilities", dict)()
    return not features or any(has for name, has in features.items() if "bf16" in name)

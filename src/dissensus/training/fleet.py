"""The fleet: many ensembles side by side, their tensors ``[ensembles · members, …]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.execution import stacked_outputs
from dissensus.ensemble.stack import tensors_of
from dissensus.objectives import Objective
from dissensus.objectives.fast import fleet_value_and_gradient
from dissensus.training.batches import (
    batch_sizes,
    batches_together,
    derived_seed,
    pieces,
    shuffled,
)
from dissensus.training.evaluation import KEPT, check_task, judge, record_of
from dissensus.training.optim import clip_by_member
from dissensus.training.shared_weights import Backward, mean_gradients, stack_optimizer
from dissensus.training.stream import ORDER, STRANGERS

if TYPE_CHECKING:
    from dissensus.training.fit_fleet import Training

_PICKED = 1 << 19  # numbers of x that are picked from the data, or evaluated, at once


class Fleet:
    """Ensembles of one kind, side by side; see :func:`dissensus.training.fit_fleet.kind`."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        first = self.trainings[0]
        assert first.ens.stack is not None
        self.members, self.combine = first.ens.members, first.ens.combine
        self.shared = first.ens.shared
        self.stack, self.engine = first.ens.stack, engine_of(first.ens.stack)
        own = [tensors_of(t.ens.stack)[0] for t in self.trainings if t.ens.stack is not None]
        self.tensors = {n: torch.cat([p[n].detach() for p in own]) for n in own[0]}
        self.best: dict[str, Tensor] = {}
        self.sizes = batch_sizes(len(first), first.recipe.batch_size, shuffle=True)
        self.optimizers = [(part, self._make_optimizer(part)) for part in self._equal_rates()]
        self._collect_hyperparameters()
        outputs = first.ens(first.inputs(first.train[0][:1])).detach()  # of one shape for all
        for training in self.trainings:
            self._check(training, outputs)

    def _collect_hyperparameters(self) -> None:
        """Hyperparameters ``[ensembles]`` of the objectives, by name."""
        objectives, device = [_objective(t) for t in self.trainings], self.trainings[0].ens.device
        self.values = {
            name: torch.tensor([getattr(o, name) for o in objectives], device=device)
            for name in objectives[0].hyperparameters
        }

    def _make_optimizer(self, part: slice) -> Any:
        named = dict(zip(self.tensors, self._part(self.tensors.values(), part), strict=True))
        return stack_optimizer(self.trainings[part.start].recipe, named, self.stack)

    def _check(self, training: Training, outputs: Tensor) -> None:
        """Raise before any work if targets do not fit; ``outputs`` are those of one row."""
        for _, y, *_ in filter(None, (training.train, training.val)):
            several = outputs.expand(-1, len(y), -1)
            _objective(training).check(several, y)
            check_task(several, y, self.combine)

    # ---- an epoch -------------------------------------------------------------------------------

    def epoch(self, epoch: int) -> list[dict[str, Any]]:
        """Train one epoch; return each ensemble's record, with ``failure`` where it failed."""
        meter = FleetMeter(self.combine)
        losses: list[Tensor] = []
        strangers = self._strangers(epoch)
        for x, y, *weights in self._batches(epoch):
            outputs, loss, parts, gradients = self._gradients(x, strangers(x), y, *weights)
            del x  # before the next one is made: inputs are the largest tensors of a step
            self._step(gradients, epoch + len(losses) / len(self.sizes))
            meter.add(outputs, y, parts, *weights)
            losses.append(loss)
        columns = {"train": meter.records(), "val": self._evaluate("val")}
        if self.trainings[0].recipe.exact_train:
            columns["train_exact"] = self._evaluate("train")
        records: list[dict[str, Any]] = []
        for place, failure in enumerate(self._failures(torch.stack(losses))):
            metrics = {name: column[place] for name, column in columns.items() if column}
            records.append({"epoch": epoch + 1, **metrics})
            if failure:
                records[-1]["failure"] = failure
        return records

    def _step(self, gradients: Sequence[Tensor], time: float) -> None:
        clip = self.trainings[0].recipe.clip
        if clip is not None:
            gradients = clip_by_member(gradients, clip)
        for part, optimizer in self.optimizers:
            scale = self.trainings[part.start].recipe.scale(time)
            optimizer.step(self._part(gradients, part), None, scale)

    def _strangers(self, epoch: int) -> Callable[[Tensor], Tensor | None]:
        """A function that makes the strangers of a batch, the same as for an ensemble alone."""
        makers = [training.strangers for training in self.trainings]
        if makers[0] is None:
            return lambda x: None
        seeds = [derived_seed(t.recipe.seed, epoch, STRANGERS) for t in self.trainings]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def make(x: Tensor) -> Tensor:
            each = zip(makers, x, generators, strict=True)
            return torch.stack([make(own, generator) for make, own, generator in each if make])

        return make

    def _gradients(
        self, x: Tensor, extra: Tensor | None, y: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], Sequence[Tensor]]:
        """Outputs, losses ``[ensembles]``, their parts, and gradients in the tensors' order."""
        (outputs, *unlabelled), backward = self._forward([x] if extra is None else [x, extra])
        objective = _objective(self.trainings[0])
        terms, slopes = fleet_value_and_gradient(
            objective, self.values, outputs, y, weights, *unlabelled
        )
        gradients = backward([slope * objective.step_scale(self.members) for slope in slopes])
        return outputs.detach(), terms.loss, terms.parts, gradients

    def _forward(self, inputs: list[Tensor]) -> tuple[list[Tensor], Backward]:
        """Outputs ``[ensembles, members, batch, outputs]`` of each, and the way back."""
        if self.engine is not None:
            flat, product = self.engine.vjp(self.tensors, inputs)
            outputs = [o.unflatten(0, (len(inputs[0]), self.members)) for o in flat]

            def backward(slopes: Sequence[Tensor]) -> Sequence[Tensor]:
                return product([slope.flatten(0, 1) for slope in slopes])
        else:
            leaves = {name: p.detach().requires_grad_() for name, p in self.tensors.items()}
            outputs = [self._vmapped(leaves, x) for x in inputs]

            def backward(slopes: Sequence[Tensor]) -> Sequence[Tensor]:
                return torch.autograd.grad(outputs, list(leaves.values()), slopes)

        if not self.shared:
            return outputs, backward
        shared = [name in self.shared for name in self.tensors]
        return outputs, mean_gradients(backward, shared, [True] * self.members)

    def _outputs(self, x: Tensor) -> Tensor:
        """``[ensembles, members, batch, outputs]`` for inputs ``[ensembles, batch, …]``."""
        if self.engine is None:
            return self._vmapped(self.tensors, x)
        flat = self.engine.forward(self.tensors, x)
        outputs: Tensor = flat.unflatten(0, (len(x), self.members))
        return outputs

    def _vmapped(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        stacks = {name: p.unflatten(0, (len(x), -1)) for name, p in tensors.items()}

        def one(own: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return stacked_outputs(self.stack, own, {}, inputs)

        outputs: Tensor = vmap(one)(stacks, x)
        return outputs

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Batches ``[ensembles, batch, …]``, each ensemble's own in its own order.

        Inputs, targets and, where there are any, example weights.
        """
        orders = []
        for training in self.trainings:
            seed = derived_seed(training.recipe.seed, epoch, ORDER)
            order = shuffled(len(training), seed).to(training.train[0].device)
            orders.append(order if training.rows is None else training.rows[order])
        inputs = self.trainings[0].inputs
        row = self.trainings[0].train[0][0].numel() * len(orders)
        together = batches_together(self.sizes, row, _PICKED)
        for rows, sizes, _ in pieces(self.sizes, together):
            index = [order[rows.start : rows.stop] for order in orders]
            picked = [
                _pick([t.train[kind] for t in self.trainings], index)
                for kind in range(len(self.trainings[0].train))
            ]
            for x, *others in zip(*(tensor.split(sizes, 1) for tensor in picked), strict=True):
                yield inputs(x), *others

    def _evaluate(self, which: str) -> list[dict[str, Any]]:
        """The metrics of training or validation data, where there are any."""
        if getattr(self.trainings[0], which) is None:
            return []
        data = [t.train_rows() if which == "train" else t.val or () for t in self.trainings]
        meter, inputs = FleetMeter(self.combine), self.trainings[0].inputs
        row = inputs(data[0][0][:1]).numel() * len(data)
        count = min(max(_PICKED // row, 64), 1024)
        for begin in range(0, len(data[0][0]), count):
            rows = slice(begin, begin + count)
            with torch.no_grad():
                outputs = self._outputs(inputs(torch.stack([own[0][rows] for own in data])))
            others = [
                torch.stack([own[kind][rows] for own in data]) for kind in range(1, len(data[0]))
            ]
            meter.add(outputs, others[0], {}, *others[1:])
        return meter.records()

    def _failures(self, losses: Tensor) -> list[str | None]:
        """The failure of each ensemble, if any, from its losses ``[batches, ensembles]``."""
        finite = losses.isfinite()
        sums = [p.reshape(losses.shape[1], -1).sum(1) for p in self.tensors.values()]
        weights = torch.stack(sums).isfinite().all(0).tolist()
        failures: list[str | None] = []
        for place, good in enumerate(finite.all(0).tolist()):
            if not good:
                batch = int((~finite[:, place]).nonzero()[0])
                failures.append(f"the loss is {float(losses[batch, place])} at batch {batch + 1}")
            else:
                failures.append(None if weights[place] else "the weights are not finite")
        return failures

    # ---- best weights, and leaving --------------------------------------------------------------

    def keep_best(self, places: list[int]) -> None:
        """Remember the weights that these ensembles have now."""
        if not places:
            return
        if not self.best:
            self.best = {name: torch.zeros_like(p) for name, p in self.tensors.items()}
        for name, parameter in self.tensors.items():
            rows = self._tensor_rows(name, places)
            self.best[name].index_copy_(0, rows, parameter.index_select(0, rows))

    def unload(self, place: int, *, best: bool) -> None:
        """Put an ensemble's weights, the best or those of now, into the ensemble itself."""
        stack = self.trainings[place].ens.stack
        assert stack is not None
        source = self.best if best else self.tensors
        with torch.no_grad():
            for name, parameter in tensors_of(stack)[0].items():
                begin = place * len(parameter)
                parameter.copy_(source[name][begin : begin + len(parameter)])

    def compact(self, places: list[int]) -> None:
        """Go on with these ensembles alone."""
        self.trainings = [self.trainings[place] for place in places]
        self.tensors, self.best = (
            {name: p.index_select(0, self._tensor_rows(name, places)) for name, p in own.items()}
            for own in (self.tensors, self.best)
        )
        optimizers, self.optimizers, begin = self.optimizers, [], 0
        for part, optimizer in optimizers:
            inside = [place - part.start for place in places if part.start <= place < part.stop]
            if inside:
                now = slice(begin, begin + len(inside))
                parameters = self._part(self.tensors.values(), now)
                selected = optimizer.select(self._member_rows(inside), parameters)
                self.optimizers.append((now, selected))
                begin = now.stop
        self._collect_hyperparameters()

    def _member_rows(self, places: list[int]) -> Tensor:
        device = next(iter(self.tensors.values())).device
        firsts = torch.tensor(places, device=device)[:, None] * self.members
        return (firsts + torch.arange(self.members, device=device)).flatten()

    def _tensor_rows(self, name: str, places: list[int]) -> Tensor:
        """The rows of a tensor that belong to these ensembles; of a shared one, one for each."""
        rows = self._member_rows(places)
        return rows[:: self.members] // self.members if name in self.shared else rows

    # ---- learning rates -------------------------------------------------------------------------

    def _equal_rates(self) -> list[slice]:
        """Runs of ensembles that share optimiser settings and schedule."""
        slices, begin = [], 0
        recipes = [training.recipe for training in self.trainings]
        for _, run in groupby(recipes, lambda r: (r.optimizer, r.schedule, r.epochs)):
            end = begin + len(list(run))
            slices.append(slice(begin, end))
            begin = end
        return slices

    def _part(self, tensors: Iterable[Tensor], part: slice) -> list[Tensor]:
        """The rows of ``tensors``, given in the order of parameters, of some ensembles."""
        rows = slice(part.start * self.members, part.stop * self.members)
        return [
            tensor[part if name in self.shared else rows]
            for name, tensor in zip(self.tensors, tensors, strict=True)
        ]


def _pick(parts: Sequence[Tensor], index: Sequence[Tensor]) -> Tensor:
    """``part[rows]`` of each, stacked; without the copy that ``torch.stack`` makes."""
    first = parts[0]
    picked = first.new_empty(len(parts), len(index[0]), *first.shape[1:])
    for place, (part, rows) in enumerate(zip(parts, index, strict=True)):
        torch.index_select(part, 0, rows, out=picked[place])
    return picked


def _objective(training: Training) -> Objective:
    assert isinstance(training.objective, Objective)
    return training.objective


# ---- metrics ------------------------------------------------------------------------------------


class FleetMeter:
    """The metrics of each ensemble of a fleet, as a ``Meter`` has them, computed together."""

    def __init__(self, combine: str) -> None:
        self.combine = combine
        self.examples: Tensor | float = 0.0  # of all ensembles, or, weighed, of each
        # Outputs of the batches that are kept, ``rows`` of them, in one block: if each had its own
        # between the larger tensors of a step, memory would be left in pieces that nothing fits in.
        self.outputs: Tensor | None = None
        self.rows = 0
        self.targets: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.parts: list[dict[str, Tensor]] = []
        self.sums: dict[str, Tensor] = {}
        self.part_sums: dict[str, Tensor] = {}

    def add(
        self, outputs: Tensor, targets: Tensor, parts: dict[str, Tensor], *weights: Tensor
    ) -> None:
        """Remember a batch: ``[ensembles, members, batch, outputs]`` and what goes with it."""
        *before, rows, width = outputs.shape
        if self.outputs is None or self.rows + rows > self.outputs.shape[2]:
            if self.rows:
                self._flush()
            batches = 1 + -(-KEPT // outputs.numel())
            self.outputs = outputs.new_empty(*before, batches * rows, width)
        self.outputs[:, :, self.rows : self.rows + rows] = outputs
        self.rows += rows
        self.weights += weights
        self.targets.append(targets)
        self.parts.append(parts)
        if len(self.targets) * outputs.numel() >= KEPT:
            self._flush()

    def _flush(self) -> None:
        assert self.outputs is not None
        outputs, targets = self.outputs[:, :, : self.rows], torch.cat(self.targets, 1)
        weights = [torch.cat(self.weights, 1)] if self.weights else []
        sums = vmap(lambda o, t, *w: judge(o, t, self.combine, *w))(outputs, targets, *weights)
        for name, value in sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        sizes = torch.tensor([float(t.shape[1]) for t in self.targets], device=targets.device)
        for name in self.parts[0]:
            total = sizes.double() @ torch.stack([part[name] for part in self.parts]).double()
            before = self.part_sums.get(name)
            self.part_sums[name] = total if before is None else before + total
        self.examples = self.examples + (
            weights[0].double().sum(1) if weights else targets.shape[1]
        )
        self.rows, self.targets, self.weights, self.parts = 0, [], [], []

    def records(self) -> list[dict[str, Any]]:
        """One record for each ensemble."""
        if self.rows:
            self._flush()
        sums = dict(self.sums)
        sums["member_error"] = sums["member"].mean(1)
        sums["examples"] = torch.as_tensor(self.examples).expand_as(sums["member_error"])
        sums["per_member"] = sums.pop("member") / sums["examples"][:, None]
        if "hits" in sums:
            sums["per_member_hits"] = sums.pop("member_hits") / sums["examples"][:, None]
        columns = {name: value.tolist() for name, value in sums.items()}
        parts = {name: value.tolist() for name, value in self.part_sums.items()}
        return [
            record_of(
                {name: values[place] for name, values in columns.items()}
                | {"parts": {name: values[place] for name, values in parts.items()}}
            )
            for place in range(len(columns["ensemble_error"]))
        ]

"""The tensors of a fleet: ``[ensembles · members, …]``, and an epoch of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.execution import stacked_outputs
from dissensus.ensemble.stack import tensors_of
from dissensus.objectives import Objective
from dissensus.objectives.fast import fleet_value_and_gradient
from dissensus.training.batches import batch_sizes, derived_seed, shuffled
from dissensus.training.meters import check_task, epoch_record, judge
from dissensus.training.optim import MemberOptimizer, Optimizer, clip_by_member
from dissensus.training.schedules import Schedule
from dissensus.training.stream import ORDER

if TYPE_CHECKING:
    from dissensus.training.fleet import Training

__all__ = ["Fleet"]

_PICKED = 1 << 21  # numbers of x that are picked from the data at once


class Fleet:
    """Ensembles of one kind, side by side; see :func:`dissensus.training.fleet.kind`."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = list(trainings)
        first = self.trainings[0]
        assert first.ens.stack is not None
        self.members, self.combine = first.ens.members, first.ens.combine
        self.stack, self.engine = first.ens.stack, engine_of(first.ens.stack)
        own = [tensors_of(t.ens.stack)[0] for t in self.trainings if t.ens.stack is not None]
        self.tensors = {n: torch.cat([p[n].detach() for p in own]) for n in own[0]}
        self.best: dict[str, Tensor] = {}
        self.sizes = batch_sizes(len(first.train[0]), first.recipe.batch_size, shuffle=True)
        self.optimizers = [
            (rows, MemberOptimizer(self._settings(rows), self._rows(rows), rows.stop - rows.start))
            for rows in self._equal_rates()
        ]
        self._settle()
        for training in self.trainings:
            self._check(training)

    def _settle(self) -> None:
        """What follows from who is here."""
        objectives = [_objective(t) for t in self.trainings]
        device = self.trainings[0].ens.device
        self.values = {
            name: torch.tensor([getattr(o, name) for o in objectives], device=device)
            for name in objectives[0].hyperparameters
        }

    def _check(self, training: Training) -> None:
        """Say before any work what is wrong with targets."""
        for x, y, *_ in filter(None, (training.train, training.val)):
            outputs = training.ens(x[:1]).detach().expand(-1, len(y), -1)
            _objective(training).check(outputs, y)
            check_task(outputs, y, self.combine)

    # ---- an epoch -------------------------------------------------------------------------------

    def epoch(self, epoch: int) -> list[dict[str, Any]]:
        """Train one epoch and return each ensemble's record; ``failure`` says what went wrong."""
        meter, losses = _FleetMeter(self.combine), []
        for number, (x, y, *weights) in enumerate(self._batches(epoch)):
            outputs, loss, parts, gradients = self._gradients(x, y, *weights)
            self._step(gradients, epoch + number / len(self.sizes))
            meter.add(outputs, y, parts, *weights)
            losses.append(loss)
        columns = {"train": meter.records(), "val": self._evaluated("val")}
        if self.trainings[0].recipe.exact_train:
            columns["train_exact"] = self._evaluated("train")
        records: list[dict[str, Any]] = []
        for place, failure in enumerate(self._failures(torch.stack(losses))):
            record = {name: figures[place] for name, figures in columns.items() if figures}
            records.append(
                {"epoch": epoch + 1, **record, **({"failure": failure} if failure else {})}
            )
        return records

    def _step(self, gradients: Sequence[Tensor], time: float) -> None:
        clip = self.trainings[0].recipe.clip
        if clip is not None:
            gradients = clip_by_member(gradients, clip)
        for rows, optimizer in self.optimizers:
            recipe = self.trainings[rows.start // self.members].recipe
            assert isinstance(recipe.schedule, Schedule)
            scale = recipe.schedule(time, recipe.epochs)
            optimizer.step([gradient[rows] for gradient in gradients], None, scale)

    def _gradients(
        self, x: Tensor, y: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], list[Tensor]]:
        """Outputs, losses ``[ensembles]``, their parts, and gradients in the tensors' order."""
        shape = (len(x), self.members)
        if self.engine is None:
            leaves = {name: p.requires_grad_() for name, p in self.tensors.items()}
            ends = self._outputs(x)
        else:
            flat, backward = self.engine.vjp(self.tensors, x)
            ends = flat.unflatten(0, shape)
        objective = _objective(self.trainings[0])
        terms, at_ends = fleet_value_and_gradient(objective, self.values, ends, y, *weights)
        if self.engine is None:
            found = list(torch.autograd.grad(ends, list(leaves.values()), at_ends))
            for parameter in self.tensors.values():
                parameter.requires_grad_(False)
        else:
            found = list(backward(at_ends.flatten(0, 1)).values())
        return ends.detach(), terms.loss, terms.parts, found

    def _outputs(self, x: Tensor) -> Tensor:
        """``[ensembles, members, batch, outputs]`` for inputs ``[ensembles, batch, …]``."""
        outputs: Tensor
        if self.engine is not None:
            outputs = self.engine.forward(self.tensors, x).unflatten(0, (len(x), self.members))
            return outputs
        stacks = {name: p.unflatten(0, (-1, self.members)) for name, p in self.tensors.items()}

        def one(own: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return stacked_outputs(self.stack, own, {}, inputs)

        outputs = vmap(one)(stacks, x)
        return outputs

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        """Batches ``[ensembles, batch, …]``, each ensemble's own in its own order.

        Inputs, targets and, where there are any, example weights.
        """
        orders = []
        for training in self.trainings:
            seed = derived_seed(training.recipe.seed, epoch, ORDER)
            orders.append(shuffled(len(training.train[0]), seed).to(training.train[0].device))
        wide = self.trainings[0].train[0][0].numel() * len(orders) * self.sizes[0]
        together = max(1, _PICKED // max(wide, 1))
        begin = 0
        for first in range(0, len(self.sizes), together):
            sizes = self.sizes[first : first + together]
            index = [order[begin : begin + sum(sizes)] for order in orders]
            picked = [
                torch.stack([t.train[kind][i] for t, i in zip(self.trainings, index, strict=True)])
                for kind in range(len(self.trainings[0].train))
            ]
            yield from zip(*(tensor.split(sizes, 1) for tensor in picked), strict=True)
            begin += sum(sizes)

    def _evaluated(self, which: str) -> list[dict[str, Any]]:
        """The figures of training or validation data, where there are any."""
        data = [getattr(training, which) for training in self.trainings]
        if data[0] is None:
            return []
        meter = _FleetMeter(self.combine)
        for begin in range(0, len(data[0][0]), 1024):
            rows = slice(begin, begin + 1024)
            with torch.no_grad():
                outputs = self._outputs(torch.stack([own[0][rows] for own in data]))
            others = [
                torch.stack([own[kind][rows] for own in data]) for kind in range(1, len(data[0]))
            ]
            meter.add(outputs, others[0], {}, *others[1:])
        return meter.records()

    def _failures(self, losses: Tensor) -> list[str | None]:
        """What is not finite about each ensemble, from its losses ``[batches, ensembles]``."""
        finite = losses.isfinite()
        rows = torch.stack([p.flatten(1).sum(1) for p in self.tensors.values()]).sum(0)
        weights = rows.unflatten(0, (-1, self.members)).isfinite().all(1).tolist()
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
        rows = self._member_rows(places)
        for name, parameter in self.tensors.items():
            self.best[name].index_copy_(0, rows, parameter.index_select(0, rows))

    def land(self, place: int, *, best: bool) -> None:
        """Put an ensemble's weights, the best or those of now, into the ensemble itself."""
        stack = self.trainings[place].ens.stack
        assert stack is not None
        source = self.best if best else self.tensors
        rows = slice(place * self.members, (place + 1) * self.members)
        with torch.no_grad():
            for name, parameter in tensors_of(stack)[0].items():
                parameter.copy_(source[name][rows])

    def compact(self, places: list[int]) -> None:
        """Go on with these ensembles alone."""
        rows = self._member_rows(places)
        old = self.optimizers
        self.trainings = [self.trainings[place] for place in places]
        self.tensors = {name: p.index_select(0, rows) for name, p in self.tensors.items()}
        self.best = {name: p.index_select(0, rows) for name, p in self.best.items()}
        self.optimizers = []
        begin = 0
        for before, optimizer in old:
            inside = rows[(rows >= before.start) & (rows < before.stop)] - before.start
            if len(inside):
                now = slice(begin, begin + len(inside))
                self.optimizers.append((now, optimizer.keeping(inside, self._rows(now))))
                begin = now.stop
        self._settle()

    def _member_rows(self, places: list[int]) -> Tensor:
        device = next(iter(self.tensors.values())).device
        firsts = torch.tensor(places, device=device)[:, None] * self.members
        return (firsts + torch.arange(self.members, device=device)).flatten()

    # ---- learning rates -------------------------------------------------------------------------

    def _equal_rates(self) -> list[slice]:
        """Runs of rows whose ensembles share learning rate, weight decay and schedule."""
        slices: list[slice] = []
        previous = None
        for place, training in enumerate(self.trainings):
            recipe = training.recipe
            key = (recipe.optimizer, recipe.schedule, recipe.epochs)
            rows = slice(place * self.members, (place + 1) * self.members)
            if slices and key == previous:
                rows = slice(slices.pop().start, rows.stop)
            slices.append(rows)
            previous = key
        return slices

    def _settings(self, rows: slice) -> Optimizer:
        optimizer = self.trainings[rows.start // self.members].recipe.optimizer
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def _rows(self, rows: slice) -> list[Tensor]:
        return [parameter[rows] for parameter in self.tensors.values()]


class _FleetMeter:
    """An epoch's figures of each ensemble, as a ``Meter`` has them, judged together."""

    def __init__(self, combine: str) -> None:
        self.combine = combine
        self.examples: Tensor | float = 0.0  # of all ensembles, or, weighed, of each
        self.outputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.parts: list[dict[str, Tensor]] = []
        self.sums: dict[str, Tensor] = {}
        self.part_sums: dict[str, Tensor] = {}

    def add(
        self, outputs: Tensor, targets: Tensor, parts: dict[str, Tensor], *weights: Tensor
    ) -> None:
        """Remember a batch: ``[ensembles, members, batch, outputs]`` and what goes with it."""
        self.weights += weights
        self.outputs.append(outputs)
        self.targets.append(targets)
        self.parts.append(parts)
        if len(self.outputs) * outputs.numel() >= _PICKED:
            self._flush()

    def _flush(self) -> None:
        outputs, targets = torch.cat(self.outputs, 2), torch.cat(self.targets, 1)
        weights = [torch.cat(self.weights, 1)] if self.weights else []
        found = vmap(lambda o, t, *w: judge(o, t, self.combine, *w))(outputs, targets, *weights)
        for name, value in found.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        sizes = torch.tensor([float(t.shape[1]) for t in self.targets], device=targets.device)
        for name in self.parts[0]:
            total = sizes.double() @ torch.stack([part[name] for part in self.parts]).double()
            before = self.part_sums.get(name)
            self.part_sums[name] = total if before is None else before + total
        self.examples = self.examples + (
            weights[0].double().sum(1) if weights else targets.shape[1]
        )
        self.outputs, self.targets, self.weights, self.parts = [], [], [], []

    def records(self) -> list[dict[str, Any]]:
        """One record an ensemble."""
        if self.outputs:
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
            epoch_record(
                {name: values[place] for name, values in columns.items()}
                | {"parts": {name: values[place] for name, values in parts.items()}}
            )
            for place in range(len(columns["ensemble_error"]))
        ]


def _objective(training: Training) -> Objective:
    assert isinstance(training.objective, Objective)
    return training.objective

"""Meters: the metrics of an epoch, from the outputs that training computes anyway.

Outputs are kept for a while and measured many batches at a time: far cheaper than batch by batch,
and no second pass over the data. When they are measured depends on their number alone, so a run
that was stopped in between ends with the same metrics to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import log_softmax

from dissensus.losses import check_loss_inputs, cross_entropy, errors
from dissensus.outputs import combined_log_probs, log_mean_exp

__all__ = ["FleetMeter", "Meter", "check_task", "judge"]

_KEPT = 1 << 20  # numbers kept before they are judged
_PLAIN = ("examples", "ensemble_error", "member_error", "hits", "parts")  # sums that are no tensors


def check_task(outputs: Tensor, targets: Tensor, combine: str) -> None:
    """Raise unless the targets are of the kind that ``combine`` makes the ensemble predict."""
    loss = "mse" if combine == "mean" else "cross_entropy"
    try:
        check_loss_inputs(outputs, targets, loss, finite=False)
    except ValueError as error:
        task = "regression" if combine == "mean" else "classification"
        other = "'probability' for classification" if combine == "mean" else "'mean' for regression"
        raise ValueError(
            f"combine={combine!r} makes this {task}: {error}; or make the ensemble with "
            f"combine={other}"
        ) from error


def judge(
    outputs: Tensor, targets: Tensor, combine: str, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Sums over examples: ERR, each member's error, and hits of both for a classifier.

    With ``weights`` each example counts as much as they say.
    """

    def total(values: Tensor) -> Tensor:
        values = values.double()
        return values.sum(-1) if weights is None else values @ weights.double()

    outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
    if combine == "mean":
        found = errors(outputs, targets, "mse", combine)
        return {
            "ensemble_error": total(found.ensemble),
            "member": total(found.member),
        }
    labels = targets.argmax(-1) if targets.is_floating_point() else targets
    log_probs = log_softmax(outputs, -1)
    member = cross_entropy(log_probs, targets)
    if combine == "score" or targets.is_floating_point():
        mixed = combined_log_probs(outputs, combine)
        ensemble, predicted = cross_entropy(mixed, targets), mixed.argmax(-1)
    else:  # the error needs the true class alone, the prediction no logarithm
        ensemble, predicted = -log_mean_exp(-member), log_probs.exp().sum(0).argmax(-1)
    return {
        "ensemble_error": total(ensemble),
        "member": total(member),
        "hits": total(predicted == labels),
        "member_hits": total(outputs.argmax(-1) == labels),
    }


def _record(found: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of an epoch: means, from sums over its ``examples``.

    ``per_member`` (and for classifiers ``per_member_hits``) are means already.
    """
    count = found["examples"]
    record: dict[str, Any] = {
        "examples": count,
        **{f"part/{name}": value / count for name, value in found["parts"].items()},
        "ensemble_error": found["ensemble_error"] / count,
        "member_error": found["member_error"] / count,
        "diversity": (found["member_error"] - found["ensemble_error"]) / count,
        "per_member_error": found["per_member"],
    }
    if "hits" in found:
        record["accuracy"] = found["hits"] / count
        record["per_member_accuracy"] = found["per_member_hits"]
    return record


class Meter:
    """Collects an epoch's outputs and objective parts and turns them into one record."""

    def __init__(self, members: int, combine: str) -> None:
        self.members, self.combine = members, combine
        self.outputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.weights: list[Tensor] = []  # as many as targets, or none
        self.drawn: list[list[int]] = []
        self.parts: list[tuple[int, dict[str, Tensor]]] = []
        self.sums: dict[str, Any] = {
            "examples": 0,
            "ensemble_error": 0.0,
            "member_error": 0.0,
            "hits": 0.0,
            "member": torch.zeros(members, dtype=torch.float64),
            "member_hits": torch.zeros(members, dtype=torch.float64),
            "member_examples": torch.zeros(members, dtype=torch.float64),
            "parts": {},
        }

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise unless the very first batch has the targets that are predicted."""
        check_task(outputs.detach(), targets, self.combine)

    def add(
        self,
        outputs: Tensor,
        targets: Tensor,
        parts: dict[str, Tensor],
        drawn: list[int] | None,
        weights: Tensor | None = None,
    ) -> None:
        """Remember one batch."""
        self.outputs.append(outputs.detach())
        self.targets.append(targets)
        if weights is not None:
            self.weights.append(weights)
        self.drawn.append(list(range(self.members)) if drawn is None else drawn)
        self.parts.append((len(targets), {name: part.detach() for name, part in parts.items()}))
        if self._full():
            self.flush()

    def _full(self) -> bool:
        return self._enough(len(self.outputs) * self.outputs[0].numel())

    def _enough(self, numbers: int) -> bool:
        return numbers >= _KEPT

    def flush(self) -> None:
        """Judge what is kept: at once where all batches have the same members."""
        if not self.outputs:
            return
        same = all(drawn == self.drawn[0] for drawn in self.drawn)
        weights: list[Tensor | None] = [*self.weights] or [None] * len(self.outputs)
        if same:
            every = torch.cat(self.weights) if self.weights else None
            groups = [(torch.cat(self.outputs, 1), torch.cat(self.targets), self.drawn[0], every)]
        else:
            groups = list(zip(self.outputs, self.targets, self.drawn, weights, strict=True))
        for group in groups:
            self._judge(*group)
        totals = self.sums["parts"]
        for name in self.parts[0][1]:
            values = torch.stack([parts[name] for _, parts in self.parts]).double().cpu()
            sizes = torch.tensor([size for size, _ in self.parts], dtype=torch.float64)
            totals[name] = totals.get(name, 0.0) + float(values @ sizes)
        self.outputs, self.targets, self.weights, self.drawn, self.parts = [], [], [], [], []

    def _judge(
        self, outputs: Tensor, targets: Tensor, drawn: list[int], weights: Tensor | None
    ) -> None:
        judged = judge(outputs, targets, self.combine, weights)
        found = {name: value.cpu() for name, value in judged.items()}
        sums = self.sums
        examples = len(targets) if weights is None else float(weights.double().sum())
        sums["examples"] += examples
        sums["ensemble_error"] += float(found["ensemble_error"])
        sums["member_error"] += float(found["member"].mean())
        sums["member"][drawn] += found["member"]
        sums["member_examples"][drawn] += examples
        if "hits" in found:
            sums["hits"] += float(found["hits"])
            sums["member_hits"][drawn] += found["member_hits"]

    def record(self) -> dict[str, Any]:
        """The epoch in numbers: means over its examples; None for a member that saw none.

        Where a batch uses some members only, its ensemble is made of these, and so is mean ERR:
        their difference is the diversity.
        """
        self.flush()
        sums = self.sums
        counts = sums["member_examples"].tolist()
        by_member = {
            name: [t / n if n else None for t, n in zip(sums[name].tolist(), counts, strict=True)]
            for name in ("member", "member_hits")
        }
        found = {**sums, "per_member": by_member["member"]}
        if self.combine == "mean":
            del found["hits"]
        else:
            found["per_member_hits"] = by_member["member_hits"]
        return _record(found)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which :meth:`load` goes on, in the middle of an epoch."""
        tensors = {name: self.sums[name] for name in ("member", "member_hits", "member_examples")}
        for number, (outputs, targets) in enumerate(zip(self.outputs, self.targets, strict=True)):
            tensors |= {f"outputs.{number}": outputs, f"targets.{number}": targets}
        tensors |= {f"weights.{number}": own for number, own in enumerate(self.weights)}
        for number, (_, parts) in enumerate(self.parts):
            tensors |= {f"part.{number}.{name}": value for name, value in parts.items()}
        plain = {name: self.sums[name] for name in _PLAIN}
        sizes = [(size, list(parts)) for size, parts in self.parts]
        return tensors, {**plain, "drawn": self.drawn, "sizes": sizes}

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any], device: torch.device) -> None:
        """Go on from what :meth:`state` returned."""
        for name in ("member", "member_hits", "member_examples"):
            self.sums[name] = tensors[name]
        for name in _PLAIN:
            self.sums[name] = plain[name]
        self.drawn = [list(drawn) for drawn in plain["drawn"]]
        for number, (size, names) in enumerate(plain["sizes"]):
            self.outputs.append(tensors[f"outputs.{number}"].to(device))
            self.targets.append(tensors[f"targets.{number}"].to(device))
            if f"weights.{number}" in tensors:
                self.weights.append(tensors[f"weights.{number}"].to(device))
            parts = {name: tensors[f"part.{number}.{name}"].to(device) for name in names}
            self.parts.append((size, parts))


class FleetMeter:
    """The metrics of each ensemble of a fleet, as a ``Meter`` has them, computed together."""

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
        if len(self.outputs) * outputs.numel() >= _KEPT:
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
        """One record for each ensemble."""
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
            _record(
                {name: values[place] for name, values in columns.items()}
                | {"parts": {name: values[place] for name, values in parts.items()}}
            )
            for place in range(len(columns["ensemble_error"]))
        ]

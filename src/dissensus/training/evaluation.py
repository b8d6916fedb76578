"""Evaluation: predictions of a data set, and the metrics of an epoch.

A :class:`Meter` measures the outputs that training computes anyway. It keeps them for a while and
measures many batches at a time: far cheaper than batch by batch, and no second pass over the data.
When they are measured depends on their number alone, so a run that was stopped in between ends with
the same metrics to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import log_softmax

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import with_prefix, without_prefix
from dissensus.losses import check_loss_inputs, cross_entropy, errors
from dissensus.objectives.gaussian import gaussian_errors
from dissensus.outputs import Predictions, combined_log_probs, log_mean_exp
from dissensus.tools.guards import check_finite, guarded
from dissensus.tools.progress import ProgressBar
from dissensus.training.batches import Batches, as_batches, as_tensors, split_weights

KEPT = 1 << 20  # numbers kept before they are measured
_BY_MEMBER = ("member", "member_hits", "member_examples")  # sums of each member


def check_task(outputs: Tensor, targets: Tensor, combine: str) -> None:
    """Raise unless the targets are of the kind that ``combine`` makes the ensemble predict."""
    if _is_gaussian(outputs, targets, combine):
        return
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
    if _is_gaussian(outputs, targets, combine):
        member, ensemble = gaussian_errors(outputs, targets)
        return {"ensemble_error": total(ensemble), "member": total(member)}
    if combine == "mean":
        error = errors(outputs, targets, "mse", combine)
        return {"ensemble_error": total(error.ensemble), "member": total(error.member)}
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
        # The first class of the largest ones, as argmax, in two thirds of its time.
        "member_hits": total(outputs.max(-1).indices == labels),
    }


def _is_gaussian(outputs: Tensor, targets: Tensor, combine: str) -> bool:
    """Whether members predict a mean and a variance: two outputs for each target."""
    return combine == "mean" and targets.ndim == 2 and outputs.shape[-1] == 2 * targets.shape[-1]


def record_of(sums: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of an epoch: means, from sums over its ``examples``.

    ``per_member`` (and for classifiers ``per_member_hits``) are means already. Without
    ``ensemble_error`` there is nothing of the ensemble: its members saw no examples in common.
    """
    count = sums["examples"]
    record: dict[str, Any] = {
        "examples": count,
        **{f"part/{name}": value / count for name, value in sums["parts"].items()},
    }
    if "ensemble_error" in sums:
        record["ensemble_error"] = sums["ensemble_error"] / count
    record["member_error"] = sums["member_error"] / count
    if "ensemble_error" in sums:
        record["diversity"] = (sums["member_error"] - sums["ensemble_error"]) / count
    record["per_member_error"] = sums["per_member"]
    if "hits" in sums:
        record["accuracy"] = sums["hits"] / count
    if "per_member_hits" in sums:
        record["per_member_accuracy"] = sums["per_member_hits"]
    return record


class MeterBatch(NamedTuple):
    """The outputs of a batch, ``[drawn members, batch, outputs]``, until they are measured."""

    outputs: Tensor
    targets: Tensor
    drawn: list[int]
    parts: dict[str, Tensor]
    weights: Tensor | None


class Meter:
    """Collects an epoch's outputs and objective parts and turns them into one record.

    With ``own``, targets and weights are ``[members, batch, …]``, as each member has examples of
    its own; the metrics of the ensemble, which need examples in common, are left out.
    """

    def __init__(self, members: int, combine: str, *, own: bool = False) -> None:
        self.members, self.combine, self.own = members, combine, own
        self.batches: list[MeterBatch] = []
        self.sums: dict[str, Any] = {
            "examples": 0,
            "ensemble_error": 0.0,
            "member_error": 0.0,
            "hits": 0.0,
            "parts": {},
            **{name: torch.zeros(members, dtype=torch.float64) for name in _BY_MEMBER},
        }

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise unless the very first batch has the targets that are predicted."""
        if self.own:
            outputs, targets = outputs[:1], targets[0]
        check_task(outputs, targets, self.combine)

    def add(
        self,
        outputs: Tensor,
        targets: Tensor,
        parts: dict[str, Tensor],
        drawn: list[int] | None,
        weights: Tensor | None = None,
    ) -> None:
        """Remember one batch; nothing may have a gradient."""
        members = list(range(self.members)) if drawn is None else drawn
        self.batches.append(MeterBatch(outputs, targets, members, parts, weights))
        if self._size() >= KEPT:
            self.flush()

    def _size(self) -> int:
        """About how many numbers are kept."""
        return len(self.batches) * self.batches[0].outputs.numel()

    def flush(self) -> None:
        """Measure what is kept: at once where all batches have the same members."""
        batches, self.batches = self.batches, []
        if not batches:
            return
        totals = self.sums["parts"]
        sizes = torch.tensor([batch.outputs.shape[1] for batch in batches], dtype=torch.float64)
        for name in batches[0].parts:
            values = torch.stack([batch.parts[name] for batch in batches]).double().cpu()
            totals[name] = totals.get(name, 0.0) + float(values @ sizes)
        if all(batch.drawn == batches[0].drawn for batch in batches):
            batches = [_joined(batches, axis=int(self.own))]
        for batch in batches:
            self._measure(batch)

    def _measure(self, batch: MeterBatch) -> None:
        judged = _judge_own if self.own else judge
        metrics = judged(batch.outputs, batch.targets, self.combine, batch.weights)
        metrics = {name: value.cpu() for name, value in metrics.items()}
        sums, drawn, weights = self.sums, batch.drawn, batch.weights
        examples: int | Tensor = batch.outputs.shape[1]  # of all members, or of each
        if weights is not None:
            examples = weights.double().sum(-1).cpu()
        sums["examples"] += float(examples.mean()) if isinstance(examples, Tensor) else examples
        sums["ensemble_error"] += float(metrics.get("ensemble_error", 0.0))
        sums["member_error"] += float(metrics["member"].mean())
        sums["member"][drawn] += metrics["member"]
        sums["member_examples"][drawn] += examples
        if "member_hits" in metrics:
            sums["hits"] += float(metrics.get("hits", 0.0))
            sums["member_hits"][drawn] += metrics["member_hits"]

    def record(self) -> dict[str, Any]:
        """The metrics of the epoch: means over its examples; None for a member that saw none.

        Where a batch uses some members only, its ensemble is made of these, and so is mean ERR:
        their difference is the diversity.
        """
        self.flush()
        sums = dict(self.sums)
        counts = sums["member_examples"].tolist()
        for name, total in (("per_member", "member"), ("per_member_hits", "member_hits")):
            pairs = zip(sums[total].tolist(), counts, strict=True)
            sums[name] = [value / count if count else None for value, count in pairs]
        if self.combine == "mean":
            del sums["hits"], sums["per_member_hits"]
        if self.own:
            del sums["ensemble_error"]
            sums.pop("hits", None)
        return record_of(sums)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which :meth:`load` goes on, in the middle of an epoch."""
        tensors = {name: self.sums[name] for name in _BY_MEMBER}
        for number, batch in enumerate(self.batches):
            own = {"outputs": batch.outputs, "targets": batch.targets}
            own |= {} if batch.weights is None else {"weights": batch.weights}
            tensors |= with_prefix(f"{number}.", own | with_prefix("part.", batch.parts))
        plain = {name: value for name, value in self.sums.items() if name not in _BY_MEMBER}
        kept = [(batch.drawn, list(batch.parts)) for batch in self.batches]
        return tensors, {**plain, "kept": kept}

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any], device: torch.device) -> None:
        """Go on from what :meth:`state` returned."""
        self.sums = {name: value for name, value in plain.items() if name != "kept"}
        self.sums |= {name: tensors[name] for name in _BY_MEMBER}
        for number, (drawn, names) in enumerate(plain["kept"]):
            own = without_prefix(f"{number}.", tensors)
            own = {name: tensor.to(device) for name, tensor in own.items()}
            parts = {name: own[f"part.{name}"] for name in names}
            batch = MeterBatch(own["outputs"], own["targets"], drawn, parts, own.get("weights"))
            self.batches.append(batch)


def _judge_own(
    outputs: Tensor, targets: Tensor, combine: str, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """As :func:`judge` for members with examples of their own: ensembles of one, side by side."""
    others = [targets] if weights is None else [targets, weights]
    sums = vmap(lambda o, *t: judge(o[None], t[0], combine, *t[1:]))(outputs, *others)
    return {name: sums[name][:, 0] for name in ("member", "member_hits") if name in sums}


def _joined(batches: list[MeterBatch], axis: int) -> MeterBatch:
    """Batches of the same members as one, without the parts."""
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return MeterBatch(
        torch.cat([batch.outputs for batch in batches], 1),
        torch.cat([batch.targets for batch in batches], axis),
        batches[0].drawn,
        {},
        torch.cat(weights, axis) if weights else None,
    )


# ---- whole data sets ----------------------------------------------------------------------------


@guarded
def predict(
    ens: Ensemble,
    data: Any,
    *,
    batch_size: int = 1024,
    meta: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Predictions:
    """Every member's outputs for ``(x, y)``, ``x`` alone, or a DataLoader, on the CPU.

    ``x`` may be a feature store's rows or ``data.Examples``, which are streamed from disk; the
    outputs are all in memory. ``progress`` shows a bar on a terminal.

    In evaluation mode, without gradients, in the order of the data: a DataLoader must not shuffle.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
    >>> predict(ens, (torch.zeros(7, 4), torch.zeros(7, dtype=torch.long))).outputs.shape
    torch.Size([2, 7, 3])
    """
    outputs, targets, data = [], [], as_tensors(data)
    batches = as_batches(data, batch_size, shuffle=False, device=ens.device, labelled=False)
    with ProgressBar("predicting", len(batches), show=progress) as bar:
        for batch, y in _outputs(ens, batches):
            outputs.append(batch)
            if y is not None:
                targets.append(y)
            bar.advance()
    if not outputs:
        raise ValueError("the data are empty, got 0 batches")
    predicted = torch.cat(outputs, 1)
    check_finite(predicted, name="outputs")
    return Predictions(predicted, torch.cat(targets) if targets else None, dict(meta or {}))


def evaluate(
    ens: Ensemble,
    data: Any,
    batch_size: int,
    *,
    meter: Meter | None = None,
    rows: Callable[[int], range] | None = None,
) -> dict[str, Any]:
    """The metrics of a data set in evaluation mode, as in the record of an epoch.

    Outputs are measured batch by batch and never all in memory. One of several processes passes the
    ``meter`` that gathers outputs, and ``rows``, which of a batch's rows are its own.
    """
    meter = Meter(ens.members, ens.combine) if meter is None else meter
    data, weights = split_weights(data)
    size, done = max(batch_size, 1024), 0
    batches = as_batches(data, size, shuffle=False, device=ens.device, labelled=False)
    for outputs, y in _outputs(ens, batches, rows):
        if y is None:
            raise ValueError("validation data must be (x, y), got x alone")
        if not done:
            meter.check(outputs, y)
        own = None if weights is None else weights[done : done + len(y)].cpu()
        meter.add(outputs, y, {}, None, own)
        done += len(y)
    if not done:
        raise ValueError("the validation data are empty, got 0 batches")
    return meter.record()


def _outputs(
    ens: Ensemble, batches: Batches, rows: Callable[[int], range] | None = None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Outputs for the ``rows`` of each batch, and all its targets, on the CPU."""
    with torch.random.fork_rng():
        for x, y in batches.epoch(seed=0):
            own = range(len(x)) if rows is None else rows(len(x))
            # A process without a row still runs one: split members need every process.
            part = x[own.start : own.stop] if own else x[:1]
            with ens.evaluating():
                outputs = ens(part.to(ens.device)).cpu()[:, : len(own)]
            yield outputs, None if y is None else y.cpu()

"""What is exported: raw inputs in, the combined prediction, all members and scores out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.detection import Detector
from dissensus.ensemble import Ensemble
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.execution import stacked_outputs
from dissensus.ensemble.stack import tensors_of
from dissensus.outputs import combine
from dissensus.runs.facts import Facts
from dissensus.scores import NamedScore, parse

__all__ = ["Deployed", "Treatment", "check_detector", "chosen_scores", "example_for"]


class Treatment(nn.Module):
    """What is done to raw inputs before the members see them, as ``data.read_inputs`` does it.

    A table's columns are filled, logged and standardised in float64 by the statistics of the
    training rows; bytes of an image are divided by 255; members then get float32. Missing values of
    a table that had none in training are not filled: they make the outputs NaN. Without ``facts``
    inputs are left as they are.
    """

    fill: Tensor | None
    log: Tensor | None
    mean: Tensor | None
    scale: Tensor | None

    def __init__(self, facts: Facts | None) -> None:
        super().__init__()
        notes = {} if facts is None else facts.preprocessing
        self.known = facts is not None
        self.pixels = facts is not None and len(facts.input_shape) >= 2
        logged = set(notes.get("log_features", ()))
        log = [name in logged for name in facts.features] if facts is not None else []
        self.register_buffer("fill", _column_values(notes, "feature_fill"))
        self.register_buffer("log", torch.tensor(log) if any(log) else None)
        self.register_buffer("mean", _column_values(notes, "feature_mean"))
        self.register_buffer("scale", _column_values(notes, "feature_std"))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, …]`` in the units of the source, to what the members take."""
        if not self.known:
            return x
        if self.pixels and x.dtype == torch.uint8:
            return x.float() / 255
        return (x if self.mean is None else self._standardized(x.double())).float()

    def _standardized(self, x: Tensor) -> Tensor:
        assert self.mean is not None
        assert self.scale is not None
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill, x)
        if self.log is not None:
            x = torch.where(self.log, x.sign() * x.abs().log1p(), x)
        return (x - self.mean) / self.scale


def _column_values(notes: Mapping[str, Any], key: str) -> Tensor | None:
    if "feature_mean" not in notes or notes.get(key) is None:
        return None
    return torch.tensor(notes[key], dtype=torch.float64)


class Deployed(nn.Module):
    """An ensemble with all that stands before and after it, as one module without settings.

    Returns a dict: ``probs`` (``mean`` for a regression, in the units of the target), ``members``
    ``[members, batch, outputs]``, ``score_NAME`` for each score, and ``is_ood`` where there is a
    detector. The names are those that ``dissensus predict`` writes.
    """

    weights: Tensor | None
    unit: Tensor | None
    zero: Tensor | None

    def __init__(
        self,
        ens: Ensemble,
        scores: Sequence[NamedScore],
        *,
        detector: Detector | None = None,
        facts: Facts | None = None,
    ) -> None:
        super().__init__()
        self.treatment = Treatment(facts)
        self.network = _Network(ens)
        self.members, self.combine = ens.members, ens.combine
        self.register_buffer("weights", None if ens.weights is None else ens.weights.cpu())
        self.scores = list(scores)
        self.detecting = None if detector is None else parse(str(detector.score_name))
        self.threshold = None if detector is None else detector.threshold
        notes = facts.preprocessing if facts is not None and ens.combine == "mean" else {}
        for name, key in (("unit", "target_std"), ("zero", "target_mean")):
            value = torch.tensor(notes[key], dtype=torch.float32) if key in notes else None
            self.register_buffer(name, value)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Every output by name; see the class."""
        outputs = self.network(self.treatment(x))
        combined = combine(outputs, self.combine, self.weights)
        name = "mean" if self.combine == "mean" else "probs"
        found = {name: self._in_units(combined), "members": self._in_units(outputs)}
        found |= {f"score_{score}": score(outputs) for score in self.scores}
        if self.detecting is not None:
            assert self.threshold is not None
            strange = self.detecting(outputs).double() > self.threshold
            # The library raises for these; a file can only say that they are not as usual.
            found["is_ood"] = strange | ~outputs.isfinite().all(-1).all(0)
        return found

    def _in_units(self, y: Tensor) -> Tensor:
        if self.unit is not None:
            y = y * self.unit
        return y if self.zero is None else y + self.zero


class _Network(nn.Module):
    """The members of an ensemble, ``[members, batch, outputs]``, in the form that traces best.

    Networks whose stacked execution is written out keep it: one batched product a layer. Others
    run member by member, each with weights of its own, which a runtime can fold and fuse; ``vmap``,
    which stacks any network, would fix the batch size when it is traced.
    """

    def __init__(self, ens: Ensemble) -> None:
        super().__init__()
        own = copy.deepcopy(ens).cpu()
        self.backbone, own.backbone = own.backbone, None
        self.stack: nn.Module | None = None
        self.each: nn.ModuleList | None = None
        if own.stack is not None and own.execution != "looped" and engine_of(own.stack) is not None:
            self.stack = own.stack
        else:
            self.each = nn.ModuleList(own.member(j) for j in range(own.members))

    def forward(self, x: Tensor) -> Tensor:
        if self.backbone is not None:
            x = self.backbone(x)
        if self.stack is not None:
            return stacked_outputs(self.stack, *tensors_of(self.stack), x)
        assert self.each is not None
        return torch.stack([member(x) for member in self.each])

    def kind(self) -> str:
        """The name of the class of a member."""
        return type(self.stack if self.each is None else self.each[0]).__name__


def chosen_scores(
    ens: Ensemble, asked: str | Sequence[str] | None, detector: Detector | None
) -> list[NamedScore]:
    """The scores to export: those asked for, else the detector's, else the usual one.

    Raises for a score that is not a function of the members' outputs alone.
    """
    regression = ens.combine == "mean"
    if detector is not None:
        check_detector(detector)
    usual = "variance" if regression else "pds"
    if asked is None:
        asked = usual if detector is None else str(detector.score_name)
    names = [asked] if isinstance(asked, str) else list(asked)
    scores = [_known(name) for name in dict.fromkeys(names)]
    needed = scores if detector is None else [*scores, parse(str(detector.score_name))]
    for score in needed:
        if regression and score.name != "variance":
            raise ValueError(f"a regression has the score variance alone, got {str(score)!r}")
        if not regression and score.name == "variance":
            raise ValueError("variance is the score of a regression; a classifier has pds and more")
    return scores


def check_detector(detector: Detector) -> None:
    """Raise unless its score is a function of the members' outputs and its threshold is set."""
    if detector.score_name is None or detector.distance is not None:
        what = detector.score_name or "a function of your own"
        raise ValueError(
            f"the detector's score is {what}, which cannot be exported: it is no function of the "
            "members' outputs alone; fit a detector with a score of `dissensus scores`"
        )
    if detector.threshold is None:
        raise ValueError("the detector has no threshold yet; call .fit(val) first")


def _known(name: str) -> NamedScore:
    if name in ("mahalanobis", "relative_mahalanobis", "knn", "nearest_neighbours"):
        raise ValueError(
            f"{name} cannot be exported: it is computed from features of the training data, not "
            "from the members' outputs; choose a score of `dissensus scores`"
        )
    return parse(name)


def example_for(facts: Facts, *, pixels: bool = False) -> Tensor:
    """Three made-up inputs in the units of a run's data: float64 for a table that is standardised
    inside, ``uint8`` for images with ``pixels``, else float32."""
    generator = torch.Generator().manual_seed(0)
    shape = (3, *facts.input_shape)
    if pixels:
        if len(facts.input_shape) < 2:
            raise ValueError(
                f"bytes are for images; one example of {facts.name} has the shape "
                f"{tuple(facts.input_shape)}"
            )
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    notes = facts.preprocessing
    if "feature_mean" in notes:
        drawn = torch.randn(shape, dtype=torch.float64, generator=generator)
        mean, std = (torch.tensor(notes[key]).double() for key in ("feature_mean", "feature_std"))
        return drawn * std + mean
    return torch.rand(shape, generator=generator)

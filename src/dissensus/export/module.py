"""Export modules: raw inputs in; the combined prediction, all members and scores out."""

from __future__ import annotations

import copy
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dissensus._version import __version__
from dissensus.data import Encoder
from dissensus.detection import Detector, MemberFeatures
from dissensus.ensemble import Ensemble
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.execution import stacked_outputs
from dissensus.ensemble.stack import tensors_of
from dissensus.outputs import combine
from dissensus.runs.data import DataSummary
from dissensus.tools.guards import check_finite

FORMAT = "dissensus.export/1"


class Preprocessing(nn.Module):
    """Raw inputs to the inputs of the members, as ``data.read_inputs`` does it.

    The inputs of a table are what ``data.Preparation.encode`` makes of its columns; they are filled
    and encoded, as ``data.Encoder.pieces`` has it, in float64. Flat arrays are standardised, bytes
    of an image divided by 255; members then get float32. With ``missing="error"`` or ``"drop"``
    nothing is filled: missing values make the outputs NaN. Without a ``summary`` of the data,
    inputs are left as they are.
    """

    fill: Tensor | None
    column: Tensor
    start: Tensor
    width: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor | None
    scale: Tensor | None

    def __init__(self, summary: DataSummary | None) -> None:
        super().__init__()
        statistics = {} if summary is None else summary.preprocessing
        self.known = summary is not None
        self.pixels = summary is not None and len(summary.input_shape) >= 2
        self.encoded = "encoder" in statistics
        fill: Any = None
        moments: Any = statistics.get("feature_mean"), statistics.get("feature_std")
        if self.encoded:
            encoder = Encoder.from_dict(statistics["encoder"])
            moments = encoder.mean, encoder.scale
            if statistics["preparation"]["missing"] == "fill":
                fill = encoder.scaler.fill
            column, *bends = encoder.pieces
            self.register_buffer("column", torch.from_numpy(column))
            for name, values in zip(("start", "width", "low", "high"), bends, strict=True):
                self.register_buffer(name, torch.from_numpy(values))
        for name, values in zip(("fill", "mean", "scale"), (fill, *moments), strict=True):
            constant = None if values is None else torch.as_tensor(values, dtype=torch.float64)
            self.register_buffer(name, constant)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs ``[batch, …]`` in the units of the source, to what the members take."""
        if not self.known:
            return x
        if self.pixels and x.dtype == torch.uint8:
            return x.float() / 255
        if self.mean is None or self.scale is None:
            return x.float()
        x = x.double()
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill, x)
        if self.encoded:
            x = (x.index_select(-1, self.column) - self.start) / self.width
            x = torch.minimum(torch.maximum(x, self.low), self.high)
        return ((x - self.mean) / self.scale).float()


def check_weights(ens: Ensemble) -> None:
    """Raise unless all weights are finite: a file cannot say later what went wrong in training."""
    for name, tensor in ens.state_dict().items():
        if tensor.is_floating_point():
            check_finite(tensor, name=f"the weights {name}")


class ExportModule(nn.Module):
    """An ensemble with all that stands before and after it, as one module without settings.

    Returns a dict: ``probs`` (``mean`` for a regression, in the units of the target), ``members``
    ``[members, batch, outputs]``, ``score_NAME`` for each score, and ``is_ood`` where there is a
    detector. The names are those that ``dissensus predict`` writes. With a tuned detector, scores
    are those of its members, whose outputs are ``tuned`` ``[members, batch, outputs]``; the
    prediction is that of the ensemble.
    """

    weights: Tensor | None
    unit: Tensor | None
    zero: Tensor | None

    def __init__(
        self,
        ens: Ensemble,
        scores: Sequence[Detector],
        *,
        detector: Detector | None = None,
        summary: DataSummary | None = None,
    ) -> None:
        super().__init__()
        check_weights(ens)
        self.preprocessing = Preprocessing(summary)
        self.backbone = copy.deepcopy(ens.backbone).cpu() if ens.backbone is not None else None
        self.network = _Members(ens)
        tuned: Any = None if detector is None else detector.tuned
        self.tuned = None if tuned is None else _Members(tuned)
        self.members, self.combine = ens.members, ens.combine
        self.register_buffer("weights", None if ens.weights is None else ens.weights.cpu())
        self.scores = list(scores)
        self.detector = detector
        regression = summary is not None and ens.combine == "mean"
        statistics = summary.preprocessing if summary is not None and regression else {}
        for name, key in (("unit", "target_std"), ("zero", "target_mean")):
            value = statistics.get(key)
            scale = None if value is None else torch.tensor(value, dtype=torch.float32)
            self.register_buffer(name, scale)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Every output by name; see the class."""
        x = self.preprocessing(x)
        x = x if self.backbone is None else self.backbone(x)
        outputs = self.network(x)
        combined = combine(outputs, self.combine, self.weights)
        name = "mean" if self.combine == "mean" else "probs"
        results = {name: self._in_units(combined), "members": self._in_units(outputs)}
        if self.tuned is not None:
            outputs = self.tuned(x)
            results["tuned"] = self._in_units(outputs)
        results |= {f"score_{each.score_name}": each.rule(outputs) for each in self.scores}
        if self.detector is not None:
            assert self.detector.threshold is not None
            above = self.detector.rule(outputs).double() > self.detector.threshold
            # The library raises for outputs that are not finite; a file can only flag them.
            results["is_ood"] = above | ~outputs.isfinite().all(-1).all(0)
        return results

    def _in_units(self, y: Tensor) -> Tensor:
        if self.unit is not None:
            y = y * self.unit
        return y if self.zero is None else y + self.zero


class _Members(nn.Module):
    """The members of an ensemble behind its backbone, in the form that traces best.

    Networks whose stacked execution is written out keep it: one batched product a layer. Others
    run member by member, each with weights of its own, which a runtime can fold and fuse; ``vmap``,
    which stacks any network, would fix the batch size when it is traced.
    """

    def __init__(self, ens: Ensemble) -> None:
        super().__init__()
        ens = copy.deepcopy(ens).cpu()
        ens.backbone = None
        self.stack: nn.Module | None = None
        self.each: nn.ModuleList | None = None
        if ens.stack is not None and ens.execution != "looped" and engine_of(ens.stack) is not None:
            self.stack = ens.stack
        else:
            self.each = nn.ModuleList(ens.member(j) for j in range(ens.members))

    def forward(self, x: Tensor) -> Tensor:
        if self.stack is not None:
            return stacked_outputs(self.stack, *tensors_of(self.stack), x)
        assert self.each is not None
        return torch.stack([member(x) for member in self.each])

    def kind(self) -> str:
        """The name of the class of a member."""
        return type(self.stack if self.each is None else self.each[0]).__name__


# ---- scores and examples ------------------------------------------------------------------------


def make_detectors(
    ens: Ensemble, names: str | Sequence[str] | None, detector: Detector | None
) -> list[Detector]:
    """Detectors whose scores to export: ``names``, else that of ``detector``, else the default.

    Raises for a score that is not a function of the members' outputs alone.
    """
    if detector is not None:
        check_detector(detector)
        names = names or str(detector.score_name)
    asked = names if isinstance(names, list | tuple) else [names]
    detectors = [Detector(ens, name) for name in dict.fromkeys(asked)]
    for each in detectors:
        if detector is not None and detector.tuned is not None:
            each.use_tuned(detector.tuned, detector.tuning)
        _check_outputs_alone(each, f"{each.score_name} cannot be exported")
    return detectors


def check_detector(detector: Detector, *, folder: bool = False) -> None:
    """Raise unless its score can be exported and its threshold is set.

    A graph takes scores of the members' logits alone; a ``folder``, which the library reads, scores
    of features as well.
    """
    if detector.space != "logits":
        raise ValueError(f"the detector is of {detector.space}; export takes members with logits")
    functions = detector.features is not None and not isinstance(detector.features, MemberFeatures)
    if detector.score_name is None or functions:
        raise ValueError("a detector with a function of your own cannot be exported")
    if not folder:
        what = f"the detector's score is {detector.score_name}, which cannot be exported"
        _check_outputs_alone(detector, what)
    if detector.threshold is None:
        raise ValueError("the detector has no threshold yet; call .fit(val) first")


def _check_outputs_alone(detector: Detector, what: str) -> None:
    if detector.distances:
        raise ValueError(f"{what}: it needs features of training data; write a folder (hub)")


def example_for(summary: DataSummary, *, pixels: bool = False) -> Tensor:
    """Three made-up inputs in the units of a run's data.

    float64 for a table that the file standardises, ``uint8`` for images with ``pixels``, else
    float32.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (3, *summary.input_shape)
    if pixels:
        if len(summary.input_shape) < 2:
            raise ValueError(f"bytes are for images, got examples {tuple(summary.input_shape)}")
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    statistics = summary.preprocessing
    if "encoder" in statistics:
        scaler = Encoder.from_dict(statistics["encoder"]).scaler
        mean, std = torch.from_numpy(scaler.mean), torch.from_numpy(scaler.scale)
        shape = (3, len(mean))
        return torch.randn(shape, dtype=torch.float64, generator=generator) * std + mean
    if "feature_mean" in statistics:
        mean, std = (torch.tensor(statistics[f"feature_{key}"]).double() for key in ("mean", "std"))
        return torch.randn(shape, dtype=torch.float64, generator=generator) * std + mean
    return torch.rand(shape, generator=generator)


# ---- metadata -----------------------------------------------------------------------------------


def metadata(
    module: ExportModule,
    example: Tensor,
    summary: DataSummary | None,
    detector: Detector | None,
    name: str,
) -> dict[str, Any]:
    """How an exported file was made, what goes in and what comes out, as plain JSON values."""
    description: dict[str, Any] = {
        "format": FORMAT,
        "run": name,
        "task": "regression" if module.combine == "mean" else "classification",
        "combine": module.combine,
        "members": module.members,
        "classes": [] if summary is None else summary.classes,
        "features": [] if summary is None else summary.features,
        "scores": [each.score_name for each in module.scores],
        "input": {
            "name": "x",
            "shape": ["batch", *example.shape[1:]],
            "dtype": str(example.dtype).removeprefix("torch."),
            "units": _units(module.preprocessing, example, summary),
        },
        "outputs": _outputs(module),
        "versions": versions(),
    }
    if summary is not None and "preparation" in summary.preprocessing:
        description["preparation"] = summary.preprocessing["preparation"]
    if detector is not None:
        description["detector"] = {
            "score": detector.score_name,
            "threshold": detector.threshold,
            "accept": detector.accept,
            **({"tuned": detector.tuning} if detector.tuning else {}),
        }
    return description


def versions() -> dict[str, str]:
    """The versions that a file was made with."""
    return {
        "dissensus": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def backbone_name(summary: DataSummary | None) -> str | None:
    """The backbone whose features a run takes as its inputs, without the path of its file.

    >>> backbone = {"backbone": {"name": "code/mine.py:make"}}
    >>> backbone_name(DataSummary("a", "classification", [8], 3, {}, preprocessing=backbone))
    'mine.py:make'
    """
    backbone = {} if summary is None else summary.preprocessing.get("backbone") or {}
    name = backbone.get("name")
    return Path(name).name if isinstance(name, str) and ".py:" in name else name


def _units(preprocessing: Preprocessing, example: Tensor, summary: DataSummary | None) -> str:
    backbone = backbone_name(summary)
    if backbone is not None:
        return f"features of the backbone {backbone}, which is not in the file"
    if preprocessing.pixels and example.dtype == torch.uint8:
        return "pixels from 0 to 255; the file divides by 255"
    if preprocessing.mean is None:
        return "as the members take them"
    if preprocessing.fill is None:
        return "those of the source; the file standardises, and NaN stays NaN"
    return "those of the source; the file fills NaN and standardises"


def _outputs(module: ExportModule) -> dict[str, str]:
    if module.combine == "mean":
        scaled = module.unit is not None or module.zero is not None
        units = ", in the units of the target" if scaled else ""
        outputs = {
            "mean": f"[batch, outputs], the members' mean{units}",
            "members": f"[members, batch, outputs], predictions{units}",
        }
    else:
        outputs = {
            "probs": f"[batch, classes], combined by {module.combine}",
            "members": "[members, batch, classes], logits",
        }
    if module.tuned is not None:
        outputs["tuned"] = "as members, of the copy that was tuned for detection"
    outputs |= {
        f"score_{each.score_name}": "[batch], higher for stranger inputs" for each in module.scores
    }
    if module.detector is not None:
        outputs["is_ood"] = "[batch], whether the detector's score is above its threshold"
    return outputs

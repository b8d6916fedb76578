"""What an exported file says about itself."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus._version import __version__
from dissensus.detection import Detector
from dissensus.export.deployed import Deployed
from dissensus.runs.facts import Facts

__all__ = ["FORMAT", "backbone_of", "metadata"]

FORMAT = "dissensus.export/1"


def metadata(
    deployed: Deployed,
    example: Tensor,
    facts: Facts | None,
    detector: Detector | None,
    name: str,
) -> dict[str, Any]:
    """Plain JSON values: how the file was made, what goes in and what comes out."""
    told: dict[str, Any] = {
        "format": FORMAT,
        "run": name,
        "task": "regression" if deployed.combine == "mean" else "classification",
        "combine": deployed.combine,
        "members": deployed.members,
        "classes": [] if facts is None else facts.classes,
        "features": [] if facts is None else facts.features,
        "scores": [str(score) for score in deployed.scores],
        "input": {
            "name": "x",
            "shape": ["batch", *example.shape[1:]],
            "dtype": str(example.dtype).removeprefix("torch."),
            "units": _units(deployed, example, facts),
        },
        "outputs": _outputs(deployed),
        "versions": {
            "dissensus": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    if detector is not None:
        told["detector"] = {
            "score": detector.score_name,
            "threshold": detector.threshold,
            "tpr": detector.tpr,
        }
    return told


def backbone_of(facts: Facts | None) -> str | None:
    """The backbone whose features a run takes as its inputs, without the path of its file.

    >>> notes = {"backbone": {"name": "code/mine.py:make"}}
    >>> backbone_of(Facts("a", "classification", [8], 3, {}, preprocessing=notes))
    'mine.py:make'
    """
    found = {} if facts is None else facts.preprocessing.get("backbone") or {}
    name = found.get("name")
    return Path(name).name if isinstance(name, str) and ".py:" in name else name


def _units(deployed: Deployed, example: Tensor, facts: Facts | None) -> str:
    backbone = backbone_of(facts)
    if backbone is not None:
        return f"features of the backbone {backbone}, which is not in the file"
    treatment = deployed.treatment
    if treatment.pixels and example.dtype == torch.uint8:
        return "pixels from 0 to 255; the file divides by 255"
    if treatment.mean is not None:
        if treatment.fill is None:
            return "those of the source; the file standardises, and NaN stays NaN"
        return "those of the source; the file fills NaN and standardises"
    return "as the members take them"


def _outputs(deployed: Deployed) -> dict[str, str]:
    regression = deployed.combine == "mean"
    scaled = deployed.unit is not None or deployed.zero is not None
    units = ", in the units of the target" if scaled else ""
    told = {
        "mean" if regression else "probs": (
            f"[batch, outputs], the members' mean{units}"
            if regression
            else f"[batch, classes], combined by {deployed.combine}"
        ),
        "members": "[members, batch, outputs], " + (f"predictions{units}" if units else "outputs"),
    }
    if not regression:
        told["members"] = "[members, batch, classes], logits"
    told |= {f"score_{score}": "[batch], higher for stranger inputs" for score in deployed.scores}
    if deployed.detecting is not None:
        told["is_ood"] = "[batch], whether the detector's score is above its threshold"
    return told

"""How well each score of a method tells unknown inputs from known ones, and how well it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dissensus.data import Inputs
from dissensus.detection import Detection, Estimate, evaluate, threshold_at
from dissensus.shift.accuracy import Accuracies, judged
from dissensus.shift.scoring import FileScorer, Scan, Scorer

__all__ = ["MEASURES", "Study", "detection_rows", "group_means", "study", "study_files"]

#: Measures of detection, and whether more is better.
MEASURES = {"auroc": True, "aupr_in": True, "aupr_out": True, "fpr95": False}

Steps = Callable[[str, int], object]


@dataclass(frozen=True, eq=False)
class Study:
    """One method on one ID set and several OOD sets.

    ``detection[score][set]``; ``thresholds[score]`` chosen on validation data, and the share of
    each set that lies above it, ``flagged[score][set]``, the ID set among them; ``accuracy[set]``
    of labelled sets; ``scores[set][score]`` ``[rows]``.
    """

    id_name: str
    detection: dict[str, dict[str, Detection]]
    scores: dict[str, dict[str, Tensor]]
    thresholds: dict[str, float] = field(default_factory=dict)
    flagged: dict[str, dict[str, float]] = field(default_factory=dict)
    accuracy: dict[str, Accuracies] = field(default_factory=dict)
    temperature: float | None = None


def study(
    scorer: Scorer,
    known: Inputs,
    unknown: Sequence[Inputs],
    *,
    val: Inputs | None = None,
    tpr: float = 0.95,
    bootstrap: int = 200,
    seed: int = 0,
    steps: Steps | None = None,
) -> Study:
    """Scan every set once; thresholds accept ``tpr`` of ``val``, never of what is tested on.

    ``steps(what, amount)`` is told of work done: ``"rows"`` as they are scanned and ``"measures"``
    as they are computed.
    """

    def advance(rows: int) -> None:
        if steps is not None:
            steps("rows", rows)

    scans = {source.name: scorer.scan(source, advance) for source in (known, *unknown)}
    groups = {source.name: source.groups for source in (known, *unknown)}
    thresholds: dict[str, float] = {}
    if val is not None:
        reference = scans[val.name] if val is known else scorer.scan(val, advance)
        thresholds = {name: threshold_at(s, tpr) for name, s in reference.scores.items()}
    greedy = () if scorer.candidates is None else scorer.candidates.greedy_members
    accuracy = {
        name: judged(scan.right, groups[name], greedy, seed=seed)
        for name, scan in scans.items()
        if scan.right
    }
    measured = _measured(scans, known.name, bootstrap, seed, steps)
    return Study(
        known.name,
        measured,
        {name: scan.scores for name, scan in scans.items()},
        thresholds,
        {
            score: {n: _share_above(scan.scores[score], limit) for n, scan in scans.items()}
            for score, limit in thresholds.items()
        },
        accuracy,
        scorer.temperature,
    )


def study_files(
    scorer: FileScorer,
    known: Path,
    unknown: Sequence[Path],
    *,
    bootstrap: int = 200,
    seed: int = 0,
    steps: Steps | None = None,
) -> Study:
    """The same of files of predictions: detection alone."""

    def advance(rows: int) -> None:
        if steps is not None:
            steps("rows", rows)

    scans = {path.stem: scorer.scan(path, advance) for path in (known, *unknown)}
    if len(scans) < 1 + len(unknown):
        raise ValueError("two files are called alike; rename one of them")
    measured = _measured(scans, known.stem, bootstrap, seed, steps)
    return Study(known.stem, measured, {name: scan.scores for name, scan in scans.items()})


def group_means(
    found: Mapping[str, Detection], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """The mean of each measure over the sets of each group, ``{group: {measure: mean}}``.

    >>> import torch
    >>> sets = {"a": evaluate(torch.zeros(2), torch.ones(2), bootstrap=0)}
    >>> group_means(sets, {"near": ["a"], "far": []})["near"]["auroc"]
    1.0
    """
    return {
        group: {
            measure: math.fsum(getattr(found[name], measure) for name in names) / len(names)
            for measure in MEASURES
        }
        for group, names in groups.items()
        if names
    }


def detection_rows(method: str, found: Study) -> list[dict[str, Any]]:
    """One plain row for each score and OOD set, for records and tables of any program."""
    rows = []
    for score, sets in found.detection.items():
        for name, measured in sets.items():
            row: dict[str, Any] = {"method": method, "score": score, "set": name}
            for measure in MEASURES:
                value: Estimate = getattr(measured, measure)
                row[measure] = value.value
                for end in ("low", "high"):
                    edge = getattr(value, end)
                    row[f"{measure}_{end}"] = None if math.isnan(edge) else edge
            row["threshold"] = found.thresholds.get(score)
            row["flagged"] = found.flagged.get(score, {}).get(name)
            row["flagged_id"] = found.flagged.get(score, {}).get(found.id_name)
            row["id_examples"], row["ood_examples"] = measured.id_count, measured.ood_count
            rows.append(row)
    return rows


def _measured(
    scans: Mapping[str, Scan], known: str, bootstrap: int, seed: int, steps: Steps | None
) -> dict[str, dict[str, Detection]]:
    measured: dict[str, dict[str, Detection]] = {}
    for score, inliers in scans[known].scores.items():
        measured[score] = {}
        for name, scan in scans.items():
            if name == known:
                continue
            outliers = scan.scores[score]
            measured[score][name] = evaluate(inliers, outliers, bootstrap=bootstrap, seed=seed)
            if steps is not None:
                steps("measures", 1)
    return measured


def _share_above(scores: Tensor, limit: float) -> float:
    return float((scores > limit).double().mean())

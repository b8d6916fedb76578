"""The collusion explorer: members' predictions around the ensemble's, at each β of real runs.

The paper's Figure 1 draws colluding members as arrows that cancel. Here they are measured: the same
held-out points for every β, each member's output for them, and the members' mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.show.contents import (
    Contents,
    Floats,
    HeldOutRows,
    Reference,
    SweepLine,
    SweepPoint,
)
from dissensus.show.figure import format_number, short
from dissensus.show.metrics import METRICS, SWEEP_METRICS
from dissensus.show.sweep_files import runs_as_sweep

_CLASSES = 10  # the reader can choose among this many outputs at most


@dataclass(frozen=True, eq=False)
class Explorer:
    """What the slider moves over: ``values`` are for the script of the page."""

    name: str
    regression: bool
    alt: str
    values: Mapping[str, Any]
    sources: Sequence[Reference]


def explorers(contents: Contents) -> list[Explorer]:
    """Every set of held-out predictions at two or more β: sweeps first, then the runs."""
    from_runs = runs_as_sweep(contents.methods)
    lines = [*contents.sweeps, *([from_runs] if from_runs else [])]
    return [explorer for line in lines if (explorer := _explorer(line)) is not None]


def _explorer(line: SweepLine) -> Explorer | None:
    if line.axis != "beta" or len(line.held_out) < 2:
        return None
    first = next(iter(line.held_out.values()))
    members, _, outputs = first.outputs.shape
    same_rows = all(
        held.outputs.shape == first.outputs.shape and np.array_equal(held.targets, first.targets)
        for held in line.held_out.values()
    )
    if not same_rows or members < 2:
        return None
    if first.regression:
        labels = [f"output {n + 1}" for n in range(outputs)] if outputs > 1 else ["prediction"]
    else:
        classes = first.classes if len(first.classes) == outputs else range(outputs)
        labels = [f"score of class {name}" for name in classes]
    points = {point.x: point for point in line.points}
    scores = {beta: _center(held)[:, :, :_CLASSES] for beta, held in line.held_out.items()}
    deviations = {beta: values - values.mean(0) for beta, values in scores.items()}
    offsets = {beta: values.mean(1) for beta, values in deviations.items()}
    ends = [
        f"{short(_rms(deviations[beta]))} at β = {beta:g}, of which constant offsets make up "
        f"{short(_rms(offsets[beta]))}"
        for beta in (min(scores), max(scores))
    ]
    alt = (
        f"On {len(first.targets)} held-out inputs the root mean square distance of members' "
        f"{'outputs' if first.regression else 'scores'} from their mean is {'; '.join(ends)}."
    )
    values = {
        "alt": alt,
        "regression": first.regression,
        "outputs": labels[:_CLASSES],
        "start": int((offsets[max(scores)] ** 2).sum(0).argmax()),  # whose offsets differ most
        "targets": first.targets.tolist(),
        "stops": [_stop(beta, values, points.get(beta)) for beta, values in scores.items()],
    }
    sources = [held.source for held in line.held_out.values()]
    return Explorer(line.name, first.regression, alt, values, sources)


def _stop(beta: float, outputs: Floats, point: SweepPoint | None) -> dict[str, Any]:
    """A position of the slider: outputs with four digits, and the numbers of the test split."""
    numbers, verdict = (point.numbers, point.verdict) if point else ({}, "")
    numbers = {name: number for name, number in numbers.items() if name in SWEEP_METRICS}
    texts = {name: format_number(n, METRICS[name].form) for name, n in numbers.items()}
    return {
        "beta": beta,
        "values": [[[float(f"{v:.4g}") for v in r] for r in m] for m in outputs],
        "texts": texts | ({"verdict": verdict} if verdict else {}),
        "keys": {name: f"{n.source.file} → {n.source.key}" for name, n in numbers.items()},
    }


def _rms(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


def _center(held: HeldOutRows) -> Floats:
    """Scores minus their mean, as a constant on all scores changes no prediction; values as is."""
    shift = 0.0 if held.regression else held.outputs.mean(-1, keepdims=True)
    centered: Floats = held.outputs - shift
    return centered

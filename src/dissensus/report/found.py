"""What reading gives: plain values, and for each number the record and key it comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AttackCurve",
    "AttackPictures",
    "Attacked",
    "Budget",
    "Contents",
    "Detected",
    "DetectionRow",
    "Floats",
    "HeldOut",
    "Histogram",
    "Images",
    "Method",
    "Number",
    "Picture",
    "Record",
    "RocLine",
    "Source",
    "StudyFound",
    "Sweep",
    "SweepLine",
    "SweepPoint",
]

Floats = NDArray[np.float64]
Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """Where something stands: a file, and the key in it (``test.accuracy``, ``budgets[0].low``)."""

    file: Path
    key: str = ""


@dataclass(frozen=True)
class Number:
    """A value from a record; ``low`` and ``high`` are the ends of an interval where it has one."""

    value: float
    source: Source
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Record:
    """A JSON record and its file; values are asked for by their keys.

    >>> record = Record(Path("r.json"), {"budgets": [{"eps": 0.1}], "label": "own"})
    >>> record.at("budgets[0].eps"), record.at("budgets[1].eps"), record.number("label")
    (0.1, None, None)
    """

    file: Path
    values: Mapping[str, Any]

    def at(self, key: str) -> Any:
        """The value at ``a.b[0].c``; None where there is none."""
        found: Any = self.values
        for name, place in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
            if place:
                number = int(place)
                found = found[number] if isinstance(found, list) and number < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found

    def number(self, key: str, low: str = "", high: str = "") -> Number | None:
        """The finite number at ``key``, with the ends of its interval; None where there is none."""
        value = _finite(self.at(key))
        if value is None:
            return None
        ends = (_finite(self.at(end)) if end else None for end in (low, high))
        return Number(value, Source(self.file, key), *ends)

    def text(self, key: str) -> str:
        """The text at ``key``; empty where there is none."""
        value = self.at(key)
        return value if isinstance(value, str) else ""

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The list of mappings at ``key``; empty where there is none."""
        value = self.at(key)
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


# ---- parts of a run -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What members say of a few held-out rows: ``outputs`` ``[members, rows, outputs]``."""

    outputs: Floats
    targets: Floats
    classes: tuple[str, ...]
    source: Source

    @property
    def regression(self) -> bool:
        """Whether outputs are values, not logits."""
        return self.targets.ndim == 2


@dataclass(frozen=True, eq=False)
class Histogram:
    """``share[name]`` of each bin between ``edges``; ``threshold`` where one was chosen."""

    label: str
    edges: Floats
    share: Mapping[str, Floats]
    source: Source
    threshold: float | None = None


@dataclass(frozen=True)
class DetectionRow:
    """How well one score tells one OOD set from the ID set."""

    score: str
    set: str
    auroc: Number
    fpr95: Number | None


@dataclass(frozen=True, eq=False)
class RocLine:
    """The points of a ROC curve."""

    score: str
    set: str
    fpr: Floats
    tpr: Floats
    source: Source


@dataclass(frozen=True, eq=False)
class Picture:
    """An image ``[channels, height, width]`` with what is said of it."""

    image: Images
    set: str
    kind: str
    score: str
    value: float
    predicted: str
    others: tuple[str, ...]
    truth: str | None
    source: Source


@dataclass(frozen=True, eq=False)
class Detected:
    """What ``ood.json`` says of one method."""

    record: Record
    id_name: str
    rows: tuple[DetectionRow, ...]
    curves: tuple[RocLine, ...]
    histograms: tuple[Histogram, ...]
    pictures: tuple[Picture, ...]

    def record_source(self, key: str) -> Source:
        """A place in the record."""
        return Source(self.record.file, key)

    def mean_auroc(self, score: str) -> Number | None:
        """The mean AUROC of ``score`` over all OOD sets."""
        found = [row.auroc for row in self.rows if row.score == score]
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        keys = ", ".join(number.source.key for number in found)
        mean = math.fsum(number.value for number in found) / len(found)
        return Number(mean, Source(self.record.file, f"mean of {keys}"))


@dataclass(frozen=True)
class Budget:
    """Accuracy in the worst case over all attacks within one norm and ε."""

    norm: str
    eps: float
    accuracy: Number


@dataclass(frozen=True, eq=False)
class AttackCurve:
    """Accuracy against ``over``: eps, steps or restarts."""

    attack: str
    norm: str
    over: str
    values: Floats
    accuracy: Floats
    source: Source


@dataclass(frozen=True, eq=False)
class AttackPictures:
    """Images before and after each attack: ``adversarial`` ``[attacks, images, …]``."""

    attacks: tuple[str, ...]
    original: Images
    adversarial: Images
    labels: tuple[str, ...]
    predictions: tuple[tuple[str, ...], ...]
    source: Source


@dataclass(frozen=True, eq=False)
class Attacked:
    """What ``robustness/record.json`` says."""

    record: Record
    clean: Number | None
    worst: Number | None
    budgets: tuple[Budget, ...]
    curves: tuple[AttackCurve, ...]
    transfer: Floats | None
    transfer_attack: str
    pictures: AttackPictures | None

    def record_source(self, key: str) -> Source:
        """A place in the record."""
        return Source(self.record.file, key)


@dataclass(frozen=True, eq=False)
class Method:
    """One run: a row of the overview, a colour of the figures.

    ``numbers`` are those of the overview, by name; ``split`` is what they were measured on;
    ``epochs`` are the records of training as they stand in ``metrics.jsonl``.
    """

    name: str
    path: Path
    objective: str
    members: int
    data: str
    task: str
    standing: str
    split: str
    numbers: Mapping[str, Number]
    beta: float | None = None
    epochs: tuple[Record, ...] = ()
    diagnosis: Record | None = None
    detected: Detected | None = None
    attacked: Attacked | None = None
    held_out: HeldOut | None = None
    log_diversity: Floats | None = None


# ---- sweeps and studies -------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepPoint:
    """One point of a grid: means over repeats, with ± one standard deviation as the interval."""

    x: float
    numbers: Mapping[str, Number]
    verdicts: Mapping[str, int] = field(default_factory=dict)
    best: bool = False


@dataclass(frozen=True)
class SweepLine:
    """Points that differ along the axis alone."""

    label: str
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A grid along ``axis``; ``held_out`` is what members say of the same rows at each point."""

    name: str
    file: Path
    axis: str
    setting: str
    repeats: int
    lines: tuple[SweepLine, ...]
    held_out: Mapping[float, HeldOut] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyFound:
    """A record of ``dissensus reproduce``."""

    record: Record
    paper: str
    name: str
    scale: str
    done: int
    planned: int


@dataclass(frozen=True)
class Contents:
    """All that a report is made of; ``notes`` say what was left out, and why."""

    methods: tuple[Method, ...]
    sweeps: tuple[Sweep, ...]
    studies: tuple[StudyFound, ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...]

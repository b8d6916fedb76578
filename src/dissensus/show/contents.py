"""Contents of a report: plain values, and for each number the file and key it comes from."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Reference:
    """A file, and a key in it (``test.accuracy``, ``budgets[0].low``)."""

    file: Path
    key: str = ""


@dataclass(frozen=True)
class Number:
    """A value from a record; ``low`` and ``high`` are the ends of its interval, if it has one.

    ``parts`` are the values of single examples or repeats, whose mean it is, if they are known.
    ``best`` marks what is not distinguishable from the best of its column, and ``doubt`` says what
    speaks against it ("colluding").
    """

    value: float
    source: Reference
    low: float | None = None
    high: float | None = None
    parts: Floats | None = field(default=None, compare=False, repr=False)
    best: bool = False
    doubt: str = ""


def interval_ends(
    numbers: Sequence[Number],
) -> tuple[list[float], list[float]] | tuple[None, None]:
    """The lower and the upper ends of the intervals; None if a number has no interval."""
    low = [number.low for number in numbers if number.low is not None]
    high = [number.high for number in numbers if number.high is not None]
    return (low, high) if len(low) == len(high) == len(numbers) else (None, None)


@dataclass(frozen=True)
class Record:
    """A JSON record, or the part of one at ``prefix``, and its file.

    >>> record = Record(Path("r.json"), {"budgets": [{"eps": 0.1}], "label": "own"})
    >>> record.at("budgets[0].eps"), record.at("budgets[1].eps"), record.number("label")
    (0.1, None, None)
    >>> record.rows("budgets")[0].number("eps").source.key
    'budgets[0].eps'
    """

    file: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def at(self, key: str) -> Any:
        """The value at ``a.b[0].c``; None if there is none."""
        value: Any = self.values
        for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
            if index:
                inside = isinstance(value, list) and int(index) < len(value)
                value = value[int(index)] if inside else None
            else:
                value = value.get(name) if isinstance(value, dict) else None
        return value

    def number(self, key: str, low: str = "", high: str = "") -> Number | None:
        """The finite number at ``key``, with the ends of its interval; None if there is none."""
        value = finite(self.at(key))
        if value is None:
            return None
        bottom, top = (finite(self.at(end)) if end else None for end in (low, high))
        return Number(value, self.reference(key), bottom, top)

    def text(self, key: str) -> str:
        """The text at ``key``; empty if there is none."""
        value = self.at(key)
        return value if isinstance(value, str) else ""

    def array(self, key: str, ndim: int = 1) -> Floats:
        """The finite numbers at ``key``; anything else is an error that names file and key."""
        return self._finite(self.at(key), key, ndim)

    def arrays(self, key: str) -> dict[str, Floats]:
        """The lists of numbers in the mapping at ``key``."""
        return {name: self._finite(v, f"{key}.{name}", 1) for name, v in self.at(key).items()}

    def rows(self, key: str) -> list[Record]:
        """The mappings in the list at ``key``; empty if there is none."""
        values = self.at(key)
        rows = enumerate(values if isinstance(values, list) else ())
        whole = self.reference(key).key
        return [Record(self.file, v, f"{whole}[{i}]") for i, v in rows if isinstance(v, dict)]

    def reference(self, key: str) -> Reference:
        """A key of this record."""
        return Reference(self.file, f"{self.prefix}.{key}" if self.prefix else key)

    def _finite(self, values: Any, key: str, ndim: int) -> Floats:
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            array = np.array(np.nan)
        if array.ndim != ndim or not np.isfinite(array).all():
            where = f"{self.file}: {self.reference(key).key}"
            raise ValueError(f"{where} must hold finite numbers in {ndim} dimensions")
        return array


def finite(value: Any) -> float | None:
    """``value`` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


# ---- runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Members' outputs ``[members, rows, outputs]`` for a few held-out rows."""

    outputs: Floats
    targets: Floats
    classes: Sequence[str]
    source: Reference

    @property
    def regression(self) -> bool:
        """Whether outputs are values, not logits."""
        return self.targets.ndim == 2


@dataclass(frozen=True, eq=False)
class UnknownInputs:
    """The part of an ``ood.json`` that is about one run, which it calls ``name``.

    ``images`` are the rows of its divergent examples, each with its pixels, ``strangers`` those of
    training images and of the strangers made of them.
    """

    record: Record
    name: str
    images: Sequence[tuple[Record, Images]] = ()
    strangers: Sequence[tuple[Record, Images]] = ()

    @property
    def id_name(self) -> str:
        """The name of the ID set."""
        return str((self.record.at("id") or {}).get(self.name, "test"))

    def rows(self, key: str) -> list[Record]:
        """The run's rows of the list at ``key``."""
        return [row for row in self.record.rows(key) if row.at("method") == self.name]

    def mean_auroc(self, score: str) -> Number | None:
        """The mean AUROC of ``score`` over all OOD sets.

        The mean of the intervals' ends is its interval: wide enough even though the sets are
        compared with the same known inputs.
        """
        rows = [row for row in self.rows("detection") if row.text("score") == score]
        aurocs = (row.number("auroc", "auroc_low", "auroc_high") for row in rows)
        numbers = [auroc for auroc in aurocs if auroc is not None]
        if len(numbers) < 2:
            return numbers[0] if numbers else None
        keys = ", ".join(number.source.key for number in numbers)
        mean = statistics.fmean(number.value for number in numbers)
        low, high = (None if e is None else statistics.fmean(e) for e in interval_ends(numbers))
        return Number(mean, self.record.reference(f"mean of {keys}"), low, high)


@dataclass(frozen=True, eq=False)
class Method:
    """One run: a row of the overview, a colour of the figures.

    ``numbers`` are those of the overview, by name; ``split`` is the data they were measured on;
    ``epochs`` are the lines of ``metrics.jsonl``, ``attacks`` is ``robustness/record.json``, and
    ``attack_images`` are the originals and what each attack made of them, with predictions.
    """

    name: str
    path: Path
    objective: str = ""
    members: int = 0
    data: str = ""
    task: str = ""
    status: str = ""
    split: str = "test"
    numbers: Mapping[str, Number] = field(default_factory=dict)
    beta: float | None = None
    classes: Sequence[str] = ()
    epochs: Sequence[Record] = ()
    diagnosis: Record | None = None
    detection: UnknownInputs | None = None
    attacks: Record | None = None
    attack_images: Sequence[tuple[str, Images, Sequence[str]]] = ()
    held_out: HeldOutRows | None = None
    log_diversity: Floats | None = None

    @property
    def verdict(self) -> str:
        """The verdict on collusion; empty if there is none."""
        return "" if self.diagnosis is None else self.diagnosis.text("verdict")

    @property
    def reasons(self) -> list[str]:
        """The reasons for the verdict."""
        reasons = None if self.diagnosis is None else self.diagnosis.at("reasons")
        return [str(reason) for reason in reasons] if isinstance(reasons, list) else []


# ---- sweeps -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepPoint:
    """One point of a grid: means over repeats, with ± one standard deviation as the interval."""

    x: float
    numbers: Mapping[str, Number]
    verdicts: Mapping[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict of most repeats; empty if there is none."""
        return max(self.verdicts, key=lambda word: self.verdicts[word], default="")


@dataclass(frozen=True, eq=False)
class SweepLine:
    """The points of a sweep that differ along ``axis`` alone.

    ``held_out`` has outputs for the same rows at each point. ``choice`` is the point of the sweep
    that validation data choose, and why; empty if there is none.
    """

    name: str
    file: Path
    axis: str
    repeats: int
    points: Sequence[SweepPoint]
    held_out: Mapping[float, HeldOutRows] = field(default_factory=dict)
    choice: str = ""


@dataclass(frozen=True)
class Contents:
    """Everything a report is made of; ``notes`` say what was left out, and why."""

    methods: Sequence[Method] = ()
    sweeps: Sequence[SweepLine] = ()
    records: Sequence[Record] = ()
    notes: Sequence[str] = ()

    def with_detection(self) -> list[tuple[int, Method, UnknownInputs]]:
        """The methods with results of ``dissensus ood``, with their numbers."""
        return [
            (number, method, method.detection)
            for number, method in enumerate(self.methods)
            if method.detection is not None and method.detection.rows("detection")
        ]

    def with_attacks(self) -> list[tuple[int, Method, Record]]:
        """The methods with results of ``dissensus attack``, with their numbers."""
        return [
            (number, method, method.attacks)
            for number, method in enumerate(self.methods)
            if method.attacks is not None
        ]

    @property
    def score(self) -> str:
        """The score of tables and sentences: the first one of the records."""
        rows = (row for _, _, d in self.with_detection() for row in d.rows("detection"))
        return next((row.text("score") for row in rows), "")

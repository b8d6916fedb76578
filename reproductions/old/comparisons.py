"""Comparisons: quantities of records, and the shared checks by which records decide on a claim.

A claim is an entry: its sentence, where the paper makes it, and a check built from the data classes
here. A :class:`Quantity` says which number of a record counts and :class:`Runs` which records; a
check says what has to be larger than what. All verdicts follow the rule of
:mod:`reproductions.old.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dissensus.show import Series
from reproductions.figures import estimates
from reproductions.old.base import CANNOT, Finding, Record, Table, join_cases
from reproductions.old.statistics import (
    Effect,
    Estimate,
    difference_of,
    judge_larger,
    judge_within,
    larger_than,
    mean_interval,
    paired_difference,
    pool,
    signed,
)

Key = TypeVar("Key")
Labels = TypeVar("Labels", bound=tuple[str, ...])
#: A quantity by seed, or by data set and seed.
Values = Mapping[Any, float]
Read = Callable[[Record], float | None]
Groups = Callable[[list[Record]], Mapping[str, list[Record]]]
#: Both sides of a comparison, for each case.
Pairs = Mapping[str, tuple[Values, Values]]
Cases = Callable[[list[Record]], Pairs]
#: The numbers of all runs, for each case.
NumberCases = Callable[[list[Record]], Mapping[str, ArrayLike]]

#: Data sets as pages call them.
DATA_TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "fashion_features": "Fashion-MNIST features",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}


def decide(holds: bool, measured: str, published: str | None = None) -> Finding:
    """A finding from a condition on exact values; estimates have intervals to be judged by."""
    return Finding("holds" if holds else "contradicted", measured, published)


# ---- reading records ----------------------------------------------------------------------------


def filter_records(records: Iterable[Record], **settings: Any) -> list[Record]:
    """The records whose cells have these settings."""
    return [
        record
        for record in records
        if all(record["cell"][key] == value for key, value in settings.items())
    ]


def data_title(data: str) -> str:
    """``"MNIST"`` for ``"mnist"``."""
    return DATA_TITLES.get(data, data)


def cell_values(records: Iterable[Record], key: str) -> list[Any]:
    """The values that a setting has in the cells of ``records``, in order."""
    return sorted({record["cell"][key] for record in records})


def group_records(
    records: Iterable[Record], key: Callable[[Record], Key]
) -> dict[Key, list[Record]]:
    """Records by their ``key``, in the order in which keys appear."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def group_by_data(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by the title of their data set."""
    return group_records(records, lambda record: data_title(record["cell"]["data"]))


def groups_named(groups: Groups, words: str, *, absent: bool = False) -> Groups:
    """The groups whose names have ``words`` in them, or have not."""
    return lambda records: {
        name: runs for name, runs in groups(records).items() if (words in name) != absent
    }


def at(*path: Any) -> Read:
    """Reads the number at ``path`` below a record's result; None where it was not measured.

    >>> at("test", "error")({"result": {"test": {"error": 0.25}}})
    0.25
    """

    def read(record: Record) -> float | None:
        value: Any = record["result"]
        for key in path:
            if isinstance(value, dict) and key not in value:
                return None
            value = value[key]
        return float(np.mean(value))

    return read


@dataclass(frozen=True)
class Quantity:
    """A number of a record: its name in sentences, how it is read, and how it is printed."""

    name: str
    read: Read
    form: str = "{:.3f}"

    def values(self, records: Iterable[Record]) -> dict[int, float]:
        """The quantity by seed; records in which it was not measured are left out."""
        values = {record["cell"]["seed"]: self.read(record) for record in records}
        return {seed: value for seed, value in values.items() if value is not None}

    def mean(self, records: Iterable[Record]) -> float:
        """The mean over runs."""
        return self.estimate(records).mean

    def estimate(self, records: Iterable[Record]) -> Estimate:
        """The mean over runs with its interval."""
        return mean_interval(list(self.values(records).values()))

    def sides(self, first: Iterable[Record], second: Iterable[Record]) -> tuple[Values, Values]:
        """The quantity by seed in ``first`` and in ``second``, as a case to compare."""
        return self.values(first), self.values(second)

    def differences(self, first: Iterable[Record], second: Iterable[Record]) -> dict[int, float]:
        """The quantity of ``first`` minus that of ``second``, for each seed that both have."""
        left, right = self.values(first), self.values(second)
        return {seed: left[seed] - right[seed] for seed in sorted(set(left) & set(right))}

    def series(
        self,
        name: str,
        x: Sequence[Any],
        runs: Iterable[Iterable[Record]],
        style: int = 0,
        kind: Literal["line", "points", "bars"] = "line",
        **options: Any,
    ) -> Series:
        """A series of a plot: the estimate from some runs at each ``x``."""
        return estimates(name, x, [self.estimate(some) for some in runs], style, kind, **options)

    def text(self, records: Iterable[Record]) -> str:
        """Mean and interval over runs, for a table; a dash where there are none."""
        return interval_text(self.values(records).values(), self.form)


def quantity_table(
    columns: Sequence[str],
    rows: Mapping[Labels, Sequence[Record]],
    quantities: Sequence[Quantity],
) -> Table:
    """A row for each of some runs: its labels, then the mean and interval of each quantity."""
    return [*columns, *(quantity.name for quantity in quantities)], [
        [*labels, *(quantity.text(runs) for quantity in quantities)]
        for labels, runs in rows.items()
    ]


def curve_series(
    name: str, x: Sequence[Any], curves: Iterable[Sequence[float]], style: int, **options: Any
) -> Series:
    """A line through the means over runs of each point of ``curves``, with their intervals.

    Curves of different lengths, as early stopping leaves them, end where the shortest does.
    """
    points = [mean_interval(values) for values in zip(*curves, strict=False)]
    return estimates(name, x[: len(points)], points, style, markers=False, **options)


def interval_text(values: Iterable[float], form: str = "{:.3f}") -> str:
    """Mean and interval of some runs, for a table; a dash where there are none.

    >>> interval_text([0.25]), interval_text([])
    ('0.250', '–')
    """
    numbers = list(values)
    return mean_interval(numbers).text(form) if numbers else "–"


@dataclass(frozen=True)
class Runs:
    """Runs by the settings of their cells, and what sentences call them."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Those among ``records``."""
        return filter_records(records, **self.settings)


def pair_values(first: Values, second: Values) -> tuple[list[float], list[float]]:
    """The values of the seeds that both have, in the same order."""
    seeds = sorted(set(first) & set(second))
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


# ---- findings -----------------------------------------------------------------------------------


def all_of(findings: Mapping[str, Finding], published: str | None = None) -> Finding:
    """One finding from several cases (``pool``); their sentences stand side by side."""
    sentence = "; ".join(
        f"{name}: {finding.measured}" if name else finding.measured
        for name, finding in findings.items()
    )
    verdict, chance = pool((finding.verdict, finding.chance) for finding in findings.values())
    return Finding(
        verdict,
        sentence or "no such runs are part of this scale",
        published,
        {
            f"{name} {case}".strip(): effect
            for name, finding in findings.items()
            for case, effect in finding.effects.items()
        },
        chance,
    )


def estimates_text(estimates: Mapping[str, Estimate], form: str) -> str:
    """Mean and interval of each case."""
    return join_cases({case: one.text(form) for case, one in estimates.items()})


def effects_of(quantity: str, estimates: Mapping[str, Estimate], form: str) -> dict[str, Effect]:
    """The estimate of each case as what a verdict rests on."""
    return {case: Effect(quantity, one, form) for case, one in estimates.items()}


# ---- checks -------------------------------------------------------------------------------------


def whole(records: list[Record]) -> dict[str, list[Record]]:
    """All records as one group."""
    return {"": records}


@dataclass(frozen=True)
class Larger:
    """Checks that ``quantity`` is larger in the ``first`` runs than in the ``second``.

    In every group of ``groups`` that has runs of both. ``against`` is the quantity of the second
    runs where it is another one; ``effects`` are the published differences, by group.
    """

    quantity: Quantity
    first: Runs
    second: Runs
    groups: Groups = whole
    published: str | None = None
    against: Quantity | None = None
    effects: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, records: list[Record]) -> Finding:
        findings = {}
        for group, runs in self.groups(records).items():
            first = self.quantity.values(self.first.of(runs))
            second = (self.against or self.quantity).values(self.second.of(runs))
            left, right = pair_values(first, second)
            if left:
                findings[group] = larger_than(
                    left,
                    right,
                    (self.first.name, self.second.name),
                    self.quantity.name,
                    form=self.quantity.form,
                    count_runs=False,
                    effect=self.effects.get(group),
                )
        return all_of(findings, self.published)


@dataclass(frozen=True)
class LargerInAll:
    """Checks that ``quantity`` is larger on the left in every case, by more than ``margin``.

    The sentence gives, case by case, both means and the interval of their paired difference.
    """

    cases: Cases
    names: tuple[str, str]
    quantity: str
    form: str = "{:.3f}"
    margin: float = 0.0
    published: str | None = None

    def __call__(self, records: list[Record]) -> Finding:
        form = signed(self.form)
        sentences: list[str] = []
        differences: dict[str, Estimate] = {}
        for case, sides in self.cases(records).items():
            left, right = pair_values(*sides)
            if not left:
                sentence = f"{self.quantity}: no runs of both kinds on {case}"
                return Finding(CANNOT, sentence, self.published)
            differences[case] = difference = paired_difference(left, right)
            means = [self.form.format(float(np.mean(side))) for side in (left, right)]
            sentences.append(f"{case} {means[0]} and {means[1]} ({difference.text(form)})")
        judged = [judge_larger(one.minus(self.margin)) for one in differences.values()]
        verdicts = [one.verdict for one in judged]
        if CANNOT in verdicts or not sentences:
            sentence = f"{self.quantity}: fewer than two runs to compare"
            return Finding(CANNOT, sentence, self.published)
        by = f" by more than {self.form.format(self.margin)}" if self.margin else ""
        sentence = (
            f"{self.quantity}, {self.names[0]} and {self.names[1]}: {'; '.join(sentences)}. "
            f"Larger{by} on {verdicts.count('holds')} of {len(sentences)}, not larger on "
            f"{verdicts.count('contradicted')}"
        )
        effects = effects_of(difference_of(self.quantity, self.names), differences, form)
        verdict, chance = pool((one.verdict, one.chance) for one in judged)
        return Finding(verdict, sentence, self.published, effects, chance)


@dataclass(frozen=True)
class AboveZero:
    """Checks that a number of each run lies above 0 in every case; ``name`` says what it is."""

    name: str
    cases: NumberCases
    form: str = "{:.3g}"

    def __call__(self, records: list[Record]) -> Finding:
        numbers = {case: mean_interval(values) for case, values in self.cases(records).items()}
        judged = {case: judge_larger(one) for case, one in numbers.items()}
        sentence = f"{self.name}: {estimates_text(numbers, self.form)}"
        if all(one.verdict == CANNOT for one in judged.values()):
            return Finding(CANNOT, f"{sentence}: one run")
        against = [case for case, one in judged.items() if one.verdict != "holds"]
        if against:
            sentence += f". Not shown to be above 0 on {', '.join(against)}"
        effects = effects_of(self.name, numbers, self.form)
        verdict, chance = pool((one.verdict, one.chance) for one in judged.values())
        return Finding(verdict, sentence, effects=effects, chance=chance)


@dataclass(frozen=True)
class Within:
    """Checks that a number of each run lies between ``low`` and ``high`` in every case."""

    name: str
    cases: NumberCases
    low: float = -math.inf
    high: float = math.inf
    form: str = "{:.0%}"
    published: str | None = None

    def __call__(self, records: list[Record]) -> Finding:
        numbers = {case: mean_interval(values) for case, values in self.cases(records).items()}
        judged = [judge_within(one, self.low, self.high) for one in numbers.values()]
        verdict, chance = pool((one.verdict, one.chance) for one in judged)
        sentence = f"{self.name}: {estimates_text(numbers, self.form)}"
        effects = effects_of(self.name, numbers, self.form)
        return Finding(verdict, sentence, self.published, effects, chance)


#: Two float64 computations of one number are taken for equal up to this, relative to its size.
TOLERANCE = 1e-12


def scientific(deviation: float) -> str:
    """``"4.3e-16"``, and a plain 0.

    >>> scientific(0.0), scientific(4.31e-16)
    ('0', '4.3e-16')
    """
    return f"{deviation:.1e}" if deviation else "0"


@dataclass(frozen=True)
class Equal:
    """Checks that the largest of some relative deviations is rounding; the sentence names it.

    ``worst`` reads the largest deviation of a key from the records, ``sample`` says in words what
    was drawn.
    """

    keys: Sequence[str]
    worst: Callable[[list[Record], str], float]
    sample: Callable[[list[Record]], str]
    prefix: str = ""

    def __call__(self, records: list[Record]) -> Finding:
        deviations = {key: self.worst(records, key) for key in self.keys}
        name = max(deviations, key=lambda key: deviations[key])
        largest = f"largest relative deviation {scientific(deviations[name])}"
        words = f"{self.prefix}{largest} ({name.replace('_', ' ')}; {self.sample(records)})"
        return decide(deviations[name] <= TOLERANCE, words)

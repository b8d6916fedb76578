"""Comparisons: quantities of records, and the checks by which records decide on a claim.

A claim is its sentence, its place in the paper and a check. A check is a function of records that
returns a :class:`Finding`; most are one of the data classes here:

* :class:`Larger`: A is larger than B, by runs that share their seed, in every case;
* :class:`Within`: a number of each run lies in a range (above 0, below 1.25), in every case;
* :class:`Equal`: two float64 computations of one number agree;
* :func:`exact`: any other condition on exact values.

All verdicts follow the rule of :mod:`reproductions.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from reproductions.figures import Series, estimates
from reproductions.statistics import (
    CANNOT,
    Estimate,
    Interval,
    Judgement,
    Values,
    Verdict,
    judge_larger,
    judge_within,
    mean_interval,
    over_runs,
    pool,
)
from reproductions.study import Record

Key = TypeVar("Key")
#: A number of a record, or one for each image; None where it was not measured.
Read = Callable[[Record], Any]
#: Records by the name of a case, such as a data set.
Groups = Callable[[list[Record]], Mapping[str, list[Record]]]
#: Values by seed (or by data set and seed).
BySeed = Mapping[Any, Values]
#: Both sides of a comparison, for each case.
Sides = Mapping[str, tuple[BySeed, BySeed]]
Pairs = Callable[[list[Record]], Sides]
#: The numbers of all runs for each case, or an estimate that was made of them.
Numbers = Callable[[list[Record]], Mapping[str, ArrayLike | Estimate]]

#: Two float64 computations of one number are taken for equal up to this, relative to its size.
TOLERANCE = 1e-12

#: Data sets as pages call them.
DATA_TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "fashion_features": "Fashion-MNIST features",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}


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


def whole(records: list[Record]) -> dict[str, list[Record]]:
    """All records as one group."""
    return {"": records}


def at(*path: Any) -> Callable[[Record], float | None]:
    """A reader of the number at ``path`` below a record's result; None where it was not measured.

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
class Runs:
    """Runs by the settings of their cells, and their name."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Those among ``records``."""
        return filter_records(records, **self.settings)


@dataclass(frozen=True)
class Quantity:
    """A number of a record: its name, how it is read, and how it is printed.

    Of a number for each image, estimates and tables take the mean of each run.
    """

    name: str
    read: Read
    form: str = "{:.3f}"

    def values(self, records: Iterable[Record]) -> dict[int, Any]:
        """The quantity by seed; records in which it was not measured are left out."""
        values = {record["cell"]["seed"]: self.read(record) for record in records}
        return {seed: value for seed, value in values.items() if value is not None}

    def differences(self, first: Iterable[Record], second: Iterable[Record]) -> dict[int, Any]:
        """The quantity of the first runs minus that of the second, by seeds that both have."""
        left, right = self.values(first), self.values(second)
        return {seed: left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())}

    def estimate(self, records: Iterable[Record]) -> Estimate:
        """The mean over runs with its interval."""
        return mean_interval(self._means(records))

    def text(self, records: Iterable[Record]) -> str:
        """Mean and interval over runs, for a table; a dash where there are none."""
        return interval_text(self._means(records), self.form)

    def _means(self, records: Iterable[Record]) -> list[float]:
        return [float(np.mean(value)) for value in self.values(records).values()]

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


def interval_text(values: Iterable[float], form: str = "{:.3f}") -> str:
    """Mean and interval of some runs, for a table; a dash where there are none.

    >>> interval_text([0.25]), interval_text([])
    ('0.250', '–')
    """
    numbers = list(values)
    return mean_interval(numbers).text(form) if numbers else "–"


# ---- findings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """The number that a verdict rests on in one case, with its interval and its judgement.

    ``sides`` are the means of both sides where it is a difference of two.
    """

    quantity: str
    estimate: Estimate
    form: str
    judgement: Judgement
    sides: tuple[float, ...] = ()

    def __str__(self) -> str:
        """The estimate with its interval; a difference with its sign."""
        signed = self.form.replace(":", ":+", 1) if self.sides else self.form
        return self.estimate.text(signed.replace("++", "+"))

    @property
    def measured(self) -> str:
        """Both sides."""
        return ", ".join(map(self.form.format, self.sides))


@dataclass(frozen=True)
class Finding:
    """The answer of a check: a verdict, and the effects that it rests on, by case.

    ``measured`` are numbers in a few words where nothing is estimated, as for an identity, or where
    nothing could be tested. ``chance`` is how often runs contradict so clearly if the claim is just
    about true.
    """

    verdict: Verdict
    measured: str = ""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    chance: float = 0.0


#: An answer from the records of finished cells.
Check = Callable[[list[Record]], Finding]


def found(effect: Effect) -> Finding:
    """The finding that rests on one effect."""
    verdict, chance, _ = effect.judgement
    return Finding(verdict, "", {"": effect}, chance)


def pooled(findings: Mapping[str, Finding]) -> Finding:
    """One finding from several cases (:func:`~reproductions.statistics.pool`)."""
    verdict, chance = pool((finding.verdict, finding.chance) for finding in findings.values())
    effects = {
        f"{name} {case}".strip(): effect
        for name, finding in findings.items()
        for case, effect in finding.effects.items()
    }
    words = (f"{name} {one.measured}".strip() for name, one in findings.items() if one.measured)
    return Finding(verdict, "; ".join(words), effects, chance)


def exact(holds: bool, measured: str) -> Finding:
    """A finding from a condition on exact values; estimates have intervals to be judged by."""
    return Finding("holds" if holds else "contradicted", measured)


# ---- checks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Larger:
    """Checks that a quantity is larger on the first side than on the second, in every case.

    ``pairs`` gives both sides by seed for each case; :func:`larger` makes it from runs. Seeds that
    both sides have are compared, by more than ``margin``. ``published`` are the differences that
    the paper prints, by case. ``interval`` is that of the difference: over runs, or over images
    (:func:`~reproductions.statistics.over_images`). A ``share`` of images tests nothing where both
    sides are 0 or 1, nor where the second leaves no room for half of the published effect.
    """

    quantity: str
    names: tuple[str, str]
    pairs: Pairs
    form: str = "{:.3f}"
    margin: float = 0.0
    published: Mapping[str, float] = field(default_factory=dict)
    interval: Interval = over_runs
    share: bool = False

    def __call__(self, records: list[Record]) -> Finding:
        cases = self.pairs(records).items()
        return pooled({case: self._compare(*sides, case) for case, sides in cases})

    def _compare(self, first: BySeed, second: BySeed, case: str) -> Finding:
        seeds = sorted(set(first) & set(second))
        if not seeds:
            return Finding(CANNOT, "no pairs of runs")
        left, right = ([side[seed] for seed in seeds] for side in (first, second))
        means = _mean_of_means(left), _mean_of_means(right)
        difference, published = self.interval(left, right), self.published.get(case)
        if self.share and _says_nothing(means, difference, published):
            return Finding(CANNOT, ", ".join(map(self.form.format, means)))
        judged = judge_larger(difference.minus(self.margin), published)
        quantity = f"{self.quantity}, {self.names[0]} minus {self.names[1]}"
        return found(Effect(quantity, difference, self.form, judged, means))


def _mean_of_means(runs: Sequence[Values]) -> float:
    return float(np.mean([np.mean(values) for values in runs]))


def _says_nothing(
    means: tuple[float, float], difference: Estimate, published: float | None
) -> bool:
    """Whether shares are 0 or 1 on both sides, or half of a published gain would not fit."""
    if means in ((0.0, 0.0), (1.0, 1.0)):
        return True
    if published is None or not difference.low <= 0 < difference.high:
        return False
    return means[1] + published / 2 > 1


def larger(
    quantity: Quantity,
    first: Runs,
    second: Runs,
    groups: Groups = whole,
    *,
    against: Quantity | None = None,
    **options: Any,
) -> Larger:
    """A check that ``quantity`` is larger in the ``first`` runs, in every group that has both.

    ``against`` is the quantity of the second runs where it is another one; ``options`` are those of
    :class:`Larger`.
    """

    def pairs(records: list[Record]) -> Sides:
        sides = {
            name: (quantity.values(first.of(runs)), (against or quantity).values(second.of(runs)))
            for name, runs in groups(records).items()
        }
        return {name: pair for name, pair in sides.items() if set(pair[0]) & set(pair[1])}

    return Larger(quantity.name, (first.name, second.name), pairs, quantity.form, **options)


@dataclass(frozen=True)
class Within:
    """Checks that a number of each run lies between ``low`` and ``high``, in every case."""

    quantity: str
    numbers: Numbers
    low: float = -math.inf
    high: float = math.inf
    form: str = "{:.3g}"

    def __call__(self, records: list[Record]) -> Finding:
        findings = {}
        for case, values in self.numbers(records).items():
            one = values if isinstance(values, Estimate) else mean_interval(values)
            judged = judge_within(one, self.low, self.high)
            findings[case] = found(Effect(self.quantity, one, self.form, judged))
        return pooled(findings)


@dataclass(frozen=True)
class Equal:
    """Checks that the largest of some relative deviations is rounding.

    ``worst`` reads the largest deviation of a key from the records.
    """

    keys: Sequence[str]
    worst: Callable[[list[Record], str], float]

    def __call__(self, records: list[Record]) -> Finding:
        largest = max(self.worst(records, key) for key in self.keys)
        return exact(largest <= TOLERANCE, f"deviation {largest:.1e}" if largest else "deviation 0")

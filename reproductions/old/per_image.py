"""Numbers of each image: intervals over images, for the networks that were trained.

Seeds are few where a training takes hours. An interval over the images of the runs that there are
says how sure a number is for *these* networks; what holds for them may not hold for other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reproductions.old.base import CANNOT, Finding, Record
from reproductions.old.comparisons import (
    Groups,
    Quantity,
    Runs,
    all_of,
    data_title,
    pair_values,
    whole,
)
from reproductions.old.statistics import (
    Effect,
    Estimate,
    difference_of,
    judge_larger,
    signed,
)

#: A number for each image, or for each block of images; whether it is right, as 0 and 1.
ImageValues = NDArray[np.float64]
BySeed = Mapping[int, ImageValues]
#: Reads them from a record; None where they were not measured.
Reader = Callable[[Record], ImageValues | None]


@dataclass(frozen=True)
class PerImage:
    """A number of each image: its name in sentences, and a reader of it.

    ``reader`` makes that of what some runs measured, such as the attacks that they went through;
    None where they have none. ``same_images`` says that all runs have the same images, in the same
    order: what counts of an image is then its mean over runs.
    """

    quantity: str
    reader: Callable[[Sequence[Record]], Reader | None]
    form: str = "{:.1%}"
    unit: str = "images"
    same_images: bool = False

    def sides(
        self, first: Sequence[Record], second: Sequence[Record]
    ) -> tuple[BySeed, BySeed] | None:
        """The numbers of both sides for the seeds that both have; None if there are none."""
        read = self.reader(first)
        if read is None:
            return None
        left, right = values_by_seed(first, read), values_by_seed(second, read)
        seeds = sorted(set(left) & set(right))
        if not seeds:
            return None
        return {seed: left[seed] for seed in seeds}, {seed: right[seed] for seed in seeds}


def values_by_seed(records: Iterable[Record], read: Reader) -> dict[int, ImageValues]:
    """The numbers of all images, by seed; records without them are left out."""
    values = {record["cell"]["seed"]: read(record) for record in records}
    return {seed: value for seed, value in values.items() if value is not None}


def images_interval(differences: Sequence[ImageValues]) -> Estimate:
    """The mean over the images of all runs with its normal interval: x̄ ± 1.96 s / √n.

    Of ``n`` equal shares, the mean is known to within 3 / n (the rule of three).

    >>> print(images_interval([np.array([1.0, 0.0, 1.0, 1.0])]).text("{:.2f}"))
    0.75 [0.26, 1.24]
    """
    images = np.concatenate(list(differences))
    mean, count = float(images.mean()), len(images)
    if count == 1:
        half = math.inf
    elif np.ptp(images) == 0:
        half = 3 / count
    else:
        half = 1.96 * float(images.std(ddof=1)) / math.sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


@dataclass(frozen=True)
class InTheseRuns:
    """Checks that a number of each image is larger in the first runs, in the runs that there are.

    The interval is over images: a finding about these networks. Other seeds may differ. In every
    group of ``groups`` that has runs of both; ``effects`` are the published differences, by the
    title of the data set.
    """

    first: Runs
    second: Runs
    values: PerImage
    published: str | None = None
    effects: Mapping[str, float] = field(default_factory=dict)
    groups: Groups = whole

    def __call__(self, records: list[Record]) -> Finding:
        findings = {
            name: self._compare(sides, self.effects.get(data_title(group[0]["cell"]["data"])))
            for name, group in self.groups(records).items()
            if (sides := self.values.sides(self.first.of(group), self.second.of(group)))
        }
        if not findings:
            sentence = f"{self.values.quantity}: no runs of both kinds"
            return Finding(CANNOT, sentence, self.published)
        return all_of(findings, self.published)

    def _compare(self, sides: tuple[BySeed, BySeed], effect: float | None) -> Finding:
        names = (self.first.name, self.second.name)
        return compare_in_these_runs(*sides, names, self.values, effect)


def compare_in_these_runs(
    first: BySeed,
    second: BySeed,
    names: tuple[str, str],
    values: PerImage,
    effect: float | None = None,
) -> Finding:
    """Whether ``values`` are larger on the first side, by their interval over images."""
    seeds = list(first)
    gains = [first[seed] - second[seed] for seed in seeds]
    gain = images_interval([np.mean(gains, axis=0)] if values.same_images else gains)
    means = [float(np.mean([side[seed].mean() for seed in seeds])) for side in (first, second)]
    over = f"{values.unit} of {_count_runs(len(seeds))}"
    return _finding(values.quantity, names, means, gain, over, values.form, effect)


def _count_runs(count: int) -> str:
    return f"{count} run{'s' if count > 1 else ''}"


def _finding(
    quantity: str,
    names: tuple[str, str],
    means: Sequence[float],
    gain: Estimate,
    over: str,
    form: str,
    effect: float | None,
) -> Finding:
    verdict, words, chance = judge_larger(gain, effect)
    left, right = (f"{name} {form.format(mean)}" for name, mean in zip(names, means, strict=True))
    judged_by = Effect(difference_of(quantity, names), gain, signed(form))
    sentence = f"{quantity}: {left}, {right}, difference {judged_by} over {gain.runs} {over}"
    return Finding(verdict, f"{sentence} ({words})", effects={"": judged_by}, chance=chance)


# ---- shares of images, if a record does not say which -------------------------------------------


def shares_interval(first: float, second: float, images: int) -> Estimate:
    """``p − q``: two means over the same images of numbers in [0, 1], if only means were kept.

    The variance of such numbers with mean ``p`` is at most ``p (1 − p)`` (Bhatia and Davis, 2000).
    What is hard for one side is hard for the other, so that independent sides are the wider case:
    ``p − q ± 1.96 √((p (1 − p) + q (1 − q)) / n)``.

    >>> print(shares_interval(0.5, 0.4, 100).text("{:.3f}"))
    0.100 [-0.037, 0.237]
    """
    variance = first * (1 - first) + second * (1 - second)
    half = 1.96 * math.sqrt(variance / images)
    return Estimate(first - second, first - second - half, first - second + half, images)


@dataclass(frozen=True)
class SharesInTheseRuns:
    """Checks that a share of images is larger in the first runs, in the runs that there are.

    As :class:`InTheseRuns`, for records that keep the share alone; ``images`` reads from one how
    many images it is a share of. More runs on the same images do not narrow the interval. A share
    that is 0 or 1 on both sides tests nothing.
    """

    quantity: Quantity
    first: Runs
    second: Runs
    groups: Groups = whole
    published: str | None = None
    effects: Mapping[str, float] = field(default_factory=dict)
    images: Callable[[Record], int] = field(kw_only=True)

    def __call__(self, records: list[Record]) -> Finding:
        findings = {}
        for group, runs in self.groups(records).items():
            shares = pair_values(*self.quantity.sides(self.first.of(runs), self.second.of(runs)))
            if shares[0]:
                images = min(map(self.images, runs))
                findings[group] = self._compare(shares, images, self.effects.get(group))
        return all_of(findings, self.published)

    def _compare(
        self, shares: Sequence[Sequence[float]], images: int, effect: float | None
    ) -> Finding:
        means = [float(np.mean(side)) for side in shares]
        name, form = self.quantity.name, self.quantity.form
        if means in ([0.0, 0.0], [1.0, 1.0]):
            sentence = f"{name}: {form.format(means[0])} of {images} images on both sides"
            return Finding(CANNOT, f"{sentence}, so that nothing can be compared")
        over = f"images of {_count_runs(len(shares[0]))}"
        names = (self.first.name, self.second.name)
        gain = shares_interval(means[0], means[1], images)
        return _finding(name, names, means, gain, over, form, effect)

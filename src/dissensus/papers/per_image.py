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

from dissensus.papers.base import CANNOT, Finding, Record
from dissensus.papers.comparisons import Groups, Runs, all_of, data_title, whole
from dissensus.papers.statistics import Estimate, judge_larger

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

    >>> print(images_interval([np.array([1.0, 0.0, 1.0, 1.0])]).text("{:.2f}"))
    0.75 [0.26, 1.24]
    """
    images = np.concatenate(list(differences))
    mean, count = float(images.mean()), len(images)
    half = 1.96 * float(images.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf
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

    def _compare(self, sides: Sequence[BySeed], effect: float | None) -> Finding:
        seeds = list(sides[0])
        gains = [sides[0][seed] - sides[1][seed] for seed in seeds]
        gain = images_interval([np.mean(gains, axis=0)] if self.values.same_images else gains)
        verdict, words = judge_larger(gain, effect)
        form = self.values.form
        means = [form.format(float(np.mean([side[s].mean() for s in seeds]))) for side in sides]
        sentence = (
            f"{self.values.quantity}: {self.first.name} {means[0]}, {self.second.name} {means[1]}, "
            f"difference {gain.text(form.replace(':', ':+', 1))} over {gain.runs} "
            f"{self.values.unit} of {len(seeds)} run{'s' if len(seeds) > 1 else ''} ({words})"
        )
        return Finding(verdict, sentence, smallest=form.format(gain.smallest))

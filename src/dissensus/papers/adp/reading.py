"""Reading the records of ensembles: accuracies under attacks, and contenders compared.

Contenders are compared in pairs of runs that share seed, data and attacked images, by the rule of
:mod:`dissensus.papers.statistics`: the interval over seeds decides. Three seeds are few, so
each sentence also has the interval over the attacked images of all seeds together, which says how
sure the number is for *these* networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.base import Finding, Record
from dissensus.papers.comparing import (
    CANNOT,
    where,
)
from dissensus.papers.statistics import Estimate, judge_larger, mean_interval

__all__ = [
    "TITLES",
    "Bits",
    "Reader",
    "accuracy_text",
    "attack_names",
    "by_seed",
    "compared",
    "contenders_in",
    "data_in",
    "images_interval",
    "kept_by",
    "pooled",
    "rows_of",
    "standard_bits",
    "title",
]

TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "digits",
}

#: Which images stayed right, as 0 and 1.
Bits = NDArray[np.float64]
#: Reads from a record which images stayed right; None where that was not measured.
Reader = Callable[[Record], Bits | None]


def title(data: str) -> str:
    """``"MNIST"`` for ``"mnist"``."""
    return TITLES.get(data, data)


def data_in(records: Iterable[Record]) -> list[str]:
    """The data sets of ``records``, in their order."""
    return list(dict.fromkeys(record["cell"]["data"] for record in records))


def contenders_in(records: Iterable[Record]) -> list[str]:
    """Who is there, in the order of the registry."""
    there = {record["cell"]["contender"] for record in records}
    return [name for name in CONTENDERS if name in there]


def rows_of(records: Iterable[Record], data: str, contender: str) -> list[Record]:
    """The records of a contender on a data set."""
    return where(records, data=data, contender=contender)


# ---- which images stayed right ------------------------------------------------------------------


def _array(bits: str) -> Bits:
    return np.array([character == "1" for character in bits], dtype=np.float64)


def attack_names(records: Iterable[Record], part: str = "weak") -> list[str]:
    """The attacks of a part (``weak`` or ``slow``), in the order in which they were run."""
    found: dict[str, None] = {}
    for record in records:
        found |= dict.fromkeys(record["result"].get(part, {}))
    return list(found)


def kept_by(names: Sequence[str], part: str = "weak") -> Reader:
    """Reads the mean over some attacks of whether an image stayed right."""

    def read(record: Record) -> Bits | None:
        measured = record["result"].get(part, {})
        if not names or any(name not in measured for name in names):
            return None
        bits: Bits = np.mean([_array(measured[name]["right"]) for name in names], axis=0)
        return bits

    return read


def standard_bits(eps: float, key: str = "right") -> Reader:
    """Reads what the strong attacks leave at ``eps``; ``key="autoattack"``: AutoAttack alone."""

    def read(record: Record) -> Bits | None:
        for found in record["result"].get("standard", ()):
            if math.isclose(found["eps"], eps):
                return _array(found[key])
        return None

    return read


def by_seed(records: Iterable[Record], read: Reader) -> dict[int, Bits]:
    """What ``read`` finds, by seed; records without it are left out."""
    found = {record["cell"]["seed"]: read(record) for record in records}
    return {seed: bits for seed, bits in found.items() if bits is not None}


# ---- comparing ----------------------------------------------------------------------------------


def images_interval(differences: Sequence[Bits]) -> Estimate:
    """The mean over the images of all runs with its normal interval: x̄ ± 1.96 s / √n.

    >>> print(images_interval([np.array([1.0, 0.0, 1.0, 1.0])]).shown("{:.2f}"))
    0.75 [0.26, 1.24]
    """
    pooled = np.concatenate(list(differences))
    mean = float(pooled.mean())
    half = (
        1.96 * float(pooled.std(ddof=1)) / math.sqrt(len(pooled)) if len(pooled) > 1 else math.inf
    )
    return Estimate(mean, mean - half, mean + half, len(pooled))


def compared(
    larger: Mapping[Any, Bits],
    smaller: Mapping[Any, Bits],
    names: tuple[str, str],
    quantity: str,
    published: str | None = None,
) -> Finding:
    """Whether more images stay right in the first runs than in the second, run by run."""
    seeds = sorted(set(larger) & set(smaller))
    if not seeds:
        return Finding(CANNOT, f"{quantity}: no runs of both kinds", published)
    images = [larger[seed] - smaller[seed] for seed in seeds]
    difference = mean_interval([float(one.mean()) for one in images])
    verdict, words = judge_larger(difference)
    means = [np.mean([float(runs[seed].mean()) for seed in seeds]) for runs in (larger, smaller)]
    over = images_interval(images)
    sentence = (
        f"{quantity}: {names[0]} {means[0]:.1%}, {names[1]} {means[1]:.1%}, difference "
        f"{points(difference)} over {difference.runs} runs ({words}); over their {over.runs} "
        f"images {bounds(over)}"
    )
    return Finding(verdict, sentence, published)


def points(estimate: Estimate) -> str:
    """``"+12.0 [3.0, 21.0] points"``."""
    mean = f"{100 * estimate.mean:+.1f}"
    return f"{mean} points" if estimate.runs < 2 else f"{mean} {bounds(estimate)} points"


def bounds(estimate: Estimate) -> str:
    """``"[3.0, 21.0]"``, in points."""
    return f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def pooled(records: Iterable[Record], read: Reader) -> Estimate | None:
    """The accuracy with its interval over seeds (of one seed: over images); None if not there."""
    found = list(by_seed(records, read).values())
    if not found:
        return None
    if len(found) == 1:
        return images_interval(found)
    return mean_interval([float(bits.mean()) for bits in found])


def accuracy_text(records: Iterable[Record], read: Reader) -> str:
    """An accuracy in % for a table; a dash where there is none."""
    estimate = pooled(records, read)
    if estimate is None:
        return "–"
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return f"{100 * estimate.mean:.1f} [{100 * low:.0f}, {100 * high:.0f}]"

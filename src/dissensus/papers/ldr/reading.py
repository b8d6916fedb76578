"""Reading the records of contenders: which strength counts, and comparisons over unknown sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from dissensus.papers.base import Finding, Record
from dissensus.papers.comparisons import CANNOT, paired
from dissensus.papers.statistics import mean_interval, paired_difference

__all__ = [
    "DATA_NAMES",
    "Runs",
    "Value",
    "accuracy",
    "auroc",
    "chosen",
    "compare_sets",
    "contender_of",
    "data_in",
    "member_accuracy",
    "part",
    "sets_in",
    "shown",
    "soup",
    "with_strength",
]

Runs = dict[int, Record]  # by seed
Value = Callable[[Record], float]

DATA_NAMES = {
    "features": "features",
    "fashion_features": "Fashion-MNIST features",
    "fashion_mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "digits": "digits",
    "imagenet": "ImageNet",
}

#: A strength counts only if validation accuracy is at most this far below that of the best one.
ACCURACY_GIVEN_UP = 0.01


# ---- which runs ---------------------------------------------------------------------------------


def contender_of(record: Record) -> str:
    """The contender that a cell's name speaks of: ``features-ldr-all-strength=1-seed=0``."""
    middle = record["name"].removeprefix(f"{record['cell']['data']}-")
    return str(middle.partition("-strength=")[0])


def data_in(records: Iterable[Record]) -> list[str]:
    """The data sets that were run, in the order planned."""
    return list(dict.fromkeys(record["cell"]["data"] for record in records))


def with_strength(
    records: Iterable[Record], data: str, contender: str, strength: float | None = None
) -> list[Record]:
    """The runs of a contender on a data set, at one strength or at all."""
    return [
        record
        for record in records
        if record["cell"]["data"] == data
        and contender_of(record) == contender
        and strength in (None, record["cell"]["strength"])
    ]


def chosen(records: Iterable[Record], data: str, contender: str) -> Runs:
    """For each seed the run whose strength validation data would choose.

    Among strengths above 0 (where there are such) whose validation accuracy is within one point of
    the best of them, the one whose PDS best tells validation inputs from mixed ones. Test data and
    the sets of unknown inputs have no say.
    """
    by_seed: dict[int, list[Record]] = {}
    for record in with_strength(records, data, contender):
        by_seed.setdefault(record["cell"]["seed"], []).append(record)
    return {seed: _best(runs) for seed, runs in sorted(by_seed.items())}


def _best(runs: Sequence[Record]) -> Record:
    strong = [run for run in runs if run["cell"]["strength"] > 0] or list(runs)
    accuracies = [run["result"]["parts"]["val"]["accuracy"] for run in strong]
    able = [
        run
        for run, found in zip(strong, accuracies, strict=True)
        if found >= max(accuracies) - ACCURACY_GIVEN_UP
    ]
    return max(able, key=lambda run: float(run["result"]["val_auroc"]["pds"]))


def sets_in(runs: Runs) -> list[str]:
    """The unknown sets of these runs."""
    return list(next(iter(runs.values()))["result"]["auroc"]) if runs else []


# ---- values of a run ----------------------------------------------------------------------------


def auroc(unknown: str, score: str) -> Value:
    """How well ``score`` tells test inputs from an unknown set."""
    return lambda record: float(record["result"]["auroc"][unknown][score])


def part(name: str, key: str) -> Value:
    """A figure of one part, such as #unique on corrupted images."""
    return lambda record: float(record["result"]["parts"][name][key])


def accuracy(name: str) -> Value:
    """Of the prediction ensemble (averaged probabilities)."""
    return part(name, "accuracy")


def member_accuracy(name: str) -> Value:
    """The mean over members."""
    return lambda record: float(np.mean(record["result"]["parts"][name]["member_accuracies"]))


def soup(name: str, kind: str) -> Value:
    """Accuracy of averaged weights, or of the best member on the part."""
    return lambda record: float(record["result"]["soups"][name][kind])


def shown(runs: Runs, value: Value, form: str = "{:.3f}") -> str:
    """Mean and interval over seeds, for a table; a dash where there is no run."""
    return mean_interval([value(record) for record in runs.values()]).shown(form) if runs else "–"


# ---- comparisons --------------------------------------------------------------------------------


def compare_sets(
    pairs: Mapping[str, tuple[Runs, Value, Runs, Value]],
    names: tuple[str, str],
    quantity: str,
    *,
    margin: float = 0.0,
    form: str = "{:.3f}",
    published: str | None = None,
) -> Finding:
    """Whether ``quantity`` is larger on the left of every pair, by more than ``margin``.

    The sentence gives, set by set, both means and the interval of their paired difference.
    """
    signed = form.replace(":", ":+", 1)
    sentences, larger, least = [], 0, 2
    for name, (first, of_first, second, of_second) in pairs.items():
        left, right = paired(
            {seed: of_first(record) for seed, record in first.items()},
            {seed: of_second(record) for seed, record in second.items()},
        )
        if not left:
            return Finding(CANNOT, f"{quantity}: no runs of both kinds on {name}", published)
        difference = paired_difference(left, right)
        least = min(least, difference.runs)
        larger += difference.low > margin
        means = form.format(float(np.mean(left))), form.format(float(np.mean(right)))
        sentences.append(f"{name} {means[0]} and {means[1]} ({difference.shown(signed)})")
    if not sentences or least < 2:
        return Finding(CANNOT, f"{quantity}: fewer than two runs to compare", published)
    by = f" by more than {form.format(margin)}" if margin else ""
    sentence = (
        f"{quantity}, {names[0]} and {names[1]}: {'; '.join(sentences)}. Larger{by} on {larger} of "
        f"{len(sentences)}"
    )
    return Finding("holds" if larger == len(sentences) else "does not hold", sentence, published)

"""Records of contenders: which strength counts, their quantities, and cases to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reproductions.comparisons import (
    Finding,
    Larger,
    Pairs,
    Quantity,
    Sides,
    at,
    data_title,
    exact,
    group_records,
)
from reproductions.experiment import Claim, Labels, Table
from reproductions.ldr.contenders import contender_title
from reproductions.study import Record

#: A contender and the score that it detects by.
Entry = tuple[str, str]
#: A quantity by the name of the part that it is measured on.
QuantityOn = Callable[[str], Quantity]

#: Columns of a table for the unknown sets of a data set; each cell names its set.
UNKNOWN = [f"AUROC, set {number}" for number in range(1, 5)]
#: A strength counts only if validation accuracy is at most this far below that of the best one.
ACCURACY_GIVEN_UP = 0.01


# ---- which runs ---------------------------------------------------------------------------------


def contender_of(record: Record) -> str:
    """The contender in the name of a cell: ``features-ldr-all-strength=1-seed=0``."""
    middle = record["name"].removeprefix(f"{record['cell']['data']}-")
    return str(middle.partition("-strength=")[0])


def data_in(records: Iterable[Record]) -> list[str]:
    """The data sets that were run, in the order planned."""
    return list(dict.fromkeys(record["cell"]["data"] for record in records))


def data_with(records: list[Record], *contenders: str) -> list[str]:
    """The data sets on which all of these contenders were run."""
    return [
        data
        for data in data_in(records)
        if all(with_strength(records, data, name) for name in contenders)
    ]


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


def choose_runs(records: Iterable[Record], data: str, contender: str) -> list[Record]:
    """For each seed the run whose strength validation data would choose.

    Among strengths above 0 (where there are such) whose validation accuracy is within one point of
    the best of them, the one whose PDS best separates validation inputs from strangers made of
    them. Test data and the sets of unknown inputs have no say.
    """
    return [_best(runs) for runs in runs_by_seed(with_strength(records, data, contender))]


def runs_by_seed(records: Iterable[Record]) -> list[list[Record]]:
    """The runs of each seed, in the order of seeds."""
    groups = group_records(records, lambda record: int(record["cell"]["seed"]))
    return [runs for _, runs in sorted(groups.items())]


def _best(runs: Sequence[Record]) -> Record:
    strong = [run for run in runs if run["cell"]["strength"] > 0] or list(runs)
    accuracies = [run["result"]["parts"]["val"]["accuracy"] for run in strong]
    able = [
        run
        for run, value in zip(strong, accuracies, strict=True)
        if value >= max(accuracies) - ACCURACY_GIVEN_UP
    ]
    # Some contenders with a single strength were run before there were strangers.
    return able[0] if len(able) == 1 else best_on(able, "strangers")


def best_on(runs: Iterable[Record], proxy: str) -> Record:
    """The run whose PDS best separates validation inputs from a proxy of the unknown.

    ``"mixed"`` inputs, or ``"strangers"``: the mean over all families that were made.
    """

    def value(run: Record) -> float:
        families = run["result"]["val_auroc"]
        names = ["mixed"] if proxy == "mixed" else [name for name in families if name != "mixed"]
        return float(np.mean([families[name]["pds"] for name in names]))

    return max(runs, key=value)


def unknown_sets(runs: Sequence[Record]) -> list[str]:
    return list(runs[0]["result"]["auroc"]) if runs else []


# ---- quantities ---------------------------------------------------------------------------------


def auroc(unknown: str, score: str) -> Quantity:
    """The AUROC of ``score`` between test inputs and an unknown set."""
    return Quantity(f"AUROC of {score.upper()}", at("auroc", unknown, score))


def auroc_by(score: str) -> QuantityOn:
    """The AUROC of ``score``, by unknown set."""
    return lambda part: auroc(part, score)


pds_auroc = auroc_by("pds")


def unique(part: str) -> Quantity:
    """The number of classes that members predict on a part, mean over inputs."""
    return Quantity("#unique", at("parts", part, "unique"), "{:.2f}")


def accuracy(part: str) -> Quantity:
    """Of the prediction ensemble (averaged probabilities)."""
    return Quantity("accuracy", at("parts", part, "accuracy"), "{:.1%}")


def score_accuracy(part: str) -> Quantity:
    """Of the prediction ensemble that averages logits."""
    return Quantity("accuracy", at("parts", part, "score_accuracy"), "{:.1%}")


def soup(part: str, kind: str) -> Quantity:
    """Accuracy of averaged weights, or of the best member on the part."""
    return Quantity("accuracy", at("soups", part, kind), "{:.1%}")


def mean_auroc(score: str) -> Quantity:
    """The AUROC of ``score``, mean over the unknown sets."""

    def read(record: Record) -> float:
        return float(np.mean([one[score] for one in record["result"]["auroc"].values()]))

    return Quantity("AUROC", read)


def quantity_on(parts: Iterable[str], quantity: QuantityOn, runs: Sequence[Record]) -> list[str]:
    """Cells of a table: each part with its quantity, mean and interval over seeds."""
    return [f"{part} {quantity(part).text(runs)}" for part in parts]


def summary_table(
    labels: Sequence[str],
    rows: Mapping[Labels, Sequence[Record]],
    more: Sequence[Quantity] = (),
) -> Table:
    """For some runs by their labels: ``more``, accuracy, #unique, and the AUROC of PDS by set."""
    known = (
        *more,
        replace(accuracy("test"), name="test accuracy"),
        replace(score_accuracy("test"), name="averaged logits"),
        unique("test"),
    )
    cells = [
        [
            *names,
            *(quantity.text(runs) for quantity in known),
            *quantity_on(unknown_sets(runs), pds_auroc, runs),
        ]
        for names, runs in rows.items()
        if runs
    ]
    return Table([*labels, *(one.name for one in known), *UNKNOWN], cells, len(labels))


# ---- cases to compare ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """A side of a comparison: its name, and its runs on a data set."""

    name: str
    select: Callable[[list[Record], str], list[Record]]


def chosen(contender: str, name: str | None = None) -> Side:
    """A contender at the strength that validation data choose."""
    return Side(
        name or contender_title(contender),
        lambda records, data: choose_runs(records, data, contender),
    )


def at_strength(contender: str, strength: float, name: str) -> Side:
    return Side(name, lambda records, data: with_strength(records, data, contender, strength))


def on_all_parts(
    first: Side,
    second: Side,
    quantity: QuantityOn,
    parts: Callable[[list[Record]], Sequence[str]] = unknown_sets,
    against: QuantityOn | None = None,
) -> Pairs:
    """Both sides on every part of every data set where both were run.

    ``against`` is the quantity of the second side where it is another one.
    """

    def pairs(records: list[Record]) -> Sides:
        sides = {}
        for data in data_in(records):
            ours, theirs = (side.select(records, data) for side in (first, second))
            for part in parts(ours) if ours and theirs else ():
                sides[f"{data_title(data)} {part}"] = (
                    quantity(part).values(ours),
                    (against or quantity)(part).values(theirs),
                )
        return sides

    return pairs


def larger_on_parts(
    first: Side,
    second: Side,
    quantity: QuantityOn,
    parts: Callable[[list[Record]], Sequence[str]] = unknown_sets,
    margin: float = 0.0,
) -> Larger:
    """A check that ``first`` has the larger quantity on every part, by more than ``margin``."""
    pairs, named = on_all_parts(first, second, quantity, parts), quantity("")
    return Larger(named.name, (first.name, second.name), pairs, named.form, margin)


# ---- methods with their scores ------------------------------------------------------------------


def entry_title(entry: Entry) -> str:
    """``"LDR + PDS"``."""
    return f"{contender_title(entry[0])} + {_score_title(entry[1])}"


def _score_title(score: str) -> str:
    return score.replace("_", " ").upper()


def runs_of_entries(
    records: list[Record], data: str, entries: Iterable[Entry]
) -> dict[Entry, list[Record]]:
    """Those of ``entries`` that a data set has, with the runs that validation data choose."""
    runs = {method: choose_runs(records, data, method) for method in dict(entries)}
    return {
        (method, score): runs[method]
        for method, score in entries
        if runs[method] and has_score(runs[method], score)
    }


def has_score(runs: Iterable[Record], score: str) -> bool:
    """Distances of a backbone's own features (``raw_``) are there for feature rows alone."""
    return all(score in one for run in runs for one in run["result"]["auroc"].values())


def tabulate(entries: Sequence[Entry], *contenders: str) -> Callable[[list[Record]], Table]:
    """A table of accuracy and AUROC of ``entries``, where all of ``contenders`` were run."""
    header = ["data", "method", "score", "test accuracy", "averaged logits", "mean AUROC", *UNKNOWN]

    def table(records: list[Record]) -> Table:
        rows = []
        for data in data_with(records, *contenders):
            for (method, score), runs in runs_of_entries(records, data, entries).items():
                known = (accuracy("test"), score_accuracy("test"), mean_auroc(score))
                numbers = [quantity.text(runs) for quantity in known]
                aurocs = quantity_on(unknown_sets(runs), auroc_by(score), runs)
                labels = [data_title(data), contender_title(method), _score_title(score)]
                rows.append([*labels, *numbers, *aurocs])
        return Table(header, rows, labels=3)

    return table


@dataclass(frozen=True)
class BestOfAll:
    """Checks that ``ours`` has the highest mean AUROC of all entries, on every part.

    A data set counts if all of ``contenders`` were run on it.
    """

    ours: Entry
    entries: Sequence[Entry]
    contenders: Sequence[str]
    parts: Callable[[Sequence[Record]], Sequence[str]] = unknown_sets

    def __call__(self, records: list[Record]) -> Finding:
        wins, every = 0, 0
        for data in data_with(records, *self.contenders):
            runs = runs_of_entries(records, data, self.entries)
            for part in self.parts(runs[self.ours]):
                means = {one: auroc(part, one[1]).estimate(runs[one]).mean for one in runs}
                wins += max(means, key=means.__getitem__) == self.ours
                every += 1
        return exact(0 < every == wins, f"best on {wins} of {every} sets")


def detects_better(
    first: Entry, second: Entry, where: str, published: str = "", *, ours: bool = False
) -> Claim:
    """The claim that ``first`` has the larger AUROC on every unknown set."""
    pairs = on_all_parts(
        chosen(first[0]), chosen(second[0]), auroc_by(first[1]), against=auroc_by(second[1])
    )
    names = entry_title(first), entry_title(second)
    text = " detects better than ".join(names)
    return Claim(text, where, Larger("AUROC", names, pairs), published, ours=ours)

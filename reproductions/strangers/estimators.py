"""Estimators on unknown rows: members, the distance of a row, and both together.

``ood_score`` of the estimators with their defaults, on raw tables. Unknown are held-out rows (one
class; of a regression the tenth with the largest targets) and test rows that were changed: noise of
half a deviation on all numbers, one number at ten deviations, numbers of another table, and columns
permuted over the rows. That rows are scored by both was settled on the settling tables of
:mod:`reproductions.tables` (one seed; held out were levels of a category where there is one); the
other tables confirm it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.detection import evaluate
from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from reproductions.cells import Variants, seed_study
from reproductions.comparisons import Larger, Sides, filter_records
from reproductions.experiment import Claim, Experiment, Table
from reproductions.statistics import over_runs
from reproductions.strangers.settings import other_numbers
from reproductions.study import Cell, Record
from reproductions.tables.sources import TABLES, load_table

#: The tables, by whether they were settled on: those with columns of numbers enough to change.
SETTLED = (
    *("vowel", "attrition", "hpc", "churn", "letters"),
    *("servo", "sacramento", "cps1988", "ames", "chicago"),
)
CONFIRMED = (
    *("satellite", "credit", "vehicle", "soybean", "cells", "telco"),
    *("diamonds", "car_prices", "houseprices", "biomass", "ozone"),
)
PARTS = {"settled on": SETTLED, "confirming": CONFIRMED}
_SCORES = ("members", "distance", "both")
_MOST_ROWS, _MOST_TEST = 6000, 800


def run(cell: Cell) -> dict[str, Any]:
    """Fit an estimator to a seed of a table, and score known and unknown rows."""
    name, seed = cell["table"], cell["seed"]
    frame, y = load_table(name)
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(len(y))[:_MOST_ROWS]
    frame, y = frame.iloc[drawn].reset_index(drop=True), y[drawn]
    regression = TABLES[name].task == "regression"
    strange = y > np.quantile(y, 0.9) if regression else _unknown_class(y, seed)
    known, held_out = np.flatnonzero(~strange), np.flatnonzero(strange)
    test = known[: min(_MOST_TEST, len(known) // 4)]  # the rows are in a random order
    train = known[len(test) :]
    kind = DiverseRegressor if regression else DiverseClassifier
    model = kind(random_state=seed).fit(frame.iloc[train].reset_index(drop=True), y[train])
    sets = {"held_out": frame.iloc[held_out[:_MOST_TEST]]} if len(held_out) else {}
    sets |= change_rows(frame.iloc[test], frame.iloc[train], generator, name)
    members = "variance" if regression else "mutual_information"
    aurocs: dict[str, dict[str, float]] = {}
    for title, score in {"members": members, "distance": "mahalanobis", "both": "combined"}.items():
        own = torch.from_numpy(model.ood_score(frame.iloc[test], score))
        others = {key: torch.from_numpy(model.ood_score(rows, score)) for key, rows in sets.items()}
        aurocs[title] = {
            key: evaluate(own, other, bootstrap=0).auroc.value for key, other in others.items()
        }
    return {"rows": len(train), "auroc": aurocs}


def _unknown_class(y: NDArray[Any], seed: int) -> NDArray[np.bool_]:
    """Rows of one of the five most common classes, another for each seed; none of two classes."""
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) == 2:  # without one of them there would be nothing to learn
        return np.zeros(len(y), dtype=bool)
    found: NDArray[np.bool_] = y == classes[np.argsort(-counts)][seed % min(5, len(classes))]
    return found


def change_rows(test: Any, train: Any, generator: np.random.Generator, name: str) -> dict[str, Any]:
    """Test rows with other values, as DataFrames."""
    numbers = list(train.select_dtypes("number"))
    mean, deviation = (getattr(train[numbers], what)().to_numpy() for what in ("mean", "std"))
    values, shape = test[numbers].to_numpy(np.float64), (len(test), len(numbers))
    far = values.copy()
    place = generator.integers(len(numbers), size=len(test))
    far[np.arange(len(test)), place] = (mean + 10 * deviation)[place]
    foreign = other_numbers("spam" if name == "letters" else "letters", *shape[::-1], generator)
    changed = {
        "noise": values + 0.5 * deviation * generator.normal(size=shape),
        "extreme": far,
        "other_table": foreign.numpy() * deviation + mean,
    }
    permuted = test.copy()
    for column in permuted:
        permuted[column] = permuted[column].to_numpy()[generator.permutation(len(test))]
    own = {key: test.assign(**dict(zip(numbers, x.T, strict=True))) for key, x in changed.items()}
    return {**own, "permuted": permuted}


def _mean(record: Record, score: str) -> float:
    return float(np.mean(list(record["result"]["auroc"][score].values())))


def _by_table(records: list[Record], tables: Sequence[str], score: str) -> dict[str, float]:
    """The mean over seeds of each table that has records."""
    found = {name: filter_records(records, table=name) for name in tables}
    return {
        name: float(np.mean([_mean(r, score) for r in own])) for name, own in found.items() if own
    }


def table(records: list[Record]) -> Table:
    """AUROC of each score, and gains of both over members alone: over seeds, then over tables."""
    rows = []
    for part, tables in PARTS.items():
        for name in tables:
            own = filter_records(records, table=name)
            if own:
                means = {score: [_mean(r, score) for r in own] for score in _SCORES}
                rows.append(_row(name, len(own), means))
        values = {score: list(_by_table(records, tables, score).values()) for score in _SCORES}
        if values["both"]:
            count = sum(record["cell"]["table"] in tables for record in records)
            rows.append(_row(f"**all {part}**", count, values))
    header = ["table", "fits", "members", "distance", "both (the default)", "gain over members"]
    return Table(header, rows)


def _row(title: str, fits: int, means: Mapping[str, Sequence[float]]) -> list[str]:
    gain = over_runs(means["both"], means["members"])
    cells = [f"{np.mean(values):.3f}" for values in means.values()]
    return [title, str(fits), *cells, gain.text("{:+.3f}")]


def _parts(records: list[Record]) -> Sides:
    """Both scores against members alone, by table."""
    sides = {
        part: (_by_table(records, tables, "both"), _by_table(records, tables, "members"))
        for part, tables in PARTS.items()
    }
    return {part: pair for part, pair in sides.items() if pair[0]}


def _variants(tables: Sequence[str]) -> Variants:
    return {table: {"table": table, "seed": 0} for table in tables}


EXPERIMENT = Experiment(
    "strangers/estimators",
    "21 tables",
    "`ood_score` of the estimators: members, distance, and both",
    seed_study(
        "estimators",
        {
            "smoke": _variants((*SETTLED, *CONFIRMED)[:1]),
            "cpu": _variants((*SETTLED, *CONFIRMED)),
            "paper": _variants((*SETTLED, *CONFIRMED)),
        },
        run,
        seeds=(1, 3, 3),
        cost=("5 s", "15 min", "15 min"),
    ),
    (
        Claim(
            "Members and distance together detect better than members alone",
            "Estimators",
            Larger("mean AUROC", ("both", "members"), _parts),
            ours=True,
        ),
    ),
    table,
)

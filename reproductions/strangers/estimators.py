"""Estimators on unknown rows: members, the distance of a row, and both together.

``ood_score`` of the estimators with their defaults, on raw tables. Unknown are held-out rows (one
class; of a regression the tenth with the largest targets) and test rows that were changed: noise of
half a deviation on all numbers, one number at ten deviations, numbers of another table, and columns
permuted over the rows. That rows are scored by both was settled on the settling tables of
:mod:`reproductions.tables` (one seed; held out were levels of a category where there is one); the
other tables confirm it.

``python -m reproductions.strangers.estimators`` writes
``results/strangers/estimators/records.jsonl``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.records import Record, put_record, read_lines, rounded
from dissensus.detection import evaluate
from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from reproductions.page import markdown_table
from reproductions.statistics import mean_interval, paired_difference
from reproductions.strangers import RESULTS
from reproductions.strangers.settings import other_numbers
from reproductions.tables.sources import TABLES, is_there, load_table

FILE = Path("strangers", "estimators", "records.jsonl")
SEEDS = range(3)
#: The tables, by whether they were settled on: those with columns of numbers enough to change.
SETTLED = (
    *("vowel", "attrition", "hpc", "churn", "letters"),
    *("servo", "sacramento", "cps1988", "ames", "chicago"),
)
CONFIRMED = (
    *("satellite", "credit", "vehicle", "soybean", "cells", "telco"),
    *("diamonds", "car_prices", "houseprices", "biomass", "ozone"),
)
_MOST_ROWS, _MOST_TEST = 6000, 800


def run_seed(name: str, seed: int) -> Record:
    """Fit an estimator to a seed of a table, and score known and unknown rows."""
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
    record: Record = rounded({"table": name, "seed": seed, "rows": len(train), "auroc": aurocs})
    return record


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


def read_estimators(results: Path) -> list[Record]:
    """The records; none where there is no file."""
    return read_lines((results / FILE).parent)


def section(records: Sequence[Record]) -> list[str]:
    """The section of the page: AUROC of each score, and gains of both over members alone."""
    rows = []
    for part, tables in {"settled on": SETTLED, "confirming": CONFIRMED}.items():
        own = [record for record in records if record["table"] in tables]
        for name in [*tables, f"all {part}"]:
            some = [r for r in own if r["table"] == name] if name in tables else own
            if not some:
                continue
            means = {score: [_mean(r, score) for r in some] for score in some[0]["auroc"]}
            if name not in tables:  # tables count, not seeds
                means = {score: _by_table(own, score) for score in means}
            gain = paired_difference(means["both"], means["members"])
            cells = [f"{mean_interval(values).mean:.3f}" for values in means.values()]
            title = f"**{name}**" if name not in tables else name
            rows.append([title, str(len(some)), *cells, gain.text("{:+.3f}")])
    if not rows:
        return []
    header = ["table", "fits", "members", "distance", "both (the default)", "gain over members"]
    return [
        "## Estimators",
        "",
        "`ood_score` of `DiverseClassifier` and `DiverseRegressor` with their defaults: mean AUROC",
        "over held-out rows (one class; of a regression the tenth with the largest targets; none",
        "where there are two classes), noise, one extreme number, numbers of another table and",
        "permuted columns. Scored by the members alone (mutual information or variance), by the",
        "Mahalanobis distance of the encoded row alone, and by both. The gain has its 95%",
        "interval, over seeds, or in the last row of each part over tables.",
        "",
        *markdown_table(header, rows),
        "",
    ]


def _mean(record: Record, score: str) -> float:
    return float(np.mean(list(record["auroc"][score].values())))


def _by_table(records: Sequence[Record], score: str) -> list[float]:
    names = dict.fromkeys(record["table"] for record in records)
    return [float(np.mean([_mean(r, score) for r in records if r["table"] == n])) for n in names]


def main() -> None:
    """Run every seed of every table that is not recorded yet."""
    torch.set_num_threads(1)
    done = {(record["table"], record["seed"]) for record in read_estimators(RESULTS)}
    for seed in SEEDS:
        for name in (*SETTLED, *CONFIRMED):
            if is_there(name) and (name, seed) not in done:
                record = run_seed(name, seed)
                put_record(RESULTS / FILE, record, lambda r: (r["table"], r["seed"]))
                print(name, seed, {key: round(_mean(record, key), 3) for key in record["auroc"]})


if __name__ == "__main__":
    main()

"""Regressors on unknown rows: does a copy that predicts apart on strangers detect them better?

On three tables a deep ensemble learns with squared error. Its copies go on from it for the epochs
of ``Detector.tune``: one with ``repulsion`` on permuted columns, one on the known rows alone. All
are judged by the variance of the members' predictions. The tenth of the rows with the largest
targets is held out and unknown, as are test rows with other numbers
(``changed_rows``). Nothing was settled on these tables.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.detection import evaluate
from dissensus.detection.tuning import tune
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.scores import SCORES
from dissensus.training import fit, predict
from reproductions.cells import Variants, seed_study
from reproductions.comparisons import Larger, Quantity, Runs, at, group_records, larger
from reproductions.experiment import Claim, Experiment, Table
from reproductions.statistics import over_runs
from reproductions.strangers.settings import changed_rows, encode, permuted_groups
from reproductions.study import Cell, Record
from reproductions.tables.sources import load_table

TABLES = ("diamonds", "car_prices", "houseprices")
_ROWS, _EPOCHS, _BATCH = 6000, 40, 64
_BASE = "deep_ensemble"
_TITLES = {
    _BASE: "deep ensemble",
    "longer": "the same, longer",
    "tuned": "**repulsion on strangers, tuned copy**",
}
_SETS = {
    "held_out": "held out (near)",
    "noise": "noise (near)",
    "extreme": "extreme (far)",
    "other_table": "other table (far)",
}


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensembles of a seed; the RMSE of each, and its AUROC on each unknown set."""
    seed, epochs = cell["seed"], cell["epochs"]
    frame, y = load_table(cell["table"])
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(len(y))[:_ROWS]
    frame, y = frame.iloc[drawn].reset_index(drop=True), y[drawn]
    known = y <= np.quantile(y, 0.9)
    order = generator.permutation(np.flatnonzero(known))
    train, test = np.split(order, [len(order) * 3 // 4])
    x, groups, width = encode(frame, train)
    scaled = (y - y[train].mean()) / y[train].std()
    targets = torch.from_numpy(scaled[:, None]).float()
    unknown = {"held_out": x[~known], **changed_rows(x[test], width, "letters", generator)}

    make = make_factory("mlp", (x.shape[1],), 1, hidden=(64, 64))
    plain = Ensemble(make, 5, seed=seed, combine="mean")
    rows = x[train], targets[train]
    fit(plain, rows, "independent:loss=mse", epochs=epochs, batch_size=_BATCH, progress=False)
    go_on = partial(tune, plain, rows, progress=False, batch_size=_BATCH, seed=seed + 1)
    strangers = partial(permuted_groups, torch.tensor(groups))
    ensembles = {
        "deep_ensemble": plain,
        "longer": go_on("independent:loss=mse", strangers=None)[0],
        "tuned": go_on(strangers=strangers)[0],
    }
    known_scores = {name: _variance(ens, x[test]) for name, ens in ensembles.items()}
    return {
        name: {
            "rmse": float((ens.predict(x[test]) - targets[test]).square().mean().sqrt()),
            "auroc": {
                key: evaluate(known_scores[name], _variance(ens, other), bootstrap=0).auroc.value
                for key, other in unknown.items()
            },
        }
        for name, ens in ensembles.items()
    }


def _variance(ens: Ensemble, x: Tensor) -> Tensor:
    return SCORES["variance"](predict(ens, x).outputs)


def _by_table(records: list[Record]) -> dict[str, list[Record]]:
    return group_records(records, lambda record: str(record["cell"]["table"]))


def table(records: list[Record]) -> Table:
    """RMSE and AUROC of each ensemble, and its gain over the deep ensemble."""
    rows = []
    for name, runs in _by_table(records).items():
        for contender, title in _TITLES.items():
            cells = [f"{np.mean([run['result'][contender]['rmse'] for run in runs]):.3f}"]
            for key in _SETS:
                own, base = (
                    [run["result"][who]["auroc"][key] for run in runs] for who in (contender, _BASE)
                )
                gain = "" if contender == _BASE else f", {over_runs(own, base).text('{:+.3f}')}"
                cells.append(f"{np.mean(own):.3f}{gain}")
            rows.append([name, title, *cells])
    return Table(["table", "trained as", "RMSE", *_SETS.values()], rows, labels=2)


def _tuned_larger(key: str) -> Larger:
    """A check that the tuned copy has the larger AUROC on an unknown set, on every table."""
    first, second = (
        Quantity("AUROC", at(contender, "auroc", key)) for contender in ("tuned", _BASE)
    )
    sides = Runs("tuned copy"), Runs("deep ensemble")
    return larger(first, *sides, _by_table, against=second)


def _variants(tables: Sequence[str]) -> Variants:
    return {table: {"table": table, "seed": 0, "epochs": _EPOCHS} for table in tables}


EXPERIMENT = Experiment(
    "strangers/regression",
    "3 tables",
    "Regressors by the variance of their members",
    seed_study(
        "regression",
        {"smoke": _variants(TABLES[:1]), "cpu": _variants(TABLES), "paper": _variants(TABLES)},
        run,
        seeds=(1, 5, 5),
        cost=("20 s", "5 min", "5 min"),
    ),
    (
        Claim(
            "A copy tuned on strangers detects the numbers of another table better",
            "Regression",
            _tuned_larger("other_table"),
            ours=True,
        ),
        Claim(
            "It detects rows with out-of-range targets better",
            "Regression",
            _tuned_larger("held_out"),
            ours=True,
        ),
    ),
    table,
)

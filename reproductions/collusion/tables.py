"""Four UCI tables, the protocol of Appendix B in full: what Figures 2, 3 and 4 are drawn from.

For each table and each run: 20% of the rows for testing, the rest 80/20 for training and
validation; 20 iterations of Bayesian optimisation over the stated grid, each ensemble trained with
early stopping (patience 5) and judged by its validation error; then, with the best setting, an
ensemble for every β = 0, 0.1, …, 1, evaluated on the test rows.

What Appendix B leaves open, and what is done here:

- *At which β the search runs.* β = 0.5, which favours neither end; option ``search_beta``, and the
  experiment ``collusion/search-beta`` shows how much it matters.
- *"Retrained on the train/validation data."* Without validation rows nothing can stop training
  early. So each β is trained on the training rows first, with early stopping, which gives its
  number of epochs, and then anew on training and validation rows together for so many.
- *Which Bayesian optimisation.* optuna's tree-structured Parzen estimator, five random trials
  first. *Which optimiser.* Adam.

Columns, one-hot encoding and logarithms of each table: :mod:`.paper_tables`. Scaling comes
from the training rows. All β of a run share split, initial weights and order of batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dissensus.data import Data
from dissensus.diagnostics import Split, codependence, debiased_share
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.objectives import Augmented
from dissensus.sweeps import best_trial, search
from dissensus.training import Recipe, Training, fit_fleet, predict
from reproductions.cells import count_option, rates_of_mean
from reproductions.collusion.paper_tables import paper_split
from reproductions.study import Cell, Study

#: The grid of Appendix B.
GRID: dict[str, tuple[Any, ...]] = {
    "lr": (0.01, 0.005, 0.001),
    "batch_size": (16, 32, 64),
    "weight_decay": (0.0, 0.001, 0.01),
    "members": (5, 10, 15, 20),
    "width": (10, 20, 30),
    "layers": (1, 2, 3),
}
BETAS = tuple(tenths / 10 for tenths in range(11))
FRACTIONS = (0.2, 0.4, 0.6)  # of members left out, Figure 4

_UCI = ("bioconcentration", "weather", "facebook", "abalone")
_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"tables": ("diabetes",), "runs": 2, "trials": 2, "epochs": 6},
    "cpu": {"tables": _UCI, "runs": 20, "trials": 20, "epochs": 500},
    "paper": {"tables": _UCI, "runs": 10, "trials": 20, "epochs": 500},
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """A cell for each table and run."""
    betas = (float(options.get("search_beta", 0.5)),)
    return _cells(scale, _SCALES[scale]["runs"], betas, options)


def search_cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """A cell for each table, each run, and the search at either end and in the middle."""
    return _cells(scale, 2 if scale == "smoke" else 10, (0.0, 0.5, 1.0), options)


def _cells(scale: str, runs: int, betas: Sequence[float], options: Mapping[str, Any]) -> list[Cell]:
    size = _SCALES[scale]
    tables = str(options["table"]).split("+") if "table" in options else size["tables"]
    return [
        {
            "name": f"{table}-{number}" + (f"-beta{beta:g}" if len(betas) > 1 else ""),
            "table": table,
            "run": number,
            "search_beta": beta,
            "trials": count_option(options, "trials", size["trials"]),
            "epochs": size["epochs"],
            "patience": 5,
        }
        for number in range(count_option(options, "runs", runs))
        for table in tables
        for beta in betas
    ]


def run(cell: Cell) -> dict[str, Any]:
    """One run on one table: search, then every β; its metrics on the test rows."""
    data = paper_split(cell["table"], cell["run"])
    trials = search(
        GRID,
        lambda choices: [_validated(cell, data, choice) for choice in choices],
        trials=cell["trials"],
        seed=cell["run"],
    )
    best = best_trial(trials)
    stopped = fit_fleet(
        [_training(cell, data, best.choice, beta) for beta in BETAS],
        progress=False,
        keep_failed=True,
    )
    epochs = [history.best_epoch for history in stopped]
    if not all(epochs):
        raise ValueError(f"training diverged with {best.choice}: {stopped[-1].ended}")
    final = [
        _training(cell, data, best.choice, beta, count)
        for beta, count in zip(BETAS, epochs, strict=True)
    ]
    fit_fleet(final, progress=False)
    return {
        "chosen": best.choice,
        "validation_error": best.value,
        "trials": [
            [*trial.choice.values(), trial.value if math.isfinite(trial.value) else None]
            for trial in trials
        ],
        "examples": [len(x) for x, _ in data.splits().values()],
        "epochs": epochs,
        "stopped_early": [history.ended == "patience" for history in stopped],
        "log_features": data.preprocessing["log_features"],
        "betas": [_metrics(training, data) for training in final],
    }


def _training(
    cell: Cell, data: Data, choice: Mapping[str, Any], beta: float, epochs: int | None = None
) -> Training:
    """With early stopping on the validation rows, or for ``epochs`` on these rows too."""
    hidden = (choice["width"],) * choice["layers"]
    make = make_factory("mlp", data.input_shape, data.outputs, hidden=hidden)
    early = epochs is None
    both = [torch.cat(pair) for pair in zip(data.train, data.val, strict=True)]
    return Training(
        Ensemble(make, choice["members"], seed=cell["run"], combine="mean"),
        data.train if early else (both[0], both[1]),
        Augmented(beta, loss="mse"),
        data.val if early else None,
        Recipe(
            epochs=cell["epochs"] if epochs is None else epochs,
            batch_size=choice["batch_size"],
            optimizer=rates_of_mean(
                f"adam:lr={choice['lr']},weight_decay={choice['weight_decay']}", choice["members"]
            ),
            patience=cell["patience"] if early else None,
            seed=cell["run"],
        ),
    )


def _validated(cell: Cell, data: Data, choice: Mapping[str, Any]) -> float:
    """ERR on the validation rows at the best epoch; infinite where training diverged."""
    training = _training(cell, data, choice, cell["search_beta"])
    (history,) = fit_fleet([training], progress=False, keep_failed=True)
    errors: list[float] = history.column("val/ensemble_error")
    return min(errors, default=math.inf)


def _metrics(training: Training, data: Data) -> dict[str, Any]:
    """The numbers of one ensemble that Figures 2 to 4 show."""
    assert isinstance(training.objective, Augmented)
    train, test = (predict(training.ens, part) for part in (training.train, data.test))
    split = Split.of(test)
    errors = {
        part: {
            "ensemble_error": float(parts.ensemble_error),
            "member_error": float(parts.member_error),
            "diversity": float(parts.diversity),
        }
        for part, parts in (("train", Split.of(train).decompose()), ("test", split.decompose()))
    }
    drops = codependence(split, fractions=FRACTIONS, draws=100, seed=0).drops
    return {
        "beta": training.objective.beta,
        **errors,
        "debiased_share": debiased_share(split).share,
        "without": [[drop.fraction, drop.dropped, drop.increase, drop.relative] for drop in drops],
    }


#: Figures 2, 3 and 4.
TABLES = Study(
    "tables",
    cells,
    run,
    options={
        "search_beta": "the β at which hyperparameters are searched (0.5)",
        "runs": "how many runs of each table",
        "trials": "how many iterations of the search",
        "table": "only these tables, joined by +",
    },
    cost={"smoke": "10 s", "cpu": "20 min", "paper": "10 min"},
)

#: How much it matters where the search runs.
SEARCHES = Study(
    "searches",
    search_cells,
    run,
    options={name: TABLES.options[name] for name in ("runs", "trials", "table")},
    cost={"smoke": "20 s", "cpu": "40 min", "paper": "40 min"},
)

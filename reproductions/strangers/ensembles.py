"""Ensembles: one contender in one seed of one setting, trained and scored.

Contenders of one seed share their trainings, as long as their cells follow each other.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dissensus.calibration import nll
from dissensus.data import Inputs
from dissensus.detection import Detector, evaluate, fit_together, score_together
from dissensus.ensemble import Ensemble
from dissensus.outputs import combined_log_probs
from dissensus.training import predict
from reproductions.cells import count_option, names_option
from reproductions.strangers.contenders import CONTENDERS, Contender, Trainings
from reproductions.strangers.settings import SETTINGS, Setting
from reproductions.study import Cell, Study

#: Scores of the members' outputs, and of their features.
OUTPUT_SCORES = ("mutual_information", "pds", "entropy", "max_softmax", "energy")
DISTANCES = ("mahalanobis", "relative_mahalanobis", "knn", "vim", "react")
COMBINED = (
    "combined",
    "combined:distance=mahalanobis",
    "combined:distance=knn",
    "combined:distance=vim",
)
#: Training rows that scores of features are fitted to.
FITTED = 4000
SEEDS = 5
#: The setting on which the recipe was settled, and its seed.
SETTLING, SETTLING_SEED = "settling", 100
_SMOKE = {"settings": "digits", "contenders": "deep_ensemble+tuned", "seeds": 2}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """A cell for each contender of each seed of each setting."""
    options = {**_SMOKE, **options} if scale == "smoke" else options
    known = [name for name, own in SETTINGS.items() if own.confirms or name == SETTLING]
    planned = [
        (SETTLING_SEED if name == SETTLING else seed, name, contender)
        for seed in range(count_option(options, "seeds", SEEDS))
        for name in names_option(options, "settings", known)
        for contender in names_option(options, "contenders", CONTENDERS)
        if _suits(CONTENDERS[contender], contender, name, seed)
    ]
    return [
        {
            "name": f"{name}-{contender}-seed={seed}",
            "setting": name,
            "contender": contender,
            "seed": seed,
            "epochs": 2 if scale == "smoke" else SETTINGS[name].epochs,
            "scores": score_names(CONTENDERS[contender], SETTINGS[name]),
        }
        for seed, name, contender in planned
    ]


def _suits(contender: Contender, name: str, setting: str, seed: int) -> bool:
    own = SETTINGS[setting]
    if setting == SETTLING:
        return seed == 0
    among = own.contenders is None or name in own.contenders
    return among and not contender.settling and (own.kind == "images" or not contender.images)


def score_names(contender: Contender, setting: Setting) -> list[str]:
    """The scores that a contender is measured by."""
    if not (contender.features and setting.confirms):
        return list(OUTPUT_SCORES)
    return [*OUTPUT_SCORES, *(() if contender.copy else DISTANCES), *COMBINED]


@lru_cache(maxsize=1)
def _trainings(setting: str, epochs: int, seed: int) -> Trainings:
    return Trainings(replace(SETTINGS[setting], epochs=epochs), seed)


def run(cell: Cell) -> dict[str, Any]:
    """Train and measure a contender; its CPU seconds are less if others of its seed were before."""
    trainings = _trainings(cell["setting"], cell["epochs"], cell["seed"])
    start = time.process_time()
    ens = CONTENDERS[cell["contender"]].make(trainings)
    trained = time.process_time()
    found = measure(ens, trainings, cell)
    return {"train_cpu": trained - start, "score_cpu": time.process_time() - trained, **found}


def measure(ens: Ensemble, trainings: Trainings, cell: Cell) -> dict[str, Any]:
    """Accuracy on test rows, and the AUROC of each score on each unknown set and on strangers.

    Known rows are those of the test, or of validation where strangers are made from these. A set
    that an ensemble learnt to disagree on is not tested.
    """
    rows, seed = trainings.rows, trainings.seed
    scores = scorer_of(ens, trainings, CONTENDERS[cell["contender"]], cell["scores"])
    predictions = predict(ens, rows.test[0]).outputs
    log_probs = combined_log_probs(predictions, "probability")
    known, seen = scores(rows.test[0]), scores(rows.val[0])
    trained_on = rows.foreign_name if cell["contender"] == "foreign" else None
    return {
        "accuracy": float((log_probs.argmax(-1) == rows.test[1]).double().mean()),
        "member_accuracy": float((predictions.argmax(-1) == rows.test[1]).double().mean()),
        "nll": float(nll(predictions, rows.test[1])),
        "auroc": {
            name: _aurocs(known, scores(x))
            for name, x in rows.unknown.items()
            if name != trained_on
        },
        "val_auroc": {
            name: _aurocs(seen, scores(family(rows.val[0], torch.Generator().manual_seed(seed))))
            for name, family in rows.families.items()
        },
    }


def scorer_of(
    ens: Ensemble, trainings: Trainings, contender: Contender, names: Sequence[str]
) -> Callable[[Tensor], dict[str, Tensor]]:
    """A function from inputs to all scores of a contender, ``{name: [rows]}``."""
    rows = trainings.rows
    detectors = [
        Detector(trainings.plain, name, batch_size=512).use_tuned(ens, {})
        if contender.copy
        else Detector(ens, name, batch_size=512)
        for name in names
    ]
    train = Inputs("train", *rows.train).limited(FITTED, trainings.seed).batches(512)
    fit_together(detectors, rows.val, train=train)

    def scores(x: Tensor) -> dict[str, Tensor]:
        found = score_together(detectors, x)
        return {name: values.double().cpu() for name, values in zip(names, found, strict=True)}

    return scores


def _aurocs(known: Mapping[str, Tensor], unknown: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: evaluate(known[name], unknown[name], bootstrap=0).auroc.value for name in known}


ENSEMBLES = Study(
    "ensembles",
    cells,
    run,
    jobs=1,
    options={
        "settings": "only these settings, joined by +",
        "contenders": "only these contenders, joined by +",
        "seeds": "how many seeds of each setting (5)",
    },
    cost={"smoke": "10 s", "cpu": "4 h", "paper": "4 h"},
    parts=("settings", "contenders", "seeds"),
)

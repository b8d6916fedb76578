"""DiverseClassifier and DiverseRegressor against ensembles of scikit-learn's own perceptrons.

All have ten members, with hidden layers as are their defaults (one of 100 units in scikit-learn),
see the same training rows and are judged on the same test rows, 30% of the data, drawn anew for
each seed. scikit-learn's get their inputs, and in regression the target, standardised as well.
Everything else is at its default.

The error is the share of wrong classes, or 1 − R². Every (data set, seed) is one round: each
contender is fitted once in it, in turn, so times and errors are paired.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress
from scipy.stats import wilcoxon
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, BaggingRegressor, VotingClassifier, VotingRegressor
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.timing import Check, Measurement, Result, Spread
from dissensus.sklearn import DiverseClassifier, DiverseRegressor

_MEMBERS = 10
_BETAS = [0.0, 0.25, 0.5, 0.75, 1.0]
_OURS = "dissensus"


class Round(NamedTuple):
    """What one contender did on one data set with one seed."""

    cpu: float
    wall: float
    error: float
    log_loss: float  # NaN in regression


def run(quick: bool) -> list[Result]:
    """All comparisons; one thread unless ``--threads`` says otherwise."""
    seeds = range(1 if quick else 4)
    return [
        _compared("classification", _classifiers, _classification, seeds),
        _compared("regression", _regressors, _regression, seeds),
        _choosing_beta(hidden=20, limit=0.33, repeats=1 if quick else 3),
        _choosing_beta(hidden=100, limit=0.75, repeats=1 if quick else 3),
    ]


# ---- data ---------------------------------------------------------------------------------------


def _classification(seed: int) -> Iterator[tuple[Any, Any]]:
    for load in (datasets.load_digits, datasets.load_breast_cancer, datasets.load_wine):
        yield load(return_X_y=True)
    yield datasets.make_moons(500, noise=0.3, random_state=seed)


def _regression(seed: int) -> Iterator[tuple[Any, Any]]:
    yield datasets.load_diabetes(return_X_y=True)
    yield datasets.make_friedman1(500, noise=1.0, random_state=seed)
    yield datasets.make_sparse_uncorrelated(500, n_features=8, random_state=seed)


# ---- contenders ---------------------------------------------------------------------------------


def _classifiers(seed: int) -> dict[str, Any]:
    def one(own: int) -> Any:
        return make_pipeline(StandardScaler(), MLPClassifier(random_state=own))

    named = [(str(own), one(own)) for own in _seeds(seed)]
    return {
        "BaggingClassifier of MLPs": BaggingClassifier(one(seed), _MEMBERS, random_state=seed),
        "VotingClassifier of MLPs": VotingClassifier(named, voting="soft"),
        _OURS: DiverseClassifier(_MEMBERS, random_state=seed),
    }


def _regressors(seed: int) -> dict[str, Any]:
    def one(own: int) -> Any:
        network = make_pipeline(StandardScaler(), MLPRegressor(random_state=own))
        return TransformedTargetRegressor(network, transformer=StandardScaler())

    named = [(str(own), one(own)) for own in _seeds(seed)]
    return {
        "BaggingRegressor of MLPs": BaggingRegressor(one(seed), _MEMBERS, random_state=seed),
        "VotingRegressor of MLPs": VotingRegressor(named),
        _OURS: DiverseRegressor(_MEMBERS, random_state=seed),
    }


def _seeds(seed: int) -> range:
    return range(_MEMBERS * seed, _MEMBERS * (seed + 1))


# ---- comparing ----------------------------------------------------------------------------------


def _compared(
    task: str,
    contenders: Callable[[int], dict[str, Any]],
    tables: Callable[[int], Iterator[tuple[Any, Any]]],
    seeds: range,
) -> Result:
    rounds: dict[str, list[Round]] = {name: [] for name in contenders(0)}
    work = [(seed, X, y) for seed in seeds for X, y in tables(seed)]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for turn, (seed, X, y) in bar.track(list(enumerate(work)), description=task):
            parts = train_test_split(
                X, y, test_size=0.3, random_state=seed, stratify=y if task[0] == "c" else None
            )
            everyone = list(contenders(seed).items())
            for place in range(len(everyone)):
                name, model = everyone[(turn + place) % len(everyone)]
                rounds[name].append(_fitted(model, *parts))
    title = f"{task}: fit {_MEMBERS} perceptrons, {len(work)} pairs of data set and seed"
    baseline, *_ = rounds
    measurements = tuple(
        _measurement(name, own, rounds[baseline], 0.5 if name == _OURS else None)
        for name, own in rounds.items()
    )
    others = [name for name in rounds if name != _OURS]
    checks = [check for name in others for check in _checks(name, rounds[_OURS], rounds[name])]
    return Result(f"{title}, ratio to {baseline}", "cpu", len(work), measurements, tuple(checks))


def _fitted(model: Any, X: Any, X_test: Any, y: Any, y_test: Any) -> Round:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that 200 epochs were not enough
        cpu, wall = _timed(partial(model.fit, X, y))
    loss = np.nan
    if hasattr(model, "predict_proba"):
        loss = log_loss(y_test, model.predict_proba(X_test), labels=model.classes_)
    return Round(cpu, wall, 1 - model.score(X_test, y_test), loss)


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def _measurement(
    name: str, own: list[Round], baseline: list[Round], limit: float | None
) -> Measurement:
    ratios = [mine.cpu / base.cpu for mine, base in zip(own, baseline, strict=True)]
    cpu, wall = (Spread.of([getattr(r, kind) for r in own]) for kind in ("cpu", "wall"))
    return Measurement(name, 1, cpu, wall, Spread.of(ratios), limit)


def _checks(other: str, ours: list[Round], theirs: list[Round]) -> list[Check]:
    """Whether our error is no higher on average, and not higher beyond chance."""
    more = np.array([a.error - b.error for a, b in zip(ours, theirs, strict=True)])
    worse = 0.0 if not more.any() else 1 - wilcoxon(more, alternative="greater").pvalue
    checks = [
        Check(f"mean error minus that of {other}", float(more.mean()), 0.0),
        Check(f"confidence that it is higher (Wilcoxon, {len(more)} pairs)", float(worse), 0.95),
    ]
    loss = np.array([a.log_loss - b.log_loss for a, b in zip(ours, theirs, strict=True)])
    if not np.isnan(loss).any():
        checks.append(Check(f"mean log loss minus that of {other}", float(loss.mean()), 0.0))
    return checks


# ---- choosing beta ------------------------------------------------------------------------------


def _choosing_beta(hidden: int, limit: float, repeats: int) -> Result:
    """The same 5 folds × 5 β and a last fit: one after the other, and as a fleet.

    The larger the networks, the more of the time is matrix products, which are the same in both.
    """
    X, y = datasets.load_diabetes(return_X_y=True)
    settings: dict[str, Any] = {"n_estimators": _MEMBERS, "hidden_layer_sizes": hidden}
    one_by_one, fleet = "GridSearchCV over beta", 'beta="auto"'
    rounds: dict[str, list[Round]] = {one_by_one: [], fleet: []}
    for seed in range(repeats):
        plain = DiverseRegressor(**settings, random_state=seed)
        models = {
            one_by_one: GridSearchCV(plain, {"beta": _BETAS}, cv=5),
            fleet: DiverseRegressor(**settings, beta="auto", betas=_BETAS, cv=5, random_state=seed),
        }
        for name, model in models.items():
            rounds[name].append(Round(*_timed(partial(model.fit, X, y)), np.nan, np.nan))
    measurements = tuple(
        _measurement(name, own, rounds[one_by_one], limit if name == fleet else None)
        for name, own in rounds.items()
    )
    title = f"diabetes: β among 5 by 5-fold cross-validation, {_MEMBERS} members of {hidden} units"
    return Result(f"{title}, ratio to GridSearchCV", "cpu", repeats, measurements)

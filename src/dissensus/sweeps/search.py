"""Hyperparameter search: Bayesian optimisation that proposes batches, to be trained together.

optuna's tree-structured Parzen estimator learns from finished trials where good ones lie. Asked for
several at once it treats those under way as bad, so that they differ; a batch of one is the plain
sequential search. Which values are tried follows from the seed and the results alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.sweeps.cells import Cell, Record
from dissensus.sweeps.grid import Point
from dissensus.sweeps.selection import select_among_records

if TYPE_CHECKING:
    from dissensus.sweeps.plan import Plan

#: Values to choose from, in order where they are numbers.
Space = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Trial:
    """A choice and its value; lower is better. NaN for one that failed."""

    choice: dict[str, Any]
    value: float


def search(
    space: Space,
    evaluate: Callable[[list[dict[str, Any]]], Sequence[float]],
    *,
    trials: int = 20,
    batch: int = 1,
    seed: int = 0,
) -> list[Trial]:
    """Minimise over ``space``; ``evaluate`` gets a batch of choices and returns a value of each.

    A choice that was tried before is not evaluated again, but counts as a trial. Needs optuna
    (``pip install "dissensus[search]"``).

    >>> def error(choices):
    ...     return [(choice["depth"] - 2) ** 2 + choice["rate"] for choice in choices]
    >>> space = {"rate": [0.1, 0.01, 0.001], "depth": [1, 2, 3]}
    >>> best_trial(search(space, error, trials=15, batch=3)).choice
    {'rate': 0.001, 'depth': 2}
    """
    proposals = propose(space, trials=trials, batch=batch, seed=seed)
    try:
        choices = next(proposals)
        while True:
            choices = proposals.send(evaluate(choices))
    except StopIteration as end:
        done: list[Trial] = end.value
        return done


def propose(
    space: Space,
    *,
    trials: int = 20,
    batch: int = 1,
    seed: int = 0,
    shared: SharedStudy | None = None,
) -> Generator[list[dict[str, Any]], Sequence[float], list[Trial]]:
    """The search as a generator, so that several can advance side by side.

    It yields a batch of new choices, is sent their values, and returns all trials. ``shared``
    follows every trial.
    """
    if not space or not all(len(values) for values in space.values()):
        raise ValueError(f"a search needs values to choose from, got {dict(space)}")
    if min(trials, batch) < 1:
        raise ValueError(f"trials and batch must be at least 1, got {trials} and {batch}")
    study, distributions = _study(space, trials, seed)
    known: dict[tuple[int, ...], float] = {}
    done: list[Trial] = []

    def choice(key: tuple[int, ...]) -> dict[str, Any]:
        return {name: values[at] for (name, values), at in zip(space.items(), key, strict=True)}

    while len(done) < trials:
        asked = [study.ask(distributions) for _ in range(min(batch, trials - len(done)))]
        keyed = [(trial, tuple(trial.params[name] for name in space)) for trial in asked]
        if shared is not None:
            for trial, key in keyed:
                shared.start_trial(trial, choice(key))
        new = [key for key in dict.fromkeys(key for _, key in keyed) if key not in known]
        if new:
            values = yield [choice(key) for key in new]
            known |= dict(zip(new, map(float, values), strict=True))
        for trial, key in keyed:
            value = known[key]
            _tell(study, trial, value)
            if shared is not None:
                _tell(shared.study, trial.number, value)
            done.append(Trial(choice(key), value if math.isfinite(value) else math.nan))
    return done


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The first trial with the lowest value; an error if all of them failed."""
    finite = [trial for trial in trials if math.isfinite(trial.value)]
    if not finite:
        raise ValueError(f"all {len(trials)} trials failed: no value is finite")
    return min(finite, key=lambda trial: trial.value)


def _study(space: Space, trials: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """An optuna study, and for each name the places of its values: ordered ones as numbers."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError('the search needs optuna: pip install "dissensus[search]"') from error
    from optuna.distributions import CategoricalDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=max(1, min(10, trials // 4)), constant_liar=True
        )
    study = optuna.create_study(sampler=sampler)
    distributions: dict[str, Any] = {}
    for name, values in space.items():
        ordered = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        last = len(values) - 1
        distributions[name] = (
            IntDistribution(0, last)
            if ordered and list(values) in (sorted(values), sorted(values, reverse=True))
            else CategoricalDistribution(tuple(range(last + 1)))
        )
    return study, distributions


def _tell(study: Any, trial: Any, value: float) -> None:
    """Report the value of a trial, given by itself or its number; not finite means failed."""
    from optuna.trial import TrialState

    end = {"values": value} if math.isfinite(value) else {"state": TrialState.FAIL}
    study.tell(trial, **end, skip_if_finished=True)


class SharedStudy:
    """A study that follows a search: trials appear once proposed, and get their value once done.

    ``storage`` is a file (optuna's journal, which several machines may share), or the URL of a
    database, ``sqlite:///search.db``, ``postgresql://…``. What a search proposes follows from its
    seed and its records alone, never from the storage. Two programs must take turns.
    """

    def __init__(self, storage: str, name: str) -> None:
        import optuna

        self.storage, self.name = storage, name
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            target: Any = storage
            if "://" not in storage:
                from optuna.storages import JournalStorage
                from optuna.storages.journal import JournalFileBackend

                target = JournalStorage(JournalFileBackend(storage))
            self.study = optuna.create_study(study_name=name, storage=target, load_if_exists=True)
        except Exception as error:  # each database has errors of its own
            words = str(error).partition("\n")[0]
            raise ValueError(f"--storage {storage} cannot be used: {words}") from error

    def start_trial(self, trial: Any, choice: Mapping[str, Any]) -> None:
        """Add the search's ``trial`` as running, unless it is there already."""
        import optuna

        stored = self.study.get_trials(deepcopy=False)
        if trial.number < len(stored):
            if stored[trial.number].params != trial.params:
                raise ValueError(
                    f"{self.storage} holds another search named {self.name}: its trial "
                    f"{trial.number} is not this one's; choose another --storage"
                )
            return
        running = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={"choice": dict(choice)},
        )
        self.study.add_trial(running)


# ---- the search of a sweep ----------------------------------------------------------------------


def search_repeats(
    plan: Plan,
    task: str,
    out: Path,
    train: Callable[[Sequence[Cell]], Mapping[str, Record]],
    searching: Callable[[int, int], object],
    storage: str | None,
) -> dict[int, Point]:
    """The choice of each repeat (``sweeps/selection.py``); all repeats search side by side.

    ``train`` returns the records of trials by name. The search itself is not stored: from the same
    seed and results it proposes the same trials again, whose records are there.
    """
    seed = int(plan.sections["training"].get("seed", 0))

    def start(repeat: int) -> Generator[list[dict[str, Any]], Sequence[float], list[Trial]]:
        name = plan.study_name(out, repeat)
        shared = None if storage is None else SharedStudy(storage, name)
        settings = {"trials": plan.trials, "batch": plan.batch, "seed": seed + repeat}
        return propose(plan.space, **settings, shared=shared)

    searches = {repeat: start(repeat) for repeat in range(plan.repeats)}
    proposals = {repeat: next(search) for repeat, search in searches.items()}
    records: dict[str, Record] = {}
    tried, total = 0, plan.trials * plan.repeats
    while proposals:
        searching(tried, total)
        cells = {
            repeat: [plan.trial(task, choice, repeat) for choice in choices]
            for repeat, choices in proposals.items()
        }
        records |= train(list(chain(*cells.values())))
        for repeat, batch in cells.items():
            try:
                values = [_validation_error(records[cell["name"]]) for cell in batch]
                proposals[repeat] = searches[repeat].send(values)
            except StopIteration:
                del proposals[repeat]
        tried = min(total, tried + plan.batch * plan.repeats)
    searching(total, total)
    return {repeat: _choose(records.values(), repeat) for repeat in sorted(searches)}


def _choose(records: Iterable[Record], repeat: int) -> Point:
    """The choice of a repeat, among its trials that did not fail."""
    trials = sorted(records, key=lambda record: str(record["name"]))  # not in the order they ended
    own = [record for record in trials if record["cell"]["repeat"] == repeat]
    done = [record for record in own if math.isfinite(_validation_error(record))]
    if not done:
        raise ValueError(f"all {len(own)} trials of repeat {repeat} failed: no value is finite")
    point: Point = done[select_among_records([[record] for record in done]).chosen]["cell"]["point"]
    return point


def _validation_error(record: Record) -> float:
    """Validation ERR; NaN for a cell that failed."""
    return float(record.get("result", {}).get("val", {}).get("ensemble_error", math.nan))

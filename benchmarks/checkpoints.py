"""What a safe run folder costs: the lock, checksums and the previous checkpoint, on digits.

A run with them and one without take turns. Only the time that each spends on saving and locking is
compared: training itself varies from run to run by more than the few percent in question.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.timing import Check, Contender, Result, compare
from dissensus.data import load
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.tools.files import lock_folder
from dissensus.training import fit
from dissensus.training.run_folder import RunFolder

LIMIT = 0.02
EPOCHS, QUICK_EPOCHS = 10, 1


def run(quick: bool) -> list[Result]:
    """Time ``fit`` with a run folder, and in it the saving, with and without what makes it safe."""
    data, epochs = load("digits"), QUICK_EPOCHS if quick else EPOCHS
    rounds = 2 if quick else 60
    saving: dict[bool, list[float]] = {True: [], False: []}
    total: list[float] = []  # of runs without

    def train(safe: bool) -> None:
        with tempfile.TemporaryDirectory() as folder, _timed(safe) as spent:
            began = time.process_time()
            ens = Ensemble(make_factory("mlp", (1, 8, 8), 10), members=5)
            fit(ens, data.train, val=data.val, epochs=epochs, out=Path(folder), progress=False)
            saving[safe].append(sum(spent))
            if not safe:
                total.append(time.process_time() - began)

    title = f"A run on digits of {epochs} epochs, 5 members, saved after each: what safety costs"
    without = Contender("without lock, checksums, previous checkpoints", lambda: train(False))
    result = compare(title, without, [Contender("as it is", lambda: train(True))], rounds)
    # The first runs of each are tries, not rounds.
    shares = [
        (own - plain) / whole
        for own, plain, whole in zip(saving[True], saving[False], total, strict=True)
    ][-rounds:]
    name = "CPU time of saving and locking: what it is more / a run without"
    check = Check(name, statistics.median(shares), LIMIT)
    return [Result(title, result.clock, result.rounds, result.measurements, (check,))]


@contextmanager
def _timed(safe: bool) -> Iterator[list[float]]:
    """The CPU seconds of each call that saves or locks; with ``safe=False`` it does no more."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments)
            finally:
                spent.append(time.process_time() - began)

        return call

    @contextmanager
    def lock(*arguments: Any) -> Iterator[None]:
        held = lock_folder(*arguments) if safe else nullcontext()
        timed(held.__enter__)()
        try:
            yield
        finally:
            timed(held.__exit__)(None, None, None)

    save = patch.object(RunFolder, "save", timed(RunFolder.save))
    with save, patch("dissensus.training.fit.lock_folder", lock):
        if safe:
            yield spent
            return
        checksum = patch("dissensus.tools.files.tensors._checksum", lambda *_: "0" * 8)
        with checksum, patch("dissensus.training.run_folder.keep_copy", lambda *_: None):
            yield spent

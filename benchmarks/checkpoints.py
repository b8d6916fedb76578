"""What a safe run folder costs: the lock, checksums and the previous checkpoint, on digits.

Their calls are timed within the run: two runs differ by more than the few percent in question.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.timing import Check, Contender, Result, compare
from dissensus.data import load
from dissensus.ensemble import Ensemble
from dissensus.files import keep_copy, lock_folder
from dissensus.files.tensors import _stamp
from dissensus.models import make_factory
from dissensus.training import fit

LIMIT = 0.02
EPOCHS, QUICK_EPOCHS = 10, 1


def run(quick: bool) -> list[Result]:
    """Time ``fit`` with a run folder, and within it the calls that make the folder safe."""
    data, epochs = load("digits"), QUICK_EPOCHS if quick else EPOCHS
    shares: list[float] = []

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder, _timed() as spent:
            began = time.process_time()
            ens = Ensemble(make_factory("mlp", (1, 8, 8), 10), members=5)
            fit(ens, data.train, val=data.val, epochs=epochs, out=Path(folder), progress=False)
            own = sum(spent)
            shares.append(own / (time.process_time() - began - own))

    title = f"A run on digits of {epochs} epochs, 5 members, saved after each: what safety costs"
    result = compare(title, Contender("as it is", train), [], repeats=2 if quick else 60)
    name = "CPU time of lock, checksums and previous checkpoints / of all else"
    check = Check(name, statistics.median(shares), LIMIT)
    return [Result(title, result.clock, result.rounds, result.measurements, (check,))]


@contextmanager
def _timed() -> Iterator[list[float]]:
    """The CPU seconds of each call that makes a folder safe."""
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
        held = lock_folder(*arguments)
        timed(held.__enter__)()
        try:
            yield
        finally:
            timed(held.__exit__)(None, None, None)

    with (
        patch("dissensus.files.tensors._stamp", timed(_stamp)),
        patch("dissensus.training.run_folder.keep_copy", timed(keep_copy)),
        patch("dissensus.training.fit.lock_folder", lock),
    ):
        yield spent

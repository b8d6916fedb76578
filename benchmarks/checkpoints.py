"""What a safe run folder costs: the lock, checksums and the previous checkpoint, on digits."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

from benchmarks.timing import Contender, Result, compare
from dissensus.data import load
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.training import fit

LIMIT = 1.02
EPOCHS, QUICK_EPOCHS = 10, 1


def run(quick: bool) -> list[Result]:
    """Time ``fit`` with a run folder against the same without what makes the folder safe."""
    data, epochs = load("digits"), QUICK_EPOCHS if quick else EPOCHS

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            ens = Ensemble(make_factory("mlp", (1, 8, 8), 10), members=5)
            fit(ens, data.train, val=data.val, epochs=epochs, out=Path(folder), progress=False)

    return [
        compare(
            f"A run on digits of {epochs} epochs, 5 members, saved after each: what safety costs",
            Contender("no lock, checksum or previous checkpoint", _without(train)),
            [Contender("as it is", train, LIMIT)],
            repeats=2 if quick else 30,
        )
    ]


def _without(train: Callable[[], None]) -> Callable[[], None]:
    def plain() -> None:
        with _unsafe():
            train()

    return plain


@contextmanager
def _unsafe() -> Iterator[None]:
    def nothing(*arguments: object) -> None:
        pass

    with (
        patch("dissensus.files.tensors._stamp", nothing),
        patch("dissensus.training.run_folder.keep_copy", nothing),
        patch("dissensus.training.fit.lock_folder", lambda *arguments: nullcontext()),
    ):
        yield

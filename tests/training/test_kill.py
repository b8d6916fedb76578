"""``kill -9`` at any moment, also while a file is half written, costs nothing but time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dissensus.tools.records import read_record
from tests.training.killed_run import EPOCHS, train
from tests.training.problems import same_bits, state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Let another program train and be killed; what it found in the folders after each kill."""
    top = tmp_path_factory.mktemp("killed")
    run = subprocess.run(
        [sys.executable, "-m", "tests.training.killed_run", str(top)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    return top, json.loads(run.stdout)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    return *train(folder, resume=False), folder


@pytest.mark.parametrize(("how", "kills"), [("random", 15), ("events", 60)])
def test_a_run_that_was_killed_again_and_again_ends_with_the_same_bits(
    how: str,
    kills: int,
    killed: tuple[Path, dict[str, Any]],
    uninterrupted: tuple[Any, Any, Path],
) -> None:
    """At random moments, and at every one of the moments at which it touches the disk."""
    folder, seen = killed[0] / how, killed[1][how]
    epochs = [found["epoch"] for found in seen]
    assert len(seen) >= kills
    assert epochs == sorted(epochs)  # no kill takes away what was saved
    assert 0 < epochs[-1] < EPOCHS
    parts = [found["parts"] for found in seen]
    assert max(parts) > 0 or how == "random"  # some hit a writer
    assert max(parts) <= 1  # what they leave does not pile up

    ens, history = train(folder, resume=True)
    whole, whole_history, whole_folder = uninterrupted
    assert same_bits(state(ens), state(whole))
    assert history.epochs == whole_history.epochs
    assert history.best_epoch == whole_history.best_epoch
    assert (folder / "metrics.jsonl").read_bytes() == (whole_folder / "metrics.jsonl").read_bytes()
    checkpoints = [load_file(path / "checkpoint.safetensors") for path in (folder, whole_folder)]
    assert same_bits(*checkpoints)  # moments and step counts are in there
    records = [read_record(path / "record.json")["best"] for path in (folder, whole_folder)]
    assert records[0] == records[1]
    names = [sorted(path.name for path in path.iterdir()) for path in (folder, whole_folder)]
    assert names[0] == names[1]

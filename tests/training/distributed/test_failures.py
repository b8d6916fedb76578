"""Ranks of a real job are killed and stopped; the job ends in time and names them, or goes on."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest
from safetensors.torch import load_file

from tests.training.distributed.job import EPOCHS, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX signals"),
]
ROOT = Path(__file__).parents[3]
PAUSE = 0.04  # seconds of a batch


class Job:
    """``torchrun`` with two ranks on this machine."""

    def __init__(self, top: Path, *options: str) -> None:
        self.top = top
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        ways = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--monitor-interval"]
        where = ["--shutdown-timeout", "1", *options]
        program = ["-m", "tests.training.distributed.job", str(top), str(PAUSE)]
        with (top / "errors.txt").open("w") as errors:
            self.process = subprocess.Popen(
                [*torchrun, *ways, "0.1", *where, *program],
                cwd=ROOT,
                stderr=errors,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave nothing behind, whatever happened."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            for file in self.top.glob("pid-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)

    def hit(self, turn: int, rank: int, number: int, epoch: int) -> None:
        """Send a signal to a rank once that many epochs are done."""
        until = time.monotonic() + 120
        while self.epoch() < epoch or not (self.top / f"pid-{turn}-{rank}").exists():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < until, self.text()
            time.sleep(0.01)
        time.sleep(random.Random(epoch).uniform(0.0, 4 * PAUSE))  # anywhere in the epoch
        os.kill(int((self.top / f"pid-{turn}-{rank}").read_text()), number)

    def wait_for(self, text: str) -> None:
        """Wait until a rank says so."""
        until = time.monotonic() + 30
        while text not in self.text():
            assert time.monotonic() < until, self.text()
            time.sleep(0.05)

    def epoch(self) -> int:
        """How many epochs the checkpoint has."""
        file = self.top / "run" / "state.json"
        try:
            return int(json.loads(file.read_text())["epoch"])
        except FileNotFoundError:
            return -1

    def text(self) -> str:
        """All that was said on the way."""
        return (self.top / "errors.txt").read_text(errors="replace")


def test_a_job_goes_on_after_every_blow_and_ends_in_time_at_the_last(tmp_path: Path) -> None:
    """A rank is stopped, then the one that writes is killed; torchrun starts anew each time.

    The third blow is one too many: the job ends with the name of the rank, and one process goes on
    to the end that it would have come to without any accident. What ends the others is the time-out
    of the process group, or torchrun's agent.
    """
    top = tmp_path / "job"
    top.mkdir()
    with Job(top, "--max-restarts", "2") as job:
        job.hit(turn=0, rank=1, number=signal.SIGSTOP, epoch=3)
        job.wait_for("one of them ended, or did not answer for 6 s")
        job.hit(turn=0, rank=1, number=signal.SIGKILL, epoch=3)  # as torchrun does after 30 s
        job.hit(turn=1, rank=0, number=signal.SIGKILL, epoch=job.epoch() + 4)
        job.hit(turn=2, rank=1, number=signal.SIGKILL, epoch=job.epoch() + 4)
        killed = time.monotonic()
        assert job.process.wait(timeout=60) != 0
        assert time.monotonic() - killed < 40  # a few seconds where nobody else is at work
    assert "rank      : 1 (local_rank: 1)" in job.text(), job.text()
    assert 11 <= job.epoch() < EPOCHS
    train(top / "run", resume=True, distributed=False)
    train(tmp_path / "whole", distributed=False)
    assert_same_run(top / "run", tmp_path / "whole")


def assert_same_run(folder: Path, whole: Path) -> None:
    lines = [(path / "metrics.jsonl").read_text().splitlines() for path in (folder, whole)]
    assert [json.loads(line)["epoch"] for line in lines[0]] == list(range(1, EPOCHS + 1))
    for line, expected in zip(*lines, strict=True):
        found = json.loads(line)["val"]["ensemble_error"]
        assert found == pytest.approx(json.loads(expected)["val"]["ensemble_error"], rel=1e-5)
    states = [load_file(path / "checkpoint.safetensors") for path in (folder, whole)]
    assert states[0].keys() == states[1].keys()
    assert all((states[0][n] - states[1][n]).abs().max() < 1e-5 for n in states[0])

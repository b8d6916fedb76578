"""A training process that is killed, over and over; the program behind ``test_kill.py``.

Started as ``python -m tests.training.killed_run FOLDER HOW SEED``. It imports everything once and
forks a child for each attempt, so that an attempt takes a moment rather than the seconds of an
import. Writes what happened to ``FOLDER.json``.
"""

import json
import os
import random
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

import dissensus.training.checkpoint
from dissensus.ensemble import Ensemble
from dissensus.training import fit
from dissensus.training.checkpoint import read_checkpoint
from tests.training.problems import blobs

EPOCHS = 60


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 60), nn.ReLU(), nn.Dropout(0.2), nn.Linear(60, 3))


def train(out: Path, *, resume: bool) -> tuple[Ensemble, Any]:
    """Train, or go on: dropout, drawn members, moments, a schedule and a best epoch to keep."""
    ens = Ensemble(network, members=4)
    history = fit(
        ens,
        blobs(60),
        "ldr:active=2",
        val=blobs(40, seed=5),
        epochs=EPOCHS,
        batch_size=16,
        optimizer="adam:lr=0.02,weight_decay=1e-3",
        schedule="cosine:factor=0.1",
        augment=lambda x, generator: x + 0.1 * torch.randn(x.shape, generator=generator),
        out=out,
        resume=resume,
        progress=False,
    )
    return ens, history


class Mine:
    """Kills its own process at the given event among all that touch the disk, half-done ones too."""

    def __init__(self, at: int) -> None:
        self.left = at

    def event(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def lay(self) -> None:
        os.fsync = self._around(os.fsync)
        os.open = self._around(os.open)
        Path.replace = self._around(Path.replace)  # type: ignore[method-assign]
        Path.unlink = self._around(Path.unlink)  # type: ignore[method-assign]
        whole_text, whole_file = Path.write_text, safetensors.torch.save_file

        def write_text(path: Path, text: str, **options: Any) -> int:
            whole_text(path, text[: len(text) // 2], **options)
            self.event()
            return whole_text(path, text, **options)

        def save_file(tensors: dict[str, Tensor], path: Path, **options: Any) -> None:
            whole_file(tensors, path, **options)
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            self.event()
            path.write_bytes(content)

        Path.write_text = write_text  # type: ignore[method-assign,assignment]
        safetensors.torch.save_file = save_file
        json.dumps = self._torn_lines(json.dumps)

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def mined(*arguments: Any, **options: Any) -> Any:
            self.event()
            result = function(*arguments, **options)
            self.event()
            return result

        return mined

    def _torn_lines(self, dumps: Callable[..., str]) -> Callable[..., str]:
        """Tear the line that is being added to the metrics."""

        def torn(value: Any, **options: Any) -> str:
            text = dumps(value, **options)
            if not options and isinstance(value, dict) and "train" in value and self.left == 0:
                with (FOLDER / "metrics.jsonl").open("a") as file:
                    file.write(text[: len(text) // 2])
                    file.flush()
            if not options:
                self.event()
            return text

        return torn


FOLDER = Path()


def attempt(prepare: Callable[[], None], delay: float | None) -> str:
    """Train in a child that is killed after ``delay`` or kills itself: ``"done"``, ``"killed"``."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            prepare()
            train(FOLDER, resume=True)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "done" if os.WEXITSTATUS(status) == 0 else "failed"


def look() -> dict[str, int]:
    """Read the folder as anyone might who comes upon it after the kill."""
    found = read_checkpoint(FOLDER)
    if (FOLDER / "config.toml").exists():
        tomllib.loads((FOLDER / "config.toml").read_text())
    if (FOLDER / "state.json").exists():
        json.loads((FOLDER / "state.json").read_text())
    lines = 0
    if (FOLDER / "metrics.jsonl").exists():
        for line in (FOLDER / "metrics.jsonl").read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                lines += 1
                assert json.loads(line)["epoch"] == lines
    parts = len(list(FOLDER.glob(".*.part"))) if FOLDER.exists() else 0
    epoch = 0 if found is None else found[1]["epoch"]
    assert epoch <= lines <= epoch + 1
    return {"epoch": epoch, "parts": parts}


def at_random_moments(seed: int, least: int) -> dict[str, Any]:
    """Kill after random times until the run is over, but at least so many times."""
    chance, seen, outcome = random.Random(seed), [], ""
    while outcome != "done" and len(seen) < 200:
        outcome = attempt(lambda: None, chance.uniform(0.0, 0.12) * chance.random())
        if outcome == "failed":
            break
        seen.append(look())
    return {"outcome": outcome, "kills": len(seen) - 1, "seen": seen}


def at_every_event(first: int, last: int) -> dict[str, Any]:
    """The child of number n kills itself at the n-th time it touches the disk."""
    seen, outcome = [], ""
    for number in range(first, last):
        mine = Mine(number)
        outcome = attempt(mine.lay, None)
        if outcome != "killed":
            break
        seen.append(look())
    return {"outcome": outcome, "kills": len(seen), "seen": seen}


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER = Path(sys.argv[1])
    assert dissensus.training.checkpoint.FILE == "checkpoint.safetensors"
    numbers = [int(argument) for argument in sys.argv[3:]]
    how = {"random": at_random_moments, "events": at_every_event}[sys.argv[2]]
    report = how(*numbers)
    Path(f"{FOLDER}.json").write_text(json.dumps(report))

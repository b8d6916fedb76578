"""A training process that is killed, over and over; the program behind ``test_kill.py``.

``python -m tests.training.killed_run FOLDER random SEED KILLS`` or ``… FOLDER events FIRST LAST``.
It imports everything once and forks a child for each attempt, so that an attempt takes a moment
rather than the seconds of an import, and prints what it found in the folder after each kill.
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

from dissensus.ensemble import Ensemble
from dissensus.training import fit
from dissensus.training.checkpoint import read_checkpoint
from dissensus.training.run_folder import RunFolder
from tests.training.problems import blobs

EPOCHS = 80


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
        whole_line = RunFolder.append

        def append(folder: RunFolder, record: dict[str, Any]) -> None:
            metrics = folder.path / "metrics.jsonl"
            size = metrics.stat().st_size
            with metrics.open("a") as file:
                file.write(json.dumps(record)[:99])
            self.event()
            os.truncate(metrics, size)
            whole_line(folder, record)

        RunFolder.append = append  # type: ignore[method-assign]

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def mined(*arguments: Any, **options: Any) -> Any:
            self.event()
            result = function(*arguments, **options)
            self.event()
            return result

        return mined


FOLDER = Path()


def attempt(prepare: Callable[[], None], delay: float | None) -> str:
    """Train in a child that is killed after ``delay`` or kills itself at some event."""
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
    return "finished" if os.WEXITSTATUS(status) == 0 else "failed"


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


def at_random_moments(seed: int, kills: int) -> list[dict[str, int]]:
    """Kill after random times; they grow where nothing gets done, and shrink where too much is."""
    chance, seen, most = random.Random(seed), [look()], 0.1
    while len(seen) <= kills:
        expect(attempt(lambda: None, chance.uniform(0.0, most)), "killed")
        seen.append(look())
        done = seen[-1]["epoch"] - seen[-2]["epoch"]
        most *= 1.5 if done == 0 else 0.7 if done > 3 else 1.0
    return seen


def at_every_event(first: int, last: int) -> list[dict[str, int]]:
    """The child of number n kills itself at the n-th time it touches the disk."""
    seen = []
    for number in range(first, last):
        expect(attempt(Mine(number).lay, None), "killed")
        seen.append(look())
    return seen


def expect(outcome: str, wanted: str) -> None:
    if outcome != wanted:
        raise SystemExit(f"the child was to be {wanted}, it {outcome}; see above")


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER = Path(sys.argv[1])
    how = {"random": at_random_moments, "events": at_every_event}[sys.argv[2]]
    print(json.dumps(how(*[int(argument) for argument in sys.argv[3:]])))

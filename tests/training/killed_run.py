"""A training process that is killed, over and over; the program behind ``test_kill.py``.

``python -m tests.training.killed_run FOLDER`` trains in ``FOLDER/random`` and ``FOLDER/events``. It
imports everything once and forks a child for each attempt, so that an attempt takes a moment rather
than the seconds of an import, and prints what it found in each folder after each kill.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch  # noqa: F401  (forks need not import it)
import torch
from torch import nn

from dissensus.ensemble import Ensemble
from dissensus.tools.files import LOCK, tensors
from dissensus.training import fit
from dissensus.training.run_folder import RunFolder, read_checkpoint
from tests.training.problems import blobs

EPOCHS = 160


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
    """Kills its own process at the given event among all that touch the disk, half-done too."""

    def __init__(self, at: int) -> None:
        self.left = at

    def event(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def lay(self) -> None:
        os.fsync = self._before(os.fsync)
        os.open = self._before(os.open)
        Path.replace = self._before(Path.replace)  # type: ignore[method-assign]
        Path.unlink = self._before(Path.unlink)  # type: ignore[method-assign]
        whole_text, whole_file = Path.write_text, tensors.replace_atomically

        def write_text(path: Path, text: str, **options: Any) -> int:
            whole_text(path, text[: len(text) // 2], **options)
            self.event()
            return whole_text(path, text, **options)

        def replace(path: Path, write: Callable[[Path], object]) -> None:
            def halves(part: Path) -> None:
                write(part)
                content = part.read_bytes()
                part.write_bytes(content[: len(content) // 2])
                self.event()
                part.write_bytes(content)

            whole_file(path, halves)

        Path.write_text = write_text  # type: ignore[method-assign,assignment]
        tensors.replace_atomically = replace  # type: ignore[attr-defined]
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

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def mined(*arguments: Any, **options: Any) -> Any:
            self.event()
            return function(*arguments, **options)

        return mined


def attempt(folder: Path, prepare: Callable[[], None], delay: float | None) -> bool:
    """Train in a child that is killed after ``delay`` or kills itself at some event.

    False if the child was done before it was killed.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            prepare()
            train(folder, resume=True)
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
    if status and not os.WIFSIGNALED(status):
        raise SystemExit(f"the child was to be killed, it ended with {status}; see above")
    return os.WIFSIGNALED(status)


def look(folder: Path) -> dict[str, int]:
    """Read the folder as anyone might who comes upon it after the kill."""
    found = read_checkpoint(folder)
    if (folder / "config.toml").exists():
        tomllib.loads((folder / "config.toml").read_text())
    if (folder / "state.json").exists():
        json.loads((folder / "state.json").read_text())
    lines = 0
    if (folder / "metrics.jsonl").exists():
        for line in (folder / "metrics.jsonl").read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                lines += 1
                assert json.loads(line)["epoch"] == lines
    hidden = folder.glob(".*") if folder.exists() else ()
    parts = sum(path.name not in (".writable", LOCK) for path in hidden)
    epoch = 0 if found is None else found[1]["epoch"]
    assert epoch <= lines <= epoch + 1
    return {"epoch": epoch, "parts": parts}


def at_random_moments(folder: Path, kills: int) -> list[dict[str, int]]:
    """Kill after random times; they grow where nothing gets done, and shrink where too much is."""
    chance, most = random.Random(0), 0.05
    seen: list[dict[str, int]] = []
    while len(seen) < kills and (not seen or seen[-1]["epoch"] < EPOCHS - 20):
        if not attempt(folder, lambda: None, chance.uniform(0.0, most)):
            shutil.rmtree(folder)  # the machine has become faster: begin again, with shorter times
            most /= 8
            seen.clear()
            continue
        before = seen[-1]["epoch"] if seen else 0
        seen.append(look(folder))
        done = seen[-1]["epoch"] - before
        most *= 1.5 if done == 0 else 0.5 if done > 2 else 1.0
    return seen


def at_every_event(folder: Path, kills: int) -> Iterator[dict[str, int]]:
    """The child of number n kills itself at the n-th time it touches the disk."""
    for number in range(kills):
        assert attempt(folder, Mine(number).lay, None)
        yield look(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    top = Path(sys.argv[1])
    found = {
        "random": list(at_random_moments(top / "random", 20)),
        "events": list(at_every_event(top / "events", 60)),
    }
    print(json.dumps(found))

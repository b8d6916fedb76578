"""Kills at random moments: what is resumed to its end has the bytes of a run nobody killed.

Everything is imported once; each try is a fork of this process, so that it takes a moment, and its
end is a real ``SIGKILL``. After each kill the folder is read as anyone might who comes upon it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dissensus as ds
import dissensus.cli
import dissensus.data.features
import dissensus.sweeps.run
from dissensus.data import AUGMENTATIONS, load
from dissensus.data.feature_store import MANIFEST
from dissensus.tools.files import LOCK
from dissensus.tools.records import read_metrics
from dissensus.training.run_folder import read_checkpoint
from tools.fuzz.forks import command, start

KINDS = ("train", "sweep", "features", "torchrun")
SMALL = ["--data", "wine", "--members", 2, "--threads", 1, "--quiet"]
SECONDS = 240.0  # more than any try may take: ranks wait 120 s for each other at their start

#: Files that hold the time; of these other things are compared.
TIMED = ("record.json", "state.json", "checkpoint.safetensors", "checkpoint.previous.safetensors")


# ---- what is killed -----------------------------------------------------------------------------


def extract(out: Path) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    settings: dict[str, Any] = {"passes": 2, "augment": AUGMENTATIONS["adp"], "chunk": 100}
    dissensus.data.features.extract(
        backbone, load("digits"), out, batch_size=4, progress=False, **settings
    )


def train_rank(out: Path, number: int, port: int) -> None:
    """A rank of two, with the environment that ``torchrun`` gives it; three members."""
    from dissensus.training import Distributed

    ranks = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ |= {key: str(value) for key, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    ds.fit(
        ds.Ensemble(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)), 3),
        (x, x.argmax(1)),
        "adp",
        epochs=30,
        batch_size=16,
        out=out,
        resume=True,
        progress=False,
        distributed=Distributed(timeout=5),
    )


def works(kind: str, out: Path) -> list[Callable[[], object]]:
    """What is run, a function for each process; the same call goes on where it was killed."""
    if kind == "torchrun":
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = int(probe.getsockname()[1])
        return [lambda number=number: train_rank(out, number, port) for number in range(2)]
    if kind == "features":
        return [lambda: extract(out)]
    if kind == "sweep":
        grid = ["--epochs", 6, "--grid", "lr=0.01,0.1", "--repeats", 4]
        return [command("sweep", *SMALL, *grid, "--out", out)]
    begun = ["--resume"] if (out / "config.toml").exists() else ["--overwrite"]
    return [command("train", *SMALL, "--epochs", 25, *begun, "--out", out)]


def run(kind: str, out: Path, scratch: Path, delay: float | None = None, victims: int = 0) -> str:
    """Start, kill after ``delay``, wait: ``"killed"``, "" if it came to its end, or a problem."""
    errs = [scratch / f"err{number}" for number in range(2)]
    alive = {start(work, err): err for work, err in zip(works(kind, out), errs, strict=False)}
    began, killed, problems = time.monotonic(), False, []
    while alive:
        for child in list(alive):
            done, status = os.waitpid(child, os.WNOHANG)
            if not done:
                continue
            code, text = os.waitstatus_to_exitcode(status), alive.pop(child).read_text()
            if code < 0 and not killed:
                problems.append(f"ended by signal {-code}: {text[-500:]}")
            if code > 0 and not (killed and kind == "torchrun"):
                problems.append(f"exit status {code}: {text[-500:]}")
        waited = time.monotonic() - began
        if alive and delay is not None and not killed and waited > delay:
            killed = True
            for child in list(alive)[-victims:]:
                os.kill(child, signal.SIGKILL)
        if waited > SECONDS:
            problems.append(f"still running after {waited:.0f} s")
            for child in alive:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            break
        time.sleep(0.002)
    return "; ".join(problems) or ("killed" if killed else "")


# ---- what is left -------------------------------------------------------------------------------


def amount_done(kind: str, out: Path) -> int:
    """How much is done; reads what is there, which raises if a kill has spoilt it."""
    if kind == "sweep":
        cells = sorted((out / "cells").glob("[!.]*.json"))
        return sum("result" in json.loads(cell.read_text()) for cell in cells)
    if kind == "features":
        return len(list(out.rglob("pass*.npy")))
    found = read_checkpoint(out)
    epoch = 0 if found is None else int(found[1]["epoch"])
    lines = len(read_metrics(out)) if (out / "metrics.jsonl").exists() else 0
    if not epoch <= lines <= epoch + 1:
        raise ValueError(f"{lines} lines of metrics for epoch {epoch}")
    return epoch


def contents(kind: str, out: Path) -> dict[str, Any]:
    """All that must be the same after a resume."""
    found: dict[str, Any] = {}
    for file in sorted(out.rglob("*")):
        name = str(file.relative_to(out))
        if not file.is_file() or file.name == LOCK:
            continue
        if file.parent.name == "cells":  # a resumed sweep trains in other fleets: other last digits
            found[name] = json.loads(file.read_text())["result"]["epochs"]
        elif file.name == "summary.json":
            found[name] = json.loads(file.read_text())["done"]
        else:
            found[name] = None if file.name in TIMED else file.read_bytes()
    if kind in ("train", "torchrun"):
        tensors = (read_checkpoint(out) or ({},))[0]
        found["tensors"] = {name: t.contiguous().view(-1).tolist() for name, t in tensors.items()}
    return found


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The names of what is not the same, or is there on one side only."""
    return [name for name in found | wanted if found.get(name, 0) != wanted.get(name, 0)]


class Victim:
    """Work that is killed again and again: a folder until its work is done, then a new one."""

    def __init__(self, kind: str, top: Path) -> None:
        self.kind, self.top, self.chance = kind, top, random.Random(kind)
        began = time.monotonic()
        if problem := run(kind, top / "whole", top):
            raise RuntimeError(f"{kind} without a kill: {problem}")
        self.longest, self.wanted = time.monotonic() - began, contents(kind, top / "whole")
        self.folders = self.done = 0

    def kill(self) -> str:
        """Run until a kill has hit, or something went wrong."""
        while True:
            delay = self.chance.uniform(0.0, self.longest)
            ended, problem = self.attempt(delay, victims=1 if self.chance.random() < 0.15 else 2)
            # The machine may be busier, or less, than it was.
            self.longest *= 1.1 if ended == "killed" else 0.6
            if problem or ended == "killed":
                return problem

    def finish(self) -> str:
        """Go on to the end."""
        return self.attempt(None, 0)[1]

    def attempt(self, delay: float | None, victims: int) -> tuple[str, str]:
        """How one run ended, and what was wrong."""
        out = self.top / str(self.folders)
        ended = run(self.kind, out, self.top, delay, victims)
        if self.kind == "features" and ended == "killed" and (out / MANIFEST).is_file():
            ended = ""  # it was done already, and another call is refused
        if ended not in ("", "killed"):
            return ended, ended
        try:
            before, self.done = self.done, amount_done(self.kind, out)
            if self.done < before:
                return ended, f"{before} were done, {self.done} are left"
            differ = [] if ended else differences(contents(self.kind, out), self.wanted)
        except Exception as error:
            return ended, repr(error)
        if not ended:
            shutil.rmtree(out)
            self.folders, self.done = self.folders + 1, 0
        return ended, f"{out.name} differs from a whole run in {differ}" if differ else ""


def cases(kind: str, folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` kills; after the last one the work goes on to its end."""
    torch.set_num_threads(1)
    warm_up(kind, folder)
    victim = Victim(kind, folder)
    for number in range(count):
        last = number == count - 1
        yield f"kill {number}", lambda last=last: victim.kill() or (victim.finish() if last else "")


def warm_up(kind: str, top: Path) -> None:
    """Import what a try imports, in this process, so that its forks need not."""
    file = top / "modules.json"

    def look() -> None:
        try:
            for work in works(kind, top / "warm")[:1]:
                work()
        except SystemExit:
            pass
        file.write_text(json.dumps(sorted(sys.modules)))

    if kind == "torchrun":
        import dissensus.training.distributed.run  # noqa: F401

        return
    os.waitpid(start(look, top / "err"), 0)
    for name in json.loads(file.read_text()):
        if name.partition(".")[0] in ("dissensus", "sklearn", "scipy", "safetensors", "torch"):
            try:
                __import__(name)
            except Exception:  # a module that is only there in the middle of something
                continue

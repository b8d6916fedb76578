"""Processes that are killed at random moments, counted.

``python -m tests.hardening.kills KIND COUNT FOLDER`` prints tries and failures as JSON; with
``--record`` they go into the record of the suite. Everything is imported once; each try is a fork
of this process, so that it takes a moment, and its end is a real ``SIGKILL``. After each kill the
folder is read as anyone might who comes upon it, and what is resumed to its end must have the bytes
of a run that nobody killed.
"""

import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dissensus.cli
import dissensus.data.features
import dissensus.sweeps.run
from dissensus.data import AUGMENTATIONS, load
from dissensus.data.feature_store import MANIFEST
from dissensus.tools.files import LOCK
from dissensus.tools.records import read_metrics
from dissensus.training.run_folder import read_checkpoint
from tests.hardening.forks import command, start
from tests.hardening.record import keep
from tests.training.distributed.job import train as train_ranks

SMALL = ["--data", "wine", "--members", 2, "--threads", 1, "--quiet"]
SECONDS = 240.0  # more than any try may take: ranks wait 120 s for each other at their start

#: Files that hold the time; of these other things are compared.
TIMED = ("record.json", "state.json", "checkpoint.safetensors", "checkpoint.previous.safetensors")


def features(out: Path) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    settings: dict[str, Any] = {"passes": 2, "augment": AUGMENTATIONS["adp"], "shard_rows": 100}
    dissensus.data.features.extract(
        backbone, load("digits"), out, batch_size=4, progress=False, **settings
    )


def rank(out: Path, number: int, port: int) -> Callable[[], object]:
    """A rank of two, with the environment that ``torchrun`` gives it."""

    def run() -> None:
        from dissensus.training.distributed import Distributed

        os.environ |= {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
        }
        train_ranks(out, resume=True, distributed=Distributed(timeout=5))

    return run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def works(kind: str, out: Path) -> list[Callable[[], object]]:
    """What is run, a function for each process; the same call goes on where it was killed."""
    if kind == "torchrun":
        port = free_port()
        return [rank(out, number, port) for number in range(2)]
    if kind == "features":
        return [lambda: features(out)]
    if kind == "sweep":
        grid = ["--epochs", 6, "--grid", "lr=0.01,0.1", "--repeats", 4]
        return [command("sweep", *SMALL, *grid, "--out", out)]
    begun = ["--resume"] if (out / "config.toml").exists() else ["--overwrite"]
    return [command("train", *SMALL, "--epochs", 25, *begun, "--out", out)]


def run(kind: str, out: Path, scratch: Path, delay: float | None, victims: int) -> str:
    """Start, kill after ``delay``, wait: ``"killed"``, "" if it came to its end, or a problem."""
    errs = [scratch / f"err{number}" for number in range(2)]
    children = [start(work, err) for work, err in zip(works(kind, out), errs, strict=False)]
    began, alive, killed = time.monotonic(), dict(zip(children, errs, strict=False)), False
    problems = []
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


def epochs_done(kind: str, out: Path) -> int:
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
        if file.parent.name == "cells":
            found[name] = json.loads(file.read_text())["result"]
        else:
            found[name] = None if file.name in TIMED else file.read_bytes()
    if kind in ("train", "torchrun"):
        tensors = (read_checkpoint(out) or ({},))[0]
        found["tensors"] = {name: t.contiguous().view(-1).tolist() for name, t in tensors.items()}
    return found


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The names of what is not the same, or is there on one side only."""
    return [name for name in found | wanted if found.get(name, 0) != wanted.get(name, 0)]


def kill(kind: str, count: int, top: Path) -> dict[str, Any]:
    """``count`` kills; a folder is used until its work is done, then a new one is begun."""
    chance, failures, kills, ends = random.Random(kind), [], 0, 0
    began = time.monotonic()
    if problem := run(kind, top / "whole", top, None, 0):
        raise SystemExit(f"{kind} without a kill: {problem}")
    most, wanted = time.monotonic() - began, contents(kind, top / "whole")
    out, done = top / "0", 0
    while kills < count or out.exists():
        last = kills >= count
        delay = None if last else chance.uniform(0.0, most)
        victims = 1 if chance.random() < 0.15 else 2
        ended = run(kind, out, top, delay, victims)
        kills += ended == "killed"
        if kind == "features" and ended == "killed" and (out / MANIFEST).is_file():
            ended = ""  # it was done already, and another call is refused
        most *= 1.1 if ended == "killed" else 0.6  # the machine may be busier, or less, than it was
        if ended not in ("", "killed"):
            failures.append(f"kill {kills}: {ended}")
        try:
            now = epochs_done(kind, out)
            if now < done:
                failures.append(f"kill {kills}: {done} were done, {now} are left")
            done = now
            if ended != "killed" and (differ := differences(contents(kind, out), wanted)):
                failures.append(f"folder {out.name} differs from a whole run in {differ}")
        except Exception as error:
            failures.append(f"kill {kills}: {error!r}")
        if ended != "killed":
            ends += 1
            shutil.rmtree(out, ignore_errors=True)
            if last:
                break
            out, done = top / str(ends), 0
    return {"tries": kills, "failures": failures, "ends": ends}


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
        import dissensus.training.distributed  # noqa: F401

        return
    os.waitpid(start(look, top / "err"), 0)
    for name in json.loads(file.read_text()):
        if name.partition(".")[0] in ("dissensus", "sklearn", "scipy", "safetensors", "torch"):
            try:
                __import__(name)
            except Exception:  # a module that is only there in the middle of something
                continue


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, top = sys.argv[1], Path(sys.argv[3])
    top.mkdir(parents=True, exist_ok=True)
    warm_up(kind, top)
    counts = kill(kind, int(sys.argv[2]), top)
    if sys.argv[4:] == ["--record"]:
        keep(f"kills of {kind}", **counts)
    print(json.dumps(counts))

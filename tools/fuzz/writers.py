"""Pairs of commands that write to one folder at the same time: one of them writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import nn

import dissensus.cli
import dissensus.data.features
import dissensus.show.page
import dissensus.sweeps.run
from dissensus.data import load
from dissensus.tools.records import read_metrics
from tools.fuzz.forks import command, together

SMALL = ["--members", 2, "--threads", 1, "--quiet"]
KINDS = ("resume", "train", "sweep", "features", "report")


def extract(out: Path) -> None:
    try:
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        dissensus.data.features.extract(
            backbone, load("digits"), out, chunk=200, batch_size=2, progress=False
        )
    except ValueError as error:
        print(f"dissensus: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def work(kind: str, out: Path) -> Callable[[], object]:
    wine = ["--data", "wine", *SMALL, "--epochs", 20, "--out", out]
    return {
        "resume": command("train", "--resume", "--out", out, "--epochs", 20),
        "train": command("train", *wine),
        "sweep": command("sweep", *wine, "--grid", "lr=0.01,0.1"),
        "features": lambda: extract(out),
        "report": command("report", out.parent / "begun", "--out", out),
    }[kind]


def failure(kind: str, out: Path, seen: set[str], last: bool) -> str:
    """What two writers did wrong; ``seen`` holds the kinds of which one was refused so far."""
    top = out.parent
    if kind == "resume":
        together([command("train", "--data", "wine", *SMALL, "--epochs", 2, "--out", out)], top)
    first, second = together([work(kind, out)] * 2, top)
    epochs = [record["epoch"] for record in read_metrics(out)]
    left = sorted(file.name for file in out.rglob(".*"))
    if first.refused != second.refused:
        seen.add(kind)
    # The second may come when the first has ended; then there is something there, or done.
    statuses = sorted([first.status, second.status])
    if statuses not in ([0, 2], [0, 0]) or "Traceback" in first.err + second.err:
        return f"statuses {statuses}: {first.err} {second.err}"
    if epochs != list(range(1, 21 if kind in ("resume", "train") else 1)) or left:
        return f"epochs {epochs}, left over {left}"
    return "no writer was ever refused" if last and not seen else ""


def cases(folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` pairs, of each kind by turns."""
    torch.set_num_threads(1)
    begun = folder / "begun"
    together([command("train", "--data", "wine", *SMALL, "--epochs", 2, "--out", begun)], folder)
    seen: set[str] = set()
    for number, kind in enumerate(islice(cycle(KINDS), count)):
        last = number == count - 1 >= len(KINDS)
        yield kind, partial(failure, kind, folder / f"{kind}{number}", seen, last)

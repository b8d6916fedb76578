"""Pairs of commands that write to one folder at the same time; behind ``test_writers.py``.

``python -m tests.hardening.writers FOLDER PAIRS`` prints for each kind how its pairs ended.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dissensus.cli
import dissensus.data.features
import dissensus.show.page
import dissensus.sweeps.run
from dissensus.data import load
from dissensus.tools.records import read_metrics
from tests.hardening.forks import command, report, together

SMALL = ["--members", 2, "--threads", 1, "--quiet"]


def resume(out: Path) -> Callable[[], None]:
    return command("train", "--resume", "--out", out, "--epochs", 20)


def extract(out: Path) -> None:
    try:
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        dissensus.data.features.extract(
            backbone, load("digits"), out, shard_rows=200, batch_size=2, progress=False
        )
    except ValueError as error:
        print(f"dissensus: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def works(kind: str, out: Path) -> Callable[[], object]:
    wine = ["--data", "wine", *SMALL]
    return {
        "resume": resume(out),
        "train": command("train", *wine, "--epochs", 20, "--out", out),
        "sweep": command("sweep", *wine, "--epochs", 20, "--grid", "lr=0.01,0.1", "--out", out),
        "features": lambda: extract(out),
        "report": command("report", out.parent / "begun", "--out", out),
    }[kind]


def pair(kind: str, out: Path) -> dict[str, Any]:
    if kind == "resume":
        together([command("train", "--data", "wine", *SMALL, "--epochs", 2, "--out", out)], top)
    ended = together([works(kind, out)] * 2, top)
    epochs = [record["epoch"] for record in read_metrics(out)]
    left = sorted(file.name for file in out.rglob(".*"))
    return {
        "statuses": sorted(one.status for one in ended),
        "refused": [one.refused for one in ended],
        "err": [one.err for one in ended],
        "epochs": epochs,
        "left": left,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    top = Path(sys.argv[1])
    first = command("train", "--data", "wine", *SMALL, "--epochs", 2, "--out", top / "begun")
    together([first], top)
    kinds = ("resume", "train", "sweep", "features", "report")
    pairs = range(int(sys.argv[2]))
    report({kind: [pair(kind, top / f"{kind}{n}") for n in pairs] for kind in kinds})

"""Sweeps that are stopped, terminated and killed: nobody trains on, and the bits are the same."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dissensus.sweeps import Plan, Watcher, run_sweep
from dissensus.sweeps.engines import CellFolder, Record
from tests.sweeps.engines.test_cells import alive, wait_until
from tests.sweeps.sweep_runs import BETAS, sections

ROOT = Path(__file__).parents[2]


class Stop(Watcher):
    """Ctrl-C after so many records."""

    def __init__(self, after: int) -> None:
        self.left = after

    def record(self, record: Record) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def results(folder: Path) -> dict[str, Any]:
    return {name: record["result"] for name, record in CellFolder(folder).done().items()}


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("changes", "space"),
    [
        ({"data": "digits", "model_options": ["hidden=16"], "epochs": 2}, {}),
        pytest.param({"patience": 1}, {}, marks=pytest.mark.fuzz),
        pytest.param({}, {"lr": [0.01, 0.02, 0.05, 0.1]}, marks=pytest.mark.fuzz),
    ],
    ids=["classes", "patience", "search"],
)
def test_a_sweep_that_was_stopped_ends_with_the_same_bits(
    changes: dict[str, Any], space: dict[str, list[float]], tmp_path: Path
) -> None:
    """Although a part of a fleet was done: the rest trains beside it again."""
    if space:
        pytest.importorskip("optuna")
    search: dict[str, Any] = {"space": space, "trials": 4, "batch": 2} if space else {}
    plan = Plan(sections(**changes), {"beta": BETAS}, repeats=3, **search)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_sweep(plan, whole)
    for after in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            run_sweep(plan, cut, watcher=Stop(after))
    kept = {path: path.read_bytes() for path in (cut / "cells").iterdir()}
    assert len(kept) == 5
    run_sweep(plan, cut)
    for folder in ("cells", "search"):
        assert results(cut / folder) == results(whole / folder)
    assert {path: path.read_bytes() for path in kept} == kept
    assert files(cut) == files(whole)
    groups = json.loads((cut / "fleets.json").read_text())
    assert sum(map(len, groups["cells"])) == 9
    # More repeats leave the groups that there are as they are.
    run_sweep(Plan(plan.sections, plan.grid, repeats=4, **search), cut)
    assert json.loads((cut / "fleets.json").read_text())["cells"][:-1] == groups["cells"]


@pytest.mark.fuzz
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("platform", ["linux", "another"])
def test_a_worker_ends_with_its_parent(platform: str) -> None:
    words = [sys.executable, "-m", "tests.hardening.orphans", platform]
    program = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    assert alive(child)
    program.kill()
    program.communicate()
    began = time.monotonic()
    wait_until(lambda: not alive(child))
    assert time.monotonic() - began < 10


def sweep_words(out: Path) -> list[str]:
    """Four fleets of three cells, a moment of work each."""
    words = "sweep --data diabetes --objective augmented --grid beta=0,0.3,1 --members 3"
    words += " --grid batch_size=8,16 --repeats 2 --epochs 10 --model-option hidden=8"
    return [*words.split(), "--optimizer", "adam:lr=0.01", "--quiet", "--out", str(out)]


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dissensus", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def children(process: int) -> list[int]:
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [line.split() for line in table.splitlines()]
    return [int(pid) for pid, parent in pairs if int(parent) == process]


@pytest.mark.fuzz
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_sweep_that_is_terminated_and_killed_leaves_no_worker_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    cells, words = tmp_path / "s" / "cells", [*sweep_words(tmp_path / "s"), "--jobs", "2"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = len(list(cells.glob("[!.]*.json")))
        program = start(words)
        try:
            wait_until(lambda n=before: len(list(cells.glob("[!.]*.json"))) > n, seconds=600)
            workers = children(program.pid)
            assert len(workers) >= 2
            program.send_signal(number)
            _, said = program.communicate(timeout=300)
        finally:
            program.kill()
        if number == signal.SIGTERM:
            assert program.returncode == 130
            assert said.startswith("dissensus: stopped; finished cells are kept, go on with: ")
            words = shlex.split(said.partition("go on with: dissensus ")[2])
            assert words[-2:] == ["--jobs", "2"]
            words.append("--quiet")
            assert not any(map(alive, workers))
        wait_until(lambda these=workers: not any(map(alive, these)))
        assert len(results(cells)) < 12
    for rest in (words, [*sweep_words(tmp_path / "whole"), "--jobs", "2"]):
        program = start(rest)
        assert program.communicate(timeout=300) == ("", "")
    assert results(cells) == results(tmp_path / "whole" / "cells")
    assert files(tmp_path / "s") == files(tmp_path / "whole")

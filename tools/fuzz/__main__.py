"""``python -m tools.fuzz [--cases N] [FAMILY …]``: run families of cases and count failures.

Each family runs in a process of its own, whose memory is limited. Its tries and failures go into
``results/reliability.json``, unless ``--cases`` says how many are enough for a trial. The exit
status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dissensus.tools.files import lock_folder, write_text
from tools.fuzz import (
    api_calls,
    command_lines,
    damaged_files,
    estimator_calls,
    full_disks,
    hostile_files,
    kills,
    writers,
)

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "reliability.json"
#: What a family may take beyond what its process has when it begins.
MEMORY = 3 << 30
#: A try that takes longer counts as a hang.
SECONDS = 60

Cases = Iterator[tuple[str, Callable[[], str]]]


class Family(NamedTuple):
    """Cases of one kind, how many there are in a whole run, and whether memory is limited.

    Families that start processes limit these in their own ways.
    """

    cases: Callable[[Path, int], Cases]
    count: int
    limited: bool = True


FAMILIES = {
    "API calls": Family(api_calls.cases, 10_000),
    "estimator calls": Family(estimator_calls.cases, 1_000),
    "command lines": Family(command_lines.cases, 500),
    "hostile files": Family(hostile_files.cases, 600),
    "damaged files": Family(damaged_files.cases, 210),
    "pairs of writers": Family(writers.cases, 50, limited=False),
    "full disks": Family(full_disks.cases, 60, limited=False),
    **{
        f"kills of {kind}": Family(partial(kills.cases, kind), 100, limited=False)
        for kind in kills.KINDS
    },
}


class Hang(BaseException):
    """Raised by the alarm; a BaseException, so that nothing catches it on the way."""


def count(cases: Cases, seconds: int = SECONDS) -> tuple[int, list[str]]:
    """Tries and failures; 0 seconds mean that nothing counts as a hang."""

    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    tries, failures = 0, []
    for name, attempt in cases:
        tries += 1
        signal.alarm(seconds)
        try:
            problem = attempt()
        except Hang:
            problem = f"no answer after {seconds} s"
        finally:
            signal.alarm(0)
        if problem:
            failures.append(f"{name}: {problem}"[:600])
    return tries, failures


def run_family(name: str, cases: int, folder: Path) -> dict[str, Any]:
    """Run a family in this process."""
    family, began = FAMILIES[name], time.monotonic()
    torch.set_num_threads(1)
    if family.limited:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    tries, failures = count(family.cases(folder, cases), SECONDS if family.limited else 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    counts = {"tries": tries, "failures": len(failures), "first": failures[:5]}
    return counts | {"peak": peak, "seconds": round(time.monotonic() - began)}


def start_family(name: str, cases: int) -> dict[str, Any]:
    """Run a family in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "tools.fuzz", name, "--cases", str(cases), "--in", folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode:
        problem = f"the process ended with status {done.returncode}"
        return {"tries": 0, "failures": 1, "first": [problem]}
    counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counts


def keep(name: str, counts: dict[str, Any]) -> None:
    """Put the counts of a family into the record."""
    with lock_folder(RECORD.parent):
        record = json.loads(RECORD.read_text(encoding="utf-8")) | {name: counts}
        text = json.dumps(dict(sorted(record.items())), indent=1, ensure_ascii=False)
        write_text(RECORD, text + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--cases", type=int, help="so many of each, without a record")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.families) - set(FAMILIES):
        parser.error(f"there is no family {unknown.pop()!r}; there are {', '.join(FAMILIES)}")
    if asked.folder:
        print(json.dumps(run_family(asked.families[0], asked.cases, asked.folder)))
        return 0
    failed = 0
    for name in asked.families or FAMILIES:
        counts = start_family(name, asked.cases or FAMILIES[name].count)
        if asked.cases is None:
            keep(name, counts)
        print(f"{name}: {counts['tries']} tries, {counts['failures']} failures", flush=True)
        for problem in counts["first"]:
            print(f"  {problem}")
        failed += counts["failures"]
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The counted suite: ``python -m tests.hardening [CATEGORY …]``.

Each category runs in a process of its own, whose memory is limited, and puts its tries and failures
into ``results/reliability.json``, from which ``docs/reliability.md`` is built. Exit status 1 if
anything failed.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.hardening import record

ROOT = Path(__file__).parents[2]
KILLS = ("train", "sweep", "features", "torchrun")
#: What one category may take beyond what its process has when it begins.
MEMORY = 3 << 30
#: A call, a command or a file that takes longer counts as a hang.
SECONDS = 60

Counts = tuple[int, list[str]]


class Hang(BaseException):
    """Raised by the alarm; a BaseException, so that nothing catches it on the way."""


@contextmanager
def limited(problems: list[str], what: object) -> Iterator[None]:
    """A hang within becomes a problem."""

    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    except Hang:
        problems.append(f"{what}: no answer after {SECONDS} s")
    finally:
        signal.alarm(0)


def count(tries: Iterator[tuple[object, Callable[[], str]]]) -> Counts:
    """Tries and failures; a try returns what went wrong, or nothing."""
    number, failures = 0, []
    for what, attempt in tries:
        number += 1
        with limited(failures, what):
            if problem := attempt():
                failures.append(problem)
    return number, failures


# ---- categories ---------------------------------------------------------------------------------


def api_calls(folder: Path) -> Counts:
    from tests.hardening import calls

    return count((case, lambda case=case: calls.failure(case)) for case in calls.cases(0, 10_000))


def estimator_calls(folder: Path) -> Counts:
    from tests.hardening import estimator_calls as calls

    return count(
        (name, lambda name=name, call=call: calls.failure(name, call))
        for name, call in calls.cases(0, 1_000)
    )


def command_lines(folder: Path) -> Counts:
    from tests.hardening import test_command_lines as lines

    return count(
        (words, lambda words=words: lines.problem(*words))
        for words in lines.hostile_commands(folder, 500)
    )


def hostile_files(folder: Path) -> Counts:
    from tests.hardening import hostile
    from tests.hardening import test_hostile_files as files

    def problems(kind: str, path: Path) -> str:
        return "; ".join(filter(None, (files.failure(read, path) for read in files.READERS[kind])))

    def attempts() -> Iterator[tuple[object, Callable[[], str]]]:
        for kind in hostile.GENERATORS:
            for path in files.handmade_files(kind, folder):
                yield path.name, partial(problems, kind, path)
        (folder / "damaged").mkdir()
        for kind, path in files.damaged_files(folder / "damaged", 40):
            yield path.name, partial(problems, kind, path)

    return count(attempts())


def damaged_files(folder: Path) -> Counts:
    from tests.hardening import test_damage as damage

    def attempts() -> Iterator[tuple[object, Callable[[], str]]]:
        for kind in damage.KINDS:
            (folder / kind).mkdir()
            yield from damage.flipped_bits(kind, folder / kind, 30)

    return count(attempts())


def writers(folder: Path) -> Counts:
    from tests.hardening import test_writers

    words = [sys.executable, "-m", "tests.hardening.writers", str(folder), "10"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000, cwd=ROOT)
    return test_writers.count_pairs(done)


def full_disks(folder: Path) -> Counts:
    from tests.hardening import disks

    return disks.count_fills(folder, 60)


CATEGORIES: dict[str, Callable[[Path], Counts]] = {
    "API calls": api_calls,
    "estimator calls": estimator_calls,
    "command lines": command_lines,
    "hostile files": hostile_files,
    "damaged files": damaged_files,
    "pairs of writers": writers,
    "full disks": full_disks,
}


def run_category(name: str, folder: Path) -> None:
    """Run one, in this process."""
    import torch

    torch.set_num_threads(1)
    if name not in ("pairs of writers", "full disks"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    began = time.monotonic()
    tries, failures = CATEGORIES[name](folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    record.keep(name, tries, failures, peak=peak, seconds=round(time.monotonic() - began))


def main(names: list[str]) -> int:
    every = [*CATEGORIES, *(f"kills of {kind}" for kind in KILLS)]
    chosen = names or every
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            words = ["tests.hardening", "--one", name, folder]
            if name.startswith("kills of "):
                words = ["tests.hardening.kills", name.split()[-1], "100", folder, "--record"]
            print(name, flush=True)
            command = [sys.executable, "-m", *words]
            ended = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False
            )
            if ended.returncode:
                record.keep(name, 0, [f"the category ended with status {ended.returncode}"])
    from tests.hardening import page

    page.write()
    counts = record.read()
    for name in chosen:
        print(f"{name}: {counts[name]['tries']} tries, {counts[name]['failures']} failures")
    return int(any(counts[name]["failures"] for name in chosen))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_category(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))

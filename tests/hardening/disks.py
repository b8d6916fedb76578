"""Disks that fill while a run writes: a small file system in memory, larger by a little each time.

Where one cannot be mounted, files are limited in size instead.
"""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.hardening.forks import command, start
from tests.hardening.kills import SMALL, contents, differences, warm_up, works


@contextmanager
def disk(place: Path, size: int) -> Iterator[bool]:
    """A file system of so many bytes at ``place``; False where it cannot be mounted."""
    place.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def grow(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)


def run_once(out: Path, err: Path, limit: int | None) -> tuple[int, str]:
    """Train, or go on; files of at most ``limit`` bytes."""

    def work() -> None:
        if limit is not None:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        begun = ["--resume"] if (out / "config.toml").exists() else ["--overwrite"]
        command("train", *SMALL, "--epochs", 25, *begun, "--out", out)()

    status = os.waitpid(start(work, err), 0)[1]
    return os.waitstatus_to_exitcode(status), err.read_text()


def count_fills(folder: Path, count: int) -> tuple[int, list[str]]:
    """``count`` sizes from nothing to all that a run takes; then there is room, and it goes on."""
    torch.set_num_threads(1)
    warm_up("train", folder)
    for work in works("train", folder / "whole"):
        os.waitpid(start(work, folder / "err"), 0)
    wanted = contents("train", folder / "whole")
    sizes = [file.stat().st_size for file in (folder / "whole").rglob("*") if file.is_file()]
    tries, failures = 0, []
    for number in range(count):
        size = 4096 + int(1.1 * sum(sizes) * number / count)
        with disk(folder / "disk", size) as mounted:
            out = folder / ("disk" if mounted else f"limited{number}") / "run"
            limit = None if mounted else int(max(sizes) * number / count)
            tries += 1
            status, said = run_once(out, folder / "err", limit)
            if status == 0 and number < count // 2:
                failures.append(f"{size} bytes: it said nothing")
            if status != 0 and not (status == 2 and said.count("\n") == 1):
                failures.append(f"{size} bytes: status {status}: {said[-400:]}")
            if mounted:
                grow(folder / "disk")
            status, said = run_once(out, folder / "err", None)
            if status:
                failures.append(f"{size} bytes, resumed: status {status}: {said[-400:]}")
            elif differ := differences(contents("train", out), wanted):
                failures.append(f"{size} bytes, resumed: differs in {differ}")
    return tries, failures

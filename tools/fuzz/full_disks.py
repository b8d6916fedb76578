"""Disks that fill while a run writes: a small file system in memory, larger by a little each time.

Where one cannot be mounted, files are limited in size instead.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tools.fuzz.forks import Ended, command, end, start
from tools.fuzz.kills import SMALL, contents, differences, warm_up


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


def train(out: Path, err: Path, limit: int | None = None) -> Ended:
    """Train, or go on; files of at most ``limit`` bytes."""

    def work() -> None:
        if limit is not None:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        begun = ["--resume"] if (out / "config.toml").exists() else ["--overwrite"]
        command("train", *SMALL, "--epochs", 25, *begun, "--out", out)()

    return end(start(work, err), err)


def failure(folder: Path, share: float, wanted: dict[str, Any], sizes: list[int]) -> str:
    """What went wrong on a disk with room for this share of a run, and then with room for all."""
    with disk(folder / "disk", 4096 + int(1.1 * sum(sizes) * share)) as mounted:
        out = folder / ("disk" if mounted else f"limited{share:.3f}") / "run"
        first = train(out, folder / "err", None if mounted else int(max(sizes) * share))
        if first.status == 0 and share < 0.5:
            return "it said nothing"
        if first.status and not (first.status == 2 and first.err.count("\n") == 1):
            return f"status {first.status}: {first.err[-400:]}"
        if mounted:
            words = ["mount", "-o", "remount,size=64m", str(folder / "disk")]
            subprocess.run(words, check=True)
        again = train(out, folder / "err")
        if again.status:
            return f"resumed: status {again.status}: {again.err[-400:]}"
        differ = differences(contents("train", out), wanted)
        return f"resumed: differs in {differ}" if differ else ""


def cases(folder: Path, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` sizes from nothing to all that a run takes."""
    torch.set_num_threads(1)
    warm_up("train", folder)
    train(folder / "whole", folder / "err")
    wanted = contents("train", folder / "whole")
    sizes = [file.stat().st_size for file in (folder / "whole").rglob("*") if file.is_file()]
    for number in range(count):
        share = number / count
        yield f"room for {share:.0%}", partial(failure, folder, share, wanted, sizes)

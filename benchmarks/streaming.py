"""Training on features that stay on disk, against the same features in memory.

The files are made in a temporary folder and read from the system's cache: what is timed is the
work of streaming, not the disk. Memory is measured in fresh processes, on a set of 200 MB and on
one of 2 GB.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.timing import Check, Contender, Result, compare
from dissensus import data
from dissensus.data import FeatureWriter
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.training import fit

FEATURES, CLASSES = 768, 100
ROW = 2 * FEATURES  # bytes
SMALL, LARGE = 200_000_000 // ROW, 2_000_000_000 // ROW
TIMED = 96 * 2**20 // ROW  # more than one window


def run(quick: bool) -> list[Result]:
    """Time epochs of linear heads, the cheapest there are, and measure memory."""
    small, large = (SMALL // 2, SMALL * 2) if quick else (SMALL, LARGE)
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as folder:
        free = shutil.disk_usage(folder).free
        if free < 2 * large * ROW:
            needed = 2 * large * ROW
            raise OSError(f"{folder} has {free / 1e9:.1f} GB free of {needed / 1e9:.1f} needed")
        checks = _memory(Path(folder), small, large)
        timed = make_store(Path(folder) / "timed", TIMED // 10 if quick else TIMED)
        streamed, in_memory = data.load(timed), data.load(timed, in_memory=True)
        make = make_factory("ldr_linear_head", (FEATURES,), CLASSES)

        def epoch(found: data.Data) -> Contender:
            ens = Ensemble(make, 5)
            name, limit = ("on disk", 1.1) if found is streamed else ("in memory", None)
            return Contender(
                name,
                lambda: fit(ens, found.train, "ldr", epochs=2, batch_size=256, progress=False),
                limit,
            )

        return [
            compare(
                f"Two epochs of 5 linear heads on {len(streamed.train[0]):,} × {FEATURES} "
                "features, ratio to features in memory",
                epoch(in_memory),
                [epoch(streamed)],
                repeats=3,
                checks=checks,
            )
        ]


def make_store(folder: Path, rows: int) -> Path:
    """A store of that many rows; blocks of one random pattern, each with its labels' shift."""
    block = np.random.default_rng(0).normal(size=(4096, FEATURES)).astype(np.float16)
    labels = np.arange(rows) % CLASSES

    def compute(number: int, start: int, stop: int) -> NDArray[np.float16]:
        return np.roll(block, start // 4096, axis=1)[: stop - start]

    classes = [str(label) for label in range(CLASSES)]
    with FeatureWriter(folder, (FEATURES,), classes=classes) as writer:
        writer.compute("train", rows, labels, compute)
    return folder


def _memory(folder: Path, small: int, large: int) -> list[Check]:
    peaks = {}
    for rows in (small, large):
        store = make_store(folder / str(rows), rows)
        command = [sys.executable, "-m", "benchmarks.streaming", str(store)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks[rows] = float(answer.stdout)
        shutil.rmtree(store)
    sizes = [f"{rows * ROW / 1e9:.2g} GB" for rows in (small, large)]
    return [
        Check(f"peak memory, {sizes[1]} against {sizes[0]}", peaks[large] / peaks[small], 1.1),
        Check(f"peak memory of {sizes[1]} in GB", peaks[large] / 1e9, 0.6),
    ]


def main() -> None:
    """Print the peak memory in bytes of an epoch of 5 linear members, in a fresh process."""
    torch.set_num_threads(1)
    found = data.load(Path(sys.argv[1]))
    ens = Ensemble(make_factory("linear", (FEATURES,), CLASSES), 5)
    fit(ens, found.train, epochs=1, batch_size=1024, progress=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()

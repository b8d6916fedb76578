"""Training on features that stay on disk, against the same features in memory.

The files are made in a temporary folder and read from the system's cache: what is timed is the
work of streaming, not the disk. Memory is measured in fresh processes, on stored features of 200 MB
and of 2 GB, and on Parquet shards of 100 MB and of 1 GB. It is the memory that a process holds of
its own; pages of a mapped file, which the system takes back when it needs them, stand beside it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
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
        checks = _memory(Path(folder), make_store, small, large, "features", 1.1)
        checks += _memory(Path(folder), make_shards, small // 2, large // 2, "Parquet shards", 1.3)
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


def make_shards(folder: Path, rows: int) -> Path:
    """Parquet shards of that many rows, each number of four bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    block = np.random.default_rng(0).normal(size=(4096, FEATURES // 2)).astype(np.float32)
    schema = pa.schema([("x", pa.list_(pa.float32(), FEATURES // 2)), ("label", pa.int64())])
    with pq.ParquetWriter(folder / "train.parquet", schema) as writer:
        for start in range(0, rows, len(block)):
            x = np.roll(block, start // 4096, axis=1)[: rows - start]
            lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), FEATURES // 2)
            writer.write_table(pa.table([lists, pa.array(np.arange(len(x)) % CLASSES)], schema))
    return folder


def _memory(
    folder: Path, make: Callable[[Path, int], Path], small: int, large: int, what: str, limit: float
) -> list[Check]:
    """Peaks of an epoch on a small and on a large set; a first process reads shards into Arrow."""
    peaks, mapped = {}, {}
    for rows in (small, large):
        made = make(folder / "made", rows)
        command = [sys.executable, "-m", "benchmarks.streaming", str(made)]
        environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
        for _ in range(2 if make is make_shards else 1):
            answer = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=environment
            )
        peaks[rows], mapped[rows] = map(float, answer.stdout.split())
        shutil.rmtree(made)
        shutil.rmtree(folder / "cache", ignore_errors=True)
    sizes = [f"{rows * ROW / 1e9:.2g} GB" for rows in (small, large)]
    return [
        Check(
            f"{what}: own memory, {sizes[1]} against {sizes[0]}", peaks[large] / peaks[small], limit
        ),
        Check(f"{what}: own memory of {sizes[1]} in GB", peaks[large] / 1e9, 0.7),
        Check(
            f"{what}: mapped pages of {sizes[1]} in GB", mapped[large] / 1e9, 2 * large * ROW / 1e9
        ),
    ]


def main() -> None:
    """Print the peaks in bytes of own memory and of mapped pages in an epoch of training."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    found = data.load(folder) if data.is_store(folder) else data.load(folder, val=0, test=0)
    peaks = {"RssAnon": 0, "RssFile": 0}

    def watch() -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) * 1024)
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    ens = Ensemble(make_factory("linear", found.input_shape, CLASSES), 5)
    fit(ens, found.train, epochs=1, batch_size=1024, progress=False)
    print(*peaks.values())


if __name__ == "__main__":
    main()

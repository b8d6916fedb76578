"""A million examples: memory that does not grow with them, and an epoch taken up at its batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc"),
]

ROOT = Path(__file__).parents[2]
FEATURES, GROUP = 8, 8192

# What is freed goes back at once, so that the peak is that of what was held, and no matter of how
# an allocator keeps what it may need again.
PLAIN_MEMORY = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

# Trains for an epoch in one process after the other, forked so that torch is loaded once. Each
# writes its peak memory, its last batch and what came out. With six members and a checkpoint every
# 20 batches a hundred thousand examples do, once, all that a million do again and again: fill what
# is kept of an epoch before it is summed up, and save it.
PROGRAM = """
import json, os, sys
import torch
from torch import nn
from dissensus import data
from dissensus.ensemble import Ensemble
from dissensus.training import disk_batches, fit
from dissensus.training.step import Trainer

torch.set_num_threads(1)
plain = Trainer.step
disk_batches._WINDOW = 1 << 21  # which both sets exceed

def own_memory():
    "Bytes that are not pages of a mapped file, which the system takes back when it needs them."
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))

def train(folder, run, stop):
    found = data.load(folder, val=0, test=0)
    steps, last, peak = 0, [], 0

    def step(self, given, *rest, **named):
        nonlocal steps, last, peak
        steps, peak = steps + 1, max(peak, own_memory())
        if steps == stop:
            os._exit(7)
        last = given.x[:, 0].tolist()
        return plain(self, given, *rest, **named)

    Trainer.step = step
    ens = Ensemble(lambda: nn.Linear(8, 2), members=6)
    history = fit(ens, found.train, out=run, epochs=1, batch_size=4096, progress=False, resume=True,
                  checkpoint_every=20)
    weights = {name: value.flatten().tolist() for name, value in ens.state_dict().items()}
    return {"peak": peak, "steps": steps, "last": last, "figures": history.epochs,
            "weights": weights}

for folder, run, stop in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        with open(f"{run}.json", "w") as file:
            json.dump(train(folder, run, stop), file)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (7 if stop else 0), (run, status)
    if stop:
        os.rename(f"{run}/state.json", f"{run}.state.json")
"""


def write(folder: Path, rows: int) -> Path:
    """Shards of a hundred thousand rows; the first number of a row says which one it is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    generator = np.random.default_rng(0)
    for start in range(0, rows, 100_000):
        x = generator.normal(size=(100_000, FEATURES)).astype(np.float32)
        x[:, 0] = (np.arange(start, start + 100_000) / 500_000) - 1
        table = pa.table(
            {
                "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), FEATURES),
                "label": pa.array((x[:, 1] > 0).astype(np.int8)),
            }
        )
        file = folder / f"part-{start:08d}.parquet"
        pq.write_table(table, file, row_group_size=GROUP, compression="none", use_dictionary=False)
    return folder


def test_a_million_examples_take_no_more_memory_and_an_epoch_resumes_exactly(
    tmp_path: Path,
) -> None:
    small, large = write(tmp_path / "small", 100_000), write(tmp_path / "large", 1_000_000)
    runs = [("few", small, 0), ("many", large, 0), ("cut", large, 130), ("cut", large, 0)]
    told = json.dumps([(str(folder), str(tmp_path / name), stop) for name, folder, stop in runs])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, told],
        cwd=ROOT,
        env=os.environ | PLAIN_MEMORY | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    few, many, rest = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("few", "many", "cut")
    )
    assert (few["steps"], many["steps"]) == (25, 245)
    # Each example costs its label and its number, and their copies.
    assert many["peak"] < few["peak"] + 32 * 900_000
    assert many["figures"][0]["train"]["examples"] == 1_000_000

    # Cut off at batch 130, with a checkpoint of batch 120.
    state = json.loads((tmp_path / "cut.state.json").read_text())
    assert (state["epoch"], state["batch"], rest["steps"]) == (0, 120, 125)
    assert rest["last"] == many["last"]
    assert rest["weights"] == many["weights"]
    assert rest["figures"] == many["figures"]

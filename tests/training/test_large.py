"""A million examples: memory that does not grow with them, and an epoch taken up at its batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("resource")

ROOT = Path(__file__).parents[2]
FEATURES, GROUP, BATCH = 8, 8192, 4096

# Trains for an epoch and prints the peak memory, the last batch's examples, and how many were read.
PROGRAM = """
import json, resource, sys
import torch
from torch import nn
from dissensus import data
from dissensus.ensemble import Ensemble
from dissensus.training import fit
from dissensus.training.steps import StackTrainer

torch.set_num_threads(1)
folder, run, stop, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
found = data.load(folder, val=0, test=0)
steps, seen, plain = 0, [], StackTrainer.step

def step(self, given, *rest, **named):
    global steps
    steps += 1
    if steps == stop:
        sys.exit(7)
    seen[:] = given.x[:, 0].tolist()
    return plain(self, given, *rest, **named)

StackTrainer.step = step
ens = Ensemble(lambda: nn.Linear(8, 2), members=2)
history = fit(ens, found.train, out=run, epochs=1, batch_size=batch, progress=False, resume=True,
              checkpoint_every=100)
weights = {name: value.flatten().tolist() for name, value in ens.state_dict().items()}
print(json.dumps({
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "steps": steps,
    "last": seen,
    "figures": history.epochs,
    "weights": weights,
}))
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


def run(data: Path, out: Path, stop: int = 0) -> dict[str, object] | int:
    command = [sys.executable, "-c", PROGRAM, str(data), str(out), str(stop), str(BATCH)]
    environment = os.environ | {"XDG_CACHE_HOME": str(out.parent / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode == 7:
        return 7
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_million_examples_take_no_more_memory_and_an_epoch_resumes_exactly(
    tmp_path: Path,
) -> None:
    small, large = write(tmp_path / "small", 100_000), write(tmp_path / "large", 1_000_000)
    few, many = run(small, tmp_path / "few"), run(large, tmp_path / "many")
    assert isinstance(few, dict)
    assert isinstance(many, dict)
    assert (few["steps"], many["steps"]) == (25, 245)
    assert many["peak"] < 1.05 * few["peak"]  # type: ignore[operator]

    assert run(large, tmp_path / "cut", stop=130) == 7  # the last checkpoint is that of batch 100
    state = json.loads((tmp_path / "cut" / "state.json").read_text())
    assert (state["epoch"], state["batch"]) == (0, 100)
    rest = run(large, tmp_path / "cut")
    assert isinstance(rest, dict)
    assert rest["steps"] == 145
    assert rest["last"] == many["last"]
    assert rest["weights"] == many["weights"]
    assert rest["figures"] == many["figures"]
    assert many["figures"][0]["train"]["examples"] == 1_000_000  # type: ignore[index]

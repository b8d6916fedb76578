"""All scores of a large file of predictions in one streamed pass, against one softmax over it."""

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open

from benchmarks.timing import Check, Contender, Result, compare
from dissensus.outputs import Predictions
from dissensus.scores import score_all, score_file

SHAPE, QUICK_SHAPE = (5, 50_000, 1000), (5, 2000, 1000)
TIME_LIMIT = 8.0  # thirteen scores, among them counts of classes and a determinant in float64
MEMORY_LIMIT = 256  # MiB, whatever the size of the file
PART = 1600  # examples that the softmax reads at once, as many as score_file does


def run(quick: bool) -> list[Result]:
    """Time ``score_file`` on a generated file, and measure the memory of a fresh process."""
    shape = QUICK_SHAPE if quick else SHAPE
    size = 4 * shape[0] * shape[1] * shape[2]
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < 2 * size:
            raise OSError(f"{folder} lacks the {2 * size / 2**30:.1f} GiB that this file needs")
        path = Path(folder) / "predictions.safetensors"
        generator = torch.Generator().manual_seed(0)
        Predictions(2 * torch.randn(shape, generator=generator)).save(path)
        memory = Check("peak extra memory, MiB", extra_memory(path), MEMORY_LIMIT)
        result = compare(
            f"All scores of a file of {size / 2**30:.2g} GiB {list(shape)}, ratio to one softmax",
            Contender("streamed softmax", lambda: softmax_pass(path)),
            [
                Contender("score_file", lambda: score_file(path), TIME_LIMIT),
                Contender(
                    "load, then score_all", lambda: score_all(Predictions.load(path).outputs)
                ),
            ],
            repeats=3,
            checks=[memory],
        )
    return [result]


def softmax_pass(path: Path) -> None:
    """Read every example once and take the softmax of its logits."""
    total = 1
    for start in range(0, SHAPE[1], PART):
        with safe_open(path, framework="pt") as file:
            outputs = file.get_slice("outputs")
            total = outputs.get_shape()[1]
            if start >= total:
                return
            outputs[:, start : start + PART].softmax(-1)


def extra_memory(path: Path) -> float:
    """Peak resident memory of a fresh process during ``score_file``, less that before it."""
    command = [sys.executable, "-m", "benchmarks.score_file", str(path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(answer.stdout)


def peak_memory() -> float:
    """The peak resident memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():  # unlike getrusage it starts anew with the program
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the extra memory of one call in MiB."""
    torch.set_num_threads(1)
    small = Path(sys.argv[1]).with_name("small.safetensors")
    Predictions(torch.randn(5, 8, 1000)).save(small)
    score_file(small)  # what is loaded at the first call is not the call's memory
    before = peak_memory()
    score_file(sys.argv[1])
    print(peak_memory() - before)


if __name__ == "__main__":
    main()

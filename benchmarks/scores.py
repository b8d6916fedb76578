"""All scores of a large prediction at once, against one softmax over the same tensor."""

import resource
import subprocess
import sys

import torch

from benchmarks.timing import Check, Contender, Result, compare
from dissensus.scores import score_all

SHAPE, QUICK_SHAPE = (5, 10_000, 1000), (5, 1000, 1000)
TIME_LIMIT, MEMORY_LIMIT = 3.0, 2.0


def run(quick: bool) -> list[Result]:
    """Time ``score_all`` and measure the memory it needs beyond the logits."""
    shape = QUICK_SHAPE if quick else SHAPE
    logits = torch.randn(shape)
    memory = Check("peak extra memory / size of the logits", extra_memory(shape), MEMORY_LIMIT)
    result = compare(
        f"All scores on {list(shape)}, ratio to one softmax",
        Contender("softmax", lambda: logits.softmax(-1)),
        [Contender("score_all", lambda: score_all(logits), TIME_LIMIT)],
        repeats=3 if quick else 11,
        checks=[memory],
    )
    return [result]


def extra_memory(shape: tuple[int, ...]) -> float:
    """Peak resident memory of a fresh process during ``score_all``, less that before it."""
    command = [sys.executable, "-m", "benchmarks.scores", *map(str, shape)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(answer.stdout)


def main() -> None:
    """Print the extra memory of one call as a share of the logits' size, in a fresh process."""
    torch.set_num_threads(1)
    logits = torch.randn([int(size) for size in sys.argv[1:]])
    score_all(logits[:, :8])  # what is loaded at the first call is not the call's memory
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    score_all(logits)
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(extra / (logits.numel() * logits.element_size()))


if __name__ == "__main__":
    main()

"""Starts processes that run cases together: ``python -m tests.training.distributed.ranks``.

One program forks them all, as importing torch costs more than the cases do.
"""

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from dissensus.training import Distributed
from tests.training.distributed.cases import CASES, train
from tests.training.distributed.stories import FATAL, STORIES


def fork(ranks: int, work: Callable[[int], None], timeout: float = 60) -> None:
    """Run ``work(rank)`` in so many processes that form a group; raise unless all end well."""
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    store = f"file://{folder}/store"
                    wait = timedelta(seconds=timeout)
                    dist.init_process_group("gloo", store, wait, ranks, rank)
                    work(rank)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        ends = [os.waitpid(child, 0)[1] for child in children]
        if any(ends):
            raise SystemExit("a rank failed; see above")


def run_cases(top: Path, ranks: int, rank: int) -> None:
    """Every case for so many ranks; each rank keeps what it ends with."""
    for case in CASES:
        if ranks not in case.meshes:
            continue
        started = time.perf_counter()
        ens, history = train(case, distributed=Distributed(timeout=60, **case.meshes[ranks]))
        seconds = time.perf_counter() - started
        name = f"{ranks}-{case.name.replace('/', '-')}-{rank}"
        save_file(ens.state_dict(), top / f"{name}.safetensors")
        found = {"epochs": history.epochs, "best": history.best_epoch, "ended": history.ended}
        (top / f"{name}.json").write_text(json.dumps({**found, "seconds": seconds}))


def run_stories(top: Path, ranks: int, rank: int) -> None:
    """Every story; each rank keeps what it saw."""
    for name, story in STORIES.items():
        found = story(top, ranks)
        (top / f"{ranks}-{name}-{rank}.json").write_text(json.dumps(found))


def run_fatal(top: Path, name: str, rank: int) -> None:
    """One story that a group does not outlive."""
    started = time.perf_counter()
    found = {"message": FATAL[name](rank), "seconds": time.perf_counter() - started}
    (top / f"{name}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    top = Path(sys.argv[1])

    def everything(ranks: int, rank: int) -> None:
        run_stories(top, ranks, rank)
        run_cases(top, ranks, rank)
        dist.barrier()

    for ranks in (2, 4):
        fork(ranks, partial(everything, ranks))
    for name in FATAL:
        fork(2, partial(run_fatal, top, name), timeout=2 if name == "hanging" else 20)

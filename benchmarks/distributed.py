"""Members on two processes with one thread each, against one process with one thread.

The second process is started beside this one and steps along with it. A call is several steps
between two exchanges that neither passes before the other. Wall time is what counts; as it says
little on a machine that others use, the CPU time of a rank is checked too.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.timing import Check, Contender, Result, compare
from benchmarks.training import ours
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.objectives import parse
from dissensus.training import Distributed, Recipe
from dissensus.training.distributed.run import DistributedRun
from dissensus.training.stream import TrainingBatch

MEMBERS, ROWS, CLASSES, STEPS = 4, 32, 10, 4
LIMIT = 0.555  # of the time of one process: 1.8 times as fast
COUNTED = ((4, 32, 10), (8, 32, 10), (4, 64, 10), (4, 32, 100))  # members, batch, classes
WAIT = timedelta(minutes=10)

# What the two processes tell each other to do next.
_STEPS, _END = 1, 0


def run(quick: bool) -> list[Result]:
    """Time steps of ADP on ResNet-20 × 4, and compare what is sent with data parallelism."""
    with _second_process():
        return [_steps(3 if quick else 9), _traffic()]


@contextmanager
def _second_process() -> Iterator[None]:
    """A group of this process and another, which does as it is told until the end."""
    store = _store(0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "benchmarks.distributed", str(store.port)]
    other = subprocess.Popen(command, env=environment)
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=WAIT)
        yield
        dist.destroy_process_group()
    finally:
        if other.poll() is None:
            try:
                other.wait(30)
            except subprocess.TimeoutExpired:
                other.kill()


def _store(port: int, **options: Any) -> Any:
    return dist.TCPStore("127.0.0.1", port, 2, **options)  # type: ignore[attr-defined]


def _together() -> None:
    dist.all_reduce(torch.zeros(1))


def _told(what: int | None) -> int:
    """Tell the other process what to do (``what``), or be told (None)."""
    word = torch.tensor([-1 if what is None else what])
    dist.broadcast(word, 0)
    return int(word)


def _steps(repeats: int) -> Result:
    """Steps in turns: of all members here, and of half of them here and half of them there."""
    make = make_factory("resnet20", (3, 32, 32), CLASSES)
    x, y = _batch()
    alone = ours(make, MEMBERS, x, y, parse("adp"))

    def one() -> None:
        for _ in range(STEPS):
            alone()

    step = _team()

    def two() -> None:
        _told(_STEPS)
        for _ in range(STEPS):
            step()
        _together()

    result = compare(
        f"ADP on ResNet-20 × {MEMBERS}, batch {ROWS}: {STEPS} steps, ratio to one process",
        Contender("one process", one),
        [Contender("two processes", two, LIMIT)],
        repeats=repeats,
        clock="wall",
    )
    _told(_END)
    base, rank = (row.cpu.median for row in result.measurements)
    return replace(result, checks=(Check("CPU time of a rank, ratio", rank / base, LIMIT),))


def _team() -> Callable[[], object]:
    """One step of ADP, members spread over the group."""
    ens = Ensemble(make_factory("resnet20", (3, 32, 32), CLASSES), MEMBERS)
    x, y = _batch()
    run = DistributedRun(ens, parse("adp"), Recipe(), Distributed(timeout=WAIT.total_seconds()))
    run.ens.train()
    trainer = run.make_trainer()
    return lambda: trainer.step(TrainingBatch(x, y, None, None), set(), 1.0, check=False)


def _batch(rows: int = ROWS, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, 32, 32, generator=generator)
    return x, torch.randint(classes, (rows,), generator=generator)


def _traffic() -> Result:
    """The bytes that a rank hands over in a step: outputs of its members, or all gradients."""
    checks = []
    for members, rows, classes in COUNTED:
        coupled = _counted(Distributed(data=1), "adp", members, rows, classes)
        plain = _counted(Distributed(members=1), "independent", members, rows, classes)
        title = f"{members} members, batch {rows}, {classes} classes: {coupled:,} of {plain:,}"
        checks.append(Check(title, coupled / plain, 0.05))
    return Result(
        "Bytes a step of ResNet-20 on two ranks: members spread (ADP), of those with rows spread",
        "wall",
        1,
        (),
        tuple(checks),
    )


def _counted(mesh: Distributed, objective: str, members: int, rows: int, classes: int) -> int:
    x, y = _batch(rows, classes)
    ens = Ensemble(make_factory("resnet20", (3, 32, 32), classes), members)
    run = DistributedRun(ens, parse(objective), Recipe(), mesh)
    run.ens.train()
    run.make_trainer().step(TrainingBatch(x, y, None, None), set(), 1.0, check=False)
    return run.link.sent["outputs"] + run.link.sent["gradients"]


def main() -> None:
    """Be the second process."""
    torch.set_num_threads(1)
    store = _store(int(sys.argv[1]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=WAIT)
    step = _team()
    while _told(None) == _STEPS:
        for _ in range(STEPS):
            step()
        _together()
    _traffic()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What else ranks go through together: runs that change hands, interruptions, errors, counts."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dissensus.cli import main
from dissensus.ensemble import Ensemble
from dissensus.objectives import parse
from dissensus.training import Distributed, NonFiniteLoss, Recipe, Stopped, fit
from dissensus.training.distributed.ranks import RankFailed
from dissensus.training.distributed.run import DistributedRun
from dissensus.training.stream import TrainingBatch
from tests.training.distributed.cases import CASES, Case, data, train

Found = dict[str, Any]

BY_NAME = {case.name: case for case in CASES}
#: Runs that several numbers of ranks go on with, one after the other.
PASSED_ON = {
    name: BY_NAME[name]
    for name in ("adp", "ldr", "learner_dropout_independent", "unlike", "backbone")
}
EPOCHS = 4


def pass_on(top: Path, ranks: int) -> Found:
    """Two ranks begin, and stop amid an epoch; four go on from there, to the end of the third."""
    left = {}
    for name, case in PASSED_ON.items():
        folder = top / "passed_on" / name
        if ranks == 2:
            stopped_amid(case, folder)
        else:
            mesh = Distributed(data=2) if name in ("ldr", "adp") else True
            train(case, out=folder, resume=True, epochs=3, distributed=mesh)
        state = json.loads((folder / "state.json").read_text())
        left[name] = [state["epoch"], state["batch"]]
    return left


def stopped_amid(case: Case, folder: Path) -> None:
    """Rank 1 gets a Ctrl-C in the third batch of the second epoch; all ranks stop at one place."""
    seen = 0

    def interrupt(x: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal seen
        seen += 1
        if seen == 8 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return x

    with pytest.raises(Stopped):
        train(case, out=folder, epochs=EPOCHS, augment=interrupt, distributed=True)


def traffic(top: Path, ranks: int) -> Found:
    """The bytes that a step hands over, for members on several ranks and for rows on several."""
    found = {}
    members, batch, classes = 4, 32, 10
    x, y = torch.randn(batch, 6), torch.zeros(batch, dtype=torch.long)
    for objective in ("independent", "adp", "ldr:active=4"):
        for name, mesh in (("members", Distributed(data=1)), ("data", Distributed(members=1))):
            ens = Ensemble(lambda: nn.Linear(6, classes), members)
            found[f"{objective} {name}"] = steps_of(ens, mesh, objective, x, y, 3)
    return found


def steps_of(
    ens: Ensemble, mesh: Distributed, objective: str, x: Tensor, y: Tensor, steps: int
) -> dict[str, int]:
    run = DistributedRun(ens, parse(objective), Recipe(), mesh)
    trainer = run.make_trainer()
    run.ens.train()
    for _ in range(steps):
        trainer.step(TrainingBatch(x, y, None, None), set(), 1.0, check=False)
    return dict(run.link.sent)


def called_back(top: Path, ranks: int) -> Found:
    """The first rank calls back with all members; its answer ends training everywhere."""
    calls: list[list[int]] = []

    def callback(record: dict[str, Any], ens: Ensemble) -> bool:
        with ens.evaluating():
            calls.append(list(ens(data(0, 9, regression=False)[0]).shape))
        return record["epoch"] == 2

    _, history = train(BY_NAME["adp"], callbacks=[callback], distributed=True)
    return {"calls": calls, "ended": history.ended, "epochs": len(history.epochs)}


def held(top: Path, ranks: int) -> Found:
    """What a rank holds before, while and after it trains, and after it was stopped."""
    seen: list[int] = []
    stopped: list[bool] = []
    x, y = data(0, 67, regression=False)
    ens = Ensemble(lambda: nn.Linear(4, 7).double(), 5)

    def size() -> int:
        return sum(parameter.numel() for parameter in ens.parameters())

    def look(inputs: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(size())
        return inputs

    def stop(inputs: Tensor, generator: torch.Generator) -> Tensor:
        if not stopped:
            os.kill(os.getpid(), signal.SIGINT)
        stopped.append(True)
        return inputs

    settings = {"epochs": 1, "batch_size": 16, "progress": False, "distributed": True}
    with pytest.raises(ValueError, match="disagreement"):
        fit(ens, (x, y), "joint", disagreement=x, **settings)
    refused = size()
    fit(ens, (x, y), "joint", augment=look, **settings)
    after = size()
    with pytest.raises(Stopped):
        fit(ens, (x, y), "joint", augment=stop, **settings)
    return {"held": seen[0], "refused": refused, "after": after, "stopped": size()}


def command(top: Path, ranks: int) -> Found:
    """``dissensus train``, as torchrun starts it; what each process shows."""
    if ranks != 2:
        return {}
    os.environ |= {"RANK": str(torch.distributed.get_rank()), "WORLD_SIZE": str(ranks)}
    shown = [
        run_command("--out", str(top / "command"), "--epochs", "2"),
        run_command(
            "--resume", "--out", str(top / "command"), "--epochs", "3", "--mesh", f"1x{ranks}"
        ),
        run_command("--out", str(top / "command"), "--epochs", "2"),
    ]
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"  # then it goes on without being asked to
    shown.append(run_command("--out", str(top / "command"), "--epochs", "4"))
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        del os.environ[name]
    return {"shown": shown}


def run_command(*words: str) -> str:
    """What the command line says."""
    data = str(Path(words[words.index("--out") + 1]).parent / "digits.npz")
    said = io.StringIO()
    sys.argv = ["dissensus", "train", *words]
    if "--resume" not in words:
        sys.argv += ["--data", data, "--members", "3", "--objective", "joint"]
    with redirect_stdout(said), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            said.write(f"exit {end.code}")
    return said.getvalue()


def message(kind: type[Exception], work: Callable[[], Any]) -> str:
    """The text of the error that ``work`` ends in."""
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was to be raised")


def refused(top: Path, ranks: int) -> Found:
    """Errors that all ranks see, and that leave the group in order."""
    ens = Ensemble(lambda: nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7)), 2)
    x, y = (
        tensor.float() if tensor.is_floating_point() else tensor
        for tensor in data(0, 20, regression=False)
    )

    def trying(**settings: Any) -> Callable[[], Any]:
        mesh = Distributed(**settings)
        return lambda: fit(ens, (x, y), "joint", epochs=1, progress=False, distributed=mesh)

    stacked = Ensemble(
        lambda: nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7)), 2, execution="stacked"
    )
    there = top / "passed_on" / "adp"
    return {
        "mesh": message(ValueError, trying(members=3, data=1)),
        "members": message(ValueError, trying(members=ranks, data=1)) if ranks > 2 else "",
        "stacked": message(
            ValueError,
            lambda: fit(
                stacked,
                (x, y),
                "joint",
                progress=False,
                distributed=Distributed(data=ranks, sync_batchnorm=True),
            ),
        ),
        "folder": message(ValueError, lambda: train(BY_NAME["adp"], out=there, distributed=True)),
        "empty": message(
            ValueError,
            lambda: fit(ens, (x, y), "joint", val=[], epochs=1, progress=False, distributed=True),
        ),
    }


STORIES: dict[str, Callable[[Path, int], Found]] = {
    "command": command,
    "pass_on": pass_on,
    "traffic": traffic,
    "called_back": called_back,
    "held": held,
    "refused": refused,
}


def other_batches(rank: int) -> str:
    """Each rank has data in an order of its own; nobody trains on a mixture."""
    x, y = data(rank, 64, regression=False)
    ens = Ensemble(lambda: nn.Linear(4, 7).double(), 2)
    return message(
        (ValueError, RankFailed),  # type: ignore[arg-type]
        lambda: fit(
            ens, (x, y), "joint", epochs=1, progress=False, distributed=Distributed(timeout=20)
        ),
    )


def poisoned(rank: int, objective: str) -> str:
    """A member of rank 1 comes to NaN; every rank ends, and says whose it was."""
    x, y = data(0, 64, regression=False)
    ens = Ensemble(lambda: nn.Linear(4, 7).double(), 3)
    with torch.no_grad():
        next(ens.parameters())[2] = float("nan")
    return message(
        (NonFiniteLoss, RankFailed),  # type: ignore[arg-type]
        lambda: fit(
            ens, (x, y), objective, epochs=1, progress=False, distributed=Distributed(timeout=20)
        ),
    )


def hanging(rank: int) -> str:
    """Rank 1 is busy with something else for longer than the others wait."""
    import time

    x, y = data(0, 64, regression=False)
    ens = Ensemble(lambda: nn.Linear(4, 7).double(), 2)
    seen = 0

    def hang(inputs: Tensor, generator: torch.Generator) -> Tensor:
        nonlocal seen
        seen += 1
        if rank == 1 and seen == 3:
            time.sleep(6)
        return inputs

    return message(
        RankFailed,
        lambda: fit(
            ens,
            (x, y),
            "joint",
            augment=hang,
            epochs=1,
            batch_size=16,
            progress=False,
            distributed=Distributed(timeout=2),
        ),
    )


#: Each in a group of two ranks of its own, as nothing works in a group that has failed.
FATAL: dict[str, Callable[[int], str]] = {
    "other_batches": other_batches,
    "poisoned": lambda rank: poisoned(rank, "joint"),
    "poisoned_independent": lambda rank: poisoned(rank, "independent"),
    "hanging": hanging,
}

"""Optimisers and schedulers of torch: each member trains as it would alone in plain PyTorch."""

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    MultiStepLR,
    OneCycleLR,
)

from dissensus.ensemble import Ensemble
from dissensus.training import TorchSchedule, fit
from tests.training.problems import batches, blobs, dense_mlp

EPOCHS, DATA = 4, batches()


def alone(
    member: nn.Module, make_optimizer: Any, make_scheduler: Any = None, every: str = "epoch"
) -> nn.Module:
    """The loop of any PyTorch tutorial."""
    optimizer = make_optimizer(member.parameters())
    scheduler = None if make_scheduler is None else make_scheduler(optimizer)
    member.train()
    for _ in range(EPOCHS):
        for x, y in DATA:
            optimizer.zero_grad()
            nn.functional.cross_entropy(member(x), y).backward()
            optimizer.step()
            if scheduler is not None and every == "batch":
                scheduler.step()
        if scheduler is not None and every == "epoch":
            scheduler.step()
    return member.eval()


@pytest.mark.parametrize("execution", ["stacked", "looped", "unlike"])
@pytest.mark.parametrize(
    ("optimizer", "scheduler", "every"),
    [
        (AdamW, None, "epoch"),
        (lambda p: RMSprop(p, lr=0.01, momentum=0.5), lambda o: MultiStepLR(o, [1, 3]), "epoch"),
        (functools.partial(NAdam, lr=0.02), lambda o: CosineAnnealingLR(o, 3), "epoch"),
        (
            lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda o: OneCycleLR(o, 0.3, total_steps=EPOCHS * len(DATA) + 1),
            "batch",
        ),
    ],
)
def test_each_member_trains_as_it_would_alone(
    execution: str, optimizer: Any, scheduler: Any, every: str
) -> None:
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(4, 3)) if execution == "unlike" else dense_mlp()
    members = [dense_mlp(), dense_mlp(), other]
    ens = Ensemble.from_members(members, execution="auto" if execution == "unlike" else execution)
    settings = {} if scheduler is None else {"schedule": TorchSchedule(scheduler, every)}
    fit(ens, DATA, optimizer=optimizer, epochs=EPOCHS, progress=False, **settings)
    x = blobs(20, seed=3)[0]
    wanted = torch.stack([alone(m, optimizer, scheduler, every)(x) for m in members])
    torch.testing.assert_close(ens(x), wanted, rtol=1e-4, atol=1e-5)


def test_a_named_optimizer_takes_a_scheduler_of_torch_and_the_other_way_round() -> None:
    ends = []
    for optimizer, schedule in (
        ("sgd:lr=0.2/0.1,momentum=0.5", "multistep:at=1/2,factor=0.5"),
        ("sgd:lr=0.2/0.1,momentum=0.5", lambda o: MultiStepLR(o, [1, 2], 0.5)),
        (lambda p: SGD(p, lr=0.2, momentum=0.5), "multistep:at=1/2,factor=0.5"),
    ):
        ens = Ensemble(dense_mlp, members=2)
        fit(ens, DATA, optimizer=optimizer, schedule=schedule, epochs=3, progress=False)
        ends.append(ens(DATA[0][0]))
    torch.testing.assert_close(ends[1], ends[0])
    torch.testing.assert_close(ends[2][0], ends[0][0])


WHOLE = dense_mlp()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"optimizer": LBFGS}, r"LBFGS needs a closure"),
        ({"optimizer": AdamW(WHOLE.parameters())}, "a name, a class or a function"),
        ({"optimizer": lambda p: AdamW(WHOLE.parameters())}, "made for the parameters that it is"),
        ({"optimizer": lambda p: None}, "must make a torch.optim.Optimizer, got <class 'NoneType'"),
        ({"schedule": lambda o: None}, "schedule must make a scheduler of torch, got"),
        ({"schedule": 3}, "schedule must be a function that makes a scheduler"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        fit(Ensemble(dense_mlp, members=2), DATA, epochs=1, progress=False, **settings)

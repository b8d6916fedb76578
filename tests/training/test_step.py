"""Batches that use or train some members only: nobody else is touched, not by a bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import without_prefix
from dissensus.objectives import A2D, ADP, LDR, Independent, LearnerDropout, Objective, Sequential
from dissensus.training import Recipe, fit
from dissensus.training.step import SeparateMembers, Trainer
from dissensus.training.stream import TrainingBatch
from tests.training.problems import batches, blobs, dense_mlp, norm_mlp, rows, same_bits

MEMBERS = 5


def ensemble(kind: str) -> Ensemble:
    if kind == "dense":
        return Ensemble(dense_mlp, members=MEMBERS)
    if kind == "unlike":
        return Ensemble.from_members([norm_mlp(), *[dense_mlp() for _ in range(3)], norm_mlp()])
    return Ensemble(norm_mlp, members=MEMBERS, execution=kind)


def everything(trainer: Any, member: int) -> dict[str, Tensor]:
    """Weights, statistics, moments and step count of a member, copied."""
    moments = trainer.members.optimizer.state()
    if isinstance(trainer.members, SeparateMembers):
        kept = without_prefix(f"{member}.", {n: t.clone() for n, t in moments.items()})
    else:
        kept = {name: tensor[member].clone() for name, tensor in moments.items()}
    return {**rows(trainer.ens, member), **{f"optimizer.{name}": t for name, t in kept.items()}}


KINDS = ["dense", "stacked", "looped", "unlike"]
CASES: list[tuple[Objective, list[int] | None, set[int], set[int]]] = [
    # objective, drawn members, frozen members, members that may change
    (LDR(active=2), [1, 4], set(), {1, 4}),
    (LDR(active=2), [1, 4], {4}, {1}),
    (Independent(), None, {0, 2}, {1, 3, 4}),
    (LearnerDropout(0.4), [0, 1, 3], set(), {0, 1, 3}),
    (Sequential(stage=2), [0, 1, 2], set(), {2}),
    (Sequential(stage=0), [0], set(), {0}),
    (LDR(active=2), [1, 4], {1, 4}, set()),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adamw:weight_decay=0.1", "sgd:lr=0.1,weight_decay=0.1"])
@pytest.mark.parametrize(("objective", "drawn", "frozen", "may_change"), CASES)
def test_a_step_changes_the_members_it_trains_and_no_bit_of_others(
    objective: Objective,
    drawn: list[int] | None,
    frozen: set[int],
    may_change: set[int],
    optimizer: str,
    kind: str,
) -> None:
    ens = ensemble(kind).train()
    trainer = Trainer(ens, objective, Recipe(optimizer=optimizer, clip=1.0))
    x, y = blobs(16)
    extra = blobs(12, seed=3)[0] if objective.needs_disagreement else None
    trainer.step(
        TrainingBatch(x, y, None if extra is None else extra, drawn), set(), 1.0, check=True
    )
    for turn in range(2):
        before = [everything(trainer, j) for j in range(MEMBERS)]
        trainer.step(TrainingBatch(x, y, extra, drawn), frozen, 1.0, check=turn == 0)
        after = [everything(trainer, j) for j in range(MEMBERS)]
        for j in range(MEMBERS):
            if j not in may_change:
                assert same_bits(before[j], after[j])
                continue
            changed = [n for n, t in before[j].items() if not torch.equal(t, after[j][n])]
            assert changed == list(before[j])  # weights, statistics, moments, all of them


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd:lr=0.1,momentum=0.9,weight_decay=0.05": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, weight_decay=0.05
    ),
    "adam:lr=0.01,weight_decay=0.05": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.05),
    "adamw:lr=0.01,weight_decay=0.5": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drop", [0.0, 0.6])
def test_a_member_takes_the_steps_that_it_would_take_alone(
    kind: str, drop: float, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of members, and of those that a batch uses."""
    ens, batches = ensemble(kind).double(), list[TrainingBatch]()
    original = Trainer.step

    def step(trainer: Trainer, batch: TrainingBatch, *arguments: Any, **options: Any) -> Any:
        batches.append(batch)
        return original(trainer, batch, *arguments, **options)

    monkeypatch.setattr(Trainer, "step", step)
    alone = [ens.member(j).train() for j in range(MEMBERS)]
    objective = LearnerDropout(drop, Independent())
    x, y = blobs(48, dtype=torch.float64)
    settings = {"epochs": 3, "batch_size": 16, "clip": 0.5, "optimizer": optimizer}
    fit(ens, (x, y), objective, progress=False, **settings)
    steppers = [OPTIMIZERS[optimizer](module.parameters()) for module in alone]
    for batch in batches:
        for j in range(MEMBERS) if batch.drawn is None else batch.drawn:
            steppers[j].zero_grad()
            nn.functional.cross_entropy(alone[j](batch.x), batch.y).backward()
            nn.utils.clip_grad_norm_(alone[j].parameters(), 0.5)
            steppers[j].step()
    for j, module in enumerate(alone):
        for name, wanted in module.state_dict().items():
            torch.testing.assert_close(rows(ens, j)[name], wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("other", ["adp:alpha=0,beta=0", "jsd:strength=0", "ldr:strength=0"])
def test_sums_and_means_train_on_equal_terms(other: str, optimizer: str) -> None:
    """Without its regulariser an objective is Independent, with weight decay and clipping too."""
    weights = []
    for spec in ("independent", f"learner_dropout:drop=0/{other}"):
        ens = Ensemble(lambda: nn.Linear(4, 3), members=2).double()  # both are drawn by ldr
        data = blobs(48, dtype=torch.float64)
        fit(ens, data, spec, epochs=3, optimizer=optimizer, clip=0.5, progress=False)
        weights.append(ens.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-9, atol=1e-11)


def test_an_objective_counts_members_as_a_sum_or_a_mean() -> None:
    assert [o.step_scale(4) for o in (Independent(), Sequential(), ADP(), LDR())] == [4, 1, 1, 4]

    class Median(Independent):
        reduction = "median"

    with pytest.raises(ValueError, match="reduction must be one of mean, sum, got 'median'"):
        Median().step_scale(4)


def test_stages_train_one_member_after_the_other() -> None:
    """Sequential A2D end to end: each stage leaves the members before and after it alone."""
    ens = Ensemble(norm_mlp, members=3)
    for stage in range(3):
        before = [rows(ens, j) for j in range(3)]
        objective = Sequential(stage=stage, objective=A2D(strength=0.5))
        fit(ens, batches(), objective, disagreement=blobs(50)[0], epochs=1, progress=False)
        changed = [not same_bits(rows(ens, j), before[j]) for j in range(3)]
        assert changed == [j == stage for j in range(3)]


def test_frozen_parameters_are_drawn_along() -> None:
    """Parameters that need no gradient belong to their member also where some are drawn."""

    def make() -> nn.Module:
        network = norm_mlp()
        network[0].requires_grad_(False)
        return network

    ens = Ensemble(make, members=3)
    fixed = ens.stack[0].weight.detach().clone()
    trainer = Trainer(ens.train(), LDR(), Recipe())
    x, y = blobs(16)
    wanted = torch.stack([ens.member(j).train()(x) for j in (2, 0)])
    outputs, _ = trainer.step(TrainingBatch(x, y, None, [2, 0]), set(), 1.0, check=True)
    torch.testing.assert_close(outputs, wanted)
    assert torch.equal(ens.stack[0].weight, fixed)

"""LearnerDropout and Sequential: which members a batch uses, and which of them it trains."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from dissensus.objectives import (
    A2D,
    ADP,
    LDR,
    Augmented,
    Independent,
    Joint,
    LearnerDropout,
    Sequential,
)


def draw(members: int = 4, batch: int = 5, classes: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    outputs, disagreement = torch.randn(2, members, batch, classes, dtype=torch.float64).unbind()
    return outputs, torch.randint(classes, (batch,)), disagreement


# ---- learner dropout ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "drop", "kept"),
    [(5, 0.2, 4), (5, 0.4, 3), (5, 0.6, 2), (5, 0.39, 4), (5, 0.1, 5), (20, 0.6, 8), (1, 0.9, 1)],
)
def test_int_of_members_times_drop_are_dropped(members: int, drop: float, kept: int) -> None:
    chosen = LearnerDropout(drop).sample_members(members)
    if kept == members:
        assert chosen is None
    else:
        assert len(set(chosen)) == kept
        assert chosen == sorted(chosen)
        assert set(chosen) <= set(range(members))


def test_every_subset_is_as_likely() -> None:
    # 3,000 draws of one of 10 subsets. Chi-square with 9 degrees of freedom: 27.9 at p = 0.001.
    generator = torch.Generator().manual_seed(1)
    objective = LearnerDropout(0.4)
    counts = Counter(tuple(objective.sample_members(5, generator)) for _ in range(3000))
    assert set(counts) == set(itertools.combinations(range(5), 3))
    assert sum((n - 300) ** 2 / 300 for n in counts.values()) < 27.9
    twice = [
        [objective.sample_members(9, torch.Generator().manual_seed(seed)) for seed in range(9)]
        for _ in range(2)
    ]
    assert twice[0] == twice[1]
    assert len({tuple(chosen) for chosen in twice[0]}) > 5


def test_the_inner_objective_is_untouched() -> None:
    outputs, labels, disagreement = draw()
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    for inner in (Joint(combine="score"), Augmented(0.3, label_smoothing=0.1), ADP(1.0, 0.2)):
        wrapped = LearnerDropout(0.5, inner)
        got, wanted = (o(outputs, labels, weights=weights) for o in (wrapped, inner))
        assert_close(got, wanted, rtol=0, atol=0)
        assert not wrapped.needs_disagreement
    wrapped = LearnerDropout(0.5, A2D(2.0))
    assert wrapped.needs_disagreement
    got, wanted = (o(outputs, labels, disagreement=disagreement) for o in (wrapped, A2D(2.0)))
    assert_close(got, wanted, rtol=0, atol=0)
    # It checks as the inner objective does.
    with pytest.raises(ValueError, match="ADP needs at least 3 classes"):
        LearnerDropout(0.5, ADP())(outputs[..., :2], labels % 2)


def test_an_inner_objective_that_draws_draws_from_those_left() -> None:
    objective = LearnerDropout(0.4, LDR(active=2))
    generator = torch.Generator().manual_seed(0)
    drawn = Counter(tuple(objective.sample_members(5, generator)) for _ in range(2000))
    assert set(drawn) == set(itertools.combinations(range(5), 2))
    assert max(drawn.values()) < 2 * min(drawn.values())
    assert LearnerDropout(0.1, LDR(active=2)).sample_members(5, generator) in [
        list(pair) for pair in itertools.combinations(range(5), 2)
    ]
    with pytest.raises(ValueError, match="cannot draw active=4 members from 3"):
        LearnerDropout(0.4, LDR(active=4)).sample_members(5)


# ---- one member after the other -----------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_only_the_member_of_the_stage_gets_gradient(stage: int) -> None:
    outputs, labels, disagreement = draw(members=stage + 1)
    leaves = [outputs.requires_grad_(), disagreement.requires_grad_()]
    objective = Sequential(stage, A2D(2.0))
    terms = objective(leaves[0], labels, disagreement=leaves[1])
    by_label, by_disagreement = torch.autograd.grad(terms.loss, leaves, allow_unused=True)
    assert float(by_label[:-1].abs().sum()) == 0
    assert float(by_label[-1].abs().max()) > 1e-3
    if stage == 0:  # nobody to disagree with
        assert by_disagreement is None or float(by_disagreement.abs().max()) == 0
        assert float(terms.parts["disagreement"].detach()) == 0
        assert_close(terms.loss, Independent()(outputs, labels).loss)
    else:
        assert float(by_disagreement[:-1].abs().sum()) == 0
        assert float(by_disagreement[-1].abs().max()) > 1e-3
    assert objective.sample_members(6) == list(range(stage + 1))
    assert objective.trained_members(list(range(stage + 1))) == [stage]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LearnerDropout(1.0).sample_members(5), "drop=1 of 5 members leaves none to train"),
        (lambda: LearnerDropout(0.2, "joint"), r"objective must be one such as .*, got str"),
        (lambda: LearnerDropout(0.2, Sequential()), "must train all members at once"),
        (lambda: Sequential(3).sample_members(3), "there is no stage 3 with 3 members"),
        (lambda: Sequential(1).check(*draw(3)[:2]), "stage 1 takes 2 members, got 3"),
        (lambda: Sequential(1, Joint()), "Sequential: objective must be A2D, got Joint"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()

"""Attacks made for ensembles, and those that see outputs only."""

import sys

import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.robustness import attack
from dissensus.robustness.adaptive import member_weights
from dissensus.robustness.square import Square, _bumps
from dissensus.scores import SCORES

from .conftest import Problem
from .networks import linear


def test_weights_follow_margins() -> None:
    gaps = torch.tensor([[0.1, 40.0, -3.0], [5.0, 80.0, 0.5], [-8.0, 1.0, 9.0]])
    weights = member_weights(gaps, 4.0)
    torch.testing.assert_close(weights.sum(0), torch.ones(3))
    assert weights.argmax(0).tolist() == [0, 2, 1]  # the member nearest to its boundary
    assert float(weights.min()) > 0.001  # none vanishes, however sure it is
    slow = torch.tensor([1.0, 2.0]).double()
    slopes = [1 / (1 + (-g).exp()) * (1 - 1 / (1 + (-g).exp())) for g in slow]
    expected = torch.stack(slopes) / sum(slopes)
    torch.testing.assert_close(member_weights(slow[:, None], 4.0)[:, 0], expected)


def test_reweighting_moves_members_whose_loss_is_flat() -> None:
    """A very sure member that looks at x₀ alone, and one that is not so sure and looks at x₁.

    The sure one has to be turned, and can be; but the ensemble's cross-entropy is flat in x₀.
    """
    sure, unsure = (
        linear([[4000.0, 0.0], [0.0, 0.0]], [-1600.0, 0.0]),
        linear([[0, 2.0], [0, 0]], [0, 0]),
    )
    ens = ds.Ensemble.from_members([sure.member(0), unsure.member(0)]).eval()
    x = 0.48 + 0.04 * torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(20, dtype=torch.long)
    plain = attack(ens, x, y, "pgd:eps=0.2,steps=30,random=false", progress=False)
    aware = attack(ens, x, y, "reweighted:eps=0.2,steps=30", progress=False)
    assert (plain.clean_accuracy.value, plain.accuracy.value, aware.accuracy.value) == (1, 1, 0)
    margin = attack(
        ens, x, y, "pgd:eps=0.2,steps=30,random=false,of=members,loss=margin", progress=False
    )
    assert margin.accuracy == 0


def test_a_disguise_lowers_the_score_of_what_it_breaks(problem: Problem) -> None:
    ens, x, y = problem
    blunt = attack(ens, x, y, "pgd:eps=0.2,steps=20,early=false", progress=False)
    for score in ("ensemble_diversity", "entropy"):
        text = f"disguised:eps=0.2,steps=40,score={score}"
        hidden = attack(ens, x, y, text, progress=False)
        both = blunt.moved & hidden.moved
        assert int(both.sum()) > 50
        values = [SCORES[score](ens(o.adversarial)[:, both].detach()) for o in (blunt, hidden)]
        assert float(values[1].mean()) < float(values[0].mean())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_square_climbs_and_counts_its_queries(problem: Problem, norm: str) -> None:
    eps = 0.2 if norm == "linf" else 1.5
    few, many = (
        attack(
            problem.ens,
            problem.x[:40],
            problem.y[:40],
            f"square:eps={eps},norm={norm},queries={queries}",
            progress=False,
        )
        for queries in (5, 150)
    )
    assert many.accuracy < few.accuracy
    assert int(many.gradients.sum()) == 0
    left = (many.clean_predictions == many.labels) & ~many.broken
    assert bool((many.queries[left] == 150).all())
    assert torch.equal(many.queries[many.step >= 0], many.step[many.step >= 0] + 1)


def test_the_share_of_a_square_falls_by_the_papers_schedule() -> None:
    share = Square(queries=10_000)._share
    values = [share(query) / 0.8 for query in (0, 10, 11, 51, 201, 501, 1001, 2001, 4001)]
    assert values == [1, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128]


def test_the_pattern_in_l2_is_two_opposite_bumps() -> None:
    for shape in ((4, 4), (5, 5), (1, 6), (1, 1), (3, 7)):
        bumps = _bumps(*shape)
        assert tuple(bumps.shape) == shape
        assert float(bumps.norm()) == pytest.approx(1.0)
    assert bool((_bumps(4, 4)[:2] > 0).all())
    assert bool((_bumps(4, 4)[2:] < 0).all())


@pytest.mark.parametrize("classes", [2, 5])
def test_autoattack_on_few_classes(classes: int) -> None:
    pytest.importorskip("pyautoattack")
    ens = ds.Ensemble(lambda: nn.Linear(6, classes), members=2).eval()
    x = torch.rand(12, 6)
    y = ens.predict(x).argmax(1)
    found = attack(ens, x, y, "autoattack:eps=0.2,steps=10,queries=20", progress=False)
    assert found.accuracy < 1


def test_autoattack_leaves_tracing_and_randomness_alone(problem: Problem) -> None:
    pytest.importorskip("pyautoattack")
    before = sys.gettrace()

    def trace(frame: object, event: str, argument: object) -> None:
        return None

    sys.settrace(trace)
    try:
        text = "autoattack:eps=0.1,steps=2,queries=2"
        attack(problem.ens, problem.x[:2], problem.y[:2], text, progress=False)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def test_without_the_package_the_error_says_what_to_install(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.robustness.autoattack.is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'dissensus\[robustness\]'"):
        attack(problem.ens, problem.x[:4], problem.y[:4], "autoattack", progress=False)


def test_noise_is_random_corners(problem: Problem) -> None:
    x: Tensor = problem.x[:4] * 0 + 0.5
    y = problem.ens.predict(x).argmax(1)
    found = attack(problem.ens, x, y, "noise:eps=0.3,tries=50", progress=False)
    changed = found.adversarial[found.broken]
    torch.testing.assert_close((changed - 0.5).abs(), torch.full_like(changed, 0.3))

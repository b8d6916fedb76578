"""JSMA on an example small enough to follow with a pencil."""

import torch
from torch import Tensor

from dissensus.robustness import attack

from .conftest import Problem
from .networks import linear

#: z₀ − z₁ = 3x₀ + 2x₁ − x₂ − 1.
WEIGHT, BIAS = [[3.0, 2.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], [-1.0, 0.0]


def walked(x: list[float], text: str) -> tuple[Tensor, bool]:
    found = attack(linear(WEIGHT, BIAS), torch.tensor([x]), torch.tensor([0]), text, progress=False)
    return found.adversarial[0], bool(found.broken[0])


def test_the_most_salient_entry_falls_first() -> None:
    """x₀ is worth 3 and falls from 0.5 to 0.1; then x₁, worth 2, from 0.9: 0.3 + 1.4 − 1.2 > 0."""
    one, broken = walked([0.5, 0.9, 0.2, 0.5], "jsma:theta=0.4,gamma=0.25")
    torch.testing.assert_close(one, torch.tensor([0.1, 0.9, 0.2, 0.5]))
    assert not broken
    # Twice more: x₀ to 0 (clipped), then x₁ to 0.5: 1.0 − 0.2 − 1 < 0, broken.
    three, broken = walked([0.5, 0.9, 0.2, 0.5], "jsma:theta=0.4,gamma=0.75")
    torch.testing.assert_close(three, torch.tensor([0.0, 0.5, 0.2, 0.5]))
    assert broken


def test_the_published_mask_sticks_at_zero() -> None:
    """x₀ = 0 is below the maximum, so it is chosen again and again, and nothing happens."""
    start = [0.0, 0.9, 0.2, 0.5]
    stuck, broken = walked(start, "jsma:theta=0.4,gamma=1,variant=original")
    torch.testing.assert_close(stuck, torch.tensor(start))
    assert not broken
    fixed, broken = walked(start, "jsma:theta=0.4,gamma=1,variant=fixed")
    torch.testing.assert_close(fixed, torch.tensor([0.0, 0.5, 0.2, 0.5]))
    assert broken


def test_the_published_mask_never_chooses_the_maximum() -> None:
    start = [1.0, 0.3, 0.2, 0.5]
    original, _ = walked(start, "jsma:theta=0.4,gamma=0.25,variant=original")
    torch.testing.assert_close(original, torch.tensor([1.0, 0.0, 0.2, 0.5]))
    fixed, _ = walked(start, "jsma:theta=0.4,gamma=0.25")
    torch.testing.assert_close(fixed, torch.tensor([0.6, 0.3, 0.2, 0.5]))


def test_directions() -> None:
    """Raising x₂ is worth 1: the best of what can rise; both ways x₀ still comes first."""
    start = [0.5, 0.9, 0.2, 0.5]
    up, _ = walked(start, "jsma:theta=0.4,gamma=0.25,direction=up")
    torch.testing.assert_close(up, torch.tensor([0.5, 0.9, 0.6, 0.5]))
    both, _ = walked([0.0, 0.0, 0.2, 0.5], "jsma:theta=0.4,gamma=0.25,direction=both")
    # −0.2 − 1 < 0: wrong from the start, nothing is changed.
    torch.testing.assert_close(both, torch.tensor([0.0, 0.0, 0.2, 0.5]))
    both, _ = walked([0.0, 0.65, 0.1, 0.5], "jsma:theta=0.1,gamma=0.25,direction=both")
    torch.testing.assert_close(both, torch.tensor([0.0, 0.55, 0.1, 0.5]))


def test_the_least_bad_entry_where_none_qualifies() -> None:
    """All that can fall is x₂, which makes it worse; the published program takes it too."""
    found, broken = walked([0.0, 0.6, 0.1, 0.0], "jsma:theta=0.1,gamma=0.25,direction=down")
    torch.testing.assert_close(found, torch.tensor([0.0, 0.5, 0.1, 0.0]))
    assert broken


def test_variants_are_ordered_as_measured(problem: Problem) -> None:
    def left(text: str) -> float:
        return attack(problem.ens, problem.x, problem.y, text, progress=False).accuracy.value

    original, fixed = left("jsma:gamma=0.2,variant=original"), left("jsma:gamma=0.2")
    assert left("jsma:gamma=0.2,direction=both") <= fixed < original
    found = attack(problem.ens, problem.x, problem.y, "jsma:gamma=0.2", progress=False)
    assert float(found.distances["l0"].max()) <= int(0.2 * 64)


def test_a_target_is_approached(problem: Problem) -> None:
    text = "jsma:gamma=0.5,theta=0.5,direction=both,targeted=true"
    found = attack(problem.ens, problem.x[:20], problem.y[:20], text, progress=False)
    assert found.targets is not None
    assert torch.equal(found.predictions[found.success], found.targets[found.success])
    assert found.success_rate > 0.3

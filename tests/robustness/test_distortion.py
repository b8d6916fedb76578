"""C&W and EAD find the nearest point, as in closed form, foolbox and ART; JSMA by pencil."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dissensus.robustness import attack

from .conftest import Problem
from .networks import Single, art_model, linear, ungrade

#: The plane z₀ = z₁ is 3x₀ + 4x₁ = 3; x = (0.6, 0.6) is at (4.2 − 3) / 5 = 0.24 from it.
PLANE = ([[3.0, 4.0], [0.0, 0.0]], [-3.0, 0.0])
X, Y = torch.tensor([[0.6, 0.6]]), torch.tensor([0])


def test_the_distance_to_a_plane() -> None:
    text = "cw:steps=60,searches=5,c=0.3,lr=0.03"
    found = attack(linear(*PLANE), X, Y, text, progress=False)
    assert bool(found.broken)
    assert float(found.distances["l2"]) == pytest.approx(0.24, rel=0.02)
    # A margin of 1 takes another 1/5 of distance.
    sure = attack(linear(*PLANE), X, Y, text + ",confidence=1", progress=False)
    assert float(sure.distances["l2"]) == pytest.approx(0.44, rel=0.02)


def test_what_is_not_found_comes_back_as_it_was() -> None:
    found = attack(linear(*PLANE), X, Y, "cw:steps=2,searches=1,c=1e-6", progress=False)
    assert torch.equal(found.adversarial, X)
    assert not bool(found.success)


def test_the_sparsest_way_to_a_plane() -> None:
    """In L1 the whole change goes into x₁: 1.2 / 4 = 0.3."""
    text = "ead:steps=60,searches=6,c=0.3,lr=0.01,beta=0.01,rule=l1"
    found = attack(linear(*PLANE), X, Y, text, progress=False)
    assert bool(found.broken)
    assert float(found.distances["l1"]) == pytest.approx(0.3, rel=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_foolbox_finds_the_same_distance(problem: Problem) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        foolbox = pytest.importorskip("foolbox", exc_type=ImportError)
    x, y = problem.x[:25], problem.y[:25]
    model = foolbox.PyTorchModel(Single(problem.ens).eval(), bounds=(0, 1), device="cpu")
    theirs = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=3, steps=100, stepsize=0.03, initial_const=0.1
    )
    points, _, success = theirs(model, x, y, epsilons=None)
    ungrade(problem.ens)
    text = "cw:steps=100,searches=3,c=0.1,lr=0.03"
    found = attack(problem.ens, x, y, text, progress=False)
    both = found.moved & success
    assert int(both.sum()) >= 20
    distance = (points - x).flatten(1).norm(dim=1)[both].mean()
    assert float(found.distances["l2"][both].mean()) == pytest.approx(float(distance), rel=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", ["en", "l1"])
def test_art_agrees_to_the_image(problem: Problem, rule: str) -> None:
    """ART forgets the distance where the class has changed; put back, it walks as we do."""
    evasion: Any = pytest.importorskip("art.attacks.evasion", exc_type=ImportError)

    class Whole(evasion.ElasticNet):  # type: ignore[misc]
        def _gradient_of_loss(self, *, target: Any, x: Any, x_adv: Any, c_weight: Any) -> Any:
            slope = super()._gradient_of_loss(target, x, x_adv, c_weight)
            flat = np.abs(slope).sum((1, 2, 3), keepdims=True) == 0
            return np.where(flat, 2 * (x_adv - x), slope)

    x, y = problem.x[:10], problem.y[:10]
    settings = {"max_iter": 30, "binary_search_steps": 3, "beta": 0.01, "initial_const": 0.3}
    settings |= {"learning_rate": 0.02, "batch_size": 10, "decision_rule": rule.upper()}
    with art_model(problem.ens) as model:
        theirs = Whole(model, verbose=False, **settings).generate(x.numpy(), y.numpy())
    text = f"ead:steps=30,searches=3,c=0.3,lr=0.02,rule={rule}"
    found = attack(problem.ens, x, y, text, progress=False)
    points = torch.from_numpy(theirs)
    both = found.moved & (problem.ens.predict(points).argmax(1) != y)
    assert int(both.sum()) >= 8
    apart = (found.adversarial - points)[both].flatten(1).abs().amax(1)
    assert int((apart < 1e-4).sum()) >= int(both.sum()) - 1
    expected = float((points - x)[both].flatten(1).abs().sum(1).mean())
    assert float(found.distances["l1"][both].mean()) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("cw:steps=60,searches=4,c=1,lr=0.1", 0.7),
        ("jsma:gamma=0.5,theta=0.5,direction=both", 0.3),
    ],
)
def test_targets(problem: Problem, text: str, rate: float) -> None:
    ens, x, y = problem
    found = attack(ens, x[:20], y[:20], f"{text},targeted=true", progress=False)
    assert found.targets is not None
    assert torch.equal(found.predictions[found.success], found.targets[found.success])
    assert found.success_rate > rate


# ---- JSMA ---------------------------------------------------------------------------------------

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


def test_the_published_mask_sticks_at_zero_and_never_chooses_the_maximum() -> None:
    """x₀ = 0 is below the maximum, so it is chosen again and again, and nothing happens."""
    start = [0.0, 0.9, 0.2, 0.5]
    stuck, broken = walked(start, "jsma:theta=0.4,gamma=1,variant=original")
    torch.testing.assert_close(stuck, torch.tensor(start))
    assert not broken
    fixed, broken = walked(start, "jsma:theta=0.4,gamma=1,variant=fixed")
    torch.testing.assert_close(fixed, torch.tensor([0.0, 0.5, 0.2, 0.5]))
    assert broken
    highest = [1.0, 0.3, 0.2, 0.5]
    original, _ = walked(highest, "jsma:theta=0.4,gamma=0.25,variant=original")
    torch.testing.assert_close(original, torch.tensor([1.0, 0.0, 0.2, 0.5]))
    fixed, _ = walked(highest, "jsma:theta=0.4,gamma=0.25")
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

"""FGSM, BIM, PGD and MIM: equal to foolbox and ART to the image, and worked by hand."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dissensus.robustness import attack
from dissensus.robustness.base import ball
from dissensus.robustness.gradient import project, unit_step

from .conftest import Problem
from .networks import Single, art_model, linear, ungrade


@pytest.fixture
def foolbox() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("foolbox", exc_type=ImportError)


@pytest.mark.parametrize(
    ("text", "make", "exact"),
    [
        ("fgsm:eps=0.15", lambda a: a.LinfFastGradientAttack(), True),
        (
            "bim:eps=0.15,steps=10,step=0.1,early=false",
            lambda a: a.LinfBasicIterativeAttack(steps=10, rel_stepsize=0.1),
            True,
        ),
        ("fgsm:eps=1,norm=l2", lambda a: a.L2FastGradientAttack(), False),
        (
            "bim:eps=1,norm=l2,steps=10,step=0.1,early=false",
            lambda a: a.L2BasicIterativeAttack(steps=10, rel_stepsize=0.1),
            False,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_foolbox_agrees_to_the_image(
    problem: Problem, foolbox: Any, text: str, make: Callable[[Any], Any], exact: bool
) -> None:
    """On examples that are right at first; we leave the others alone."""
    model = foolbox.PyTorchModel(Single(problem.ens).eval(), bounds=(0, 1), device="cpu")
    found = attack(problem.ens, problem.x, problem.y, text, progress=False)
    eps = found.attack.budget()[1]  # type: ignore[index]
    theirs, _, success = make(foolbox.attacks)(model, problem.x, problem.y, epsilons=eps)
    right = found.clean_predictions == problem.y
    assert torch.equal(found.broken, success)
    if exact:
        assert torch.equal(found.adversarial[right], theirs[right])
    else:  # squares of tiny gradients lose digits in theirs
        torch.testing.assert_close(found.adversarial[right], theirs[right], atol=1e-3, rtol=0)
    ungrade(problem.ens)


@pytest.mark.filterwarnings("ignore")
def test_foolbox_agrees_from_a_random_start(problem: Problem, foolbox: Any) -> None:
    import eagerpy

    class SameStart(foolbox.attacks.LinfPGD):  # type: ignore[misc]
        def get_random_start(self, x0: Any, epsilon: float) -> Any:
            noise = ball(0, torch.arange(len(x0)), (0,), x0.raw, "linf")
            return x0 + eagerpy.astensor(epsilon * noise)

    model = foolbox.PyTorchModel(Single(problem.ens).eval(), bounds=(0, 1), device="cpu")
    text = "pgd:eps=0.15,steps=10,step=0.1,early=false"
    found = attack(problem.ens, problem.x, problem.y, text, progress=False)
    theirs, _, success = SameStart(steps=10, rel_stepsize=0.1)(
        model, problem.x, problem.y, epsilons=0.15
    )
    right = found.clean_predictions == problem.y
    assert torch.equal(found.adversarial[right], theirs[right])
    assert torch.equal(found.broken, success)
    ungrade(problem.ens)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_art_agrees_on_momentum(problem: Problem, decay: float) -> None:
    evasion = pytest.importorskip("art.attacks.evasion", exc_type=ImportError)
    settings = {"eps": 0.15, "eps_step": 0.015, "max_iter": 10, "decay": decay}
    with art_model(problem.ens) as model:
        theirs = evasion.MomentumIterativeMethod(
            model, **settings, batch_size=100, verbose=False
        ).generate(problem.x.numpy(), problem.y.numpy())
    text = f"mim:eps=0.15,decay={decay},early=false"
    found = attack(problem.ens, problem.x, problem.y, text, progress=False)
    right = found.clean_predictions == problem.y
    difference = (found.adversarial - torch.from_numpy(theirs))[right].flatten(1).abs().amax(1)
    assert float((difference < 1e-6).float().mean()) > 0.97
    predicted = problem.ens.predict(torch.from_numpy(theirs)).argmax(1)
    assert int(((predicted != problem.y) != found.broken)[right].sum()) <= 1


def test_one_step_by_hand() -> None:
    """z₁ − z₀ = 2x₀ − x₁ + 0·x₂ − 1: climb x₀, lower x₁, leave x₂."""
    ens = linear([[0, 0, 0], [2, -1, 0]], [0, -1])
    x = torch.tensor([[0.4, 0.3, 0.5]])
    y = torch.tensor([0])
    found = attack(ens, x, y, "fgsm:eps=0.2", progress=False)
    torch.testing.assert_close(found.adversarial, torch.tensor([[0.6, 0.1, 0.5]]))
    assert bool(found.broken)  # 1.2 − 0.1 − 1 > 0
    l2 = attack(ens, x, y, "fgsm:eps=0.1,norm=l2", progress=False)
    expected = x + 0.1 * torch.tensor([[2.0, -1.0, 0.0]]) / 5**0.5
    torch.testing.assert_close(l2.adversarial, expected)


def test_targets_are_approached(problem: Problem) -> None:
    ens, x, y = problem
    targets = (y + 1) % 10
    text = "pgd:eps=0.3,steps=40,targeted=true"
    for loss in ("ce", "margin", "dlr"):
        found = attack(ens, x, y, f"{text},loss={loss}", targets=targets, progress=False)
        assert torch.equal(found.success, ens.predict(found.adversarial).argmax(1) == targets)
        assert found.success_rate > 0.8, loss
    drawn = attack(ens, x, y, text, progress=False)
    assert drawn.targets is not None
    assert bool((drawn.targets != y).all())
    assert len(drawn.targets.unique()) == 10


def test_stronger_settings_break_more(problem: Problem) -> None:
    def left(text: str) -> float:
        return attack(problem.ens, problem.x, problem.y, text, progress=False).accuracy.value

    assert left("pgd:eps=0.1,steps=40") <= left("fgsm:eps=0.1")
    assert left("pgd:eps=0.2,steps=40") < left("pgd:eps=0.1,steps=40") < left("pgd:eps=0.03")
    # The paper's ten steps of ε/10 from a random start cannot cross the ball.
    paper = left("pgd:eps=0.1,steps=10,step=0.1,early=false")
    assert left("pgd:eps=0.1,steps=40,early=false") < paper
    for more in ("loss=margin", "loss=dlr", "of=members", "schedule=cosine"):
        assert left(f"pgd:eps=0.1,{more}") == pytest.approx(left("pgd:eps=0.1"), abs=0.1)


def test_tiny_gradients_keep_their_direction() -> None:
    """Where squares underflow in float32, the L2 step must not."""
    gradient = torch.tensor([[3e-30, -4e-30]])
    torch.testing.assert_close(unit_step(gradient, "l2"), torch.tensor([[0.6, -0.8]]))
    assert torch.equal(unit_step(torch.zeros(1, 2), "l2"), torch.zeros(1, 2))


def test_projection() -> None:
    x, at = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.8, 0.9]])
    torch.testing.assert_close(project(at, x, 0.1, "linf"), torch.tensor([[0.6, 0.6]]))
    torch.testing.assert_close(project(at, x, 0.25, "l2"), torch.tensor([[0.65, 0.7]]))
    torch.testing.assert_close(project(at, x, 9.0, "l2"), at)

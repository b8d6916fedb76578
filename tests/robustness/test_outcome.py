"""Around an attack: what is held still, counted, checked and given back."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.measures import proportion
from dissensus.robustness import Attack, AttackError, attack
from dissensus.robustness.attacks import ATTACKS
from dissensus.robustness.base import Case, Journal, Victim, ball, frozen, uniform
from dissensus.tools.specs import number

from .conftest import Problem


@dataclass(frozen=True)
class Careless(Attack):
    """Moves everything by ``by``, or returns NaN, or fails."""

    eps: float = number(0.1, above=0)
    by: float = 0.0
    mishap: str = ""

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        assert not victim.ens.training
        assert not any(p.requires_grad for p in victim.ens.parameters())
        if self.mishap == "raise":
            raise KeyError("mishap")
        if self.mishap == "nan":
            return case.x * torch.nan
        if self.mishap == "shape":
            return case.x[:1]
        return case.x + self.by


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "careless", Careless)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (Careless(mishap="nan"), r"left \[0, 1\]: its results go from nan to nan"),
        (Careless(mishap="shape"), r"returned \(1, 1, 8, 8\) for"),
        (Careless(eps=3, by=2.0), r"left \[0, 1\]: its results go from"),
        (Careless(eps=0.1, by=-0.5), r"left \[0, 1\]"),
        (Careless(by=0.2), r"moved an example by 0\.2\d* in linf, its ε is 0\.1"),
    ],
)
def test_a_careless_attack_is_caught(problem: Problem, how: Attack, sentence: str) -> None:
    x = problem.x.clamp(0.4, 0.6)
    y = problem.ens.predict(x).argmax(1)
    with pytest.raises(AttackError, match=sentence):
        attack(problem.ens, x, y, how, progress=False)


def test_everything_comes_back_after_an_error() -> None:
    ens = ds.Ensemble(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)),
        members=2,
    )
    ens.train()
    assert ens.stack is not None
    norm = next(m for m in ens.modules() if isinstance(m, nn.BatchNorm1d))
    norm.eval()  # one module in another mode than the rest
    fixed = next(ens.parameters()).requires_grad_(False)
    modes = [module.training for module in ens.modules()]
    wanted = [p.requires_grad for p in ens.parameters()]
    state = {name: values.clone() for name, values in ens.state_dict().items()}
    x = torch.rand(8, 4)
    with torch.no_grad():
        ens.eval()
        y = ens(x).softmax(-1).mean(0).argmax(-1)
    for module, training in zip(ens.modules(), modes, strict=True):
        module.training = training
    with pytest.raises(KeyError):
        attack(ens, x, y, Careless(mishap="raise"), progress=False)
    attack(ens, x, y, "pgd:steps=3", progress=False)
    assert [module.training for module in ens.modules()] == modes
    assert [p.requires_grad for p in ens.parameters()] == wanted
    assert not fixed.requires_grad
    for name, values in ens.state_dict().items():
        assert torch.equal(values, state[name]), name


def test_no_parameter_gradients_are_computed(problem: Problem) -> None:
    with frozen(problem.ens):
        x = problem.x[:4].clone().requires_grad_()
        reached, stack = set(), [problem.ens(x).grad_fn]
        while stack:  # the leaves that a backward pass would fill
            node = stack.pop()
            if node is not None and node not in reached:
                reached.add(node)
                stack += [parent for parent, _ in node.next_functions]
    leaves = [node.variable for node in reached if hasattr(node, "variable")]
    assert [leaf is x for leaf in leaves] == [True]


def test_wilsons_interval() -> None:
    """Newcombe 1998, Table I: 81 of 263 and 15 of 148."""
    for count, total, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        found = proportion(count, total)
        assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert (proportion(5, 5).high, proportion(0, 5).low) == (1.0, 0.0)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_gradients_may_be_off_outside(problem: Problem, around: type) -> None:
    plain = attack(problem.ens, problem.x[:20], problem.y[:20], "bim:eps=0.2", progress=False)
    with around():
        inside = attack(problem.ens, problem.x[:20], problem.y[:20], "bim:eps=0.2", progress=False)
    assert torch.equal(plain.adversarial, inside.adversarial)
    assert plain.accuracy < plain.clean_accuracy


def test_broken_examples_leave_early(problem: Problem) -> None:
    text = "pgd:eps=0.3,steps=50,random=false"
    found = attack(problem.ens, problem.x, problem.y, text, progress=False)
    whole = attack(problem.ens, problem.x, problem.y, text + ",early=false", progress=False)
    right = found.clean_predictions == found.labels
    assert torch.equal(whole.gradients, 50 * right.long())
    assert int(found.gradients.sum()) < 0.4 * int(whole.gradients.sum())
    # Broken at step k after k + 1 gradients; those wrong from the start cost nothing.
    through = right & found.broken & (found.step < 50)
    assert torch.equal(found.gradients[through], found.step[through] + 1)
    assert int(found.gradients[~right].sum()) == 0
    assert found.accuracy <= whole.accuracy


def test_restarts_only_run_what_is_left(problem: Problem) -> None:
    text = "pgd:eps=0.1,steps=10,restarts=4"
    found = attack(problem.ens, problem.x, problem.y, text, progress=False)
    once = attack(problem.ens, problem.x, problem.y, "pgd:eps=0.1,steps=10", progress=False)
    assert bool((found.broken | ~once.broken).all())
    left = (found.restart == -1) & (found.clean_predictions == found.labels)
    assert bool((found.gradients[left] == 40).all())


class Steep(nn.Module):
    """Its gradient is not a number where an input is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.linear((x - x).sqrt() + x)
        return outputs


def test_nan_gradients_are_counted_and_do_not_poison() -> None:
    ens = ds.Ensemble(Steep, members=2)
    x = torch.rand(6, 4)
    y = ens.predict(x).argmax(1)
    found = attack(ens, x, y, "pgd:eps=0.2,steps=5,restarts=2", progress=False)
    assert bool(found.adversarial.isfinite().all())
    right = found.restart == -1
    assert torch.equal(found.nan_gradients, found.gradients)
    assert bool((found.nan_gradients[right] == 10).all())


def test_predictions_that_are_no_numbers_are_an_error() -> None:
    class Hole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.linear(x)
            return torch.where((x != 0.5).any(1, keepdim=True), torch.nan, outputs)

    ens = ds.Ensemble(Hole, members=1, execution="looped")
    x = torch.full((3, 2), 0.5)
    with pytest.raises(AttackError, match="predicts NaN for 3 of 3 changed inputs"):
        attack(ens, x, ens.predict(x).argmax(1), "noise:eps=0.1", progress=False)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (torch.rand(3, 4) * 2 + 1, r"attacks live in \[0, 1\], got inputs from 1"),
        (torch.full((3, 4), torch.nan), "x must be finite, got 12 NaN or infinite of 12"),
        (torch.ones(3, 4, dtype=torch.uint8), r"must be floating point .* got torch.uint8"),
        (torch.rand(0, 4), r"must be floating point .* got torch.float32 \[0, 4\]"),
    ],
)
def test_inputs_are_checked(x: Tensor, sentence: str) -> None:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=2)
    with pytest.raises(ValueError, match=sentence):
        attack(ens, x, torch.zeros(len(x), dtype=torch.long), "fgsm", progress=False)


def test_labels_targets_and_victims_are_checked(problem: Problem) -> None:
    ens, x, y = problem
    with pytest.raises(ValueError, match=r"\[batch\] = \(100,\)"):
        attack(ens, x, y[:3], "fgsm", progress=False)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 10\)"):
        attack(ens, x, y + 9, "fgsm", progress=False)
    with pytest.raises(ValueError, match="is untargeted; for targets add targeted=true"):
        attack(ens, x, y, "pgd", targets=(y + 1) % 10, progress=False)
    with pytest.raises(ValueError, match="must differ from the label, got 100 that are the same"):
        attack(ens, x, y, "pgd:targeted=true", targets=y, progress=False)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        attack(ens, x, y, "fgsm", batch_size=0, progress=False)
    with pytest.raises(ValueError, match=r"needs an Ensemble, got Flatten"):
        attack(nn.Flatten(), x, y, "fgsm", progress=False)  # type: ignore[arg-type]
    values = ds.Ensemble(lambda: nn.Linear(4, 1), members=2, combine="mean")
    with pytest.raises(ValueError, match=r"predicts values \(combine='mean'\)"):
        attack(values, x, y, "fgsm", progress=False)
    with pytest.raises(ValueError, match="members must be one or more of 0 to 2"):
        attack(ens, x, y, "fgsm", members=[3], progress=False)


def test_some_members_are_attacked(problem: Problem) -> None:
    """An attack on members 0 and 2 is the attack on an ensemble of just these."""
    ens, x, y = problem
    pair = ens.select([0, 2]).eval()
    some = attack(ens, x, y, "bim:eps=0.1", members=[0, 2], progress=False)
    alone = attack(pair, x, y, "bim:eps=0.1", progress=False)
    torch.testing.assert_close(some.adversarial, alone.adversarial)
    assert torch.equal(some.predictions, alone.predictions)
    weighted = ens.select([0, 1, 2]).set_weights(torch.tensor([0.5, 0.0, 0.5])).eval()
    found = attack(weighted, x, y, "bim:eps=0.1", progress=False)
    torch.testing.assert_close(found.adversarial, alone.adversarial)


def test_stacked_and_looped_ensembles_agree(problem: Problem) -> None:
    ens, x, y = problem
    looped = ens.select([0, 1, 2]).eval()
    looped.execution = "looped"
    one, other = (attack(each, x, y, "bim:eps=0.1", progress=False) for each in (ens, looped))
    assert int((one.broken != other.broken).sum()) <= 1


def test_random_numbers_belong_to_examples() -> None:
    rows = torch.arange(1000)
    drawn = uniform(0, rows, (0,), (50,), torch.float64)
    assert torch.equal(drawn[[7, 3]], uniform(0, torch.tensor([7, 3]), (0,), (50,), torch.float64))
    assert abs(float(drawn.mean()) - 0.5) < 0.005
    assert abs(float(drawn.var()) - 1 / 12) < 0.002
    correlation = torch.corrcoef(drawn.T) - torch.eye(50)
    assert float(correlation.abs().max()) < 0.15
    for seed, draw in ((1, 0), (0, 1)):
        other = uniform(seed, rows, (draw,), (50,), torch.float64)
        assert abs(float(torch.corrcoef(torch.stack([drawn[:, 0], other[:, 0]]))[0, 1])) < 0.15


def test_starts_fill_the_ball() -> None:
    like = torch.zeros(4000, 3)
    points = ball(0, torch.arange(4000), (0,), like, "l2").norm(dim=1)
    assert float(points.max()) <= 1
    assert float((points < 0.5).float().mean()) == pytest.approx(0.125, abs=0.02)  # (1/2)³

"""Written-out gradients are the automatic ones, to the last digits of float64."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dissensus import Ensemble
from dissensus.ensemble.rules import RULES, Gradients
from dissensus.ensemble.stack import tensors_of
from dissensus.ensemble.written import written_backward, written_forward, written_plan
from dissensus.models import ldr_head, ldr_linear_head
from dissensus.objectives import parse
from dissensus.training import Recipe
from dissensus.training.steps import make_trainer
from dissensus.training.stream import Batch


class Odd(nn.Module):
    """Every rule at once, with a layer used twice, broadcasting, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body, self.last = nn.Linear(6, 1), nn.Linear(6, 6), nn.Linear(6, 4)
        self.norm, self.bare = nn.LayerNorm(6), nn.LayerNorm(6, elementwise_affine=False)
        self.biasless = nn.LayerNorm(6, bias=False)
        self.scale, self.single = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(1))
        self.silu, self.near, self.same = nn.SiLU(), nn.GELU(approximate="tanh"), nn.Identity()
        self.dropped = nn.Dropout(0.4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(torch.tanh(x))  # shared by the members until here
        y = self.scale * self.silu(self.body(x)) + x
        y = self.body(self.norm(y)) + self.gate(y)
        z = functional.gelu(y) * self.single + torch.sigmoid(self.bare(y))
        z = self.biasless(functional.relu(self.dropped(z)) + self.near(y))
        found: Tensor = self.last(z + x)
        return found


class Begins(nn.Module):
    """The first operation has a parameter of each member's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.rand(6)), nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.mul(x, self.scale))
        return found


class Tokens(nn.Module):
    """A block of a transformer's end on ``[batch, tokens, 6]``, by its second token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(6), nn.LayerNorm(6)
        self.mlp, self.out = nn.Linear(6, 6), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * self.mlp(self.norm(x)) + x
        found: Tensor = self.out(self.last(x)[:, 1])
        return found


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ldr_head": partial(ldr_head, (6,), 4, layer_scale=0.3),
    "ldr_linear_head": partial(ldr_linear_head, (6,), 4),
    "odd": Odd,
    "begins": Begins,
    "tokens": Tokens,
    "norm mlp": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4)),
}


def made(name: str, members: int = 3) -> Ensemble:
    ens = Ensemble(NETWORKS[name], members, seed=2).double()
    with torch.no_grad():  # away from initial zeros and ones, where mistakes can hide
        for parameter in ens.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return ens


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("members", [1, 3])
def test_outputs_and_gradients_are_the_automatic_ones(name: str, members: int) -> None:
    ens = made(name, members).eval()  # without chance
    assert ens.stack is not None
    plan = written_plan(ens.stack)
    assert plan is not None
    x = torch.randn(7, 3, 6) if name == "tokens" else torch.randn(7, 6)
    x = x.double()
    gradient = torch.randn(members, 7, 4, dtype=torch.float64)
    tensors = tensors_of(ens.stack)[0]
    wanted = torch.stack([ens.member(j).eval()(x) for j in range(members)])
    outputs, kept = written_forward(plan, tensors, x)
    torch.testing.assert_close(outputs, wanted)
    found = Gradients()
    written_backward(plan, tensors, kept, gradient, found)
    looped = Ensemble.from_members([ens.member(j) for j in range(members)], execution="looped")
    assert looped.stack is not None
    leaves = tensors_of(looped.stack)[0]
    automatic = torch.autograd.grad(looped.eval()(x), leaves.values(), gradient, allow_unused=True)
    for (key, leaf), grad in zip(leaves.items(), automatic, strict=True):
        if grad is None:
            assert key not in found.found
        else:
            assert found.found[key].shape == leaf.shape
            torch.testing.assert_close(found.found[key], grad, msg=lambda m, key=key: f"{key}: {m}")


def test_the_cases_use_every_rule() -> None:
    used = set()
    for make in NETWORKS.values():
        plan = written_plan(Ensemble(make, 2).stack)  # type: ignore[arg-type]
        assert plan is not None
        used |= {step.kind for step in plan.steps}
    assert used == set(RULES)


@pytest.mark.parametrize("objective", ["ldr:strength=0.5", "ldr:active=none", "a2d:strength=0.5"])
@pytest.mark.parametrize("name", ["ldr_head", "odd"])
def test_steps_are_those_of_the_loop(name: str, objective: str) -> None:
    """Over several steps: gradients are kept in one place and must not mix."""
    parsed, x = parse(objective), torch.randn(9, 6, dtype=torch.float64)
    y, extra = torch.randint(4, (9,)), torch.randn(5, 6, dtype=torch.float64)
    ended = []
    for execution in ("stacked", "looped"):
        torch.manual_seed(1)
        ens = made(name, 4)
        ens.execution = execution
        trainer = make_trainer(ens.eval(), parsed, Recipe(optimizer="adamw:weight_decay=0.1"))  # type: ignore[arg-type]
        assert (getattr(trainer, "written", None) is None) == (execution == "looped")
        for step in range(4):
            drawn = [step % 4, 3 - step % 2] if objective.startswith("ldr:s") else None
            drawn = None if drawn is None or drawn[0] == drawn[1] else sorted(drawn)
            unlabelled = extra if parsed.needs_disagreement else None
            trainer.step(Batch(x, y, unlabelled, drawn), set(), 1.0, check=True)
        ended.append([p.detach().clone() for p in ens.parameters()])
    for one, other in zip(*ended, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_dropout_is_each_members_own_and_undone_where_it_was() -> None:
    ens = Ensemble(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4), nn.LayerNorm(4)), 2)
    assert ens.stack is not None
    plan, tensors = written_plan(ens.stack.train()), tensors_of(ens.stack)[0]
    assert plan is not None
    x = torch.ones(40, 6)
    _, kept = written_forward(plan, tensors, x)
    mask = kept[0][0]
    assert mask.shape == (2, 40, 6)
    assert not torch.equal(mask[0], mask[1])
    found = Gradients()
    written_backward(plan, tensors, kept, torch.randn(2, 40, 4), found)
    assert torch.equal(kept[1][0], 2 * mask.float())


class Untraced(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1)),
        nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True)),
        nn.Sequential(Untraced(6, 6)),
        nn.Identity(),
    ],
    ids=["no rule", "in place", "not traced", "no layer"],
)
def test_other_networks_are_left_to_automatic_differentiation(network: nn.Module) -> None:
    assert written_plan(network) is None


def test_hooks_and_tied_weights_are_left_to_automatic_differentiation() -> None:
    tied = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6))
    assert written_plan(tied) is not None
    tied[2].weight = tied[1].weight  # type: ignore[assignment]
    assert written_plan(tied) is None
    called = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    called[1].register_forward_hook(lambda module, inputs, outputs: outputs * 2)
    assert written_plan(called) is None

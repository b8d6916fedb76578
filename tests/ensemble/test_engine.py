"""The engine: its outputs and gradients are the automatic ones, to the last digits of float64."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dissensus import Ensemble
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.operations import ELEMENTWISE, OPERATIONS
from dissensus.ensemble.stack import tensors_of
from dissensus.models import ldr_head, ldr_linear_head, table_mlp
from dissensus.objectives import parse
from dissensus.training import Recipe
from dissensus.training.step import Trainer
from dissensus.training.stream import TrainingBatch
from tests.ensemble import networks


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
    "table_mlp": partial(table_mlp, (6,), 4, hidden=(5, 5), rate=3.0),
    "norm mlp": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4)),
    "images": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 4, bias=False), nn.Tanh()
    ),
    "wide norm": lambda: nn.Sequential(
        nn.Linear(2, 2), nn.LayerNorm((3, 2)), nn.Flatten(), nn.Linear(6, 4)
    ),
}
SHAPES = {"tokens": (3, 6), "images": (2, 3), "wide norm": (3, 2)}


def inputs(name: str, *batch: int) -> Tensor:
    return torch.randn(*batch, *SHAPES.get(name, (6,)), dtype=torch.float64)


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
    engine, tensors = engine_of(ens.stack), tensors_of(ens.stack)[0]
    assert engine is not None
    x, gradient = inputs(name, 7), torch.randn(members, 7, 4, dtype=torch.float64)
    modules = [ens.member(j) for j in range(members)]
    wanted = torch.stack([module(x) for module in modules])
    wanted.backward(gradient)
    (outputs,), backward = engine.vjp(tensors, [x[None]])
    torch.testing.assert_close(outputs, wanted)
    torch.testing.assert_close(engine.forward(tensors, x[None]), wanted)
    gradients = dict(zip(tensors, backward([gradient]), strict=True))
    for key, tensor in tensors.items():
        own = [dict(module.named_parameters())[key].grad for module in modules]
        zero = torch.zeros_like(tensor[0])  # of a layer that is never called
        automatic = torch.stack([zero if grad is None else grad for grad in own])
        torch.testing.assert_close(gradients[key], automatic, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", NETWORKS)
def test_members_of_several_ensembles_run_at_once(name: str) -> None:
    """The rows are 2 × 3 members, and each ensemble has inputs of its own."""
    several = [made(name).eval() for _ in range(2)]
    engine = engine_of(several[0].stack)  # type: ignore[arg-type]
    assert engine is not None
    apart = [tensors_of(ens.stack)[0] for ens in several]  # type: ignore[arg-type]
    rows = {key: torch.cat([tensors[key].detach() for tensors in apart]) for key in apart[0]}
    x, gradient = inputs(name, 2, 7), torch.randn(6, 7, 4, dtype=torch.float64)
    (outputs,), backward = engine.vjp(rows, [x])
    gradients = [value.clone() for value in backward([gradient])]
    for number, tensors in enumerate(apart):
        (own,), alone = engine.vjp(tensors, [x[number : number + 1]])
        there = slice(3 * number, 3 * number + 3)
        torch.testing.assert_close(outputs[there], own)
        for together, value in zip(gradients, alone([gradient[there]]), strict=True):
            torch.testing.assert_close(together[there], value)


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("before", [True, False], ids=["after-linear", "on-shared-input"])
def test_every_activation_gives_what_vmap_gives(kind: type[nn.Module], before: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(*[nn.Linear(6, 6)] * before, kind(), nn.Linear(6, 2))

    ens = Ensemble(make, members=3, execution="stacked").double()
    engine, tensors = engine_of(ens.stack), tensors_of(ens.stack)[0]  # type: ignore[arg-type]
    assert engine is not None
    x, gradient = torch.randn(5, 6).double(), torch.randn(3, 5, 2).double()
    wrapped = [networks.Wrapped(ens.member(j)) for j in range(3)]
    vmapped = Ensemble.from_members(wrapped, execution="stacked")
    assert engine_of(vmapped.stack) is None  # type: ignore[arg-type]
    outputs = vmapped(x)
    torch.testing.assert_close(ens(x), outputs)
    outputs.backward(gradient)
    gradients = engine.vjp(tensors, [x[None]])[1]([gradient])
    for got, wanted in zip(gradients, vmapped.parameters(), strict=True):
        torch.testing.assert_close(got, wanted.grad)


def test_the_cases_use_every_operation() -> None:
    used = set()
    for make in NETWORKS.values():
        engine = engine_of(Ensemble(make, 2).stack)  # type: ignore[arg-type]
        assert engine is not None
        used |= {step.kind for step in engine.steps}
    assert used == set(OPERATIONS) - {"adapted"}  # tests/ensemble/test_adapters.py


@pytest.mark.parametrize("objective", ["ldr:strength=0.5", "ldr:active=none", "a2d:strength=0.5"])
@pytest.mark.parametrize("name", ["ldr_head", "odd", "table_mlp"])
def test_steps_are_those_of_the_loop(name: str, objective: str) -> None:
    """Over several steps: gradients are kept in one place and must not mix."""
    parsed, x = parse(objective), torch.randn(9, 6, dtype=torch.float64)
    y, extra = torch.randint(4, (9,)), torch.randn(5, 6, dtype=torch.float64)
    ended = []
    for execution in ("stacked", "looped"):
        torch.manual_seed(1)
        ens = made(name, 4)
        ens.execution = execution
        trainer = Trainer(ens.eval(), parsed, Recipe(optimizer="adamw:weight_decay=0.1"))  # type: ignore[arg-type]
        assert (getattr(trainer.members, "engine", None) is None) == (execution == "looped")
        for step in range(4):
            drawn = [step % 4, 3 - step % 2] if objective.startswith("ldr:s") else None
            drawn = None if drawn is None or drawn[0] == drawn[1] else sorted(drawn)
            unlabelled = extra if parsed.needs_disagreement else None
            trainer.step(TrainingBatch(x, y, unlabelled, drawn), set(), 1.0, check=True)
        ended.append([p.detach().clone() for p in ens.parameters()])
    for one, other in zip(*ended, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_dropout_is_each_members_own_and_undone_where_it_was() -> None:
    ens = Ensemble(lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 4)), 2)
    assert ens.stack is not None
    engine, tensors = engine_of(ens.stack.train()), tensors_of(ens.stack)[0]
    assert engine is not None
    with torch.no_grad():
        for name, tensor in tensors.items():  # both layers pass on what they get
            tensor.copy_(torch.eye(*tensor.shape[1:]) if "weight" in name else tensor * 0)
    (outputs,), backward = engine.vjp(tensors, [torch.ones(1, 40, 6)])
    assert set(outputs.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(outputs[0], outputs[1])
    gradients = dict(zip(tensors, backward([torch.ones(2, 40, 4)]), strict=True))
    torch.testing.assert_close(gradients["0.bias"][:, :4], outputs.sum(1))


class Untraced(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


class Moody(nn.Module):
    """Does something else while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.one(x) if self.training else self.other(x)
        return found


class Overwritten(nn.Module):
    """An activation in place whose input is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.relu = nn.Linear(6, 6), nn.Linear(6, 4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        found: Tensor = self.last(self.relu(hidden) + hidden)
        return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1)),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(2, 2)),
        lambda: nn.Sequential(Untraced(6, 6)),
        nn.Identity,
        Moody,
        Overwritten,
        networks.tied_weights,
        networks.hooked,
        networks.batch_norm_mlp,
        networks.Odd,
    ],
)
def test_other_networks_have_no_engine(make: Callable[[], nn.Module]) -> None:
    network = make()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert engine_of(network) is None
    assert all(torch.equal(tensor, before[n]) for n, tensor in network.state_dict().items())


def test_a_hook_on_a_container_counts() -> None:
    outer = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    assert engine_of(nn.Sequential(nn.Sequential(nn.Linear(2, 2)))) is not None
    outer[0].register_forward_pre_hook(lambda module, inputs: None)
    assert engine_of(outer) is None


@pytest.mark.slow
def test_what_is_compiled_does_not_depend_on_other_ensembles() -> None:
    """Engines come and go with their ensembles, also while a graph is compiled."""
    make = partial(nn.Sequential, nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    ens, x = Ensemble(make, 2), torch.rand(5, 3)
    others = [Ensemble(make, 2)]
    others[0](x)
    tensors = tensors_of(ens.stack)  # type: ignore[arg-type]
    run = torch.compile(ens.run, backend="eager")
    torch.testing.assert_close(run(*tensors, x), ens(x))
    with torch.compiler.set_stance("fail_on_recompile"):
        others.append(Ensemble(make, 3))
        others[1](x)
        run(*tensors, x)
        others.clear()
        run(*tensors, x)

"""How members come to be: seeds of their own, no trap with instances, existing modules kept."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dissensus.ensemble import Ensemble, SharedInstanceWarning, member_seed
from tests.ensemble.networks import NETWORKS, Network, Odd, Wrapped, mlp

ONE = mlp()
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules hold the same tensors, bit for bit."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# ---- seeds --------------------------------------------------------------------------------------


@every_network
def test_a_member_does_not_depend_on_the_number_of_members_or_on_what_was_drawn_before(
    network: Network,
) -> None:
    few = Ensemble(network.make, members=2, seed=3)
    torch.manual_seed(99)
    torch.randn(17)
    many = Ensemble(network.make, members=5, seed=3)
    assert all(same(few.member(j), many.member(j)) for j in range(2))
    torch.manual_seed(member_seed(3, 4))
    assert same(many.member(4), network.make())  # as anyone can make it alone


def test_construction_leaves_the_random_state_of_the_caller() -> None:
    instance = mlp()
    before = torch.get_rng_state()
    Ensemble(mlp, members=3)
    with pytest.warns(SharedInstanceWarning):
        Ensemble(instance, members=3)
    Ensemble.on_features(nn.Identity(), mlp, members=2)
    assert torch.equal(torch.get_rng_state(), before)


# ---- one instance, the known trap ---------------------------------------------------------------


def test_an_instance_warns_and_its_copies_are_drawn_anew() -> None:
    instance = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    before = copy.deepcopy(instance)
    with pytest.warns(SharedInstanceWarning, match=r"Pass lambda: MyNetwork\(…\)") as caught:
        ens = Ensemble(instance, members=3, seed=1)
    assert caught[0].filename == __file__  # points at the line that made the ensemble
    for name in ("0.weight", "0.bias", "2.weight"):
        values = dict(ens.stack.named_parameters())[name]
        assert not torch.equal(values[0], values[1])
        assert not torch.equal(values[1], values[2])
    assert same(instance, before)
    with pytest.warns(SharedInstanceWarning):
        assert same(ens, Ensemble(instance, members=3, seed=1))


def test_an_instance_that_cannot_be_drawn_anew() -> None:
    with (
        pytest.warns(SharedInstanceWarning),
        pytest.raises(ValueError, match=r"cannot re-initialise inner \(no reset_param"),
    ):
        Ensemble(Wrapped(Odd()), members=2)


@pytest.mark.parametrize(
    ("make", "members", "text"),
    [
        (lambda: ONE, 2, "returned the same module twice"),
        (lambda: torch.zeros(3), 1, "must return an nn.Module, got Tensor"),
        (nn.Flatten, 2, "must have parameters"),
        (mlp, 0, "at least 1, got 0"),
        (mlp, 2.0, "at least 1, got 2.0"),
    ],
)
def test_what_makes_no_ensemble(make: type[nn.Module], members: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Ensemble(make, members=members)


# ---- existing modules ---------------------------------------------------------------------------


def test_alike_modules_are_stacked_and_copied() -> None:
    modules = [mlp() for _ in range(3)]
    ens = Ensemble.from_members(modules)
    assert ens.resolved_execution() == "stacked"
    x = torch.randn(5, 4)
    torch.testing.assert_close(ens(x), torch.stack([module(x) for module in modules]))
    nn.init.zeros_(modules[0][0].weight)
    assert ens.member(0)[0].weight.abs().sum() > 0


class Scaled(nn.Module):
    """A network whose ``repr`` does not show all that it is."""

    def __init__(self, scale: object = 2.0, act: object = torch.relu) -> None:
        super().__init__()
        self.linear, self.scale, self.act = nn.Linear(4, 3), scale, act

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale["of"][0] if isinstance(self.scale, dict) else self.scale
        outputs: Tensor = self.act(self.linear(x)) * scale
        return outputs


def frozen() -> nn.Module:
    return Scaled().requires_grad_(False)


def rate(p: float) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(p))


UNLIKE = {
    "layers": lambda: [mlp(), nn.Linear(4, 3)],
    "width": lambda: [nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 3)) for n in (5, 6)],
    "settings": lambda: [rate(0.1), rate(0.2)],
    "a number": lambda: [Scaled(1.0), Scaled(3.0)],
    "a nested number": lambda: [Scaled({"of": [1.0]}), Scaled({"of": [3.0]})],
    "a tensor": lambda: [Scaled(torch.tensor(1.0)), Scaled(torch.tensor(3.0))],
    "a function": lambda: [Scaled(act=torch.relu), Scaled(act=torch.tanh)],
    "a lambda": lambda: [Scaled(act=lambda x: x), Scaled(act=lambda x: -x)],
    "frozen": lambda: [Scaled(), frozen()],
    "dtype": lambda: [Scaled(), Scaled().bfloat16().float().requires_grad_(), Scaled(2)],
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_modules_that_differ_in_anything_stay_what_they_are(kind: str) -> None:
    modules = [module.eval() for module in UNLIKE[kind]()]
    ens = Ensemble.from_members(modules)
    x = torch.randn(5, 4)
    assert ens.stack is None
    assert ens.resolved_execution() == "looped"
    assert not ens.training
    wanted = torch.stack([module(x) for module in modules])
    assert torch.equal(ens(x), wanted)
    assert torch.equal(ens(x, [1]), wanted[[1]])
    torch.testing.assert_close(ens.predict(x), wanted.softmax(-1).mean(0))
    assert same(ens.member(1), modules[1])
    assert torch.equal(ens.select([1, 0])(x), wanted[[1, 0]])
    assert [p.requires_grad for p in ens.parameters()] == [
        p.requires_grad for module in modules for p in module.parameters()
    ]
    with pytest.raises(ValueError, match="one structure, got unlike members"):
        ens.soup()
    with pytest.raises(ValueError, match="unlike structure cannot be stacked"):
        Ensemble.from_members(modules, execution="stacked")


def test_modules_that_differ_in_nothing_are_stacked() -> None:
    def lambdas() -> nn.Module:
        return Scaled((1, "a", None, torch.float32), act=lambda x: x)

    for make in (lambdas, Scaled, Odd, lambda: nn.GRU(2, 3)):
        assert Ensemble.from_members([make(), make()]).stack is not None


@pytest.mark.parametrize("wrong", [[], [mlp(), "a"], [mlp]])
def test_members_must_be_modules(wrong: list[object]) -> None:
    with pytest.raises(ValueError, match=r"one or more nn\.Module"):
        Ensemble.from_members(wrong)


# ---- copies, dtypes, files ----------------------------------------------------------------------


@every_network
def test_a_state_passes_between_the_executions_and_through_a_file(
    network: Network, tmp_path: Path
) -> None:
    ens = Ensemble(network.make, members=3, execution="looped").double()
    ens(network.inputs())  # moves statistics
    ens.set_weights(torch.tensor([0.2, 0.3, 0.5]))
    # Tied tensors stand twice in a state; safetensors wants memory of its own for each.
    save_file({key: t.clone() for key, t in ens.state_dict().items()}, tmp_path / "state")
    other = Ensemble(network.make, members=3, seed=7, execution="stacked").double()
    other.load_state_dict(load_file(tmp_path / "state"))
    assert same(ens, other)
    x = network.inputs()
    torch.testing.assert_close(other.predict(x), ens.predict(x), rtol=1e-9, atol=1e-11)
    other.load_state_dict(Ensemble(network.make, members=3).state_dict())
    assert other.weights is None


@every_network
def test_copies_are_independent_and_dtypes_follow(network: Network) -> None:
    ens = Ensemble(network.make, members=2).set_weights(torch.tensor([0.5, 0.5]))
    before = {key: tensor.clone() for key, tensor in ens.eval().state_dict().items()}
    twin = copy.deepcopy(ens).to(torch.float64)
    for key, tensor in twin.state_dict().items():
        wanted = torch.float64 if before[key].is_floating_point() else before[key].dtype
        assert tensor.dtype == wanted
    x = network.inputs()
    torch.testing.assert_close(twin(x), ens(x.float()).double(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[key]) for key, tensor in ens.state_dict().items())

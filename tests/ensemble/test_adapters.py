"""Members that share weights: each is the network whose weight is W ∘ s rᵀ, however it runs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.ensemble.adapters import kinds_of
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.stack import tensors_of
from dissensus.models import make_factory, table_mlp
from tests.ensemble import networks
from tests.ensemble.test_engine import NETWORKS, inputs

SHARED = [name for name in NETWORKS if name not in ("begins", "ldr_linear_head")]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def made(make: Callable[[], nn.Module], members: int = 3, execution: str = "auto") -> ds.Ensemble:
    """In double precision, away from initial zeros and ones, where mistakes can hide."""
    ens = ds.Ensemble(make, members, seed=2, execution=execution, sharing="adapters").double()
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return ens.eval()


def apart(ens: ds.Ensemble) -> ds.Ensemble:
    """The same members, each with weights of its own."""
    return ds.Ensemble.from_members(list(ens), ens.combine, ens.execution)


# ---- how members start ---------------------------------------------------------------------------


@pytest.mark.slow  # its import is
def test_members_start_as_in_tabm() -> None:
    """Its package as the reference: kinds and start of layers, and outputs of the same weights."""
    tabm = pytest.importorskip("tabm")
    reference = tabm.TabM.make(n_num_features=4, d_out=3, n_blocks=2, d_block=6, k=5, dropout=0.0)
    ens = ds.Ensemble(make_factory("mlp", (4,), 3, hidden=(6, 6)), 5, sharing="adapters")
    state, theirs = ens.stack.state_dict(), reference.state_dict()  # type: ignore[union-attr]
    order = {"weight": "shared", "r": "r", "s": "s", "bias": "bias"}
    blocks = sorted({name.rpartition(".")[0] for name in state})
    assert len(blocks) == 3
    for number, block in enumerate(blocks[:2]):
        for name, ours in order.items():
            start, wanted = state[f"{block}.{ours}"], theirs[f"backbone.blocks.{number}.0.{name}"]
            if name == "weight":
                assert start.shape == (1, *wanted.shape)
            else:
                assert start.shape == wanted.shape
                assert (start == start[0]).all() == (wanted == wanted[0]).all(), (number, name)
                assert torch.equal(start.abs() == 1, wanted.abs() == 1), (number, name)
            start.copy_(wanted.view_as(start))
    last, output = state[f"{blocks[2]}.weight"], theirs["output.weight"]
    assert last.shape == output.mT.shape
    assert last.unique(dim=0).shape == last.shape
    last.copy_(output.mT)
    state[f"{blocks[2]}.bias"].copy_(theirs["output.bias"])
    x = torch.randn(7, 4)
    torch.testing.assert_close(ens(x), reference.eval()(x).transpose(0, 1))


@pytest.mark.parametrize("gains", [False, True])
def test_members_differ_where_inputs_come_in_and_outputs_go_out(gains: bool) -> None:
    """Signs, or gains c r with signs, at the first layer, an own last layer; the rest is alike."""
    named = ("table_mlp", {"rate": 4.0}) if gains else ("mlp", {})
    make = make_factory(named[0], (9,), 3, hidden=(6, 5), **named[1])
    ens = ds.Ensemble(make, 4, sharing="adapters")
    first, second, last = (m for m in ens.stack.modules() if hasattr(m, "bias"))  # type: ignore[union-attr]
    assert set(first.r.flatten().tolist()) == ({-0.25, 0.25} if gains else {-1.0, 1.0})
    for tensor in (first.s, second.r, second.s):
        assert set(tensor.flatten().tolist()) == {1.0}
    for layer in (first, second):
        assert layer.shared.shape[0] == len(layer.bias.unique(dim=0)) == 1
    assert len(last.weight.unique(dim=0)) == len(first.r.unique(dim=0)) == 4
    kinds = [kind for name, kind in kinds_of(ens.stack).items() if name.endswith(".r")]  # type: ignore[arg-type]
    assert kinds == ["own" if gains else "adapters", "adapters"]  # gains decay


# ---- outputs and gradients -----------------------------------------------------------------------


def test_outputs_and_gradients_are_those_of_a_slow_loop() -> None:
    """y_j = ((x ∘ r_j) Wᵀ) ∘ s_j + b_j, and its gradients, number by number in NumPy."""
    ens = made(lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), members=2)
    assert ens.stack is not None
    tensors = tensors_of(ens.stack)[0]
    shared, r, s, bias, last, end = (tensor.detach().numpy() for tensor in tensors.values())
    x, g = np.random.default_rng(0).normal(size=(4, 3)), np.array([[1.0, -2, 0.5, 3], [2, 1, 0, 1]])
    outputs = np.zeros((2, 4, 1))
    wanted = {name: np.zeros(tensor.shape) for name, tensor in tensors.items()}
    for j in range(2):
        for n in range(4):
            outputs[j, n, 0] = end[j, 0]
            for o in range(2):
                u = sum(x[n, i] * r[j, i] * shared[0, o, i] for i in range(3))
                hidden = u * s[j, o] + bias[j, o]
                outputs[j, n, 0] += hidden * last[j, 0, o]
                wanted["1.weight"][j, 0, o] += g[j, n] * hidden
                at_hidden = g[j, n] * last[j, 0, o]
                wanted["0.bias"][j, o] += at_hidden
                wanted["0.s"][j, o] += at_hidden * u
                for i in range(3):
                    wanted["0.shared"][0, o, i] += at_hidden * s[j, o] * x[n, i] * r[j, i]
                    wanted["0.r"][j, i] += at_hidden * s[j, o] * shared[0, o, i] * x[n, i]
            wanted["1.bias"][j, 0] += g[j, n]
    engine = engine_of(ens.stack)
    assert engine is not None
    (got,), backward = engine.vjp(tensors, [torch.tensor(x)[None]])
    np.testing.assert_allclose(got.numpy(), outputs)
    np.testing.assert_allclose(ens(torch.tensor(x)).detach().numpy(), outputs)
    for name, gradient in zip(tensors, backward([torch.tensor(g)[..., None]]), strict=True):
        np.testing.assert_allclose(gradient.numpy(), wanted[name], err_msg=name)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("members", [1, 3])
def test_the_engine_gives_the_automatic_gradients(name: str, members: int) -> None:
    """Of one ensemble and of two at once, with inputs of their own, as in a fleet."""
    several = [made(NETWORKS[name], members) for _ in range(2)]
    own = [tensors_of(ens.stack)[0] for ens in several]  # type: ignore[arg-type]
    engine = engine_of(several[0].stack)  # type: ignore[arg-type]
    assert engine is not None
    assert any(step.kind == "adapted" for step in engine.steps)
    x, gradient = inputs(name, 2, 7), torch.randn(2, members, 7, 4, dtype=torch.float64)
    automatic = []
    for ens, tensors, inner, at in zip(several, own, x, gradient, strict=True):
        outputs = ens(inner)
        torch.testing.assert_close(outputs, apart(ens)(inner))
        looped = made(NETWORKS[name], members, "looped")
        looped.load_state_dict(ens.state_dict())
        torch.testing.assert_close(outputs, looped(inner))
        looped(inner).backward(at)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in looped.parameters()]
        torch.testing.assert_close(engine.vjp(tensors, [inner[None]])[1]([at]), grads)
        automatic.append(grads)
    rows = {key: torch.cat([tensors[key].detach() for tensors in own]) for key in own[0]}
    (outputs,), backward = engine.vjp(rows, [x])
    wanted = torch.cat([ens(inner) for ens, inner in zip(several, x, strict=True)])
    torch.testing.assert_close(outputs, wanted)
    for got, *both in zip(backward([gradient.flatten(0, 1)]), *automatic, strict=True):
        torch.testing.assert_close(got, torch.cat(both))


class Reversed(nn.Module):
    """Its last layer is registered first, and so is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(x))
        return found


def test_memory_of_one_pass_is_not_seen_in_the_next() -> None:
    """Outputs stay, and two inputs of one pass, the second smaller, do not mix."""
    ens = made(Reversed)
    engine, tensors = engine_of(ens.stack), tensors_of(ens.stack)[0]  # type: ignore[arg-type]
    assert engine is not None
    xs = [torch.randn(n, 4, dtype=torch.float64) for n in (6, 4)]
    gradients = [torch.randn(3, n, 3, dtype=torch.float64) for n in (6, 4)]
    outputs, backward = engine.vjp(tensors, [x[None] for x in xs])
    wanted = torch.autograd.grad([ens(x) for x in xs], list(tensors.values()), gradients)
    torch.testing.assert_close(backward(gradients), list(wanted))
    engine.vjp(tensors, [torch.randn(1, 6, 4, dtype=torch.float64)])
    torch.testing.assert_close(outputs, [ens(x) for x in xs])


@pytest.mark.parametrize(
    "make",
    [
        networks.mlp,
        lambda: table_mlp((4,), 3, hidden=(6, 5)),
        networks.layer_norm_mlp,
        networks.batch_norm_mlp,
        lambda: networks.Wrapped(networks.mlp()),
    ],
    ids=["engine", "gains", "norm", "batch norm", "vmap"],
)
def test_executions_members_and_parts_agree(make: Callable[[], nn.Module]) -> None:
    ens, looped = made(make, 4, "stacked"), made(make, 4, "looped")
    looped.load_state_dict(ens.state_dict())
    x = torch.randn(6, 4, dtype=torch.float64)
    outputs = ens(x)
    torch.testing.assert_close(looped(x), outputs)
    for each in (ens, looped):
        torch.testing.assert_close(each(x, members=[3, 1]), outputs[[3, 1]])
    torch.testing.assert_close(torch.stack([member(x) for member in ens]), outputs)
    torch.testing.assert_close(ens[1:3](x), outputs[1:3])
    own = torch.randn(4, 6, 4, dtype=torch.float64)
    tensors = tensors_of(ens.stack)  # type: ignore[arg-type]
    together = ens.run(*tensors, own, own=True)
    torch.testing.assert_close(together, torch.stack([m(z) for m, z in zip(ens, own, strict=True)]))


# ---- what is done with members -------------------------------------------------------------------


def test_saved_members_share_again(tmp_path: Path) -> None:
    ens = ds.Ensemble(make_factory("mlp", (4,), 3, hidden=(5, 6)), 4, sharing="adapters")
    ens.save(tmp_path / "ens")
    loaded, x = ds.load(tmp_path / "ens"), torch.randn(6, 4)
    assert loaded.sharing == "adapters"
    assert "sharing='adapters'" in repr(loaded)
    assert torch.equal(loaded(x), ens(x))
    assert set(kinds_of(loaded.stack).values()) == {"shared", "adapters", "own"}  # type: ignore[arg-type]
    assert sum(p.numel() for p in loaded.parameters()) < 4 * sum(
        p.numel() for p in loaded.member(0).parameters()
    )


# ---- what is not shared --------------------------------------------------------------------------


def test_other_layers_stay_each_members_own() -> None:
    def tied() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
        net[1].weight = net[2].weight
        net[0].weight.requires_grad_(False)
        return nn.Sequential(nn.BatchNorm1d(4), net, nn.Linear(2, 3), nn.Linear(3, 2))

    ens = made(tied)
    assert sorted(name for name in ens.shared) == ["1.3.shared", "2.shared"]
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.stack([member(x) for member in ens]), ens(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(4, 3), "Linear has no nn.Linear but the last"),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(4, 3)),
            "has no nn.Linear but the last",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, int(torch.randint(2, 99, ()))), nn.LazyLinear(2)),
            "unlike structure cannot share",
        ),
    ],
)
def test_networks_with_nothing_to_share_are_refused(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ds.Ensemble(make, members=3, sharing="adapters")

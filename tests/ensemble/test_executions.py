"""Two executions, one result: the numbers of the members run one by one as ordinary modules."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import tensors_of
from tests.ensemble.networks import NETWORKS, Network, Wrapped, mlp

EXECUTIONS = ["stacked", "looped"]
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


def shaken(ens: Ensemble) -> Ensemble:
    """In float64, with running statistics that differ between members."""
    ens.double()
    for name, buffer in ens.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return ens


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("members", [None, [2, 0]], ids=["all", "some"])
@every_network
def test_outputs_gradients_and_statistics_are_those_of_ordinary_modules(
    network: Network, members: list[int] | None, training: bool, execution: str
) -> None:
    ens = shaken(Ensemble(network.make, members=3, execution=execution)).train(training)
    chosen = [0, 1, 2] if members is None else members
    x = network.inputs()
    modules = [ens.member(j) for j in range(3)]
    wanted = torch.stack([modules[j](x) for j in chosen])
    seeds = torch.randn_like(wanted)
    (wanted * seeds).sum().backward()

    got = ens(x, members)
    (got * seeds).sum().backward()

    close(got, wanted)
    compare_gradients(ens, modules)
    for name, buffer in ens.stack.named_buffers():
        for j, module in enumerate(modules):
            own = dict(module.named_buffers())[name]
            if j in chosen:
                close(buffer[j], own)
            else:
                assert torch.equal(buffer[j], own), name  # bit for bit


def compare_gradients(ens: Ensemble, modules: Sequence[nn.Module]) -> None:
    for name, parameter in ens.stack.named_parameters():
        own = [dict(module.named_parameters())[name] for module in modules]
        if not parameter.requires_grad:
            assert parameter.grad is None
            continue
        wanted = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in own])
        close(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad, wanted)


def test_an_ensemble_that_is_dropped_is_let_go() -> None:
    ens = Ensemble(lambda: nn.Linear(2, 2), members=2, execution="stacked")
    ens(torch.zeros(1, 2))
    stack = weakref.ref(ens.stack)
    del ens
    gc.collect()
    assert stack() is None


# ---- dropout ------------------------------------------------------------------------------------


def dropped_members(p: float, inplace: bool, wrapped: bool, execution: str) -> Ensemble:
    """Three members with the very same weights, that pass their input through dropout."""
    layers = nn.Sequential(nn.Dropout(p, inplace=inplace), nn.Linear(1, 1, bias=False))
    nn.init.ones_(layers[1].weight)
    member = Wrapped(layers) if wrapped else layers
    return Ensemble.from_members([member] * 3, execution=execution)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("wrapped", [False, True], ids=["layers", "vmap"])
@pytest.mark.parametrize("p", [0.2, 0.7])
def test_members_draw_their_own_dropout(p: float, wrapped: bool, execution: str) -> None:
    ens = dropped_members(p, False, wrapped, execution)
    kept = ens(torch.ones(20_000, 1)).squeeze(-1)
    assert kept.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    drops = kept == 0
    for j in range(3):
        assert drops[j].double().mean() == pytest.approx(p, abs=0.02)
        both = (drops[j] & drops[j - 1]).double().mean()
        assert both == pytest.approx(p * p, abs=0.02)  # independent of each other
    assert torch.equal(ens.eval()(torch.ones(4, 1)), torch.ones(3, 4, 1))


def test_stacked_dropout_never_writes_into_what_members_share() -> None:
    ens = dropped_members(0.5, True, False, "stacked")
    x = torch.ones(200, 1)
    outputs = ens(x)
    assert torch.equal(x, torch.ones(200, 1))
    assert not torch.equal(outputs[0], outputs[1])


# ---- which execution ----------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.out = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        outputs: Tensor = self.out(states[:, -1])
        return outputs


def cumulative_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None))


RULE = [
    (mlp, "stacked"),
    (NETWORKS["batch_norm_mlp"].make, "stacked"),
    (NETWORKS["batch_norm_cnn"].make, "looped"),
    (lambda: Wrapped(nn.Sequential(nn.Flatten(1), nn.Linear(4, 2))), "stacked"),
    (lambda: nn.Sequential(nn.Sequential(nn.ConvTranspose1d(1, 1, 2))), "looped"),
    (Recurrent, "looped"),
    (cumulative_norm, "looped"),
]


@pytest.mark.parametrize(("make", "wanted"), RULE)
def test_the_rule_on_a_cpu(make: type[nn.Module], wanted: str) -> None:
    assert Ensemble(make, members=2).resolved_execution() == wanted
    assert Ensemble(make, members=2, execution="tune").resolved_execution() == wanted
    for execution in EXECUTIONS:
        assert Ensemble(make, members=2, execution=execution).resolved_execution() == execution


def test_the_rule_on_another_device() -> None:
    def resolved(make: type[nn.Module]) -> str:
        return Ensemble(make, members=2).to("meta").resolved_execution()

    assert resolved(NETWORKS["batch_norm_cnn"].make) == "stacked"
    assert resolved(cumulative_norm) == "looped"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "unlike"])
def test_looped_convolutions_get_images_with_channels_last(alike: bool, channels: int) -> None:
    strides: list[tuple[int, ...]] = []

    class Watched(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            strides.append(x.stride())
            return super().forward(x)

    def make(width: int = 4) -> nn.Module:
        return nn.Sequential(Watched(channels, width, 3), nn.Flatten(), nn.Linear(width * 36, 2))

    ens = Ensemble(make, 2) if alike else Ensemble.from_members([make(4), make(5)])
    x = torch.randn(2, channels, 8, 8)
    ens(x)
    if alike:
        parameters, buffers = tensors_of(ens.stack)
        ens.run(parameters, buffers, torch.stack([x, x]), own=True)
    assert set(strides) == {(64 * channels, 1, 8 * channels, channels)}


def test_layers_that_cannot_be_stacked_run_by_default_and_say_so_otherwise() -> None:
    x = torch.randn(5, 7, 4)
    ens = Ensemble(Recurrent, members=2)
    close(ens(x), torch.stack([ens.member(j)(x) for j in range(2)]))
    assert ens.tune(x) == {}
    stacked = Ensemble(Recurrent, members=2, execution="stacked")
    with pytest.raises(ValueError, match="cannot be stacked, use execution='looped': Batching"):
        stacked(x)
    with pytest.raises(RuntimeError, match="batch2 tensor to be"):  # an error of the network's own
        Ensemble(lambda: Wrapped(mlp()), members=2, execution="stacked")(torch.zeros(2, 9))


@pytest.mark.parametrize("name", ["mlp", "batch_norm_cnn"])
def test_tune_chooses_and_changes_nothing_else(name: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(NETWORKS[name].make(), nn.Dropout(0.5))

    ens = Ensemble(make, members=2, execution="tune").double()
    before = {key: value.clone() for key, value in ens.state_dict().items()}
    random_state = torch.get_rng_state()
    with torch.no_grad():
        seconds = ens.tune(NETWORKS[name].inputs())
    assert ens.execution == min(seconds, key=seconds.get)
    assert set(seconds) == set(EXECUTIONS)
    assert all(torch.equal(value, before[key]) for key, value in ens.state_dict().items())
    assert all(parameter.grad is None for parameter in ens.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)

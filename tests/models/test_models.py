"""Every architecture: published sizes, equal numbers stacked and looped, clear refusals."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from dissensus.models import (
    MODELS,
    InputNormalize,
    ScaledLinear,
    make_factory,
    resnet18,
    resnet20,
    resnet34,
    vgg,
)

# A small case of each model: input shape and options that turn its randomness off.
CASES: dict[str, tuple[tuple[int, ...], dict[str, object]]] = {
    "linear": ((5,), {}),
    "mlp": ((2, 3), {"hidden": (7, 6)}),
    "table_mlp": ((5,), {"hidden": (7, 6), "rate": 3.0}),
    "small_cnn": ((1, 8, 8), {"width": 4, "hidden": 8}),
    "cnn": ((3, 32, 32), {"dropout": 0.0}),
    "vgg": ((3, 32, 32), {"width": 2, "dropout": False}),
    "resnet20": ((3, 8, 8), {"width": 4}),
    "resnet18": ((1, 8, 8), {"width": 4}),
    "resnet34": ((1, 8, 8), {"width": 2}),
    "ldr_head": ((6,), {"layer_scale": 0.5}),
    "ldr_linear_head": ((6,), {}),
}

VARIANTS = [
    *[(name, shape, options) for name, (shape, options) in CASES.items()],
    ("cnn", (1, 28, 28), {"padding": 1, "dropout": 0.0}),
    ("resnet20", (3, 8, 8), {"width": 4, "norm": "group", "shortcut": "projection"}),
    ("resnet20", (3, 8, 8), {"width": 4, "norm": "none"}),
    ("resnet20", (3, 9, 9), {"width": 4, "block": "preactivation"}),
    ("resnet20", (3, 8, 8), {"width": 4, "block": "preactivation", "shortcut": "projection"}),
]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_there_is_a_case_for_every_model() -> None:
    assert CASES.keys() == MODELS.keys()


@pytest.mark.parametrize(("name", "shape", "options"), VARIANTS)
@pytest.mark.parametrize("training", [True, False])
def test_stacked_members_equal_the_loop(
    name: str, shape: tuple[int, ...], options: dict[str, object], training: bool
) -> None:
    """Outputs, gradients and running statistics, for three members in float64."""
    make = make_factory(name, shape, 3, normalize=([0.4], [0.7]), **options)
    members = [make().double().train(training) for _ in range(3)]
    stacked, buffers = stack_module_state(copy.deepcopy(members))
    skeleton = copy.deepcopy(members[0])
    x = torch.rand(5, *shape, dtype=torch.float64)

    def call(params: dict[str, Tensor], state: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = functional_call(skeleton, (params, state), (x,))
        return outputs

    outputs = vmap(call, randomness="different")(stacked, buffers)
    looped = torch.stack([member(x) for member in members])
    assert outputs.shape == (3, 5, 3)
    torch.testing.assert_close(outputs, looped)

    weights = torch.randn_like(outputs)
    (outputs * weights).sum().backward()
    (looped * weights).sum().backward()
    for key, value in stacked.items():
        slow = torch.stack([dict(member.named_parameters())[key].grad for member in members])
        torch.testing.assert_close(value.grad, slow, msg=lambda text, key=key: f"{key}: {text}")
        assert slow.abs().sum() > 0 or "bias" in key, key
    for key, value in buffers.items():
        slow = torch.stack([dict(member.named_buffers())[key] for member in members])
        torch.testing.assert_close(value, slow)


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg", "ldr_head", "small_cnn"])
def test_dropout_differs_between_stacked_members(name: str) -> None:
    shape, options = CASES[name]
    options = options | {"dropout": True if name == "vgg" else 0.5}
    member = make_factory(name, shape, 3, **options)()
    stacked, buffers = stack_module_state([copy.deepcopy(member) for _ in range(2)])
    x = torch.rand(4, *shape)
    out = vmap(lambda p, b: functional_call(member, (p, b), (x,)), randomness="different")(
        stacked, buffers
    )
    assert not torch.allclose(out[0], out[1])
    member.eval()
    torch.testing.assert_close(member(x), member(x))


@pytest.mark.parametrize("name", CASES)
def test_a_seed_makes_the_member(name: str) -> None:
    shape, options = CASES[name]
    make = make_factory(name, shape, 2, **options)
    states = []
    x = torch.rand(3, *shape)
    before = x.clone()
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        member = make()
        states.append(copy.deepcopy(member.state_dict()))
        member(x)
        assert torch.equal(x, before)  # the input is left as it was
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert any(not torch.equal(states[0][key], states[2][key]) for key in states[0])


def test_resnet20_has_the_published_size() -> None:
    """He et al. state 0.27M; the count by hand is convolutions, 19 batch norms, one linear."""
    by_hand = 3 * 16 * 9 + 6 * 16 * 16 * 9 + 16 * 32 * 9 + 5 * 32 * 32 * 9
    by_hand += 32 * 64 * 9 + 5 * 64 * 64 * 9
    by_hand += 2 * (7 * 16 + 6 * 32 + 6 * 64) + 64 * 10 + 10
    model = resnet20((3, 32, 32), 10)
    assert parameters(model) == by_hand == 269_722
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in model.modules()) == 20
    assert parameters(resnet20((3, 32, 32), 10, shortcut="projection")) == 272_474
    with torch.device("meta"):
        assert parameters(resnet18((3, 32, 32), 10)) == 11_173_962
        assert parameters(resnet34((3, 32, 32), 10)) == 21_282_122


def test_a_padded_shortcut_is_the_identity_where_the_residual_is_zero() -> None:
    """Option A: every second pixel, new channels zero on both sides."""
    model = resnet20((3, 8, 8), 2, width=4, norm="none")
    block = model.blocks[3]
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 4, 8, 8)
    out = block(x)
    assert out.shape == (2, 8, 4, 4)
    torch.testing.assert_close(out[:, 2:6], x[:, :, ::2, ::2])
    assert out[:, :2].abs().sum() == out[:, 6:].abs().sum() == 0


def test_flattened_sizes_of_collusions_tables() -> None:
    assert make_factory("cnn", (3, 32, 32), 10)()[7].in_features == 500
    assert make_factory("cnn", (3, 32, 32), 10, padding=1)()[7].in_features == 980
    with torch.device("meta"):
        dense = [layer for layer in vgg((3, 32, 32), 10) if isinstance(layer, nn.Linear)]
        larger = [layer for layer in vgg((3, 64, 64), 10) if isinstance(layer, nn.Linear)]
        rates = [layer.p for layer in vgg((3, 32, 32), 10) if isinstance(layer, nn.Dropout)]
    assert [(layer.in_features, layer.out_features) for layer in dense] == [(512, 512), (512, 10)]
    assert larger[0].in_features == 4 * 512
    assert rates == [0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.5, 0.5]  # Table 4


def test_ldr_head_computes_its_formula() -> None:
    head = make_factory("ldr_head", (4,), 3, layer_scale=0.3)()
    x = torch.randn(5, 4)

    def norm(v: Tensor) -> Tensor:
        centred = v - v.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    inner = nn.functional.gelu(norm(x) @ head.mlp[0].weight.T) @ head.mlp[3].weight.T
    expected = norm(x + 0.3 * inner) @ head.out.weight.T
    torch.testing.assert_close(head(x), expected)
    assert make_factory("ldr_head", (4,), 3)().scale.unique().tolist() == pytest.approx([1e-6])


def test_input_normalize_works_by_channel_and_is_saved() -> None:
    layer = InputNormalize([0.5, 0.0], [0.5, 2.0])
    x = torch.tensor([[[[1.0]], [[1.0]]]])
    assert layer(x).flatten().tolist() == [1.0, 0.5]
    assert layer(torch.ones(3, 2)).tolist() == [[1.0, 0.5]] * 3
    assert set(layer.state_dict()) == {"mean", "std"}
    assert list(layer.parameters()) == []
    member = make_factory("mlp", (2,), 2, normalize=([0.5, 0.0], [0.5, 2.0]))()
    torch.testing.assert_close(member(x[:, :, 0, 0]), member.model(torch.tensor([[1.0, 0.5]])))


def test_a_factory_is_plain_data() -> None:
    make = make_factory("mlp", (4,), 2, hidden=(3,), normalize=(0.5, 0.25))
    assert pickle.loads(pickle.dumps(make)) == make
    assert make.normalize == ((0.5,), (0.25,))
    assert "hidden" in repr(make)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "options", "message"),
    [
        ("resnet", (3, 8, 8), 2, {}, "no model 'resnet'; did you mean 'resnet34' or 'resnet20'"),
        ("gpt", (3, 8, 8), 2, {}, "no model 'gpt'; known are linear, mlp,"),
        ("mlp", (4,), 2, {"hiden": 3}, r"no option 'hiden'; did you mean 'hidden"),
        ("table_mlp", (2, 3), 2, {}, r"takes rows of a table, got input_shape \(2, 3\)"),
        ("table_mlp", (3,), 2, {"rate": 0.0}, "rate must be a finite number greater than 0, got"),
        ("mlp", (4,), 2, {"normalize": ([0.5], [0.5] * 2)}, r"std must be \[channels\] = \(1,\)"),
        ("mlp", (4,), 2, {"normalize": ([0.5], [0.0])}, "std must be positive, got"),
        ("mlp", (4,), 2, {"normalize": ([math.nan], [1.0])}, "must be finite"),
        ("mlp", (4,), 0, {}, "outputs must be an integer of at least 1, got 0"),
        ("mlp", (4,), 2, {"hidden": (0,)}, "hidden must be an integer of at least 1, got 0"),
        ("mlp", (4,), 2, {"dropout": 1.0}, "dropout must be .* less than 1, got 1.0"),
        ("mlp", (), 2, {}, "input_shape must hold positive sizes"),
        ("cnn", (64,), 2, {}, "cnn takes images .*got .64,.; for a table"),
        ("cnn", (1, 8, 8), 2, {}, "cnn needs images of at least 13 × 13, got .8, 8."),
        ("vgg", (1, 28, 28), 2, {}, "vgg needs images of at least 32 × 32, got .28, 28."),
        ("resnet20", (3, 8, 8), 2, {"norm": "layer"}, "norm must be one of batch, group"),
        ("resnet20", (3, 8, 8), 2, {"shortcut": "conv"}, "shortcut must be one of pad,"),
        ("resnet20", (3, 8, 8), 2, {"block": "bottleneck"}, "block must be one of basic,"),
        ("ldr_head", (3, 8, 8), 2, {}, "ldr_head takes feature vectors"),
    ],
)
def test_wrong_settings_are_reported_when_the_factory_is_made(
    name: str, shape: tuple[int, ...], outputs: int, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_factory(name, shape, outputs, **options)


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_cnn_states_its_smallest_image_rightly(padding: int) -> None:
    bare = nn.Sequential(nn.Conv2d(1, 1, 5, 2, padding), nn.Conv2d(1, 1, 5, 2, padding))
    for size in range(1, 20):
        x = torch.zeros(2, 1, size, size)
        try:
            bare(x)
        except RuntimeError:
            with pytest.raises(ValueError, match="needs images of at least"):
                make_factory("cnn", (1, size, size), 2, padding=padding)
        else:
            assert make_factory("cnn", (1, size, size), 2, padding=padding)()(x).shape == (2, 2)


def test_a_scaled_layer_has_gains_that_learn_faster() -> None:
    """First and second derivatives; one AdamW step moves a gain ``rate`` times a weight's way."""
    layer = ScaledLinear(3, 2, rate=4.0).double()
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), plain)

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        names = [name for name, _ in layer.named_parameters()]
        result: Tensor = functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        return result.square()

    inputs = (x.requires_grad_(), *(p.detach().requires_grad_() for p in layer.parameters()))
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)
    layer(x).square().sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=0.0).step()
    torch.testing.assert_close(
        (layer.rate * layer.gain - 1).abs(), torch.full((3,), 0.04).double(), rtol=1e-4, atol=0.0
    )

"""A network in two: together they are the network."""

import pytest
import torch
from torch import Tensor, nn

from dissensus import Ensemble
from dissensus.ensemble.engine import engine_of
from dissensus.models import resnet20, split


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(
            2 * width, width
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc2(self.act(self.fc1(x)))
        return found


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """A vision transformer's, with layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.Linear(width, width)
        self.mlp, self.ls2 = Mlp(width), Scale(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Embed(nn.Module):
    """Does what cannot be traced: it looks at its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(6, width)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().sum()) < 0:
            raise ValueError
        found: Tensor = self.proj(x)
        return found


class ViT(nn.Module):
    """``[batch, tokens, 6]`` to 5 classes by the first token."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = Embed(width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embed(x)))
        found: Tensor = self.head(x[:, 0])
        return found


X = torch.randn(4, 7, 6, generator=torch.Generator().manual_seed(0))


def vit() -> ViT:
    torch.manual_seed(0)
    return ViT().eval()


@pytest.mark.parametrize(
    ("name", "trained"),
    [
        ("head", ["head"]),
        ("norm", ["norm", "head"]),
        ("blocks.2.mlp", ["norm2", "mlp", "ls2", "norm", "head"]),  # the residual joins norm2
        ("blocks.2", ["blocks.2", "norm", "head"]),
        ("blocks.2.mlp.fc2", ["norm2", "fc1", "fc2", "ls2", "norm", "head"]),
        ("blocks", ["blocks", "norm", "head"]),
    ],
)
def test_head_and_backbone_are_the_network(name: str, trained: list[str]) -> None:
    network = vit()
    backbone, make_head = split(network, name, weights="given", example=X)
    head = make_head().eval()
    torch.testing.assert_close(head(backbone(X)), network(X))
    assert all(p.requires_grad for p in head.parameters())
    assert not any(p.requires_grad for p in backbone.parameters())
    of_network = sum(p.numel() for p in network.parameters())
    of_head = sum(p.numel() for p in head.parameters())
    used = sum(p.numel() for p in backbone.parameters())
    assert used + of_head == of_network
    names = {n for n, _ in head.named_parameters()}
    assert all(any(part in n for n in names) for part in trained) or isinstance(head, nn.Sequential)


def test_one_token_is_enough_where_the_head_uses_one() -> None:
    network = vit()
    backbone, make_head = split(
        network, "blocks.2.mlp", weights="given", keep=lambda t: t[:, :1], example=X
    )
    assert backbone(X).shape == (4, 1, 8)
    torch.testing.assert_close(make_head()(backbone(X)), network(X))
    with pytest.raises(ValueError, match="differ from the network: keep="):
        split(network, "blocks.2.mlp", keep=lambda t: t[:, 1:], example=X)


def test_heads_start_at_random_unless_asked() -> None:
    backbone, make_head = split(vit(), "blocks.2.mlp")
    ens = Ensemble(make_head, members=3, seed=0)
    assert ens.stack is not None
    assert engine_of(ens.stack) is not None  # its gradients are written out
    outputs = ens(backbone(X))
    assert outputs.shape == (3, 4, 5)
    assert len({round(float(o.detach().sum()), 4) for o in outputs}) == 3
    looped = Ensemble(make_head, members=3, seed=0, execution="looped")
    torch.testing.assert_close(looped(backbone(X)), outputs)
    kept = make_head().get_parameter("layers.blocks.2.ls2.gamma")
    assert torch.equal(kept, vit().blocks[2].ls2.gamma)  # a scale has no law to be drawn from


def test_a_chain_stays_a_sequential_and_convolutions_can_be_cut() -> None:
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    network = resnet20((3, 16, 16), 4).eval()
    for name in ("out", "blocks.8", "blocks.8.conv2", "blocks.7.norm1"):
        backbone, make_head = split(network, name, weights="given", example=x)
        torch.testing.assert_close(make_head().eval()(backbone(x)), network(x))
    plain = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    assert isinstance(split(plain, "1")[1](), nn.Sequential)
    assert isinstance(split(plain, "1.1")[1](), nn.Sequential)


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        found: Tensor = self.b(x) if x.sum() > 0 else x
        return found


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(self.a(x))
        found: Tensor = self.b(y) * x + y
        return found


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize(
    ("network", "name", "message"),
    [
        (ViT(), "blocks.2.mpl", r"no module 'blocks.2.mpl'; did you mean 'blocks.2.mlp'"),
        (Looks(), "b", "tracing its forward failed"),
        (Twice(), "a", "must be called once by the network, got 2 calls"),
        (Twice(), "b", "several tensors cross 'b'"),
        (nn.Sequential(nn.ReLU(), Drawn()), "1", r"0\.weight cannot be drawn again"),
    ],
)
def test_what_cannot_be_split_is_said(network: nn.Module, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(network, name)

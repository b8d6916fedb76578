"""Dense networks: a linear model, a perceptron, and the heads that ldr trains on features."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dissensus.models.layers import ScaledLinear
from dissensus.tools.specs import check_integer, check_number


def linear(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """One linear layer on the flattened input: logistic or linear regression.

    >>> linear((8,), 3)
    Sequential(
      (0): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    return mlp(input_shape, outputs, hidden=())


def mlp(
    input_shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] | int = (128, 128),
    dropout: float = 0.0,
) -> nn.Module:
    """A perceptron with ReLU hidden layers of the sizes ``hidden``, on the flattened input.

    Collusion's tables use 1 to 3 layers of 10 to 30 neurons without dropout (Appendix B).
    ``dropout`` is applied after every hidden activation.

    >>> [tuple(p.shape) for p in mlp((16,), 1, hidden=(30, 20)).parameters()]
    [(30, 16), (30,), (20, 30), (20,), (1, 20), (1,)]
    """
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"input_shape must hold positive sizes, got {shape}")
    check_integer("outputs", outputs)
    check_number("dropout", dropout, 0, below=1)
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    size = math.prod(shape)
    for width in widths:
        check_integer("hidden", width)
        layers += [nn.Linear(size, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs))


def table_mlp(
    input_shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] | int = (128, 128),
    rate: float = 20.0,
    dropout: float = 0.0,
) -> nn.Module:
    """A perceptron for tables: as :func:`mlp`, with a trained gain for each input.

    For columns as :class:`dissensus.data.Encoder` writes them: numbers as piecewise-linear
    features, categories one-hot. The first layer is then an embedding of each number and of each
    category, learnt by each member. Gains learn ``rate`` times as fast as weights; see
    :class:`~dissensus.models.layers.ScaledLinear`.

    >>> [tuple(p.shape) for p in table_mlp((16,), 1, hidden=30).parameters()]
    [(30, 16), (30,), (16,), (1, 30), (1,)]
    """
    check_number("rate", rate, above=0)
    first, *rest = mlp(input_shape, outputs, hidden=hidden, dropout=dropout).children()
    if isinstance(first, nn.Flatten):
        raise ValueError(f"table_mlp takes rows of a table, got input_shape {tuple(input_shape)}")
    assert isinstance(first, nn.Linear)
    return nn.Sequential(ScaledLinear(first.in_features, first.out_features, rate), *rest)


class LDRHead(nn.Module):
    """``out(norm₂(h))`` with ``h = x + γ ⊙ MLP(norm₁(x))``; see :func:`ldr_head`."""

    def __init__(
        self, features: int, outputs: int, *, expansion: int, layer_scale: float, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(features, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(features, expansion * features),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(expansion * features, features),
        )
        self.scale = nn.Parameter(torch.full((features,), layer_scale))
        self.norm2 = nn.LayerNorm(features, eps=1e-6)
        self.out = nn.Linear(features, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, features]`` to ``[batch, outputs]``."""
        logits: Tensor = self.out(self.norm2(x + self.scale * self.mlp(self.norm1(x))))
        return logits


def ldr_head(
    input_shape: Sequence[int],
    outputs: int,
    *,
    expansion: int = 4,
    layer_scale: float = 1e-6,
    dropout: float = 0.0,
) -> nn.Module:
    """The last two layers of DeiT-III that ldr trains for each member (Appendix A.5.1).

    Layer norm, MLP d → 4d → d with GELU, residual and layer scale, final norm, linear; all of it
    randomly initialised. ``layer_scale`` is where the scale γ starts: 1e-6 in DeiT-III, so that
    training begins from the linear head and an adaptive optimizer opens the MLP. Under plain SGD
    that takes long; start it at 0.1 there.

    >>> head = ldr_head((768,), 1000)
    >>> [tuple(layer.weight.shape) for layer in (head.mlp[0], head.mlp[3], head.out)]
    [(3072, 768), (768, 3072), (1000, 768)]
    """
    features = _features(input_shape, "ldr_head")
    check_integer("outputs", outputs)
    check_integer("expansion", expansion)
    check_number("dropout", dropout, 0, below=1)
    return LDRHead(features, outputs, expansion=expansion, layer_scale=layer_scale, dropout=dropout)


def ldr_linear_head(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """The one-layer variant (ldr, Appendix A.6): the final norm and the linear layer alone.

    The paper finds it weaker: with cross-entropy its problem is convex, and members end alike.

    >>> list(dict(ldr_linear_head((8,), 3).named_children()))
    ['norm', 'out']
    """
    features = _features(input_shape, "ldr_linear_head")
    check_integer("outputs", outputs)
    out = nn.Linear(features, outputs)
    nn.init.trunc_normal_(out.weight, std=0.02)
    nn.init.zeros_(out.bias)
    return nn.Sequential(OrderedDict(norm=nn.LayerNorm(features, eps=1e-6), out=out))


def _features(input_shape: Sequence[int], model: str) -> int:
    shape = tuple(input_shape)
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"{model} takes feature vectors, got {shape}; run a backbone first")
    return int(shape[0])

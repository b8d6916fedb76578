"""Convolutional networks without residual connections: collusion's CNN and VGG, and a small one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dissensus.models.layers import check_image_shape, conv_size
from dissensus.tools.specs import check_integer, check_number


def cnn(
    input_shape: Sequence[int],
    outputs: int,
    *,
    padding: int = 0,
    dropout: float = 0.1,
) -> nn.Module:
    """The vanilla CNN of collusion (Table 3): two 5 × 5 convolutions of stride 2, two linear ones.

    Differs from the paper: Table 3 states a padding of 1 *and* a flattened size of 500, but on
    32 × 32 images padding 1 gives 20 · 7 · 7 = 980, and 500 = 20 · 5 · 5 needs padding 0. The
    linear layer must have fitted for the paper's code to run, so the default is ``padding=0``;
    ``padding=1`` is the other reading. The flattened size is computed from ``input_shape``.
    "Dropout throughout" is taken as dropout after every hidden activation.

    >>> cnn((3, 32, 32), 10)[7], cnn((3, 32, 32), 10, padding=1)[7]
    (Linear(in_features=500, out_features=50, bias=True),
     Linear(in_features=980, out_features=50, bias=True))
    """
    check_integer("outputs", outputs)
    check_integer("padding", padding, 0)
    check_number("dropout", dropout, 0, below=1)
    # Two 5 × 5 kernels at stride 2 need 13 pixels, less what the padding adds.
    smallest = next(n for n in range(1, 14) if _after_two(n, padding) >= 1)
    check_image_shape(input_shape, "cnn", smallest)
    channels, height, width = input_shape
    flat = 20 * _after_two(height, padding) * _after_two(width, padding)
    return nn.Sequential(
        nn.Conv2d(channels, 10, 5, stride=2, padding=padding),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(10, 20, 5, stride=2, padding=padding),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(flat, 50),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(50, outputs),
    )


def _after_two(size: int, padding: int) -> int:
    return conv_size(conv_size(size, 5, 2, padding), 5, 2, padding)


def small_cnn(
    input_shape: Sequence[int],
    outputs: int,
    *,
    width: int = 16,
    hidden: int = 64,
    dropout: float = 0.0,
) -> nn.Module:
    """A network for 8 × 8 digits and 28 × 28 images that a CPU trains in seconds to minutes.

    Two 3 × 3 convolutions of ``width`` and ``2·width`` channels, each followed by ReLU and a
    2 × 2 max-pool, then a hidden linear layer. It is not from one of the papers.

    >>> small_cnn((1, 8, 8), 10)[7]
    Linear(in_features=128, out_features=64, bias=True)
    """
    check_image_shape(input_shape, "small_cnn", 4)
    check_integer("outputs", outputs)
    check_integer("width", width)
    check_integer("hidden", hidden)
    check_number("dropout", dropout, 0, below=1)
    channels, rows, columns = input_shape
    tail: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (rows // 4) * (columns // 4), hidden),
        nn.ReLU(),
        *tail,
        nn.Linear(hidden, outputs),
    )


# Table 4: groups of convolutions as (channels in units of 64, dropout rate); a max-pool ends each.
_GROUPS: tuple[tuple[tuple[int, float], ...], ...] = (
    ((1, 0.3), (1, 0.0)),
    ((2, 0.4), (2, 0.0)),
    ((4, 0.4), (4, 0.4), (4, 0.0)),
    ((8, 0.4), (8, 0.4), (8, 0.0)),
    ((8, 0.4), (8, 0.4), (8, 0.0)),
)


def vgg(
    input_shape: Sequence[int],
    outputs: int,
    *,
    width: int = 64,
    dropout: bool = True,
) -> nn.Module:
    """The VGG of collusion (Table 4): 13 convolutions with batch norm, five max-pools, two linear.

    Differs from the paper: Table 4 gives the max-pools a padding of 2, which a kernel of 2 does
    not allow; here they have kernel 2, stride 2 and no padding, so that 32 × 32 images end as
    1 × 1 and the flattened size is the table's 512. For larger images it is computed.

    ``width`` is the number of channels of the first group (64 in the paper); ``dropout=False``
    leaves out all of the table's dropout layers. In training a batch needs two examples or more,
    because the hidden linear layer has batch norm.

    >>> model = vgg((3, 32, 32), 10)
    >>> sum(p.numel() for p in model.parameters())
    14991946
    """
    check_image_shape(input_shape, "vgg", 32)
    check_integer("outputs", outputs)
    check_integer("width", width)
    channels, height, columns = input_shape
    layers: list[nn.Module] = []
    for group in _GROUPS:
        for factor, rate in group:
            layers += [
                nn.Conv2d(channels, factor * width, 3, padding=1),
                nn.BatchNorm2d(factor * width),
                nn.ReLU(),
            ]
            if dropout and rate:
                layers.append(nn.Dropout(rate))
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    flat = channels * (height // 32) * (columns // 32)
    half: list[nn.Module] = [nn.Dropout(0.5)] if dropout else []
    hidden = [nn.Linear(flat, 8 * width), nn.BatchNorm1d(8 * width), nn.ReLU()]
    again: list[nn.Module] = [nn.Dropout(0.5)] if dropout else []
    return nn.Sequential(
        *layers, nn.Flatten(), *half, *hidden, *again, nn.Linear(8 * width, outputs)
    )

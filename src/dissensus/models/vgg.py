"""The VGG-style network of collusion's SVHN experiment."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dissensus.models.layers import check_count, check_image_shape

__all__ = ["vgg"]

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
    check_count("outputs", outputs)
    check_count("width", width)
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

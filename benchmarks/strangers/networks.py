"""Networks of the comparison that the library does not have."""

from collections.abc import Sequence

from torch import nn

from dissensus.models.resnet import ResNet


def small_resnet(input_shape: Sequence[int], outputs: int, width: int = 24) -> nn.Module:
    """A ResNet of three blocks behind a convolution of stride 2: small enough for one core.

    >>> sum(p.numel() for p in small_resnet((3, 32, 32), 8).parameters())
    179312
    """
    channels, height, breadth = input_shape
    halved = (width, (height + 1) // 2, (breadth + 1) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        ResNet(halved, outputs, stages=(1, 1, 1), width=width, norm="batch", shortcut="projection"),
    )

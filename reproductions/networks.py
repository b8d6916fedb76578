"""Networks: small relatives of the papers', for two cores; a cell names them by import path.

The collusion paper's ResNet-18 and VGG cost two cores an hour for each epoch of five members. The
networks here keep what matters to learner collusion (batch norm, residual blocks, more capacity
than the training subset needs) and save resolution and width.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from torch import nn

from dissensus.models import ResNet


def small_resnet(
    input_shape: Sequence[int],
    outputs: int,
    *,
    width: int = 16,
    stages: Sequence[int] = (1, 1),
    stem: int = 4,
) -> nn.Module:
    """A ResNet of few, narrow blocks after a 5 × 5 convolution of stride ``stem``.

    >>> sum(p.numel() for p in small_resnet((3, 32, 32), 10).parameters())
    20762
    """
    network = ResNet(
        input_shape, outputs, stages=stages, width=width, norm="batch", shortcut="projection"
    )
    if stem > 1:
        network.stem = nn.Conv2d(input_shape[0], width, 5, stride=stem, padding=2, bias=False)
        nn.init.kaiming_normal_(network.stem.weight, mode="fan_out", nonlinearity="relu")
    return network


def small_vgg(
    input_shape: Sequence[int],
    outputs: int,
    *,
    width: int = 8,
    groups: int = 2,
    dropout: float = 0.1,
) -> nn.Module:
    """The plan of Table 4 with ``groups`` groups of two convolutions instead of five groups.

    Each convolution has batch norm and ReLU, a max-pool ends each group and the width doubles;
    then a hidden linear layer with batch norm. Table 4's dropout of 0.3 to 0.5 suits networks a
    thousand times as large; here it is ``dropout``, at the same places.

    >>> small_vgg((1, 14, 14), 10)(__import__("torch").zeros(2, 1, 14, 14)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    channels, height, columns = input_shape
    for group in range(groups):
        for position in range(2):
            layers += [
                nn.Conv2d(channels, width << group, 3, padding=1),
                nn.BatchNorm2d(width << group),
                nn.ReLU(),
            ]
            if position == 0:
                layers.append(nn.Dropout(dropout))
            channels = width << group
        layers.append(nn.MaxPool2d(2))
        height, columns = height // 2, columns // 2
    hidden = 4 * width
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(channels * height * columns, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, outputs),
    )


def strided_cnn(
    input_shape: Sequence[int], outputs: int, *, width: int = 8, hidden: int = 64
) -> nn.Module:
    """Two 3 × 3 convolutions of stride 2, a hidden linear layer, ReLU; no normalisation.

    For the adp paper: its ResNet-20 takes a core about 4 ms for each image, member and step of an
    attack, this network a fiftieth of that, so that all attacks fit into minutes.

    >>> sum(p.numel() for p in strided_cnn((1, 28, 28), 10).parameters())
    52138
    """
    channels, height, columns = input_shape
    flat = 2 * width * -(-height // 4) * -(-columns // 4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def library_model(
    input_shape: Sequence[int], outputs: int, *, package: str, name: str
) -> nn.Module:
    """A network of torchvision or timm without trained weights, as in Table 1.

    Neither is needed for anything else, so neither is installed with Dissensus.
    """
    makers = {"torchvision": ("torchvision.models", "get_model"), "timm": ("timm", "create_model")}
    if package not in makers:
        raise ValueError(f"package must be one of {', '.join(makers)}, got {package!r}")
    module, maker = makers[package]
    try:
        make = getattr(importlib.import_module(module), maker)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} needs {package}: pip install {package}") from error
    network = make(name, num_classes=outputs)
    assert isinstance(network, nn.Module)
    return network

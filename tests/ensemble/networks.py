"""Networks that between them take every way an ensemble runs, each with inputs for it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dissensus.models import make_factory


class Wrapped(nn.Module):
    """A network with an operation that the engine does not know: stacked, it runs under vmap."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x) / 1.0
        return outputs


class Odd(nn.Module):
    """A scalar, a frozen and a never used parameter, and buffers of all kinds."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.randn(()))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.idle = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("shift", torch.arange(3.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        return self.linear(x) * self.scale + torch.where(self.flags, self.frozen, self.shift)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def layer_norm_mlp() -> nn.Module:
    last = nn.LayerNorm(6, bias=False)
    layers = nn.Sequential(
        nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), last, nn.Linear(6, 3, bias=False)
    )
    for parameter in layers.parameters():  # norms start alike in every member
        nn.init.normal_(parameter)
    return layers


def batch_norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def batch_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5, momentum=0.3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 2 * 2, 3),
    )


def over_a_sequence() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5),
        nn.Sequential(nn.Tanh(), nn.LayerNorm((7, 5)), nn.Linear(5, 5)),
        nn.Linear(5, 2, bias=False),
        nn.Flatten(),
        nn.Linear(14, 3),
    )


def repeated_layers() -> nn.Module:
    activation, layer = nn.Tanh(), nn.Linear(4, 4)
    return nn.Sequential(layer, activation, layer, activation, nn.Linear(4, 3), activation)


def repeated_activation() -> nn.Module:
    activation = nn.Sigmoid()
    return nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3), activation)


def tied_weights() -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    layers[2].weight = layers[0].weight
    return layers


def hooked() -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    layers[0].register_forward_hook(lambda module, inputs, outputs: outputs * 2)
    return layers


class Network(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def inputs(self, batch: int = 5) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(batch, *self.shape, dtype=torch.float64, generator=generator)


NETWORKS: dict[str, Network] = {
    "mlp": Network(mlp, (4,)),
    "layer_norm_mlp": Network(layer_norm_mlp, (4,)),
    "batch_norm_mlp": Network(batch_norm_mlp, (4,)),
    "batch_norm_cnn": Network(batch_norm_cnn, (2, 8, 8)),
    "resnet20": Network(make_factory("resnet20", (3, 8, 8), 3, width=4), (3, 8, 8)),
    "over_a_sequence": Network(over_a_sequence, (7, 4)),
    "repeated_layers": Network(repeated_layers, (4,)),
    "repeated_activation": Network(repeated_activation, (4,)),
    "tied_weights": Network(tied_weights, (4,)),
    "hooked": Network(hooked, (4,)),
    "odd": Network(Odd, (4,)),
}

"""Members written down number by number, members that hide their gradients, other libraries."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.robustness.base import Victim


def linear(weight: list[list[float]], bias: list[float]) -> ds.Ensemble:
    """One member: logits W x + b."""
    return ds.Ensemble.from_members([_linear(weight, bias)]).eval()


def _linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    with torch.random.fork_rng():
        net = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        net.weight.copy_(torch.tensor(weight))
        net.bias.copy_(torch.tensor(bias))
    return net


class Times(nn.Module):
    """Logits that are ``factor`` times as large: the same predictions, saturated losses."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Steps(nn.Module):
    """Inputs rounded to ``levels``: a gradient of 0 everywhere."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.levels).round() / self.levels


class Ripple(nn.Module):
    """Inputs with a fine wave upon them: at multiples of 1/16 its slope is right, between them not.

    Digits are such multiples. So the gradient at an example itself can be trusted and those after
    the first step cannot.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.02 * torch.sin(32 * math.pi * x)


class NoSlope(nn.Module):
    """The identity, with a gradient that is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x - x).sqrt()


def scaled(ens: ds.Ensemble, factor: float) -> ds.Ensemble:
    members = [nn.Sequential(ens.member(j), Times(factor)) for j in range(ens.members)]
    return ds.Ensemble.from_members(members).eval()


def behind(ens: ds.Ensemble, first: nn.Module) -> ds.Ensemble:
    """The same ensemble with ``first`` before each member."""
    members = [nn.Sequential(first, ens.member(j)) for j in range(ens.members)]
    return ds.Ensemble.from_members(members).eval()


def quantised(ens: ds.Ensemble, levels: int) -> ds.Ensemble:
    return behind(ens, Steps(levels))


# ---- other libraries ----------------------------------------------------------------------------


class Single(nn.Module):
    """The ensemble as one network with the log of its mean probability as logits."""

    def __init__(self, ens: ds.Ensemble) -> None:
        super().__init__()
        self.ens = ens

    def forward(self, x: Tensor) -> Tensor:
        return Victim(self.ens).log_probs(x)


@contextmanager
def art_model(ens: ds.Ensemble) -> Iterator[Any]:
    """ART's classifier of 8 × 8 images; the random states that ART sets are as before."""
    from art.estimators.classification import PyTorchClassifier

    states = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    net, loss = Single(ens).eval(), nn.CrossEntropyLoss()
    yield PyTorchClassifier(net, loss, (1, 8, 8), 10, clip_values=(0, 1), device_type="cpu")
    np.random.set_state(states[0])  # noqa: NPY002
    torch.set_rng_state(states[1])
    ungrade(ens)


def ungrade(ens: ds.Ensemble) -> None:
    """Take away the gradients that other libraries leave behind."""
    for parameter in ens.parameters():
        parameter.grad = None
    ens.eval()

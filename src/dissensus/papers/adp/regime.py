"""Regime of the adp authors' code: the network, the decay and the run folder of long trainings.

What the text of the paper leaves open is as in the authors' code: the mean image is subtracted and
nothing is divided (unless a cell names another of :data:`SCALINGS`), shortcuts that change the size
are 1 × 1 projections, and only the kernels of convolutions decay. Keras' penalty ``1e-4 Σ w²`` has
the gradient ``2e-4 w``, torch's weight decay ``λ`` has ``λ w``: hence ``kernel_decay`` is 2e-4.

The authors add members' losses up. ``fit`` steps each member on its own loss, so that ``λ`` means
the same for objectives that are sums and for those that are means. Minimised as it stands, a mean
takes the steps of the sum under Adam if its ``λ`` is divided by the members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.data.dataset import cache_folder
from dissensus.models import InputNormalize, make_factory
from dissensus.papers.base import Cell
from dissensus.papers.cells import SEEDS_OPTION, ImageData, count_option
from dissensus.training import Optimizer, parse_schedule

__all__ = [
    "OPTIONS",
    "SCALINGS",
    "SubtractMean",
    "decay_kernels",
    "epochs_of",
    "make_member",
    "optimizer_of",
    "work_folder",
]

#: The options of studies of long trainings.
OPTIONS = {
    **SEEDS_OPTION,
    "epochs": "epochs of training; the schedule is stretched in proportion",
}


class SubtractMean(nn.Module):
    """``x − mean`` with a mean for each pixel and channel, as the first layer of a member.

    >>> SubtractMean(torch.full((1, 2, 2), 0.25))(torch.ones(1, 1, 2, 2)).flatten().tolist()
    [0.75, 0.75, 0.75, 0.75]
    """

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` ``[batch, channels, height, width]`` without the mean image."""
        return x - self.mean


#: Scalings of the input: the first layer of a member, from the training data; pixels are in [0, 1].
SCALINGS: dict[str, Callable[[ImageData], nn.Module]] = {
    "raw": lambda data: nn.Identity(),
    "mean": lambda data: SubtractMean(data.train[0].mean(0)),  # the authors' own
    "standardised": lambda data: InputNormalize(*data.normalize),  # by channel
}


def make_member(cell: Cell, data: ImageData) -> Callable[[], nn.Module]:
    """A function that makes the cell's network behind the scaling of its input."""
    make = make_factory(cell["model"], data.input_shape, data.outputs, **cell["model_options"])
    scaling = SCALINGS[cell.get("scaling", "mean")]
    return lambda: nn.Sequential(scaling(data), make())


def decay_kernels(
    parameters: list[Tensor], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Adam whose weight decay is for the kernels of convolutions alone, ``[out, in, h, w]``."""
    kernels = [parameter for parameter in parameters if parameter.ndim == 4]
    rest = [parameter for parameter in parameters if parameter.ndim != 4]
    groups: list[dict[str, Any]] = [
        {"params": kernels, "weight_decay": weight_decay},
        {"params": rest},
    ]
    return torch.optim.Adam(groups, lr=lr, fused=True)


def optimizer_of(cell: Cell) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    """The cell's Adam with its ``kernel_decay``."""
    lr = Optimizer.parse(cell["optimizer"]).lr
    assert isinstance(lr, float)
    return partial(decay_kernels, lr=lr, weight_decay=cell["kernel_decay"])


def epochs_of(settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The epochs of ``--set epochs=``, and the schedule with its decays in proportion.

    >>> settings = {"epochs": 180, "schedule": "multistep:at=120/160,factor=0.1"}
    >>> epochs_of(settings, {"epochs": 18})
    {'epochs': 18, 'schedule': 'multistep:at=12/16,factor=0.1'}
    """
    epochs, schedule = count_option(options, "epochs", settings["epochs"]), settings["schedule"]
    plan = parse_schedule(schedule)
    if plan.at and epochs != settings["epochs"]:
        at = tuple(moment * epochs / settings["epochs"] for moment in plan.at)
        schedule = replace(plan, at=at).spec()
    return {"epochs": epochs, "schedule": schedule}


def work_folder(cell: Cell) -> Path:
    """Where the training of ``cell`` goes on after an interruption: in the user's cache."""
    kind = f"{cell['data']}-{cell['epochs']}-epochs"
    kind += "" if cell["members"] == 3 else f"-{cell['members']}-members"
    return cache_folder() / "reproduce" / "adp" / kind / str(cell["name"])

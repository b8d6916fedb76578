"""Regime of the adp authors' code: ResNet-20 on all of CIFAR-10, in trainings that can be resumed.

Studies of two papers train in it, so that their ensembles can stand side by side. What the text of
adp leaves open is as in the authors' code: the mean image is subtracted and nothing is divided
(unless a cell names another of :data:`SCALINGS`), shortcuts that change the size are 1 × 1
projections, and only the kernels of convolutions decay. Keras' penalty ``1e-4 Σ w²`` has the
gradient ``2e-4 w``, torch's weight decay ``λ`` has ``λ w``: hence ``kernel_decay`` is 2e-4. Their
code has no validation data and keeps the epoch that is best on the test data; here the last is
kept.

The authors add members' losses up. ``fit`` steps each member on its own loss, so that ``λ`` means
the same for objectives that are sums and for those that are means. Minimised as it stands, a mean
takes the steps of the sum under Adam if its ``λ`` is divided by the members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.data.dataset import cache_folder
from dissensus.ensemble import Ensemble
from dissensus.models import InputNormalize, make_factory
from dissensus.tools.files import read_json, read_safetensors, write_safetensors, write_text
from dissensus.training import Optimizer, Recipe, parse_schedule
from reproductions import cells
from reproductions.cells import SEEDS_OPTION, ImageData, count_option
from reproductions.study import Cell

#: The options of studies of long trainings.
OPTIONS = {
    **SEEDS_OPTION,
    "epochs": "epochs of training; the schedule is stretched in proportion",
}

#: The training of the authors' code.
AUTHORS: Mapping[str, Any] = {
    "data": "cifar10",
    "train": None,
    "val": 5000,
    "test": None,
    "size": None,
    "model": "resnet20",
    "model_options": {"shortcut": "projection"},
    "members": 3,
    "execution": "auto",
    "optimizer": "adam:lr=1e-3",
    "schedule": "multistep:at=120/160,factor=0.1",
    "epochs": 180,
    "batch_size": 64,
    "augment": "adp",
    "kernel_decay": 2e-4,
    "seed": 0,
}

_COSINE = "cosine:warmup=1"

#: The training of each scale, with a checkpoint ``every`` few epochs that is measured too. A few
#: epochs reach the accuracy that the questions need if the rate falls along a cosine.
RESNET20: Mapping[str, Mapping[str, Any]] = {
    "smoke": {
        **AUTHORS,
        "data": "digits",
        "train": 200,
        "val": 50,
        "test": 100,
        "model_options": {"shortcut": "projection", "width": 4},
        "epochs": 2,
        "schedule": _COSINE,
        "every": 1,
    },
    "cpu": {
        **AUTHORS,
        "optimizer": "adam:lr=2e-3",
        "epochs": 14,
        "schedule": _COSINE,
        "every": 2,
    },
    "paper": {**AUTHORS, "every": 20},
}

#: The cell of ``adp/resnet20`` that is trained independently: any study may go on from it.
BASELINE = "plain-seed={seed}"


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


# ---- members and their optimiser ----------------------------------------------------------------


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
    "mean": lambda data: SubtractMean(data.train[0].mean(0)),  # the authors' own
    "raw": lambda data: nn.Identity(),
    "standardised": lambda data: InputNormalize(*data.normalize),  # by channel
}


def make_member(cell: Cell, data: ImageData) -> Callable[[], nn.Module]:
    """A function that makes the cell's network behind the scaling of its input."""
    make = make_factory(cell["model"], data.input_shape, data.outputs, **cell["model_options"])
    scaling = SCALINGS[cell.get("scaling", "mean")]
    return lambda: nn.Sequential(scaling(data), make())


def new_ensemble(cell: Cell, data: ImageData, **options: Any) -> Ensemble:
    """An untrained ensemble of such members, on the GPU where there is one."""
    settings = {key: cell[key] for key in ("members", "seed", "execution")}
    ens = Ensemble(make_member(cell, data), **{**settings, **options})
    return ens.to("cuda") if torch.cuda.is_available() else ens


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


def recipe(cell: Cell) -> Recipe:
    """The cell's schedule of training; the last epoch is kept."""
    return cells.recipe(cell, optimizer=optimizer_of(cell), select_by="last")


# ---- folders and checkpoints --------------------------------------------------------------------


def work_folder(cell: Cell, paper: str, name: str | None = None) -> Path:
    """Where the training of ``cell`` goes on after an interruption: in the user's cache.

    ``name`` is that of another cell with the same training, whose folder it shares.
    """
    kind = f"{cell['data']}-{cell['epochs']}-epochs"
    kind += "" if cell["members"] == 3 else f"-{cell['members']}-members"
    return cache_folder() / "reproduce" / paper / kind / str(name or cell["name"])


def checkpoint_path(folder: Path, epoch: int) -> Path:
    """The weights that :func:`keep_checkpoints` keeps of an epoch."""
    return folder / "along" / f"epoch-{epoch:03d}.safetensors"


def keep_checkpoints(folder: Path, every: int) -> Callable[[dict[str, Any], Ensemble], None]:
    """A callback of ``fit`` that keeps the weights of every so many epochs."""

    def keep(record: dict[str, Any], ens: Ensemble) -> None:
        if record["epoch"] % every == 0:
            path = checkpoint_path(folder, record["epoch"])
            write_safetensors(path, ens.state_dict(), {})

    return keep


def load_checkpoint(ens: Ensemble, path: Path) -> None:
    """Put weights that were kept into ``ens``."""
    ens.load_state_dict(read_safetensors(path)[0])


def cached(path: Path, cell: Cell, make: Callable[[], Any]) -> Any:
    """What ``make`` measures of ``cell``, as plain values; from ``path`` if that was done before.

    What was measured with other settings is measured again.
    """
    settings = json.loads(json.dumps(cell))
    kept = read_json(path) if path.exists() else {}
    if kept.get("cell") != settings:
        write_text(path, json.dumps({"cell": settings, "value": make()}, allow_nan=False))
        kept = read_json(path)
    return kept["value"]

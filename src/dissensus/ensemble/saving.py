"""Saving of an ensemble: a folder with its weights and how to build it, for ``dissensus.load``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dissensus.tools.files import write_safetensors, write_text
from dissensus.tools.records import CONFIG, HUB_CONFIG, HUB_FORMAT, HUB_WEIGHTS

if TYPE_CHECKING:
    from dissensus.ensemble.module import Ensemble


def save(ens: Ensemble, folder: str | Path) -> None:
    """Write ``ens`` into ``folder``: ``model.safetensors`` and ``config.json``."""
    path = Path(folder)
    if path.is_file() or (path / CONFIG).exists():
        what = "a file" if path.is_file() else "the folder of a run"
        raise ValueError(f"{path} is {what}; save the ensemble in a folder of its own")
    text = json.dumps(describe(ens), indent=1, allow_nan=False)
    write_safetensors(path / HUB_WEIGHTS, weights_of(ens), {"format": "pt"})
    write_text(path / HUB_CONFIG, text + "\n")


def describe(ens: Ensemble) -> dict[str, Any]:
    """The settings that rebuild ``ens``, as plain values: the start of a hub folder's config."""
    kinds = {t.dtype for t in ens.parameters() if t.is_floating_point()} or {torch.float32}
    if len(kinds) > 1:
        raise ValueError(f"members must be of one type, got {sorted(map(str, kinds))}")
    return {
        "format": HUB_FORMAT,
        "library_name": "dissensus",
        "task": "regression" if ens.combine == "mean" else "classification",
        "ensemble": {
            "members": ens.members,
            "combine": ens.combine,
            "execution": ens.execution,
            **({"sharing": ens.sharing} if ens.sharing else {}),
            "dtype": str(*kinds).removeprefix("torch."),
        },
        "model": None if ens.made_by is None else ens.made_by.describe(),
    }


def weights_of(ens: Ensemble) -> dict[str, Tensor]:
    """All weights and statistics, as files take them."""
    return {n: t.detach().cpu().contiguous().clone() for n, t in ens.state_dict().items()}

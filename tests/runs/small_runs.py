"""Small runs made in Python, for the tests of run folders and loading."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dissensus as ds


def make_member() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def toy(seed: int = 0, rows: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(-1)


def trained(out: Path, epochs: int = 3, **settings: Any) -> ds.Ensemble:
    ens = ds.Ensemble(make_member, members=3, seed=1)
    ds.fit(
        ens,
        toy(),
        val=toy(1),
        epochs=epochs,
        out=out,
        progress=False,
        **{"batch_size": 16, "optimizer": "adam:lr=0.5", **settings},
    )
    return ens

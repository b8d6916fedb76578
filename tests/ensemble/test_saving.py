"""An ensemble as a sequence of its members, and saved in a folder."""

from pathlib import Path

import pytest
import torch
from torch import nn

import dissensus as ds
from dissensus.models import make_factory

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def make_member() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_a_saved_ensemble_of_a_named_network_loads_without_more(tmp_path: Path) -> None:
    ens = ds.Ensemble(make_factory("mlp", (4,), 3, hidden=(5,)), members=2, combine="score")
    ens.set_weights(torch.tensor([0.25, 0.75]))
    for _ in range(2):  # the second replaces the first
        ens.save(tmp_path / "ens")
    loaded = ds.load(tmp_path / "ens")
    assert torch.equal(loaded.predict(X), ens.predict(X))
    loaded.save(tmp_path / "again")
    assert torch.equal(ds.load(tmp_path / "again")(X), ens(X))


def test_a_saved_ensemble_of_own_networks_loads_with_what_made_them(tmp_path: Path) -> None:
    ens = ds.Ensemble(make_member, members=3).double().eval()
    ens.save(tmp_path)
    assert torch.equal(ds.load(tmp_path, make_member=make_member)(X.double()), ens(X.double()))
    with pytest.raises(ValueError, match="does not say how its members are made; pass make_member"):
        ds.load(tmp_path)


def test_an_ensemble_is_not_saved_over_a_run(tmp_path: Path) -> None:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=2)
    ds.fit(ens, (X, torch.tensor([0, 1, 2] * 2)), epochs=1, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="the folder of a run; save the ensemble in a folder of"):
        ens.save(tmp_path)

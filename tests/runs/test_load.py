"""Runs loaded back: ensembles with their best weights."""

from pathlib import Path

import pytest
import torch
from torch import nn

import dissensus as ds
from dissensus.runs import DataSummary, describe
from dissensus.training.run_folder import read_checkpoint
from tests.runs.small_runs import make_member, toy, trained


def test_load_gives_the_best_epoch_in_evaluation_mode(tmp_path: Path) -> None:
    ens = trained(tmp_path, epochs=6)
    best = describe(tmp_path).best_epoch
    assert best < 6  # else the best weights would be the last ones
    loaded, x = ds.load(tmp_path, make_member=make_member), toy(2)[0]
    assert not loaded.training
    assert torch.equal(loaded(x), ens(x))
    found = read_checkpoint(tmp_path)
    assert found is not None
    last = ds.Ensemble(make_member, members=3)
    last.load_state_dict(
        {n.removeprefix("model."): t for n, t in found[0].items() if n.startswith("model.")}
    )
    assert not torch.equal(last.eval()(x), loaded(x))


def test_another_network_does_not_fit(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(ValueError, match=r"do not fit this ensemble of 3 members.*Missing key"):
        ds.load(tmp_path, make_member=lambda: nn.Linear(4, 3))


def test_unlike_members_are_loaded_into_their_like(tmp_path: Path) -> None:
    def build() -> ds.Ensemble:
        return ds.Ensemble.from_members([nn.Linear(4, 3), make_member()])

    ens, x = build(), toy(2)[0]
    ds.fit(ens, toy(), epochs=1, out=tmp_path, progress=False)
    assert torch.equal(ds.load(tmp_path, into=build())(x), ens(x))


def test_member_weights_come_back(tmp_path: Path) -> None:
    ens, x = ds.Ensemble(make_member, members=3), toy(2)[0]
    ens.set_weights(torch.tensor([0.5, 0.25, 0.25]))
    ds.fit(ens, toy(), epochs=1, out=tmp_path, progress=False)
    assert torch.equal(ds.load(tmp_path, make_member=make_member).predict(x), ens.predict(x))


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path, epochs=1)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no checkpoint yet.*--resume"):
        ds.load(tmp_path, make_member=make_member)


def test_code_named_by_a_stranger_is_not_run(tmp_path: Path) -> None:
    """A run folder may come from anywhere: loading it must not run what it names."""
    trained(tmp_path / "run", epochs=1)
    x, y = toy()
    data = ds.data.Data("toy", "classification", (x, y), (x[:0], y[:0]), (x[:0], y[:0]), ("a",) * 3)
    DataSummary.of(data).write(tmp_path / "run")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nmake = int")
    with (tmp_path / "run" / "config.toml").open("a") as file:
        file.write(f'\n[model]\nname = "{tmp_path}/evil.py:make"\n')
    with pytest.raises(ValueError, match=r"evil.py:make.*if you trust it"):
        ds.load(tmp_path / "run")
    assert not (tmp_path / "ran").exists()

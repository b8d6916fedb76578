"""Folders to hand on: back to the same bits, without code, and with a card that invents nothing."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

import dissensus as ds
from dissensus.export import RunResults, save_folder
from dissensus.models import make_factory

IMAGES = (1, 8, 8)


def outputs(ens: ds.Ensemble, x: Tensor) -> Tensor:
    with ens.evaluating():
        return ens(x)


def resnets() -> tuple[ds.Ensemble, Any]:
    make = make_factory("resnet20", IMAGES, 4, normalize=([0.3], [0.5]))
    ens = ds.Ensemble(make, members=2, seed=5)
    ens(torch.rand(9, *IMAGES))  # moves the running statistics
    return ens, make


def weighted_doubles() -> tuple[ds.Ensemble, Any]:
    make = make_factory("mlp", IMAGES, 4, hidden=(8, 6))
    how = {"combine": "score", "execution": "looped", "sharing": "adapters"}
    ens = ds.Ensemble(make, members=3, **how).double()  # type: ignore[arg-type]
    return ens.set_weights(torch.tensor([0.5, 0.3, 0.2])), make


def unlike() -> tuple[ds.Ensemble, Any]:
    makers = [make_factory("small_cnn", IMAGES, 4, width=2), make_factory("linear", IMAGES, 4)]
    return ds.Ensemble.from_members([make() for make in makers]), makers


@pytest.mark.parametrize("build", [resnets, weighted_doubles, unlike])
def test_back_to_the_same_bits(
    build: Callable[[], tuple[ds.Ensemble, Any]], tmp_path: Path
) -> None:
    ens, model = build()
    x = torch.rand(7, *IMAGES, dtype=next(ens.parameters()).dtype)
    save_folder(ens, tmp_path / "a", model)
    back = ds.load(tmp_path / "a")
    assert torch.equal(outputs(back, x), outputs(ens, x))
    assert torch.equal(back.predict(x), ens.predict(x))
    assert (back.combine, back.execution, back.training) == (ens.combine, ens.execution, False)
    assert back.sharing == ens.sharing
    with pytest.raises(ValueError, match="is not a run but a hub folder"):
        ds.runs.describe(tmp_path / "a")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]


NETWORK = """
from torch import nn
def make(input_shape, outputs, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, outputs))
"""


def test_own_code_travels_and_asks_for_trust(tmp_path: Path) -> None:
    source = tmp_path / "mine" / "network.py"
    source.parent.mkdir()
    source.write_text(NETWORK)
    make = make_factory(f"{source}:make", IMAGES, 4, width=5)
    ens = ds.Ensemble(make, members=2)
    save_folder(ens, tmp_path / "a", make)
    source.unlink()  # what is in the folder is enough
    assert str(tmp_path) not in (tmp_path / "a" / "config.json").read_text()
    with pytest.raises(ValueError, match=r"network\.py:make, code from outside.*trust=True"):
        ds.load(tmp_path / "a")
    x = torch.rand(3, *IMAGES)
    assert torch.equal(outputs(ds.load(tmp_path / "a", trust=True), x), outputs(ens, x))
    card = (tmp_path / "a" / "README.md").read_text()
    assert 'ds.load("path/to/this/folder", trust=True)' in card
    assert "`network.py:make` is code" in card


def test_a_network_without_a_name(tmp_path: Path) -> None:
    make = lambda: nn.Linear(4, 3)  # noqa: E731
    ens, x = ds.Ensemble(make, members=2), torch.rand(5, 4)
    save_folder(ens, tmp_path)
    with pytest.raises(ValueError, match="does not say how its members are made; pass make_member"):
        ds.load(tmp_path)
    assert torch.equal(outputs(ds.load(tmp_path, make_member=make), x), outputs(ens, x))
    into = ds.Ensemble(make, members=2, seed=9)
    assert torch.equal(outputs(ds.load(tmp_path, into=into), x), outputs(ens, x))


def test_a_detector_by_features_goes_with_the_folder(tmp_path: Path) -> None:
    make = make_factory("mlp", (4,), 3, hidden=(5,))
    ens, x = ds.Ensemble(make, members=2), torch.randn(60, 4)
    detector = ds.Detector(ens, "combined:distance=knn").fit(x, train=x + 1)
    files = save_folder(ens, tmp_path / "a", make, detector=detector)
    assert {"detector.json", "detector.safetensors"} < {file.name for file in files}
    again = ds.Detector.load(tmp_path / "a" / "detector.json", ds.load(tmp_path / "a"))
    torch.testing.assert_close(again.score(x), detector.score(x))


def test_what_cannot_be_written(tmp_path: Path) -> None:
    make = make_factory("mlp", (4,), 3, hidden=(5,))
    ens = ds.Ensemble(make, members=2)
    with pytest.raises(ValueError, match="weights in the ensemble do not fit"):
        save_folder(ens, tmp_path / "a", make_factory("mlp", (4,), 3, hidden=(6,)))
    with pytest.raises(ValueError, match="model must name every member, got 1 of 2"):
        save_folder(ens, tmp_path / "a", [make])
    with pytest.raises(ValueError, match="the detector has no threshold yet"):
        save_folder(ens, tmp_path / "a", make, detector=ds.Detector(ens))
    assert not (tmp_path / "a").exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; choose a new folder"):
        save_folder(ens, tmp_path, make)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"format": "other/1"},
            "is not of an ensemble: expected 'dissensus.model/1', got 'other/1'",
        ),
        ({"ensemble": {"members": 2}}, "ensemble: combine must be text, got nothing"),
        ({"training": [1]}, "training must be a mapping"),
        ({"model": {"name": "mlp"}}, "its model: input_shape must be a list, got nothing"),
        ({"model": {"name": "mpl", "input_shape": [4], "outputs": 3}}, "did you mean 'mlp"),
        ({"model": {"name": "os:system", "input_shape": [4], "outputs": 3}}, "trust=True"),
    ],
)
def test_a_config_that_is_wrong(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    make = make_factory("mlp", (4,), 3)
    save_folder(ds.Ensemble(make, members=2), tmp_path, make)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=sentence):
        ds.load(tmp_path)


def test_weights_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = make_factory("mlp", (4,), 3)
    save_folder(ds.Ensemble(make, members=2), tmp_path / "a", make)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        ds.load(tmp_path / "a")
    assert not Path("exploded").exists()


# ---- the card -----------------------------------------------------------------------------------


def test_a_card_of_nothing_says_so(tmp_path: Path) -> None:
    make = make_factory("linear", (4,), 1)
    ens = ds.Ensemble(make, members=2, combine="mean")
    save_folder(ens, tmp_path, make, name="plain", license="mit")
    _, front, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(front)
    assert (facts["library_name"], facts["license"]) == ("dissensus", "mit")
    assert "model-index" not in facts
    headings = [line for line in body.splitlines() if line.startswith("## ")]
    assert headings == ["## How to load it", "## Limits"]
    assert "no results were recorded" in body


def test_cells_cannot_break_a_table(tmp_path: Path) -> None:
    row = {"method": "a", "score": "pds", "set": "odd|name\n## x", "auroc": 0.5, "fpr95": 1.0}
    make = make_factory("linear", (4,), 3)
    results = RunResults(ood={"detection": [row]})
    save_folder(ds.Ensemble(make, members=2), tmp_path, make, results=results)
    assert "| odd\\|name ## x | pds | 0.500 | 1.000 |  |" in (tmp_path / "README.md").read_text()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dissensus.export.card.find_spec", lambda name: None)
    make = make_factory("linear", (4,), 3)
    with pytest.raises(ValueError, match=r"needs huggingface_hub.*dissensus\[hub\]"):
        save_folder(ds.Ensemble(make, members=2), tmp_path / "a", make)
    assert not (tmp_path / "a").exists()

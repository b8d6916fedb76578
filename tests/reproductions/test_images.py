"""Image cells: what a run returns, how data are divided, the paper's sizes on small data."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torch import nn

from dissensus.data import load
from dissensus.data.image_sets import IMAGE_SETS
from dissensus.objectives import Augmented, LearnerDropout
from dissensus.show import draw
from reproductions import cells as cells_module
from reproductions.cells import make_cell, rates_of_mean, seeds_of
from reproductions.collusion import dropout, gap, joint_training, sweeps
from reproductions.collusion.images import (
    SMOKE,
    _objective,
    run_image_cell,
)
from reproductions.comparisons import filter_records
from reproductions.experiment import Experiment
from reproductions.networks import library_model, small_resnet, small_vgg
from tests.reproductions.test_image_claims import EXPERIMENTS

RNG = np.random.default_rng(0)
STUDIES = (
    gap.GAP,
    sweeps.SWEEPS,
    joint_training.COMPARISON,
    sweeps.CNNS,
    sweeps.VGGS,
    dropout.DROPOUT,
)
TINY = {"train": 64, "val": 40, "test": 50, "epochs": 1, "members": 2}


# ---- smoke --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smoke_records() -> dict[str, list[dict[str, Any]]]:
    """Every study at smoke scale, smaller still, run once."""
    found = {}
    for study in STUDIES:
        made = []
        for cell in study.cells("smoke", {}):
            result = study.run({**cell, "train": 64, "test": 100, "epochs": 2})
            made.append({"name": cell["name"], "cell": cell, "result": result, "seconds": 0.1})
        found[study.name] = made
    return found


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_an_experiment_at_smoke_scale(
    experiment: Experiment, smoke_records: dict[str, list[dict[str, Any]]]
) -> None:
    records = smoke_records[experiment.study.name]
    first = filter_records(records, seed=0)
    for claim in experiment.claims:
        claim.check(records)
        assert claim.check(first).verdict == "not tested at this scale"  # one run has no interval
    assert experiment.draw is None or draw(experiment.draw(records)).axes
    if experiment.table is not None:
        assert experiment.table(records).by_row()


# ---- a cell -------------------------------------------------------------------------------------


def test_what_a_run_returns() -> None:
    cell = make_cell("a", SMOKE, **{**TINY, "epochs": 3}, beta=0.5)
    result = run_image_cell(cell)
    parts = {"train", "val", "test"}
    assert set(result) == {"best_epoch", "epochs", "parameters", "validation", *parts}
    for part in parts:
        found = result[part]
        assert found["diversity"] == pytest.approx(found["member_error"] - found["error"], abs=1e-5)
        assert len(found["member_accuracies"]) == 2
        assert found["accuracy"] <= found["top5"] <= 1
    curve = result["validation"]["error"]
    assert len(curve) == result["epochs"] == 3
    # The best epoch is chosen on validation data, and both ways to measure these agree.
    assert curve[result["best_epoch"] - 1] == min(curve)
    assert result["val"]["error"] == pytest.approx(min(curve), rel=1e-3)
    assert run_image_cell(cell) == result


def test_watched_epochs_without_validation() -> None:
    changes = {**TINY, "val": 0, "watch": 2, "epochs": 5}
    result = run_image_cell(make_cell("a", SMOKE, **changes))
    assert result["watched"]["epoch"] == [1, 2, 4, 5]
    assert result["best_epoch"] == 5
    assert "val" not in result
    assert result["watched"]["test_error"][-1] == pytest.approx(result["test"]["error"], rel=1e-3)
    assert result["watched"]["train_error"][-1] == pytest.approx(result["train"]["error"], rel=1e-3)


def test_data_depend_on_the_seed_alone_and_parts_do_not_overlap() -> None:
    cell = make_cell("a", SMOKE, **TINY)
    cells_module._in_memory.cache_clear()
    first = cells_module.load_images(cell)
    cells_module._in_memory.cache_clear()
    second = cells_module.load_images({**cell, "beta": 1.0, "members": 3})
    other = cells_module.load_images({**cell, "seed": 1})
    assert torch.equal(first.train[0], second.train[0])
    assert not torch.equal(first.train[0], other.train[0])
    rows = [len(part[0]) for part in (first.train, first.val, first.test)]
    assert rows == [64, 40, 50]
    images = torch.cat([part[0].flatten(1) for part in (first.train, first.val, first.test)])
    assert len(images.unique(dim=0)) == len(images)
    assert first.normalize[0] == pytest.approx([float(first.train[0].mean())], rel=1e-4)


def test_objectives_of_cells() -> None:
    cell = make_cell("a", SMOKE, beta=0.4, combine="score")
    assert _objective(cell) == Augmented(beta=0.4, combine="score")
    dropped = _objective({**cell, "drop": 0.2})
    assert dropped == LearnerDropout(drop=0.2, objective=Augmented(beta=0.4, combine="score"))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="the cell has no setting betta"):
        make_cell("a", SMOKE, betta=1.0)
    with pytest.raises(ValueError, match="seeds must be an integer of at least 1, got 0"):
        seeds_of({"seeds": 0}, 3)
    with pytest.raises(ValueError, match="there is no data set 'imagenot'"):
        run_image_cell(make_cell("a", SMOKE, data="imagenot"))


# ---- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_plans(study: Any, scale: str) -> None:
    """Names are unique, runs come in pairs over seeds, and ``seeds`` changes nothing else."""
    cells = study.cells(scale, {})
    assert len({cell["name"] for cell in cells}) == len(cells)
    by = {}
    for cell in cells:
        by.setdefault(cell["seed"], []).append(cell["beta"])
    assert len(by) >= 2
    assert all(betas == by[0] for betas in by.values())
    fewer = study.cells(scale, {"seeds": 1})
    assert fewer == [cell for cell in cells if cell["seed"] == 0]


def test_any_architecture_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "def make(input_shape, outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] ** 2, outputs))\n"
    )
    options = {"model": f"{file}:make", "members": 2, "epochs": 1, "seeds": 1}
    cells = joint_training.cells("smoke", options)
    assert [cell["beta"] for cell in cells] == [0.0, 1.0]
    assert run_image_cell(cells[0])["parameters"] == 64 * 10 + 10


# ---- networks -----------------------------------------------------------------------------------


def test_small_networks() -> None:
    assert small_resnet((3, 32, 32), 7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert small_resnet((1, 8, 8), 7, stem=1)(torch.zeros(2, 1, 8, 8)).shape == (2, 7)
    assert small_vgg((3, 16, 16), 7, groups=3)(torch.zeros(2, 3, 16, 16)).shape == (2, 7)


def test_networks_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="package must be one of torchvision, timm, got 'keras'"):
        library_model((3, 8, 8), 10, package="keras", name="resnet18")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(ValueError, match="resnet18 needs torchvision: pip install torchvision"):
        library_model((3, 8, 8), 10, package="torchvision", name="resnet18")
    pretend_torchvision(monkeypatch)
    made = library_model((3, 8, 8), 10, package="torchvision", name="resnet18")
    assert made(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


def pretend_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchvision with one function, which the tests must not need installed."""

    def get_model(name: str, num_classes: int) -> nn.Module:
        layers = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes)]
        return nn.Sequential(*layers)

    models = types.ModuleType("torchvision.models")
    models.get_model = get_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


# ---- the paper's sizes, on small files in the official layouts ----------------------------------


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few random images of CIFAR-10, CIFAR-100 and SVHN, and nothing verified."""
    for which, label_bytes in ((IMAGE_SETS["cifar10"], 1), (IMAGE_SETS["cifar100"], 2)):
        folder = tmp_path / which.folders[0]
        folder.mkdir()
        for file in (*which.files["train"], *which.files["test"]):
            labels = RNG.integers(0, 10, (12, label_bytes))
            rows = np.concatenate([labels, RNG.integers(0, 256, (12, 3072))], 1)
            (folder / file.name).write_bytes(rows.astype(np.uint8).tobytes())
    (tmp_path / "svhn").mkdir()
    for part in ("train", "test"):
        x = RNG.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
        y = RNG.integers(1, 11, (12, 1), dtype=np.uint8)
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": x, "y": y})

    def unverified(name: str, **asked: Any) -> Any:
        return load(name, data_dir=tmp_path, verify=False, **asked)

    monkeypatch.setattr(cells_module, "load", unverified)
    cells_module._in_memory.cache_clear()
    return tmp_path


def distinct() -> list[dict[str, Any]]:
    """A cell for each network of the paper's scale, on each data set, and with dropped members."""
    found: dict[Any, dict[str, Any]] = {}
    for study in STUDIES:
        for cell in study.cells("paper", {"seeds": 1}):
            data = cell["data"] if cell["model"] != "resnet34" else "cifar10"  # it is slow
            if data != "imagenet":
                found.setdefault((cell["model"], data, cell["drop"] > 0), {**cell, "beta": 1.0})
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("cell", distinct(), ids=lambda cell: cell["name"])
def test_the_papers_networks_take_a_step(cell: dict[str, Any], official: Path) -> None:
    """The paper's network, augmentation and optimiser; two members, 4 images, one epoch."""
    small = {"members": 2, "epochs": 1, "batch_size": 16, "train": 4, "test": 2}
    val = 0 if cell["val"] == 0 else 2
    drop = 0.5 if cell["drop"] else 0.0
    result = run_image_cell({**cell, **small, "val": val, "drop": drop})
    assert result["epochs"] == 1
    assert np.isfinite(result["test"]["error"])
    wanted = {"resnet18": 11e6, "resnet34": 21e6, "vgg": 14e6, "cnn": 3e4}[cell["model"]]
    assert result["parameters"] == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize(
    ("given", "members", "wanted"),
    [
        ("sgd:lr=0.5,weight_decay=5e-4", 5, ("sgd", 0.1, 2.5e-3)),
        ("adam:lr=0.01,weight_decay=1e-3", 20, ("adam", 0.01, 0.02)),
        ("adamw:lr=0.01,weight_decay=1e-3", 20, ("adamw", 0.01, 1e-3)),
    ],
)
def test_authors_rates_are_for_the_mean_over_members(
    given: str, members: int, wanted: tuple[str, float, float]
) -> None:
    optimizer = rates_of_mean(given, members)
    assert optimizer.name == wanted[0]
    assert (optimizer.lr, optimizer.weight_decay) == pytest.approx(wanted[1:])


def test_imagenet_is_read_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for part, count in (("train", 8), ("val", 3)):
        for label in ("n01", "n02"):
            folder = tmp_path / "imagenet" / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                image = RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                pillow.fromarray(image).save(folder / f"{number}.png")
    monkeypatch.setenv("DISSENSUS_DATA", str(tmp_path))
    pretend_torchvision(monkeypatch)
    cell = joint_training.cells("paper", {"seeds": 1, "epochs": 1})[1]
    assert (cell["data"], cell["members"], cell["beta"]) == ("imagenet", 5, 1.0)
    small = {"size": 32, "val": 4, "batch_size": 4}
    result = run_image_cell({**cell, **small, "augment": {"crop": 4, "flip": 0.5}})
    assert set(result) >= {"val", "test", "validation"}
    assert "train" not in result  # its predictions would not fit into memory
    assert result["test"]["top5"] == 1.0  # there are two classes

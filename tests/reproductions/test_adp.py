"""Cells of the adp paper: what a run returns, how contenders are trained, the paper's sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.data import load
from dissensus.data.image_sets import IMAGE_SETS
from dissensus.ensemble import Ensemble
from dissensus.objectives import ADP, Independent
from dissensus.robustness import parse
from reproductions import cells as cells_module
from reproductions.adp import ensembles, hundred_classes, measurements, white_box
from reproductions.adp.ensembles import CONTENDERS, objective_of, smoothed_labels
from reproductions.adp.settings import PAPER, SMOKE, slow_attacks
from reproductions.cells import make_cell
from reproductions.networks import strided_cnn

RNG = np.random.default_rng(0)
STUDIES = (ensembles.ENSEMBLES, white_box.FIVE_STUDY, hundred_classes.STUDY)
TINY = {"train": 128, "test": 40, "epochs": 3, "images": 10, "slow_images": 2}


def tiny(cell: dict[str, Any]) -> dict[str, Any]:
    """A smoke cell, smaller still."""
    small = {**cell, **TINY}
    if cell["standard"]:
        small["standard"] = {**cell["standard"], "images": 6}
    if cell["features"]:
        small["features"] = 12
    for key in ("curve", "transfer", "detection"):
        if cell[key]:
            small[key] = {**cell[key], "images": 30 if key == "detection" else 10}
    return small


# ---- running ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cell_holds_all_that_tables_and_figures_need() -> None:
    cell = tiny(next(c for c in ensembles.cells("smoke", {}) if c["contender"] == "adp"))
    result = ensembles.run(cell)
    assert set(result) == {
        *("parameters", "clean", "weak", "slow", "standard", "at_half", "curve"),
        *("transfer", "detection", "histogram", "similarity", "tsne"),
    }
    assert list(result["weak"]) == cell["attacks"]
    assert all(len(found["right"]) == 10 for found in result["weak"].values())
    assert [found["eps"] for found in result["standard"]] == cell["standard"]["eps"]
    assert sum(result["histogram"]["counts"]) == result["clean"]["examples"] == 40
    assert np.shape(result["tsne"]["points"]) == (3, 12, 2)
    assert {len(matrix) for matrix in result["transfer"].values()} == {3}
    assert result == ensembles.run(cell)  # all chance follows from the cell


@pytest.mark.parametrize("contender", ["single", "smoothed", "pgd-adp"])
def test_other_contenders_are_trained_and_attacked(contender: str) -> None:
    plan = [c for c in ensembles.cells("smoke", {}) if c["contender"] == contender]
    result = ensembles.run(tiny(plan[0]))
    members = 1 if contender == "single" else 3
    assert len(result["clean"]["member_errors"]) == members
    assert ("histogram" in result) == (members > 1)
    assert "slow" not in result


def test_studies_of_five_members_and_of_pairs() -> None:
    found = white_box.FIVE_STUDY.run(tiny(white_box.FIVE_STUDY.cells("smoke", {})[1]))
    assert len(found["clean"]["member_errors"]) == 5
    found = hundred_classes.run(tiny(hundred_classes.STUDY.cells("smoke", {})[-1]))
    wrong = found["wrong"]
    assert wrong["in_training_all"] > 0
    # Hardly anything has been learnt: a temperature of 4 takes from the largest of them.
    assert wrong["in_training_largest"] < wrong["in_use_largest"]


# ---- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_plans(study: Any, scale: str) -> None:
    """Names differ, every seed has the same contenders, and attacks can be read."""
    cells = study.cells(scale, {})
    assert len({cell["name"] for cell in cells}) == len(cells)
    by: dict[int, set[Any]] = {}
    for cell in cells:
        key = (cell["data"], cell["contender"], cell.get("temperature"))
        by.setdefault(cell["seed"], set()).add(key)
        for spec in (*cell["attacks"], *cell["slow_attacks"]):
            parse(spec)
        for eps in (cell["standard"] or {}).get("eps", ()):
            for spec in measurements.strong_attacks(eps, cell["standard"]):
                parse(spec)
    assert len(by) >= 2
    assert all(kinds <= by[0] for kinds in by.values())  # the main rows may have more seeds
    assert by[1] == by[0]
    fewer = study.cells(scale, {"seeds": 1})
    assert fewer == [cell for cell in cells if cell["seed"] == 0]


def test_the_papers_settings() -> None:
    """Sections 4.2 and 4.3, as they are printed."""
    assert (PAPER["model"], PAPER["members"], PAPER["batch_size"]) == ("resnet20", 3, 64)
    assert PAPER["optimizer"] == "adam:lr=1e-3"
    cells = ensembles.cells("paper", {})
    assert {(c["data"], c["epochs"]) for c in cells} == {
        ("mnist", 40),
        ("cifar10", 180),
        ("cifar100", 180),
    }
    attacks = next(c for c in cells if c["data"] == "cifar10" and c["contender"] == "plain")
    assert "bim:eps=0.01,steps=10,step=0.1,early=false" in attacks["attacks"]
    assert [spec.split(":")[0] for spec in slow_attacks("cifar10")] == [
        *["jsma"] * 2,
        *["cw"] * 3,
        *["ead"] * 2,
    ]
    assert all(cell["members"] == 5 for cell in white_box.FIVE_STUDY.cells("paper", {}))
    assert CONTENDERS["adp"].objective == ADP(2.0, 0.5)
    assert CONTENDERS["adp-entropy"].objective == ADP(2.0, 0.0)
    with pytest.raises(ValueError, match="the cell has no setting epoch"):
        make_cell("a", SMOKE, epoch=1)


# ---- contenders ---------------------------------------------------------------------------------


def test_smoothed_labels_are_theorem_2s_ensemble() -> None:
    """1 / F = (2 / 3) log(9 F / (1 − F)) at F = 0.58777; the rest is shared by nine."""
    soft = smoothed_labels(torch.tensor([4, 0]), members=3, classes=10)
    f = float(soft[0, 4])
    assert 1 / f == pytest.approx(2 / 3 * np.log(9 * f / (1 - f)), rel=1e-6)
    assert soft[1, 1:].tolist() == pytest.approx([(1 - f) / 9] * 9)
    assert soft.sum(1).tolist() == pytest.approx([1.0, 1.0])


def test_a_temperature_reaches_adp_alone() -> None:
    cell = {"temperature": 4.0}
    assert objective_of(CONTENDERS["adp"], cell) == ADP(2.0, 0.5, 4.0)
    assert objective_of(CONTENDERS["plain"], cell) == Independent()
    assert objective_of(CONTENDERS["adp"], {}) == ADP(2.0, 0.5)


def test_networks_and_pairs_of_digits() -> None:
    assert strided_cnn((3, 17, 18), 7)(torch.zeros(2, 3, 17, 18)).shape == (2, 7)
    x = torch.arange(3.0).div(4)[:, None, None, None].expand(3, 1, 4, 4)
    y = torch.tensor([0, 1, 2])
    made = cells_module.ImageData((x, y), None, (x, y), (1, 4, 4), 10, ((0.0,), (1.0,)), ("test",))
    pairs = hundred_classes.digit_pairs(made, seed=0)
    assert (pairs.input_shape, pairs.outputs) == ((1, 2, 4), 100)
    images, labels = pairs.train
    left, right = images[:, 0, 0, 0] * 4, images[:, 0, 0, 3] * 4
    assert labels.tolist() == (10 * left + right).long().tolist()
    assert sorted(right.tolist()) == [0.0, 1.0, 2.0]


# ---- measuring ----------------------------------------------------------------------------------


class Threshold(nn.Module):
    """Class 1 where the mean of the pixels is above ½, with a margin of 8 times the excess."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        excess = self.scale * (x.flatten(1).mean(1) - 0.5)
        rest = torch.full((len(x), 2), -20.0) + 0 * excess[:, None]
        return torch.cat([torch.zeros_like(excess)[:, None], excess[:, None], rest], 1)


def test_the_worst_case_of_a_model_that_can_be_worked_out() -> None:
    """An image at 0.5 + d falls if ε > d; one that is wrong from the start is never right."""
    ens = Ensemble.from_members([Threshold(), Threshold()])
    means = torch.tensor([0.52, 0.57, 0.65, 0.45])
    x, y = means[:, None, None, None].expand(4, 1, 3, 3).clone(), torch.tensor([1, 1, 1, 1])
    settings = {
        "eps": [0.1, 0.05],
        "steps": 10,
        "restarts": 2,
        "autoattack_steps": 10,
        "queries": 10,
    }
    small, large = measurements.worst_case(ens, x, y, settings)
    assert (small["eps"], small["right"], large["right"]) == (0.05, "0110", "0010")
    assert small["autoattack"] == "0110"
    assert list(small["left"].values()) == [2] * 6
    assert measurements.accuracy_at_half(ens, x, y, steps=10) == 0.0
    curve = measurements.accuracy_over_eps(ens, x, y, [0.01, 0.05, 0.1])
    assert curve["strong"] == [0.75, 0.5, 0.25]
    weak = measurements.attack_each(ens, x, y, ["fgsm:eps=0.05"])
    assert weak["fgsm:eps=0.05"]["right"] == "0110"


def test_features_are_what_the_last_layer_sees() -> None:
    ens = Ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    x = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    found = measurements.hidden_features(ens, x, batch_size=2)
    assert found.shape == (ens.members, 5, 3)
    member = ens.member(1)
    assert torch.allclose(found[1], torch.relu(member[1](x.flatten(1))), atol=1e-6)


def test_similarity_against_a_numpy_loop() -> None:
    features = torch.randn(3, 40, 5, generator=torch.Generator().manual_seed(0))
    x = features.double().numpy()
    x = x - x.mean(1, keepdims=True)
    pairs = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        k, m = x[i] @ x[i].T, x[j] @ x[j].T  # the same from Gram matrices of examples
        pairs.append(np.sum(k * m) / np.sqrt(np.sum(k * k) * np.sum(m * m)))
    assert measurements.similarity(features) == pytest.approx(np.mean(pairs), rel=1e-9)
    rotated = features.clone()
    rotated[1] = features[0] @ torch.linalg.qr(torch.randn(5, 5))[0]
    assert measurements.similarity(rotated[:2]) == pytest.approx(1.0, abs=1e-6)


def test_roc_curves_on_the_grid_rise_from_their_first_threshold() -> None:
    from dissensus.detection import roc_curve

    curve = roc_curve(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([2.5, 4.0]))
    found = measurements._on_grid(curve)
    assert (found[0], found[-1]) == (0.5, 1.0)
    assert np.all(np.diff(found) >= 0)
    assert found[10] == 1.0  # at a false positive rate of 1/4 both are found


# ---- the paper's sizes, on small files in the official layout -----------------------------------


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few random images of CIFAR-10 and CIFAR-100, and nothing verified."""
    for which, label_bytes in ((IMAGE_SETS["cifar10"], 1), (IMAGE_SETS["cifar100"], 2)):
        folder = tmp_path / which.folders[0]
        folder.mkdir()
        for file in (*which.files["train"], *which.files["test"]):
            labels = RNG.integers(0, 10, (8, label_bytes))
            rows = np.concatenate([labels, RNG.integers(0, 256, (8, 3072))], 1)
            (folder / file.name).write_bytes(rows.astype(np.uint8).tobytes())

    def unverified(name: str, **asked: Any) -> Any:
        return load(name, data_dir=tmp_path, verify=False, **asked)

    monkeypatch.setattr(cells_module, "load", unverified)
    cells_module._in_memory.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "data", "contender"),
    [
        (ensembles.ENSEMBLES, "cifar10", "pgd-adp"),
        (hundred_classes.STUDY, "cifar100", "adp"),
    ],
)
def test_the_papers_network_takes_a_step(
    study: Any, data: str, contender: str, official: Path
) -> None:
    """ResNet-20, the paper's augmentation and optimiser; two members, 4 images, one epoch."""
    plan = study.cells("paper", {"seeds": 1})
    cell = [c for c in plan if (c["data"], c["contender"]) == (data, contender)][-1]
    nothing = dict.fromkeys(("standard", "curve", "transfer", "detection"))
    sizes = {"train": 4, "val": 2, "test": 4, "images": 2}
    small = {"members": 2, "epochs": 1, "features": 0, **sizes}
    attacks = ["pgd:eps=0.01,steps=1,step=0.1,early=false"]
    fewer = {"trained_on": "pgd:steps=1", "attacks": attacks, "slow_attacks": []}
    result = study.run({**cell, **nothing, **small, **fewer})
    if "kernel_decay" in cell:  # a long training: it is kept, and not made again
        (kept,) = (official / "cache").rglob("checkpoint.safetensors")
        changed = kept.stat().st_mtime_ns
        assert study.run({**cell, **nothing, **small, **fewer}) == result
        assert kept.stat().st_mtime_ns == changed
    assert result["parameters"] == pytest.approx(27e4, rel=0.05)
    assert np.isfinite(result["clean"]["label_probability"])

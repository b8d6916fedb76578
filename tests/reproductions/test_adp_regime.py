"""The regime of the adp authors' code, and the studies that train in it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dissensus.ensemble import Ensemble
from dissensus.objectives import ADP, Independent, Objective
from dissensus.training import fit
from reproductions import regime
from reproductions.adp import distortion, measurements, mnist, resnet20
from reproductions.adp.accuracy import attack_family, attack_parameter
from reproductions.adp.published import TABLE2
from reproductions.adp.settings import RESNET20
from reproductions.cells import load_images, make_cell

# ---- the optimiser and the first layer ----------------------------------------------------------


def test_only_kernels_of_convolutions_decay() -> None:
    kernel, weight = torch.ones(2, 1, 3, 3), torch.ones(2, 4)
    optimizer = regime.decay_kernels([kernel, weight], lr=0.1, weight_decay=0.5)
    for parameter in (kernel, weight):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    # Adam's first step is lr · sign(gradient), and the gradient of a kernel is 0.5 · 1.
    torch.testing.assert_close(kernel, torch.full_like(kernel, 0.9))
    assert torch.equal(weight, torch.ones_like(weight))


@pytest.mark.parametrize("scaling", regime.SCALINGS)
def test_scalings_against_numpy(scaling: str) -> None:
    cell = {**mnist.cells("smoke", {})[0], "scaling": scaling}
    data = load_images(cell)
    first = regime.make_member(cell, data)()[0]
    train, test = (part[0].double().numpy() for part in (data.train, data.test))
    expected = {
        "raw": test,
        "mean": test - train.mean(0),
        "standardised": (test - train.mean()) / train.std(ddof=1),  # one channel
    }[scaling]
    np.testing.assert_allclose(first(data.test[0]).numpy(), expected, atol=2e-6)
    assert not list(first.parameters())  # fixed: neither trained nor decayed


MEMBERS, STEPS, RATE, DECAY = 3, 6, 0.01, 0.15


def small_member() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 5))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(24, 1, 4, 4, generator=generator)
    return x, torch.randint(5, (24,), generator=generator)


def minimised(factor: float, decay: float) -> list[torch.Tensor]:
    """The weights after some steps of torch's Adam on ``factor · Σ CE`` with L2 on kernels."""
    ens = Ensemble(small_member, MEMBERS, seed=0)
    modules = [ens.member(number).double() for number in range(MEMBERS)]
    x, y = images()
    parameters = [parameter for module in modules for parameter in module.parameters()]
    kernels = [parameter for parameter in parameters if parameter.ndim == 4]
    rest = [parameter for parameter in parameters if parameter.ndim != 4]
    groups = [{"params": kernels, "weight_decay": decay}, {"params": rest}]
    optimizer = torch.optim.Adam(groups, lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = factor * sum(cross_entropy(module(x.double()), y) for module in modules)
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def fitted(objective: Objective) -> list[torch.Tensor]:
    """The weights after as many steps of ``fit`` in the authors' regime."""
    ens = Ensemble(small_member, MEMBERS, seed=0)
    adam = partial(regime.decay_kernels, lr=RATE, weight_decay=DECAY)
    fit(ens, images(), objective, epochs=STEPS, batch_size=24, optimizer=adam, progress=False)
    return [
        p.detach().double() for number in range(MEMBERS) for p in ens.member(number).parameters()
    ]


def distance(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def test_sums_and_means_take_the_same_steps_at_equal_decay() -> None:
    """Up to its ε, Adam does not see a factor on both loss and decay; on one of them it does."""
    total = minimised(1.0, DECAY)
    assert distance(total, minimised(1 / MEMBERS, DECAY / MEMBERS)) < 1e-5
    assert distance(total, minimised(1 / MEMBERS, DECAY)) > 1e-3
    # The trainer does so by itself: the same decay for a mean (the baseline) and for a sum (ADP).
    assert distance(total, fitted(Independent())) < 2e-5
    assert distance(total, fitted(ADP(0.0, 0.0))) < 2e-5


# ---- plans --------------------------------------------------------------------------------------


def test_at_scale_paper_the_schedule_is_the_papers_in_proportion() -> None:
    cells = resnet20.cells("paper", {"epochs": 18})
    assert {cell["schedule"] for cell in cells} == {"multistep:at=12/16,factor=0.1"}
    assert {cell["optimizer"] for cell in cells} == {"adam:lr=1e-3"}


def test_at_scale_cpu_all_images_are_trained_on_along_a_cosine() -> None:
    cells = resnet20.cells("cpu", {"epochs": 18})
    assert [cell["contender"] for cell in cells] == ["plain", "adp", "smoothed", "adp-entropy"]
    assert {cell["schedule"] for cell in cells} == {"cosine:warmup=1"}
    assert cells[0]["train"] is None
    assert (cells[0]["val"], cells[0]["kernel_decay"]) == (5000, 2e-4)


def test_the_plan_begins_with_the_pair_in_every_scaling_of_a_seed() -> None:
    cells = mnist.cells("cpu", {})
    assert len({cell["name"] for cell in cells}) == len(cells) == 5 * (9 + 3)
    assert [(c["data"], c["scaling"], c["seed"], c["contender"]) for c in cells[:45]] == [
        ("mnist", scaling, seed, name)
        for contenders in (("plain", "adp"), ("smoothed",))
        for seed in range(5)
        for scaling in ("mean", "raw", "standardised")
        for name in contenders
    ]
    assert {c["scaling"] for c in cells} == set(regime.SCALINGS)
    assert [c for c in cells if c["seed"] in (0, 10)] == mnist.cells("cpu", {"seeds": 1})
    assert [cells[0][key] for key in ("train", "val", "members")] == [None, 5000, 3]
    # The contenders of a data set differ in nothing but the objective, and none decays more.
    assert {(c["data"], c["kernel_decay"]) for c in cells} == {("mnist", 2e-4), ("digits", 0.0)}
    assert {c["seed"] for c in cells if c["data"] == "digits"} == set(range(10, 15))


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_networks_are_trained_as_in_other_studies(scale: str) -> None:
    """All that a training reads, and the folder that it goes on from."""
    theirs = {regime.work_folder(c, "adp"): c for c in mnist.cells(scale, {})}
    theirs |= {regime.work_folder(c, "adp"): c for c in resnet20.cells(scale, {})}
    plan = distortion.cells(scale, {})
    assert len({cell["name"] for cell in plan}) == len(plan) == 10 + 2 + 5
    measured = ("attacks", "standard", "slow_attacks", "slow_images", "images", "name")
    measured += ("curve", "transfer", "detection", "features", "along", "along_images")
    for cell in plan:
        other = theirs[distortion.work_folder(cell)]
        assert {key: cell[key] for key in cell if key not in measured} == {
            key: other[key] for key in other if key not in measured
        }


def test_every_row_of_table_2_is_attacked() -> None:
    for cell in distortion.cells("cpu", {"seeds": 1}):
        rows = [(attack_family(spec), attack_parameter(spec)) for spec in cell["slow_attacks"]]
        printed = {
            (kind, at) for kind in ("jsma", "cw", "ead") for at in TABLE2[cell["data"]][kind]
        }
        assert set(rows) == printed
        assert len(rows) == len(printed) + (cell["data"] == "mnist")  # a JSMA that cannot stick


# ---- runs ---------------------------------------------------------------------------------------


def test_what_was_measured_is_measured_again_with_other_settings_only(tmp_path: Path) -> None:
    calls = []

    def make() -> tuple[int, float]:
        calls.append(1)
        return len(calls), 0.5

    cell = make_cell("one", RESNET20["smoke"])
    path = tmp_path / "measured" / "clean.json"
    assert [regime.cached(path, cell, make) for _ in range(2)] == [[1, 0.5]] * 2
    assert regime.cached(path, {**cell, "images": 3}, make) == [2, 0.5]


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cell = resnet20.cells("smoke", {})[1]
    first = resnet20.run(cell)
    assert [entry["epoch"] for entry in first["along"]] == [1, 2]
    assert len(first["epochs"]["val/accuracy"]) == 2
    assert {"weak", "standard", "transfer", "histogram"} <= set(first)
    # Trained and attacked along the way already: the rest comes out the same, kept or made again.
    folder = regime.work_folder(cell, "adp") / "measured"
    (folder / "weak.json").unlink()
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = resnet20.run(cell)
    assert again == json.loads(json.dumps(first))
    assert len(times) == len(first) - 3  # all but curves, checkpoints and what was removed
    assert {name: (folder / name).stat().st_mtime_ns for name in times} == times


@pytest.mark.parametrize("contender", ["adp", "smoothed"])
def test_a_cell_goes_on_from_its_folder(
    contender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = mnist.cells("smoke", {"seeds": 1, "epochs": 2})
    cell = [c for c in plan if c["contender"] == contender][-1]
    cell |= {"train": 64, "test": 20, "images": 4, "attacks": cell["attacks"][:2]}
    cell["standard"] = {**cell["standard"], "images": 2}
    result = mnist.STUDY.run(cell)
    assert {"clean", "weak", "standard", "at_half", "histogram"} <= set(result)
    assert [len(found["right"]) for found in result["weak"].values()] == [4, 4]
    (kept,) = tmp_path.rglob("checkpoint.safetensors")
    changed = kept.stat().st_mtime_ns
    assert mnist.STUDY.run(cell) == result
    assert kept.stat().st_mtime_ns == changed


@pytest.mark.slow
def test_a_kill_costs_one_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cell = distortion.cells("smoke", {"seeds": 1, "epochs": 1})[0]
    cell |= {"slow_attacks": ["cw:c=1,searches=1,steps=5", "jsma:theta=1,gamma=0.1"]}
    cell["slow_images"] = 3
    attack_each, attacked = measurements.attack_each, list[str]()

    def counted(ens: Any, x: Any, y: Any, specs: list[str]) -> dict[str, Any]:
        attacked.extend(specs)
        if len(attacked) == 2:
            raise KeyboardInterrupt
        return attack_each(ens, x, y, specs)

    monkeypatch.setattr(measurements, "attack_each", counted)
    with pytest.raises(KeyboardInterrupt):
        distortion.run(cell)
    result = distortion.run(cell)
    assert attacked == [cell["slow_attacks"][0], *2 * [cell["slow_attacks"][1]]]
    assert list(result["slow"]) == cell["slow_attacks"]
    assert [len(one["right"]) for one in result["slow"].values()] == [3, 3]
    assert result["clean"]["examples"] == cell["test"]

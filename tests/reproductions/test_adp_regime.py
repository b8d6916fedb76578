"""The regime of the adp authors' code, and the study that trains in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dissensus.show import draw
from reproductions import regime
from reproductions.adp import resnet20, resnet20_members
from reproductions.adp.measurements import EDGES, GRID
from reproductions.adp.settings import RESNET20
from reproductions.cells import load_images, make_cell
from reproductions.old.base import Experiment, Finding


def test_only_kernels_of_convolutions_decay() -> None:
    kernel, weight = torch.ones(2, 1, 3, 3), torch.ones(2, 4)
    optimizer = regime.decay_kernels([kernel, weight], lr=0.1, weight_decay=0.5)
    for parameter in (kernel, weight):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    # Adam's first step is lr · sign(gradient), and the gradient of a kernel is 0.5 · 1.
    torch.testing.assert_close(kernel, torch.full_like(kernel, 0.9))
    assert torch.equal(weight, torch.ones_like(weight))


def test_the_mean_image_is_subtracted_and_nothing_is_divided() -> None:
    cell = make_cell("one", RESNET20["smoke"])
    data = load_images(cell)
    member = regime.make_member(cell, data)()
    shown = member[0](data.train[0])
    assert shown.mean(0).abs().max() < 1e-6
    torch.testing.assert_close(shown.std(0), data.train[0].std(0))
    assert sum(p.shape[-2:] == (1, 1) for p in member.parameters() if p.ndim == 4) == 2


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


def record(contender: str, right: str, error: float = 0.1) -> dict[str, Any]:
    """A finished cell; all attacks leave ``right``."""
    (cell,) = (c for c in resnet20.cells("cpu", {}) if c["contender"] == contender)
    left = {"right": right, "autoattack": right, "left": {}}
    result = {
        "clean": {"error": error, "member_errors": [error] * 3},
        "weak": {spec: {"right": right} for spec in cell["attacks"]},
        "standard": [{"eps": eps, **left} for eps in cell["standard"]["eps"]],
        "along": [
            {
                "epoch": epoch,
                "clean": {"error": error},
                "attacks": {spec: {"right": right} for spec in cell["along"]},
            }
            for epoch in (2, 4)
        ],
    }
    return {"name": cell["name"], "cell": cell, "result": result, "seconds": 1.0}


def test_one_run_is_judged_by_its_images() -> None:
    def verdicts(right: str, error: float = 0.1) -> list[str]:
        runs = [record("plain", "10" * 50, error), record("adp", right, error)]
        return [claim.check(runs).verdict for claim in resnet20.RESNET20_RUNS.claims[:4]]

    untested, same = "not tested at this scale", "undecided"  # checkpoints are all the same
    assert verdicts("1" * 80 + "0" * 20) == ["holds", "holds", same, "holds"]
    # Equal, where the paper gains 26 points: half of that would have shown.
    assert verdicts("10" * 49 + "11") == ["holds", "contradicted", same, "undecided"]
    assert verdicts("1" * 80 + "0" * 20, error=0.2) == ["contradicted", untested, same, "holds"]


def test_controls_of_one_run_are_judged_by_its_images() -> None:
    """Label smoothing under the paper's attacks and in the worst case; the entropy alone against
    the baseline and label smoothing, and ADP against it, again in the worst case too.
    """

    def verdicts(*others: dict[str, Any]) -> list[str]:
        runs = [record("plain", "10" * 50), record("adp", "1" * 80 + "0" * 20), *others]
        return [claim.check(runs).verdict for claim in resnet20.RESNET20_RUNS.claims[5:]]

    untested, against = "not tested at this scale", "contradicted"
    better, worse = record("smoothed", "1" * 100), record("adp-entropy", "10" * 50)
    assert verdicts() == [untested] * 6
    assert verdicts(better) == [against] * 2 + [untested] * 4
    assert verdicts(better, worse) == [against] * 4 + ["holds"] * 2


def test_to_withstand_is_to_keep_half_of_the_accuracy() -> None:
    """With an error of 10 % that is 45 %; where none of 100 images is left, 0 ± 3 / 100."""

    def found(right: str) -> Finding:
        return claim.check([record("adp", right)])

    (claim,) = (one for one in resnet20.RESNET20_RUNS.claims if "withstands" in one.text)
    assert found("1" * 80 + "0" * 20).verdict == "holds"
    assert found("10" * 50).verdict == "undecided"
    fallen = found("0" * 100)
    assert fallen.verdict == "contradicted"
    assert "half of its clean accuracy 45.0%, difference -45.0% [-48.0%, -42.0%]" in fallen.measured


def test_a_gain_that_comes_late() -> None:
    """Of 100 images 50 are right at both checkpoints; with ADP all are at the last."""
    runs = [record("plain", "10" * 50), record("adp", "10" * 50)]
    for spec in runs[1]["result"]["along"][-1]["attacks"]:
        runs[1]["result"]["along"][-1]["attacks"][spec] = {"right": "1" * 100}
    (late,) = (claim for claim in resnet20.RESNET20_RUNS.claims if "late" in claim.text)
    found = late.check(runs)
    assert found.verdict == "holds"
    assert "ADP₂,₀.₅ 50.0%, baseline 0.0%, difference +50.0% [+40.2%, +59.8%]" in found.measured


def test_the_figure_and_the_table() -> None:
    runs = [record("plain", "10" * 50), record("adp", "1" * 100)]
    plot = resnet20.plot(runs)
    assert len(draw(plot).axes) == 3
    plain, adp = plot.panels[1].series
    # 50 of 100 images, at epochs 2 and 4: 1.96 · √(0.25 · 100 / 99) / 10 = 0.0985 on either side.
    assert (list(plain.x), list(plain.y)) == ([2, 4], [0.5, 0.5])
    assert plain.low == pytest.approx([0.4015, 0.4015], abs=1e-4)
    assert adp.high == [1.0, 1.0]
    header, rows = resnet20.table(runs)
    assert rows[0] == ["CIFAR-10", "none", "90.0", "90.0"]
    assert all(len(row) == len(header) for row in rows)


def members_record(contender: str, error: float, follow: float, auroc: float) -> dict[str, Any]:
    """A finished cell: errors, how many targets members follow, and how well a detector does."""
    row = record(contender, "10" * 50)
    matrix = [[1.0 if i == j else follow for j in range(3)] for i in range(3)]
    stay = [[0.0 if i == j else 1 - follow for j in range(3)] for i in range(3)]
    modes = {"targeted": matrix, "untargeted": stay}
    names = ("fgsm", "bim", "mim", "pgd", "disguised")
    detected = {
        "auroc": {"ensemble_diversity": auroc},
        "interval": [auroc - 0.05, auroc + 0.05],
        "fooled": 250,
        "roc": list(GRID),
    }
    row["result"] |= {
        "clean": {"examples": 10_000, "error": 0.1, "member_errors": [error] * 3},
        "transfer": {
            f"{name} {mode}": modes[mode] for name in ("pgd", "mim", "pgd-50") for mode in modes
        },
        "detection": dict.fromkeys(names, detected),
        "histogram": {"counts": [1] * (len(EDGES) - 1), "quartiles": [-2.0, -1.0, 0.0]},
        "similarity": 0.9,
    }
    return row


def test_members_of_one_run_are_judged_by_its_images() -> None:
    """Table 1: members' errors rise by 1.0 points; 10,000 images show 0.9 in these runs."""

    def verdicts(experiment: Experiment, error: float, follow: float, auroc: float) -> list[str]:
        runs = [
            members_record("plain", 0.12, 0.5, 0.3),
            members_record("adp", error, follow, auroc),
        ]
        assert experiment.table is not None
        assert experiment.draw is not None
        header, rows = experiment.table(runs)
        assert rows
        assert {len(row) for row in rows} == {len(header)}
        draw(experiment.draw(runs))
        return [claim.check(runs).verdict for claim in experiment.claims]

    members, transfer, detection = (
        resnet20_members.MEMBERS,
        resnet20_members.TRANSFER,
        resnet20_members.DETECTION,
    )
    untested = "not tested at this scale"
    assert verdicts(members, 0.15, 0.5, 0.5) == ["holds", "undecided"]
    assert verdicts(members, 0.12, 0.5, 0.5) == ["undecided", "undecided"]
    assert verdicts(members, 0.105, 0.5, 0.5) == ["contradicted", "undecided"]
    # Of 100 images: 1.96 · √(0.25 + 0.21) / 10 = 0.13 on either side.
    assert verdicts(transfer, 0.15, 0.3, 0.5) == ["holds"] * 4 + [untested]
    assert verdicts(transfer, 0.15, 0.4, 0.5) == ["undecided"] * 4 + [untested]
    assert verdicts(transfer, 0.15, 0.7, 0.5) == ["contradicted"] * 4 + [untested]
    assert verdicts(detection, 0.15, 0.3, 0.6) == ["holds", "holds"]
    assert verdicts(detection, 0.15, 0.3, 0.52) == ["undecided", "undecided"]
    assert verdicts(detection, 0.15, 0.3, 0.3) == ["contradicted", "contradicted"]


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

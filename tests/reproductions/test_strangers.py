"""The comparison on unknown inputs: contenders, cells, goals, the choice, and the page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dissensus.data.strangers import permuted_columns
from dissensus.detection import Combined, TailScale, combine_tails
from reproductions.strangers import cells, estimators, regression, settings
from reproductions.strangers.cells import (
    COMBINED,
    DISTANCES,
    OUTPUT_SCORES,
    add_record,
    read_records,
    run_cells,
)
from reproductions.strangers.combination import CHOSEN, RULES, fit_rule, mean_worst, read_choice
from reproductions.strangers.contenders import CONTENDERS, Exposure
from reproductions.strangers.goals import check_goals, choices, compare_settings
from reproductions.strangers.page import page_text, write_page
from reproductions.strangers.settings import SETTINGS, Rows, Setting, extrapolation, permuted_groups

# ---- contenders and settings --------------------------------------------------------------------


def test_outlier_exposure_is_the_cross_entropy_to_the_uniform_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, strangers = (torch.randn(2, 4, 3, generator=generator) for _ in range(2))
    targets = torch.tensor([0, 1, 2, 0])
    found = Exposure(strength=0.5)(logits, targets, disagreement=strangers).loss

    def log_softmax(row: np.ndarray) -> np.ndarray:
        return row - np.log(np.exp(row).sum())

    known, unsure = [], []
    for member in range(2):
        for row in range(4):
            known.append(-log_softmax(logits[member, row].double().numpy())[targets[row]])
            unsure.append(-log_softmax(strangers[member, row].double().numpy()).mean())
    assert float(found) == pytest.approx(np.mean(known) + 0.5 * np.mean(unsure), rel=1e-6)


def test_permuted_groups_keep_a_category_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    category = torch.eye(3)[torch.arange(30) % 3]
    x = torch.cat([torch.arange(30.0)[:, None], category], 1)
    found = permuted_groups(torch.tensor([0, 1, 1, 1]), x, generator)
    assert found[:, 1:].sum(1).eq(1).all()
    assert found[:, 0].sort().values.equal(x[:, 0])
    together = (found[:, 0].long() % 3 == found[:, 1:].argmax(1)).float().mean()
    assert together < 0.8  # numbers and categories no longer belong together


# ---- cells --------------------------------------------------------------------------------------


def _two_groups(setting: Setting, seed: int) -> Rows:
    """Two classes along one axis; unknown is a third, and what lies far from all."""
    generator = torch.Generator().manual_seed(seed)

    def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % 2
        x = torch.randn(count, 4, generator=generator)
        x[:, 0] += 6.0 * y - 3
        return x, y

    train, val, test = rows(setting.train), rows(60), rows(60)
    unknown = {"held_out": test[0] + torch.tensor([0.0, 4.0, 0.0, 0.0]), "far": 40 + test[0]}
    families = {"permute": permuted_columns, "extrapolation": extrapolation}
    return Rows(
        train, val, test, unknown, unknown["far"], "far", 2, permuted_columns, families, None
    )


def test_cells_are_run_recorded_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Setting(
        "toy",
        "table",
        _two_groups,
        "mlp",
        {"hidden": (8,)},
        train=64,
        epochs=4,
        batch_size=16,
        optimizer="adam:lr=0.03",
    )
    monkeypatch.setitem(SETTINGS, "satellite", toy)
    monkeypatch.setattr(cells, "is_there", lambda name: name == "satellite")
    lines: list[str] = []
    names = ["deep_ensemble", "foreign", "tuned"]
    run_cells(tmp_path, ["satellite", "credit"], names[:1], [3], report=lines.append)
    assert lines[0] == "skipped, data not in $DISSENSUS_DATA: credit"
    run_cells(tmp_path, ["satellite"], names, [3], report=lines.append)
    assert len(lines) == 4  # the deep ensemble was there
    again = json.loads((tmp_path / "satellite.jsonl").read_text().splitlines()[0])
    add_record(tmp_path, again | {"combined": "knn"})  # its parts have changed since
    assert "combined" not in read_records(tmp_path)[0]["auroc"]["far"]
    work = tmp_path / "work"
    run_cells(tmp_path, ["satellite"], names, [3], work=work, report=lines.append)
    assert len(lines) == 5
    trained = (work / "satellite" / "independent-seed=3" / "metrics.jsonl").read_bytes()
    run_cells(tmp_path, ["satellite"], names[:1], [3], again=True, work=work, report=lines.append)
    assert (work / "satellite" / "independent-seed=3" / "metrics.jsonl").read_bytes() == trained
    assert read_records(tmp_path)[0]["auroc"] == again["auroc"]  # from the weights that were kept
    plain, foreign, tuned = read_records(tmp_path)
    assert list(plain["auroc"]["far"]) == [*OUTPUT_SCORES, *DISTANCES, *COMBINED]
    assert list(tuned["auroc"]["far"]) == [*OUTPUT_SCORES, *COMBINED]
    assert list(foreign["auroc"]) == ["held_out"]  # it learnt from the other
    assert plain["accuracy"] > 0.8
    assert plain["auroc"]["far"]["mahalanobis"] == 1.0
    assert plain["auroc"]["far"] != tuned["auroc"]["far"]


def test_regressors_are_judged_by_their_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(300, 3))
    frame = pd.DataFrame(numbers, columns=list("abc")).assign(kind=["x", "y", "z"] * 100)
    targets = numbers[:, 0] + 0.1 * generator.normal(size=300)
    for module in (regression, settings):
        monkeypatch.setattr(module, "load_table", lambda name: (frame, targets))
    monkeypatch.setattr(regression, "_EPOCHS", 10)
    records = [record for seed in (0, 1) for record in regression.run_seed("toy", seed)]
    plain, longer, tuned = records[:3]
    assert plain["rmse"] < 0.7  # of a deviation: they have learnt
    assert plain["auroc"]["extreme"] > 0.9
    assert tuned["auroc"] != longer["auroc"] != plain["auroc"]
    page = "\n".join(regression.section(records))
    mean = np.mean([r["auroc"]["noise"] for r in records if r["contender"] == "deep_ensemble"])
    assert (
        f"| toy | deep ensemble | 2 | {np.mean([plain['rmse'], records[3]['rmse']]):.3f} |" in page
    )
    assert f"{mean:.3f}" in page
    assert regression.section([]) == []


# ---- goals and the choice -----------------------------------------------------------------------


def _record(contender: str, seed: int, value: float, **more: Any) -> dict[str, Any]:
    """All scores have ``value`` far away and 0.1 less nearby; on settled sets all have 1."""
    scores = dict.fromkeys((*OUTPUT_SCORES, *DISTANCES, *COMBINED), value)
    near = dict.fromkeys(scores, value - 0.1)
    auroc = {"held_out": near, "corrupt5": scores, "kmnist": dict.fromkeys(scores, 1.0)}
    return {
        "setting": "fashion_mnist",
        "contender": contender,
        "seed": seed,
        "train_cpu": 2.0,
        "score_cpu": 1.0,
        "accuracy": 0.8,
        "auroc": auroc,
        "val_auroc": {"permute": dict(scores), "mixup": dict(scores)},
        "version": "1",
        "processor": "abacus",
        **more,
    }


@pytest.fixture
def made_up() -> list[dict[str, Any]]:
    """The tuned copy gains 0.07 and 0.05; ViM has 0.9 on the deep ensemble."""
    records = [
        _record("deep_ensemble", 0, 0.80),
        _record("deep_ensemble", 1, 0.82),
        _record("tuned", 0, 0.87),
        _record("tuned", 1, 0.87),
        _record("scratch", 0, 0.83, accuracy=0.79),
        _record("scratch", 1, 0.83, accuracy=0.80),
    ]
    for one in records[:2]:
        one["auroc"]["corrupt5"]["vim"] = one["auroc"]["held_out"]["vim"] = 0.9
    return records


def test_gains_are_paired_and_leave_out_what_was_settled_on(made_up: list[dict[str, Any]]) -> None:
    [found] = compare_settings(made_up)
    assert found.sets() == ["held_out", "corrupt5"]
    gain = found.gain("tuned", "mutual_information", found.sets())
    assert gain.mean == pytest.approx(0.06)
    # Student's t with one degree of freedom: 12.706 · sd / √2, the sd of 0.07 and 0.05.
    assert gain.high - gain.mean == pytest.approx(12.706 * 0.01, rel=1e-3)
    del made_up[2]["auroc"]["corrupt5"]  # only what both have is compared
    assert found.gain("tuned", "pds", found.sets()).mean == pytest.approx(0.06)
    for scores in made_up[3]["auroc"].values():
        del scores["pds"]  # and only the seeds that both have
    assert found.gain("tuned", "pds", found.sets()).mean == pytest.approx(0.07)


def test_goals_are_checked_on_the_records(made_up: list[dict[str, Any]]) -> None:
    goals = {goal.name: goal for goal in check_goals(made_up)}
    tuned = goals["gain in mean AUROC over a deep ensemble, tuned copy"]
    assert tuned.met
    assert not tuned.sure
    assert not goals["gain in mean AUROC over a deep ensemble, from scratch"].met
    best = goals["mean AUROC of the tuned copy minus that of the best detector"]
    assert best.remark == "vim"
    assert best.measured.mean == pytest.approx(0.82 - 0.9)
    assert goals["accuracy gained by one ensemble for both"].measured.mean == pytest.approx(-0.005)
    worst = goals["combination minus the best single score, on the worst set"]
    assert worst.remark == "held_out: vim"
    assert worst.measured.mean == pytest.approx(0.77 - 0.9)


def test_the_choice_is_made_on_validation_rows_alone(made_up: list[dict[str, Any]]) -> None:
    for one in made_up[2:4]:
        one["val_auroc"]["permute"]["energy"] = 0.99
        one["auroc"]["corrupt5"]["energy"] = one["auroc"]["held_out"]["energy"] = 0.6
    [found] = compare_settings(made_up)
    choice = next(c for c in choices(found) if c.what == "score of the tuned copy")
    assert choice.chosen == ["tuned energy"] * 2
    assert (choice.value, choice.default, choice.best) == pytest.approx((0.6, 0.82, 0.82))


# ---- the combination ----------------------------------------------------------------------------


def test_the_chosen_rule_is_that_of_the_library() -> None:
    generator = torch.Generator().manual_seed(0)
    names = ("mutual_information", *CHOSEN.distances)
    val, x = ({n: torch.rand(90, generator=generator) for n in names} for _ in range(2))
    scales = [TailScale.fit(val[name]) for name in names]
    expected = combine_tails([x[name] for name in names], scales)
    torch.testing.assert_close(fit_rule(CHOSEN, names[0], val)(x), expected)
    assert "+".join(CHOSEN.distances) == Combined().distance


def test_the_chosen_rule_is_among_the_best_of_the_records() -> None:
    choice = read_choice(Path(__file__).parents[2] / "results")
    best = max(mean_worst(choice, rule.title) for rule in RULES)
    assert mean_worst(choice, CHOSEN.title) >= best - 0.002


# ---- the page -----------------------------------------------------------------------------------


def test_the_page_says_what_the_records_say(made_up: list[dict[str, Any]]) -> None:
    page = page_text(made_up)
    assert "| +0.060 [-0.067, +0.187] | 2 | +0.050 | yes, not sure |" in page
    row = "| **a2d on strangers** | mutual information | 0.780, +0.020 [-0.107, +0.147] |"
    assert row in page
    assert "kmnist (settled on)" in page
    assert "- MNIST: not run; `python -m reproductions.strangers --settings mnist` runs it." in page
    assert "- Fashion-MNIST: 2 of 5 seeds of deep_ensemble, scratch, tuned;" in page
    for scores in made_up[3]["auroc"].values():
        del scores["pds"]
    assert "- Fashion-MNIST: pds of tuned in 1 of 2 seeds." in page_text(made_up)


def test_the_committed_page_is_that_of_the_committed_records() -> None:
    folder = Path(__file__).parents[2] / "results"
    fitted = regression.read_regression(folder), estimators.read_estimators(folder)
    page = page_text(read_records(folder / "strangers"), read_choice(folder), *fitted)
    assert page == (folder / "strangers.md").read_text()


def test_a_page_needs_records(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no records in"):
        write_page(tmp_path)


def test_every_setting_names_contenders_that_are_planned_once() -> None:
    for name in SETTINGS:
        planned = cells.planned(name)
        assert len(planned) == len(set(planned))
        assert {cell.contender for cell in planned} <= set(CONTENDERS)
    assert not any(cell.contender == "tuned_phase" for cell in cells.planned("features"))


def test_changed_rows_differ_in_what_their_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = torch.full((50, 2), 3.0)
    monkeypatch.setattr(estimators, "other_numbers", lambda *_: foreign)
    chance = np.random.default_rng(0)
    train = pd.DataFrame({"a": chance.normal(5, 2, 200), "b": chance.normal(size=200), "c": "text"})
    test = train.iloc[:50]
    changed = estimators.change_rows(test, train, chance, "vowel")
    far = train[["a", "b"]].mean() + 10 * train[["a", "b"]].std()
    hit = np.isclose(changed["extreme"][["a", "b"]], far)
    assert (hit.sum(1) == 1).all()
    assert hit.any(0).all()
    noise = (changed["noise"][["a", "b"]] - test[["a", "b"]]) / train[["a", "b"]].std()
    np.testing.assert_allclose(noise.std(), 0.5, atol=0.15)
    for column in train:
        assert sorted(changed["permuted"][column]) == sorted(test[column])
    assert not changed["permuted"]["a"].equals(test["a"])
    scaled = (changed["other_table"][["a", "b"]] - train[["a", "b"]].mean()) / train[
        ["a", "b"]
    ].std()
    np.testing.assert_allclose(scaled, 3.0)
    assert all((rows["c"] == "text").all() for rows in changed.values())

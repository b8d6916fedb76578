"""The study of unknown inputs: contenders, cells, goals, the choice, and the combination."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dissensus.data.strangers import permuted_columns
from dissensus.detection import Combined, TailScale, combine_tails
from reproductions.registry import EXPERIMENTS
from reproductions.strangers import ensembles, estimators, regression, settings
from reproductions.strangers.combination import CHOSEN, RULES, SINGLE, among_best, fit_rule
from reproductions.strangers.comparison import Scored, choose, compare_settings
from reproductions.strangers.contenders import CONTENDERS, Exposure
from reproductions.strangers.ensembles import (
    COMBINED,
    DISTANCES,
    ENSEMBLES,
    OUTPUT_SCORES,
    cells,
    run,
)
from reproductions.strangers.experiments import GOALS, goals_table
from reproductions.strangers.settings import SETTINGS, Rows, Setting, extrapolation, permuted_groups
from reproductions.study import Record, run_study

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


def test_changed_rows_differ_in_what_their_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = torch.full((50, 2), 3.0)
    monkeypatch.setattr(estimators, "other_numbers", lambda *_: foreign)
    chance = np.random.default_rng(0)
    train = pd.DataFrame({"a": chance.normal(5, 2, 200), "b": chance.normal(size=200), "c": "text"})
    test, both = train.iloc[:50], ["a", "b"]
    changed = estimators.change_rows(test, train, chance, "vowel")
    mean, deviation = train[both].mean(), train[both].std()
    hit = np.isclose(changed["extreme"][both], mean + 10 * deviation)
    assert (hit.sum(1) == 1).all()
    assert hit.any(0).all()
    noise = (changed["noise"][both] - test[both]) / deviation
    np.testing.assert_allclose(noise.std(), 0.5, atol=0.15)
    for column in train:
        assert sorted(changed["permuted"][column]) == sorted(test[column])
    assert not changed["permuted"]["a"].equals(test["a"])
    np.testing.assert_allclose((changed["other_table"][both] - mean) / deviation, 3.0)
    assert all((rows["c"] == "text").all() for rows in changed.values())


# ---- cells --------------------------------------------------------------------------------------


def test_contenders_are_planned_in_settings_that_suit_them() -> None:
    planned = cells("cpu", {})
    assert len({cell["name"] for cell in planned}) == len(planned)
    where = {name: {c["setting"] for c in planned if c["contender"] == name} for name in CONTENDERS}
    assert "features" not in where["tuned_phase"]
    assert where["tuned_strong"] == {"settling"}
    assert "cifar10" not in where["ldr"]
    assert {c["seed"] for c in planned if c["setting"] == "settling"} == {100}
    part = cells("cpu", {"settings": "mnist", "contenders": "tuned", "seeds": 2})
    assert [cell["name"] for cell in part] == ["mnist-tuned-seed=0", "mnist-tuned-seed=1"]
    with pytest.raises(ValueError, match="one among the settings 'mnst'; did you mean 'mnist'"):
        cells("cpu", {"settings": "mnst"})


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


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The setting satellite, in small."""
    small: dict[str, Any] = {"train": 64, "epochs": 4, "batch_size": 16}
    own = Setting(
        "toy", "table", _two_groups, "mlp", {"hidden": (8,)}, optimizer="adam:lr=0.03", **small
    )
    monkeypatch.setitem(SETTINGS, "satellite", own)
    ensembles._trainings.cache_clear()
    yield
    ensembles._trainings.cache_clear()


@pytest.mark.usefixtures("toy")
def test_a_study_trains_and_scores(tmp_path: Path) -> None:
    part = {"settings": "satellite", "seeds": 1, "contenders": "deep_ensemble+foreign+tuned"}
    record = run_study(ENSEMBLES, "strangers", "cpu", part, tmp_path, progress=False)
    plain, foreign, tuned = (one["result"] for one in record.cells)
    assert list(plain["auroc"]["far"]) == [*OUTPUT_SCORES, *DISTANCES, *COMBINED]
    assert list(tuned["auroc"]["far"]) == [*OUTPUT_SCORES, *COMBINED]
    assert list(foreign["auroc"]) == ["held_out"]  # it learnt from the other
    assert plain["accuracy"] > 0.8
    assert plain["auroc"]["far"]["mahalanobis"] == 1.0
    assert plain["auroc"]["far"] != tuned["auroc"]["far"]
    ensembles._trainings.cache_clear()
    alone = run(record.cells[2]["cell"])  # the same, whoever was trained before
    assert alone["auroc"]["far"]["pds"] == pytest.approx(tuned["auroc"]["far"]["pds"], abs=1e-5)


def test_regressors_are_judged_by_their_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(300, 3))
    frame = pd.DataFrame(numbers, columns=list("abc")).assign(kind=["x", "y", "z"] * 100)
    targets = numbers[:, 0] + 0.1 * generator.normal(size=300)
    for module in (regression, settings):
        monkeypatch.setattr(module, "load_table", lambda name: (frame, targets))
    records: list[Record] = []
    for seed in (0, 1):
        cell = {"name": f"toy-{seed}", "table": "toy", "seed": seed, "epochs": 10}
        records.append({"cell": cell, "result": regression.run(cell)})
    plain, longer, tuned = records[0]["result"].values()
    assert plain["rmse"] < 0.7  # of a deviation: they have learnt
    assert plain["auroc"]["extreme"] > 0.9
    assert tuned["auroc"] != longer["auroc"] != plain["auroc"]
    row = regression.table(records).by_row()["toy, deep ensemble"]
    noise = np.mean([one["result"]["deep_ensemble"]["auroc"]["noise"] for one in records])
    assert row["noise (near)"] == f"{noise:.3f}"
    for one, gain in zip(records, (0.2, 0.21), strict=True):
        base = one["result"]["deep_ensemble"]["auroc"]["other_table"]
        one["result"]["tuned"]["auroc"]["other_table"] = base + gain
    better, _ = EXPERIMENTS["strangers/regression"].claims
    assert better.check(records).verdict == "holds"


# ---- goals and the choice -----------------------------------------------------------------------


def _record(contender: str, seed: int, value: float, accuracy: float = 0.8) -> Record:
    """All scores have ``value`` far away and 0.1 less nearby; on settled sets all have 1."""
    scores = dict.fromkeys((*OUTPUT_SCORES, *DISTANCES, *COMBINED), value)
    near = dict.fromkeys(scores, value - 0.1)
    result = {
        "accuracy": accuracy,
        "auroc": {"held_out": near, "corrupt5": scores, "kmnist": dict.fromkeys(scores, 1.0)},
        "val_auroc": {"permute": dict(scores), "mixup": dict(scores)},
    }
    cell = {"setting": "fashion_mnist", "contender": contender, "seed": seed}
    return {"cell": cell, "result": result}


@pytest.fixture
def made_up() -> list[Record]:
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
        auroc = one["result"]["auroc"]
        auroc["corrupt5"]["vim"] = auroc["held_out"]["vim"] = 0.9
    return records


def test_gains_are_paired_and_leave_out_what_was_settled_on(made_up: list[Record]) -> None:
    [found] = compare_settings(made_up)
    assert found.sets() == ["held_out", "corrupt5"]
    assert (found.sets("near"), found.sets("far")) == (["held_out"], ["corrupt5"])
    tuned, plain = Scored("tuned", "pds"), Scored("deep_ensemble", "pds")
    gain = found.gain(tuned, plain, found.sets())
    assert gain.mean == pytest.approx(0.06)
    # Student's t with one degree of freedom: 12.706 · sd / √2, the sd of 0.07 and 0.05.
    assert gain.high - gain.mean == pytest.approx(12.706 * 0.01, rel=1e-3)
    for one in made_up[2:4]:
        del one["result"]["auroc"]["corrupt5"]  # only what both have is compared
    assert found.gain(tuned, plain, found.sets()).mean == pytest.approx(0.06)
    for scores in made_up[3]["result"]["auroc"].values():
        del scores["pds"]  # and only the seeds that both have
    assert found.gain(tuned, plain, found.sets()).mean == pytest.approx(0.07)


def test_goals_are_checked_on_the_records(made_up: list[Record]) -> None:
    row = {goal.text: goal.claim.check(made_up) for goal in GOALS}
    tuned, scratch, _, _, best, accuracy, worst = row.values()
    assert (tuned.verdict, scratch.verdict) == ("undecided", "undecided")
    assert tuned.effects["Fashion-MNIST"].estimate.mean == pytest.approx(0.06)
    assert best.effects["Fashion-MNIST (vim)"].estimate.mean == pytest.approx(0.82 - 0.9)
    assert accuracy.effects["Fashion-MNIST"].estimate.mean == pytest.approx(-0.005)
    assert worst.effects["Fashion-MNIST (held out: vim)"].estimate.mean == pytest.approx(0.77 - 0.9)
    cells = {name: one["Fashion-MNIST"] for name, one in goals_table(made_up).by_row().items()}
    met, unmet = cells[GOALS[0].text], cells[GOALS[1].text]
    assert met == "+0.060 [-0.067, +0.187] undecided, met"
    assert unmet == "+0.020 [-0.107, +0.147] undecided"


@pytest.mark.parametrize(("gain", "verdict"), [(0.06, "holds"), (0.04, "contradicted")])
def test_planted_gains_decide(gain: float, verdict: str) -> None:
    records = [_record("deep_ensemble", seed, 0.8 + seed / 100) for seed in range(3)]
    records += [_record("tuned", seed, 0.8 + seed / 100 + gain) for seed in range(3)]
    assert GOALS[0].claim.check(records).verdict == verdict


def test_the_choice_is_made_on_validation_rows_alone(made_up: list[Record]) -> None:
    for one in made_up[2:4]:
        auroc = one["result"]["auroc"]
        one["result"]["val_auroc"]["permute"]["energy"] = 0.99
        auroc["corrupt5"]["energy"] = auroc["held_out"]["energy"] = 0.6
    [found] = compare_settings(made_up)
    choice = choose(found, "score of the tuned copy")
    assert choice is not None
    assert choice.chosen == {Scored("tuned", "energy"): 2}
    assert choice[1:] == pytest.approx((0.6, 0.82, 0.82))
    assert choose(found, "strength") is None


def test_estimators_are_compared_over_tables() -> None:
    gains = {"vowel": (0.2, 0.4), "servo": (0.1, 0.1), "credit": (0.3,), "ozone": (0.3,)}
    records: list[Record] = [
        {
            "cell": {"table": table, "seed": seed},
            "result": {
                "auroc": {
                    "members": {"noise": 0.5, "extreme": 0.7},
                    "distance": {"noise": 0.6, "extreme": 0.6},
                    "both": {"noise": 0.5 + gain, "extreme": 0.7 + gain},
                }
            },
        }
        for table, own in gains.items()
        for seed, gain in enumerate(own)
    ]
    rows = estimators.table(records).by_row()
    assert rows["vowel"]["members"] == "0.600"
    assert rows["**all settled on**"]["gain over members"].startswith("+0.200")  # of 0.3 and 0.1
    assert rows["**all settled on**"]["fits"] == "4"
    (claim,) = EXPERIMENTS["strangers/estimators"].claims
    effects = claim.check(records).effects
    assert effects["settled on"].judgement.verdict == "undecided"
    assert effects["confirming"].judgement.verdict == "holds"


# ---- the combination ----------------------------------------------------------------------------


def test_the_chosen_rule_is_that_of_the_library() -> None:
    generator = torch.Generator().manual_seed(0)
    names = ("mutual_information", *CHOSEN.distances)
    val, x = ({n: torch.rand(90, generator=generator) for n in names} for _ in range(2))
    scales = [TailScale.fit(val[name]) for name in names]
    expected = combine_tails([x[name] for name in names], scales)
    torch.testing.assert_close(fit_rule(CHOSEN, names[0], val)(x), expected)
    assert "+".join(CHOSEN.distances) == Combined().distance


def test_a_rule_that_is_further_ahead_contradicts_the_choice() -> None:
    singles = {name: {"svhn": 0.8} for name in SINGLE}
    both = {"mutual_information": {"svhn": 0.9}, "tuned/mutual_information": {"svhn": 0.9}}
    rules = {
        name: {rule.title: {"svhn": 0.88} for rule in RULES}
        for name in ("deep ensemble", "tuned copy")
    }
    result = {"single": {**singles, **both}, "rules": rules}
    records: list[Record] = [{"cell": {"setting": "settling", "seed": 100}, "result": result}]
    assert among_best(records).verdict == "holds"
    for own in rules.values():
        own[RULES[0].title] = {"svhn": 0.89}
    found = among_best(records)
    assert (found.verdict, found.measured) == ("contradicted", "-0.0200, best -0.0100")

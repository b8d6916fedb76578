"""All of CIFAR-10: the plan, the training that two studies share, claims that follow records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from dissensus.objectives import Augmented, Independent
from dissensus.show import draw
from reproductions import regime
from reproductions.adp import ensembles, resnet20
from reproductions.cells import load_images
from reproductions.collusion import cifar10, cifar10_runs
from tests.reproductions.made_up import curves

EXPERIMENTS = (cifar10.CIFAR10, cifar10.CIFAR10_CURVES)


# ---- the plan -----------------------------------------------------------------------------------


def test_a_partial_run_has_both_ends_of_beta_and_every_network_before_further_seeds() -> None:
    names = [cell["name"] for cell in cifar10_runs.cells("cpu", {})]
    small = [f"small-beta={beta}-seed=0" for beta in ("0", "1", "0.5", "0.9")]
    large = [f"resnet20-{kind}-seed=0" for kind in ("joint-probability", "joint-score")]
    further = [name.replace("seed=0", "seed=1") for name in small]
    assert names == [*small, *large, "resnet20-independent-seed=0", *further]
    fewer = cifar10_runs.cells("paper", {"seeds": 1, "epochs": 18, "resnet20_epochs": 27})
    assert [cell["epochs"] for cell in fewer] == [18] * 4 + [27] * 3
    assert fewer[0]["schedule"] == "multistep:at=12/16,factor=0.1"


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_resnet20_is_trained_as_in_adp(scale: str) -> None:
    """Its β = 0 is the baseline there, settings and folder; joint training differs in β alone."""
    plain = resnet20.cells(scale, {})[0]
    *_, joint, score, independent = plan = cifar10_runs.cells(scale, {"seeds": 1})
    assert plain["contender"] == "plain"
    for key in regime.RESNET20[scale]:
        assert plain[key] == joint[key] == score[key] == independent[key], key
    folder = regime.work_folder(plain, "adp")
    assert cifar10_runs.work_folder(independent) == folder
    others = {cifar10_runs.work_folder(cell) for cell in plan[:-1]}
    assert folder not in others
    assert len(others) == len(plan) - 1
    assert ensembles.CONTENDERS["plain"].objective == cifar10_runs.objective_of(independent)
    assert cifar10_runs.objective_of(independent) == Independent()
    assert cifar10_runs.objective_of(score) == Augmented(1.0, combine="score")


# ---- runs ---------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_cell_is_measured_along_the_way_and_goes_on_where_it_stopped(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cifar10_runs.cells("smoke", {"seeds": 1})[1]
    assert cell["beta"] == 1.0
    with monkeypatch.context() as patched:
        patched.setattr(cifar10_runs, "_measure_epoch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cifar10_runs.run(cell)
    (trained,) = cache.rglob("checkpoint.safetensors")
    before = trained.read_bytes()
    result = cifar10_runs.run(cell)
    assert trained.read_bytes() == before
    assert set(result["averages"]) == {"probability"}
    measured = result["averages"]["probability"]
    assert measured["watched"]["epoch"] == [1, 2]
    for part in ("train", "test"):
        end, watched = measured[part], measured["watched"]
        assert watched[f"{part}_error"][-1] == pytest.approx(end["error"], rel=1e-3)
        first, second = watched[f"{part}_member_error"]
        assert first != second
        assert end["diversity"] == pytest.approx(end["member_error"] - end["error"], abs=1e-5)
        assert len(end["blocks"]["error"]) == 100  # of one image each
        for key in ("error", "member_error", "accuracy"):
            assert np.mean(end["blocks"][key]) == pytest.approx(end[key], abs=1e-5)
        own = np.mean(end["blocks"]["member_accuracy"])
        assert own == pytest.approx(np.mean(end["member_accuracies"]))


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_baseline_of_adp_is_not_trained_again(cache: Path) -> None:
    plain = resnet20.cells("smoke", {})[0]
    folder = regime.work_folder(plain, "adp")
    keep = regime.keep_checkpoints(folder, plain["every"])
    data = load_images(plain)
    ens, history = ensembles.train(plain, data, folder, (keep,))
    before = (folder / "checkpoint.safetensors").stat().st_mtime_ns
    result = cifar10_runs.run(cifar10_runs.cells("smoke", {"seeds": 1})[-1])
    assert (folder / "checkpoint.safetensors").stat().st_mtime_ns == before
    assert set(result["averages"]) == {"probability", "score"}
    error = ensembles.measurements.errors(ens, data.test)["error"]
    probability, score = (result["averages"][name]["test"] for name in ("probability", "score"))
    assert probability["accuracy"] == pytest.approx(1 - error)
    assert probability["member_error"] == pytest.approx(score["member_error"], abs=1e-6)
    assert probability["error"] != score["error"]
    assert len(history.epochs) == len(result["averages"]["score"]["watched"]["epoch"])


def test_blocks_are_of_neighbouring_images() -> None:
    """Against NumPy: members, images, classes; the mean of scores, then its cross-entropy."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 300, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (300,), generator=generator)
    blocks = cifar10_runs._measure_part(logits, targets, "score")["blocks"]
    scores, labels, rows = logits.numpy(), targets.numpy(), np.arange(300)
    loss = -log_softmax(scores.mean(0), -1)[rows, labels]
    np.testing.assert_allclose(blocks["error"], loss.reshape(100, 3).mean(1))
    own = -log_softmax(scores, -1)[:, rows, labels].mean(0)
    np.testing.assert_allclose(blocks["member_error"], own.reshape(100, 3).mean(1))
    right = (scores.argmax(-1) == labels).mean(0)
    np.testing.assert_allclose(blocks["member_accuracy"], right.reshape(100, 3).mean(1))


# ---- claims -------------------------------------------------------------------------------------


def planted(*, as_published: bool, scale: str = "cpu") -> list[dict[str, Any]]:
    """Records of the plan with the paper's effects, or with their opposites."""
    rng = np.random.default_rng(0)
    sign = 1.0 if as_published else -1.0
    records = []
    for cell in cifar10_runs.cells(scale, {}):
        joint = 1.0 if cell["beta"] == 1 else 0.02 * cell["beta"]
        wobble = 0.001 * rng.standard_normal()
        watched = curves(joint, sign, wobble)
        level = 0.82 - (0.0 if as_published else 0.1)
        test = part(
            accuracy=level - sign * 0.05 * joint + wobble,
            member=0.75 - sign * 0.2 * joint + wobble,
            error=watched["test_error"][-1],
            own=watched["test_member_error"][-1],
            rng=rng,
        )
        train = part(0.9, 0.8, watched["train_error"][-1], watched["train_member_error"][-1], rng)
        measured = {"train": train, "test": test, "watched": watched}
        result = {"parameters": 1, "averages": dict.fromkeys(cell["averages"], measured)}
        records.append({"name": cell["name"], "cell": cell, "result": result, "seconds": 1.0})
    return records


def part(
    accuracy: float, member: float, error: float, own: float, rng: np.random.Generator
) -> dict[str, Any]:
    means = {"accuracy": accuracy, "member_accuracy": member, "error": error, "member_error": own}
    noise = 0.01 * rng.standard_normal(100)
    blocks = {key: (value + noise - noise.mean()).tolist() for key, value in means.items()}
    rest = {"diversity": own - error, "top5": 0.99, "member_accuracies": [member] * 3}
    return {**means, **rest, "blocks": blocks}


LARGE = ("ResNet-20", "ResNet-20, averaged scores")
CLAIMS = [claim for one in EXPERIMENTS for claim in one.claims]


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.text[:60] for claim in CLAIMS])
def test_a_claim_holds_where_its_effect_is_planted_and_fails_where_the_opposite_is(
    claim: Any,
) -> None:
    for as_published, verdict in ((True, "holds"), (False, "contradicted")):
        finding = claim.check(planted(as_published=as_published))
        assert finding.verdict == verdict, finding.measured


def test_two_seeds_have_an_interval_over_seeds_and_one_over_its_images() -> None:
    over_seeds, here = (c.check(planted(as_published=True)) for c in cifar10.CIFAR10.claims[1:3])
    assert list(over_seeds.effects) == ["small ResNet"]
    assert over_seeds.effects["small ResNet"].estimate.runs == 2
    assert {case: one.estimate.runs for case, one in here.effects.items()} == {
        "small ResNet": 100,  # blocks of the same images in both runs
        "ResNet-20": 100,
    }
    assert here.effects["ResNet-20"].sides == pytest.approx((0.82, 0.77), abs=0.002)


def test_a_partial_record_answers_for_the_small_network() -> None:
    begun = planted(as_published=True)[:2]
    verdicts = [claim.check(begun).verdict for claim in cifar10.CIFAR10.claims]
    untested = "not tested at this scale"
    assert verdicts == ["holds", untested, "holds", untested, untested, untested, "holds"]
    each = cifar10.CIFAR10.claims[4].check(begun)
    assert each.measured == "β = 0.5, 0.9 was not run"  # β = 0 alone does not answer for each
    for one in EXPERIMENTS:
        assert draw(one.draw(begun)).axes  # type: ignore[misc, arg-type]
        assert [claim.check([]).verdict for claim in one.claims] == [untested] * len(one.claims)


def test_figures_and_table_of_full_records() -> None:
    records = planted(as_published=True)
    for one in EXPERIMENTS:
        assert draw(one.draw(records)).axes  # type: ignore[misc, arg-type]
    assert list(cifar10.table(records).by_row()) == [
        *(f"small ResNet, {beta}, 2" for beta in ("0", "0.5", "0.9", "1")),
        *(f"{name}, {beta}, 1" for name in LARGE for beta in ("0", "1")),
    ]

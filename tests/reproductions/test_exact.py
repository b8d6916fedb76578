"""The two exact experiments: what they find, and that what is false would be found false."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from reproductions import exact
from reproductions.collusion import gat, gradients
from reproductions.collusion.gradients import printed_gradients, printed_losses
from reproductions.study import run_study

EXPECTED = {
    "gat": {"contradicted": 2, "holds": 9},
    "gradients": {"contradicted": 2, "holds": 8},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("exact")
    return {
        one.name: run_study(one.study, "collusion", "smoke", {}, out, progress=False).cells
        for one in (gat.EXPERIMENT, gradients.EXPERIMENT)
    }


@pytest.mark.parametrize("experiment", [gat.EXPERIMENT, gradients.EXPERIMENT], ids=["gat", "grad"])
def test_the_verdicts(
    experiment: Any, records: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    counts: dict[str, int] = {}
    for claim in experiment.claims:
        verdict = claim.check(records[experiment.name]).verdict
        counts[verdict] = counts.get(verdict, 0) + 1
    assert counts == EXPECTED[experiment.name]


@pytest.mark.parametrize("experiment", [gat.EXPERIMENT, gradients.EXPERIMENT], ids=["gat", "grad"])
@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
def test_every_scale_is_planned_and_described(experiment: Any, scale: str) -> None:
    planned = experiment.study.cells(scale, {})
    assert len({cell["name"] for cell in planned}) == len(planned)
    assert experiment.study.cost[scale]
    few = experiment.study.cells(scale, {"draws": 3})
    assert {cell["draws"] for cell in few if "draws" in cell} == {3}
    with pytest.raises(ValueError, match="draws must be an integer of at least 1"):
        experiment.study.cells(scale, {"draws": 0})


def claim_of(experiment: Any, start: str) -> Any:
    (found,) = [claim for claim in experiment.claims if claim.text.startswith(start)]
    return found.check


@pytest.mark.parametrize(
    ("start", "where", "value"),
    [
        ("GAT is", ("members=3", "theorem_d1_gradient"), 1e-6),
        ("With the mean of the other", ("members=3", "theorem_d3_value"), 1e-6),
        ("γ = α", ("members=2", "printed_gamma"), 1e-3),
        ("Σ_j", ("members=5", "lemma_d2"), 0.1),
        ("β at α", ("curves", "beta_of_step_0_1"), [0.0, 0.5]),
        ("α grows", ("curves", "alpha_near_one"), [1.0, 2.0, 3.0, 4.0]),
        ("Given targets", ("members=2", "detached_gradient"), 0.5),
        ("γ reaches 1", ("curves", "peaks"), {"2": {"alpha": 1, "gamma": 1, "falls_after": False}}),
    ],
)
def test_a_planted_deviation_turns_the_verdict_on_gat(
    start: str, where: tuple[str, str], value: Any, records: dict[str, list[dict[str, Any]]]
) -> None:
    check = claim_of(gat.EXPERIMENT, start)
    assert check(records["gat"]).verdict == "holds"
    planted = copy.deepcopy(records["gat"])
    next(r for r in planted if r["name"] == where[0])["result"][where[1]] = value
    assert check(planted).verdict == "contradicted"


def test_claims_on_gat_that_fail_would_hold_on_other_records(
    records: dict[str, list[dict[str, Any]]],
) -> None:
    planted = copy.deepcopy(records["gat"])
    for record in planted:
        if record["name"] == "curves":
            gamma = record["result"]["gamma"]
            for count in gamma:  # curves that never cross: smaller M is always above
                gamma[count] = [1 / (int(count) + step) for step in range(len(gamma[count]))]
        else:
            record["result"]["detached_with_beta_of_d1_direction"] = 0.0
    for start in ("γ falls with M for steps of any", "Training on moved targets"):
        check = claim_of(gat.EXPERIMENT, start)
        assert check(records["gat"]).verdict == "contradicted"
        assert check(planted).verdict == "holds"


@pytest.mark.parametrize(
    ("start", "side", "key", "value"),
    [
        ("Table 2", "most", "score_loss", 1e-3),
        ("The closed gradients", "most", "probability_gradient", 1e-3),
        ("Independent training: a member", "most", "independent_dependence", 1e-9),
        ("Independent training: a member", "least", "independent_spread", 0.0),
        ("Averaged probabilities", "least", "probability_spread", 0.0),
        ("Averaged probabilities", "least", "probability_dependence", 0.0),
        ("Averaged scores", "most", "score_spread", 0.1),
        ("The joint loss", "most", "score_minus_independent", 0.1),
    ],
)
def test_a_planted_deviation_turns_the_verdict_on_gradients(
    start: str, side: str, key: str, value: float, records: dict[str, list[dict[str, Any]]]
) -> None:
    check = claim_of(gradients.EXPERIMENT, start)
    assert check(records["gradients"]).verdict == "holds"
    planted = copy.deepcopy(records["gradients"])
    next(r for r in planted if r["cell"]["kind"] == "draws")["result"][side][key] = value
    assert check(planted).verdict == "contradicted"


@pytest.mark.parametrize(
    ("start", "key", "value", "before"),
    [
        ("Joint training", "joint_slope_at_colluding", 0.1, "holds"),
        ("Joint training", "joint_curvature_beyond_first", 0.1, "holds"),
        ("Mean ERR", "ratio_far", [0.5, 0.6, 0.7, 0.8, 0.9], "holds"),
        ("Independent training: the unique", "independent_slope_at_zero", 0.0, "contradicted"),
        ("The cross term", "cross_term_printed", 0.0, "contradicted"),
    ],
)
def test_a_planted_deviation_turns_the_verdict_on_offsets(
    start: str, key: str, value: Any, before: str, records: dict[str, list[dict[str, Any]]]
) -> None:
    check = claim_of(gradients.EXPERIMENT, start)
    assert check(records["gradients"]).verdict == before
    planted = copy.deepcopy(records["gradients"])
    next(r for r in planted if r["name"] == "offsets")["result"][key] = value
    assert check(planted).verdict == {"holds": "contradicted", "contradicted": "holds"}[before]


def test_gradients_worked_by_hand() -> None:
    """M = 2, two classes, φ(f_1)_k* = 3/4, φ(f_2)_k* = 1/4; log-odds log 3 and −log 3."""
    odds = torch.tensor(3.0, dtype=torch.float64).log()
    logits = torch.stack([torch.stack([odds, 0 * odds]), torch.stack([-odds, 0 * odds])])[:, None]
    label = torch.tensor([0])
    losses = printed_losses(logits, label)
    assert float(losses["independent"]) == pytest.approx(-0.5 * float(torch.tensor(3 / 16).log()))
    assert float(losses["probability"]) == pytest.approx(0.6931471805599453)  # mean is 1/2
    assert float(losses["score"]) == pytest.approx(0.6931471805599453)  # log-odds cancel
    found = printed_gradients(logits, label)
    at_true = {way: gradient[:, 0, 0].tolist() for way, gradient in found.items()}
    assert at_true["independent"] == pytest.approx([-1 / 8, -3 / 8])
    assert at_true["probability"] == pytest.approx([-3 / 16, -3 / 16])
    assert at_true["score"] == pytest.approx([-1 / 4, -1 / 4])


def test_the_deviation_is_relative_and_symmetric() -> None:
    one, two = torch.tensor([1.0, 100.0]), torch.tensor([1.0, 101.0])
    assert exact.relative_difference(one, two) == pytest.approx(1 / 101)
    assert exact.relative_difference(two, one) == exact.relative_difference(one, two)
    assert exact.relative_difference(0 * one, 0 * two) == 0.0


def test_draws_follow_from_the_seed(tmp_path: Path) -> None:
    cell = gat.EXPERIMENT.study.cells("smoke", {"draws": 4})[1]
    assert gat.EXPERIMENT.study.run(cell) == gat.EXPERIMENT.study.run(cell)
    assert gat.EXPERIMENT.study.run(cell) != gat.EXPERIMENT.study.run({**cell, "seed": 99})

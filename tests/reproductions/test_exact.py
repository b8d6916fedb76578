"""The two exact experiments: what they find, and that what is false would be found false."""

import copy
from collections import Counter
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


EXPERIMENTS = (gat.EXPERIMENT, gradients.EXPERIMENT)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("exact")
    return {
        one.name: run_study(one.study, "collusion", "smoke", {}, out, progress=False).cells
        for one in EXPERIMENTS
    }


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_the_verdicts(experiment: Any, records: dict[str, list[dict[str, Any]]]) -> None:
    verdicts = [claim.check(records[experiment.name]).verdict for claim in experiment.claims]
    assert dict(Counter(verdicts)) == EXPECTED[experiment.name]


PLANTED = [
    ("gat", "GAT is", "members=3", ("theorem_d1_gradient",), 1e-6),
    ("gat", "With the mean of the other", "members=3", ("theorem_d3_value",), 1e-6),
    ("gat", "γ = α", "members=2", ("printed_gamma",), 1e-3),
    ("gat", "Σ_j", "members=5", ("lemma_d2",), 0.1),
    ("gat", "β at α", "curves", ("beta_of_step_0_1",), [0.0, 0.5]),
    ("gat", "α grows", "curves", ("alpha_near_one",), [1.0, 2.0, 3.0, 4.0]),
    ("gat", "Given targets", "members=2", ("detached_gradient",), 0.5),
    ("gat", "γ reaches 1", "curves", ("peaks", "2", "falls_after"), False),
    ("gradients", "Table 2", "draws", ("most", "score_loss"), 1e-3),
    ("gradients", "The closed gradients", "draws", ("most", "probability_gradient"), 1e-3),
    ("gradients", "Independent training: a", "draws", ("most", "independent_dependence"), 1e-9),
    ("gradients", "Independent training: a", "draws", ("least", "independent_spread"), 0.0),
    ("gradients", "Averaged probabilities", "draws", ("least", "probability_spread"), 0.0),
    ("gradients", "Averaged probabilities", "draws", ("least", "probability_dependence"), 0.0),
    ("gradients", "Averaged scores", "draws", ("most", "score_spread"), 0.1),
    ("gradients", "The joint loss", "draws", ("most", "score_minus_independent"), 0.1),
    ("gradients", "Joint training", "offsets", ("joint_slope_at_colluding",), 0.1),
    ("gradients", "Joint training", "offsets", ("joint_curvature_beyond_first",), 0.1),
    ("gradients", "Mean ERR", "offsets", ("ratio_far",), [0.5, 0.6, 0.7, 0.8, 0.9]),
    # These are contradicted, and would hold:
    ("gradients", "Independent training: the", "offsets", ("independent_slope_at_zero",), 0.0),
    ("gradients", "The cross term", "offsets", ("cross_term_printed",), 0.0),
]


@pytest.mark.parametrize(("name", "start", "cell", "keys", "value"), PLANTED)
def test_a_planted_deviation_turns_the_verdict(
    name: str,
    start: str,
    cell: str,
    keys: tuple[str, ...],
    value: Any,
    records: dict[str, list[dict[str, Any]]],
) -> None:
    check = claim_of(name, start)
    planted = copy.deepcopy(records[name])
    result = next(r for r in planted if cell in (r["name"], r["cell"].get("kind")))["result"]
    for key in keys[:-1]:
        result = result[key]
    result[keys[-1]] = value
    turned = {"holds": "contradicted", "contradicted": "holds"}
    assert check(planted).verdict == turned[check(records[name]).verdict]


def claim_of(name: str, start: str) -> Any:
    claims = {one.name: one.claims for one in EXPERIMENTS}[name]
    (found,) = [claim for claim in claims if claim.text.startswith(start)]
    return found.check


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
        check = claim_of("gat", start)
        assert check(records["gat"]).verdict == "contradicted"
        assert check(planted).verdict == "holds"


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

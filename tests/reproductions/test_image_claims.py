"""The claims of the image studies follow what the records say: planted both ways, they flip."""

from typing import Any

import numpy as np
import pytest

from dissensus.show import draw
from reproductions.collusion import dropout, gap, joint_training, sweeps
from reproductions.collusion.images import joint_worst
from tests.reproductions.made_up import curves

EXPERIMENTS = (
    gap.GENERALIZATION_GAP,
    sweeps.BETA_SWEEP,
    sweeps.LARGER_ENSEMBLES,
    sweeps.SCORE_AVERAGING,
    joint_training.TRAINING_CURVES,
    joint_training.JOINT_VS_INDEPENDENT,
    sweeps.CNN,
    sweeps.VGG_SVHN,
    dropout.LEARNER_DROPOUT,
)


def planted(study: Any, *, as_published: bool) -> list[dict[str, Any]]:
    """Records of the cpu plan with the paper's effects, or with their opposites."""
    rng = np.random.default_rng(0)
    sign = 1.0 if as_published else -1.0
    records = []
    for cell in study.cells("cpu", {}):
        beta, drop = cell["beta"], cell["drop"]
        between = 1.0 if 0 < beta < 1 else 0.0
        joint = 1.0 if beta == 1 else 0.1 * beta
        better = sign * (-0.1 * joint - 0.05 * drop + 0.004 * (cell["members"] - 5))
        wobble = 0.001 * rng.standard_normal()
        score = 0.1 if cell["combine"] == "score" and not as_published else 0.0
        measured = {
            "error": 1.3 + sign * (0.2 * joint - 0.05 * between) + wobble,
            "diversity": 1.0 - sign * 0.8 * drop + wobble,
            "member_error": 2.0 + sign * joint + wobble,
            "accuracy": 0.5 + better + score + wobble,
            "top5": 0.8 + 0.5 * better + wobble,
            "member_accuracies": [0.4 + sign * (-0.2 * joint - 0.05 * drop) + wobble] * 5,
        }
        result = {"test": measured, "val": measured, "train": measured}
        result["watched"] = curves(joint, sign, wobble)
        accuracy = np.linspace(0.2, 0.6 - sign * 0.1 * joint, 12) + wobble
        member = accuracy - 0.1 - sign * 0.08 * joint
        result["validation"] = {
            "accuracy": accuracy.tolist(),
            "member_accuracy": member.tolist(),
        }
        records.append({"name": cell["name"], "cell": cell, "result": result, "seconds": 1.0})
    return records


CLAIMS = [(one, claim) for one in EXPERIMENTS for claim in one.claims]
NAMED = pytest.mark.parametrize(
    ("experiment", "claim"), CLAIMS, ids=[f"{one.name}: {c.text[:50]}" for one, c in CLAIMS]
)


@NAMED
def test_a_claim_holds_where_its_effect_is_planted_and_fails_where_the_opposite_is(
    experiment: Any, claim: Any
) -> None:
    for as_published, verdict in ((True, "holds"), (False, "contradicted")):
        finding = claim.check(planted(experiment.study, as_published=as_published))
        assert finding.verdict == verdict, finding.measured


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_figures_and_tables_of_full_records(experiment: Any) -> None:
    records = planted(experiment.study, as_published=True)
    assert experiment.draw is None or draw(experiment.draw(records)).axes
    if experiment.table is not None:
        table = experiment.table(records)
        assert all(len(row) == len(table.header) for row in table.rows)
        assert len(table.by_row()) == len(table.rows)


# ---- the pieces ---------------------------------------------------------------------------------


def record(beta: float, seed: int, accuracy: float) -> dict[str, Any]:
    measured = {"accuracy": accuracy, "error": 1 - accuracy}
    return {"cell": {"beta": beta, "seed": seed}, "result": {"test": measured}}


def test_joint_must_be_worse_than_each_other_beta() -> None:
    runs = [record(b, s, 0.8 - 0.2 * b + 0.001 * s * b) for b in (0.0, 0.5, 1.0) for s in range(3)]
    assert joint_worst("accuracy")(runs).verdict == "holds"
    assert joint_worst("error")(runs).verdict == "holds"
    for one in runs:
        if one["cell"]["beta"] == 0.5:
            one["result"]["test"]["accuracy"] = 0.5 + 0.01 * one["cell"]["seed"]
    found = joint_worst("accuracy")(runs)
    assert found.verdict == "contradicted"
    assert found.effects[""].quantity.startswith("test accuracy, β = 0.5 minus β = 1")
    assert joint_worst("error")(runs).verdict == "holds"

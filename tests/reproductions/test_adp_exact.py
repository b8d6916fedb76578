"""Theory, divergence and overhead of the adp paper: searches, their claims, and planted ones."""

from typing import Any

import numpy as np
import pytest
import torch

from dissensus.objectives import ADP, target_probability
from reproductions.adp import jsd, overhead, theory
from reproductions.adp.theory import corollary_loss, corollary_solution
from reproductions.figures import Plot, draw
from reproductions.study import Record


def searched(study: Any) -> list[Record]:
    return [
        {"name": cell["name"], "cell": cell, "result": study.run(cell), "seconds": 1.0}
        for cell in study.cells("smoke", {"starts": 2})
    ]


def verdicts(experiment: Any, records: list[Record]) -> list[str]:
    """The verdicts of all claims; the table and the figure can be made, too."""
    if experiment.table is not None:
        assert len(experiment.table(records).by_row()) == len(records)
    if experiment.draw is not None:
        plot = experiment.draw(records)
        assert isinstance(plot, Plot)
        assert draw(plot).axes
    return [claim.check(records).verdict for claim in experiment.claims]


def spoilt(records: list[Record], key: str, value: Any) -> list[Record]:
    return [{**one, "result": {**one["result"], key: value}} for one in records]


# ---- theory -------------------------------------------------------------------------------------


def test_equation_8_is_worked_out() -> None:
    """K = 3, L = 10, F_y = 0.7: three classes each, of 3 · 0.3 / 9 = 0.1."""
    probs = corollary_solution(3, 10, 0.7)
    assert probs[1].tolist() == pytest.approx([0.7, 0, 0, 0, 0.1, 0.1, 0.1, 0, 0, 0])
    with pytest.raises(ValueError, match="4 members do not divide 10 − 1 classes"):
        corollary_solution(4, 10, 0.7)


def test_its_loss_is_adps() -> None:
    label = target_probability(2.0, 3, 10)
    logits = torch.from_numpy(np.log(corollary_solution(3, 10, label) + 1e-300))[:, None]
    loss = ADP(2.0, 0.5)(logits, torch.tensor([0])).loss
    assert corollary_loss(2.0, 0.5, 3, 10) == pytest.approx(float(loss), rel=1e-9)


@pytest.mark.slow
def test_the_theorems_hold_and_other_minima_refute_them() -> None:
    records = searched(theory.THEORY)
    assert verdicts(theory.EXPERIMENT, records)[:4] == ["holds"] * 4
    planted = (
        ("theorem1", 0, "label", [0.9, 1.0]),
        ("theorem2", 1, "wrong_high", 0.5),
        ("corollary1", 3, "loss", -50.0),
        ("corollary1", 4, "losses", [50.0]),
    )
    for part, place, key, value in planted:
        some = [row for row in records if row["cell"]["part"] == part]
        claim = theory.EXPERIMENT.claims[place]
        assert claim.check(spoilt(some, key, value)).verdict == "contradicted"


def test_jensen_shannon_has_no_solution_inside() -> None:
    records = searched(jsd.STUDY)
    assert verdicts(jsd.EXPERIMENT, records)[:2] == ["holds"] * 2
    planted = (("smallest", 0.01), ("wrong_members", 0), ("label", [0.2, 1.0]))
    for claim, (key, value) in zip(jsd.EXPERIMENT.claims, planted, strict=True):
        assert claim.check(spoilt(records, key, value)).verdict == "contradicted"


# ---- overhead -----------------------------------------------------------------------------------


def timed(ratio: float, gradient: float = 0.1) -> list[Record]:
    plain = [1.0, 1.1, 0.9]
    adp = [ratio * one * (1 + 0.001 * number) for number, one in enumerate(plain)]
    result = {
        "seconds_a_step": {"plain": plain, "adp": adp},
        "gradients": {"3": 0.1, "20": gradient},
    }
    return [
        {"name": cell["name"], "cell": cell, "result": result, "seconds": 1.0}
        for cell in overhead.cells("cpu", {})
    ]


def test_overhead_follows_the_records() -> None:
    assert verdicts(overhead.EXPERIMENT, timed(1.1)) == ["holds"] * 3
    assert verdicts(overhead.EXPERIMENT, timed(1.3, gradient=0.01)) == ["contradicted"] * 3
    assert overhead.EXPERIMENT.claims[0].published == "204 → 227 s per epoch, +11%"


def test_overhead_is_timed_in_turns() -> None:
    found = overhead.run({**overhead.cells("smoke", {})[0], "repeats": 2, "steps": 1})
    assert {name: len(values) for name, values in found["seconds_a_step"].items()} == {
        "plain": 2,
        "adp": 2,
    }
    # No vanishing gradient where members are more than wrong classes.
    assert 0.5 < found["gradients"]["20"] / found["gradients"]["3"] < 4

"""Dropout of members in joint training: Figure 18, the paper's negative result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproductions.cells import Variants, seed_study
from reproductions.collusion import images
from reproductions.collusion.sweeps import SIMILAR
from reproductions.comparisons import (
    Check,
    Effect,
    Finding,
    Runs,
    cell_values,
    found,
    larger,
    pooled,
)
from reproductions.experiment import Claim, Experiment, Table, quantity_table
from reproductions.figures import Panel, Plot
from reproductions.statistics import CANNOT, Judgement, judge_within, mean_interval
from reproductions.study import Record

_DROPS = (0.0, 0.2, 0.4, 0.6)
_KEYS = ("accuracy", "error", "diversity", "member_accuracy", "member_error")
_INDEPENDENT, _ACCURACY = images.KINDS[0], images.QUANTITIES["accuracy"]


# ---- the study ----------------------------------------------------------------------------------


def _variants(settings: Mapping[str, Any], drops: Sequence[float] = _DROPS) -> Variants:
    """Joint training with each share of members dropped, and independent training beside it."""
    joint = {f"joint-drop={drop:g}": {**settings, "beta": 1.0, "drop": drop} for drop in drops}
    return {"independent": settings, **joint}


DROPOUT = seed_study(
    "learner-dropout",
    {
        "smoke": _variants(images.SMOKE, (0.0, 0.4)),
        "cpu": _variants(images.CPU),
        "paper": _variants(images.PAPER_SWEEP),
    },
    images.run_image_cell,
    seeds=(2, 10, 5),
    cost=("5 s", "10 min", "GPU days"),
)


# ---- claims -------------------------------------------------------------------------------------


def _dropping(share: float) -> Runs:
    """Joint training with a share of the members dropped."""
    return Runs(f"joint, p = {share:g}", {"beta": 1.0, "drop": share})


def _falls(key: str) -> Check:
    """A check that a quantity is larger without dropping than with the most of it."""

    def check(records: list[Record]) -> Finding:
        most = cell_values(records, "drop")[-1]
        return larger(images.QUANTITIES[key], _dropping(0.0), _dropping(most))(records)

    return check


def _no_better(records: list[Record]) -> Finding:
    """No share of dropped members makes the ensemble more accurate by :data:`SIMILAR`."""
    findings = {}
    for share in cell_values(records, "drop")[1:]:
        gains = _ACCURACY.differences(_dropping(share).of(records), _dropping(0.0).of(records))
        if not gains:
            return Finding(CANNOT, "no pairs of runs")
        gain = mean_interval(list(gains.values()))
        judged = judge_within(gain, high=SIMILAR)
        if gain.low > 0:
            judged = Judgement("contradicted", gain.chance(0.0))
        effect = Effect("test accuracy − that of p = 0", gain, "{:+.1%}", judged)
        findings[f"p = {share:g}"] = found(effect)
    return pooled(findings)


def _below_independent(records: list[Record]) -> Finding:
    return pooled(
        {
            f"p = {share:g}": larger(_ACCURACY, _INDEPENDENT, _dropping(share))(records)
            for share in cell_values(records, "drop")
        }
    )


# ---- figure and table ---------------------------------------------------------------------------


def plot(records: list[Record]) -> Plot:
    """Accuracy, diversity and individual performance against the share that is dropped."""
    shares, other = cell_values(records, "drop"), _INDEPENDENT.of(records)
    joint, ends = [_dropping(share).of(records) for share in shares], (shares[0], shares[-1])
    panels = []
    for key in ("accuracy", "diversity", "member_accuracy", "error"):
        quantity = images.QUANTITIES[key]
        series = [
            quantity.series("joint (β = 1)", shares, joint, 1),
            quantity.series("independent (β = 0)", ends, (other, other), 0),
        ]
        panels.append(Panel("share of members dropped per batch", quantity.name, series))
    return Plot(panels, "Joint training against the share of members dropped", 4, (3.2, 2.8))


def table(records: list[Record]) -> Table:
    """Means and intervals over runs on test data."""
    kinds = (*map(_dropping, cell_values(records, "drop")), _INDEPENDENT)
    runs = {kind.name: kind.of(records) for kind in kinds}
    rows = {(name, str(len(some))): some for name, some in runs.items()}
    return quantity_table(["training", "runs"], rows, [images.QUANTITIES[key] for key in _KEYS])


_WHERE = "Section G.7, Figure 18"

LEARNER_DROPOUT = Experiment(
    "collusion/learner-dropout",
    "Figure 18",
    "Joint training that drops a share of the members from each batch",
    DROPOUT,
    (
        Claim("Dropping members reduces diversity, and so collusion", _WHERE, _falls("diversity")),
        Claim(
            f"The ensemble does not improve (here: by {SIMILAR:.0%} or more)", _WHERE, _no_better
        ),
        Claim("Members become weaker on average", _WHERE, _falls("member_accuracy")),
        Claim(
            "Independent training stays more accurate at every share",
            "Section G.7",
            _below_independent,
        ),
    ),
    table,
    plot,
)

"""Metrics of runs and sweeps, by their names in records: headings, meanings, the better end."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """A column of a table; ``better`` is "high" or "low" if one end is better.

    ``form`` is that of :func:`~dissensus.show.figure.format_number`.
    """

    heading: str
    meaning: str
    better: str = ""
    form: str = "short"


METRICS = {
    "accuracy": Metric("accuracy", "Share of test inputs predicted correctly.", "high", "percent"),
    "rmse": Metric("RMSE", "Root mean squared error, in the target's units.", "low"),
    "nll": Metric("NLL", "Negative log-likelihood of the combined prediction.", "low"),
    "ece_width": Metric(
        "ECE", "Expected calibration error, with bins of equal width.", "low", "percent"
    ),
    "ensemble_error": Metric("ERR", "The ensemble's error: its loss on test inputs.", "low"),
    "member_error": Metric("mean ERR", "The members' own error, on average.", "low"),
    "diversity": Metric("DIV", "Diversity: mean ERR − ERR. More is not better by itself."),
    "debiased_share": Metric(
        "debiased share", "The share of DIV that constant offsets explain.", form="percent"
    ),
}

#: The metrics of a sweep.
SWEEP_METRICS = ("ensemble_error", "member_error", "diversity", "accuracy", "debiased_share")

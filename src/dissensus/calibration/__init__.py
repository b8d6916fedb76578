"""Calibration: measures of an ensemble's probabilities and intervals, and their corrections.

Classes: :func:`nll` and :func:`brier_score` are functions of the members' logits;
:func:`reliability` and :func:`ece` of the combined probabilities ``[batch, classes]``, as
``dissensus.combine`` gives them; :func:`calibration` is all of them at once.
:func:`fit_temperature` finds temperatures and :func:`apply_temperature` applies them. Pass
``space="probs"`` for members' probabilities in place of logits.

Numbers: :func:`conformal_quantile` makes intervals of the residuals of held-out rows,
:func:`sample_quantiles` a whole distribution; :func:`interval_coverage`, :func:`crps_quantiles`
and :func:`gaussian_nll` measure what was predicted.

Fit a temperature or an interval on **validation** data, which did not train the members, and report
calibration on **test** data, which did neither: an ECE on the data a temperature was fitted on is
too good.
"""

from __future__ import annotations

from dissensus.calibration.numbers import (
    conformal_quantile,
    crps_quantiles,
    gaussian_nll,
    interval_coverage,
    sample_quantiles,
)
from dissensus.calibration.probabilities import (
    BINNINGS,
    Calibration,
    Reliability,
    brier_score,
    calibration,
    ece,
    nll,
    reliability,
)
from dissensus.calibration.temperature import (
    TemperatureAtBound,
    apply_temperature,
    fit_temperature,
)

__all__ = [
    "BINNINGS",
    "Calibration",
    "Reliability",
    "TemperatureAtBound",
    "apply_temperature",
    "brier_score",
    "calibration",
    "conformal_quantile",
    "crps_quantiles",
    "ece",
    "fit_temperature",
    "gaussian_nll",
    "interval_coverage",
    "nll",
    "reliability",
    "sample_quantiles",
]

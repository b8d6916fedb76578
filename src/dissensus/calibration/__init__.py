"""Calibration: measures of an ensemble's probabilities, and temperatures that correct them.

:func:`nll` and :func:`brier_score` are functions of the members' logits; :func:`reliability` and
:func:`ece` of the combined probabilities ``[batch, classes]``, as ``dissensus.combine`` gives them;
:func:`calibration` is all of them at once. :func:`fit_temperature` and
:func:`fit_member_temperatures` find temperatures, :func:`apply_temperature` applies them.

Fit a temperature on **validation** data, which did not train the members, and report calibration
on **test** data, which did neither: an ECE on the data a temperature was fitted on is too good.
"""

from __future__ import annotations

from dissensus.calibration.measures import (
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
    fit_member_temperatures,
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
    "ece",
    "fit_member_temperatures",
    "fit_temperature",
    "nll",
    "reliability",
]

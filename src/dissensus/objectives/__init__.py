"""Objectives that ensembles are trained on: pure functions of ``[members, batch, outputs]``.

>>> import torch
>>> objective = parse("augmented:beta=0.5")
>>> terms = objective(torch.zeros(5, 8, 3), torch.zeros(8, dtype=torch.long))
>>> sorted(terms.parts)
['diversity', 'ensemble_error', 'member_error']
"""

from __future__ import annotations

from dissensus.objectives.adp import ADP, JSD, alpha_for, target_probability
from dissensus.objectives.base import Objective, Terms
from dissensus.objectives.disagreement import A2D, DivDis
from dissensus.objectives.interpolation import (
    GNCL,
    NCL,
    Augmented,
    GradientAdjustedTargets,
    Independent,
    Joint,
    equivalent_alpha,
    equivalent_beta,
)
from dissensus.objectives.ldr import LDR, hardness_weights
from dissensus.objectives.wrappers import LearnerDropout, Sequential
from dissensus.specs import parse_spec, spec_of

__all__ = [
    "A2D",
    "ADP",
    "GNCL",
    "JSD",
    "LDR",
    "NCL",
    "OBJECTIVES",
    "Augmented",
    "DivDis",
    "GradientAdjustedTargets",
    "Independent",
    "Joint",
    "LearnerDropout",
    "Objective",
    "Sequential",
    "Terms",
    "alpha_for",
    "equivalent_alpha",
    "equivalent_beta",
    "hardness_weights",
    "parse",
    "spec",
    "target_probability",
]

#: Every objective by the name that ``parse`` and the command line know it by.
OBJECTIVES: dict[str, type[Objective]] = {
    "independent": Independent,
    "joint": Joint,
    "augmented": Augmented,
    "gat": GradientAdjustedTargets,
    "ncl": NCL,
    "gncl": GNCL,
    "adp": ADP,
    "jsd": JSD,
    "a2d": A2D,
    "divdis": DivDis,
    "ldr": LDR,
    "learner_dropout": LearnerDropout,
    "sequential": Sequential,
}


def parse(text: str) -> Objective:
    """Build an objective from ``name:key=value,key=value``; a wrapper stands before a slash.

    >>> parse("ldr:strength=2,active=3")
    LDR(strength=2.0, active=3, regularizer='a2d', label_smoothing=0.0)
    >>> parse("learner_dropout:drop=0.4/augmented:beta=0.9").objective.beta
    0.9
    >>> parse("agmented:beta=0.5")
    Traceback (most recent call last):
    ...
    ValueError: there is no objective 'agmented'; did you mean 'augmented'?
    """
    objective: Objective = parse_spec(text, OBJECTIVES, "objective")
    return objective


def spec(objective: Objective) -> str:
    """The string that :func:`parse` turns back into ``objective``; defaults are left out.

    >>> spec(ADP(alpha=1.0))
    'adp:alpha=1'
    """
    return spec_of(objective, OBJECTIVES, "objective")

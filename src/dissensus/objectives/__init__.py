"""Objectives that ensembles are trained on: pure functions of ``[members, batch, outputs]``.

>>> import torch
>>> objective = parse("augmented:beta=0.5")
>>> terms = objective(torch.zeros(5, 8, 3), torch.zeros(8, dtype=torch.long))
>>> sorted(terms.parts)
['diversity', 'ensemble_error', 'member_error']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from dissensus.objectives.adp import ADP, JSD, alpha_for, target_probability
from dissensus.objectives.base import Objective, Terms
from dissensus.objectives.disagreement import A2D, DivDis, Repulsion
from dissensus.objectives.gaussian import Gaussian, gaussian_moments
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
from dissensus.objectives.wrappers import FunctionObjective, LearnerDropout, Sequential
from dissensus.tools.guards import guarded
from dissensus.tools.import_paths import path_of, resolve
from dissensus.tools.specs import parse_spec, read_settings, spec_of, split_spec

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
    "FunctionObjective",
    "Gaussian",
    "GradientAdjustedTargets",
    "Independent",
    "Joint",
    "LearnerDropout",
    "Objective",
    "Repulsion",
    "Sequential",
    "Terms",
    "alpha_for",
    "as_objective",
    "equivalent_alpha",
    "equivalent_beta",
    "gaussian_moments",
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
    "gaussian": Gaussian,
    "adp": ADP,
    "jsd": JSD,
    "a2d": A2D,
    "divdis": DivDis,
    "repulsion": Repulsion,
    "ldr": LDR,
    "learner_dropout": LearnerDropout,
    "sequential": Sequential,
}


@guarded
def parse(text: str, *, trust: bool = False) -> Objective:
    """Build an objective from ``name:key=value,key=value``; a wrapper stands before a slash.

    With ``trust``, the name may be an import path, ``my_file.py:Spread:strength=2``, of an
    objective or of a function ``(logits, targets) -> loss``; its code is run.

    >>> parse("ldr:strength=2,active=3")
    LDR(strength=2.0, active=3, regularizer='a2d', label_smoothing=0.0)
    >>> parse("learner_dropout:drop=0.4/augmented:beta=0.9").objective.beta
    0.9
    >>> parse("agmented:beta=0.5")
    Traceback (most recent call last):
    ...
    ValueError: there is no objective 'agmented'; did you mean 'augmented'?
    """

    def own(path: str, settings: str) -> Objective:
        if not trust:
            raise ValueError(
                f"the objective is {path}, code from outside; to run it pass --trust (trust=True)"
            )
        return _find_own(path, settings)

    objective: Objective = parse_spec(text, OBJECTIVES, "objective", own)
    return objective


def _find_own(path: str, settings: str) -> Objective:
    """The objective at an import path: a class with its settings, an object, or a function."""
    value: Any = resolve(path)
    if isinstance(value, type) and issubclass(value, Objective):
        given = split_spec(f"{path.rpartition(':')[2]}:{settings}")[1]
        known = [item.name for item in fields(value)]
        return value(**read_settings(path, given, value, known, separator=":"))
    if settings:
        raise ValueError(f"{path} has no settings, got {settings!r}; a subclass of Objective may")
    return as_objective(value)


@guarded
def as_objective(objective: Objective | Callable[..., Any] | str | None) -> Objective:
    """The objective that ``fit`` was given: an object, its name, a function, or None.

    >>> as_objective("adp") == ADP()
    True
    """
    if objective is None or isinstance(objective, Objective):
        return objective or Independent()
    if isinstance(objective, str):
        return parse(objective, trust=True)
    if not callable(objective) or isinstance(objective, type):
        raise ValueError(f"an objective is a name, an object or a function, got {objective!r}")
    return FunctionObjective(objective)


def spec(objective: Objective) -> str:
    """The string that :func:`parse` turns back into ``objective``; defaults are left out.

    One of your own has its import path as its name.

    >>> spec(ADP(alpha=1.0))
    'adp:alpha=1'
    """
    if isinstance(objective, FunctionObjective):
        return path_of(objective.function)
    kind = type(objective)
    known = OBJECTIVES if kind in OBJECTIVES.values() else {path_of(kind): kind}
    return spec_of(objective, known, "objective")


def name_objective(objective: Objective) -> str:
    """The text that names an objective; for one that is in no registry, the name of its class."""
    try:
        return objective.spec()
    except ValueError:
        return type(objective).__name__

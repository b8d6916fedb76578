"""What an ensemble is trained to minimise: pure functions of ``[members, batch, outputs]``.

>>> import torch
>>> objective = parse("augmented:beta=0.5")
>>> terms = objective(torch.zeros(5, 8, 3), torch.zeros(8, dtype=torch.long))
>>> sorted(terms.parts)
['diversity', 'ensemble_error', 'member_error']
"""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import fields
from typing import Any

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
    outer, slash, inner = text.strip().partition("/")
    name, _, arguments = outer.partition(":")
    name = name.strip().lower().replace("-", "_")
    if name not in OBJECTIVES:
        raise ValueError(f"there is no objective {name!r}; {_nearest(name, list(OBJECTIVES))}")
    kind = OBJECTIVES[name]
    values = _parse_arguments(kind, name, arguments)
    if slash:
        if "objective" not in _field_types(kind):
            raise ValueError(f"{name!r} wraps no other objective; drop '/{inner}'")
        values["objective"] = parse(inner)
    return kind(**values)


def spec(objective: Objective) -> str:
    """The string that :func:`parse` turns back into ``objective``; defaults are left out.

    >>> spec(ADP(alpha=1.0))
    'adp:alpha=1'
    """
    name = next((name for name, kind in OBJECTIVES.items() if kind is type(objective)), None)
    if name is None:
        raise ValueError(f"{type(objective).__name__} is not in objectives.OBJECTIVES")
    default, inner, pairs = OBJECTIVES[name](), "", []
    for item in fields(objective):
        value = getattr(objective, item.name)
        if item.name == "objective":
            inner = "/" + spec(value)
        elif value != getattr(default, item.name):
            pairs.append(f"{item.name}={_format(value)}")
    return name + (":" + ",".join(pairs) if pairs else "") + inner


def _parse_arguments(kind: type[Objective], name: str, arguments: str) -> dict[str, Any]:
    types_by_field = _field_types(kind)
    values: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, raw = (piece.strip() for piece in pair.partition("="))
        if not equals:
            raise ValueError(f"{name}: expected key=value, got {pair!r}")
        if key not in types_by_field or key == "objective":
            known = [field for field in types_by_field if field != "objective"]
            raise ValueError(f"{name} has no setting {key!r}; {_nearest(key, known)}")
        if key in values:
            raise ValueError(f"{name}: {key!r} is given twice")
        values[key] = _parse_value(f"{name}: {key}", raw, types_by_field[key])
    return values


def _field_types(kind: type[Objective]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _parse_value(label: str, raw: str, wanted: Any) -> Any:
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if type(None) in options and raw.lower() == "none":
        return None
    if bool in options:
        if raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise ValueError(f"{label} must be true or false, got {raw!r}")
    if str in options:
        return raw
    try:
        if tuple[float, ...] in options:
            return tuple(float(share) for share in raw.split(":"))
        return int(raw) if int in options else float(raw)
    except ValueError:
        kind = "an integer" if int in options else "a number"
        if tuple[float, ...] in options:
            kind = "numbers with colons between them"
        raise ValueError(f"{label} must be {kind}, got {raw!r}") from None


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ":".join(_format(share) for share in value)
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known are " + ", ".join(known) if known else "it has none"

"""Frozen dataclasses from strings such as ``pgd:eps=0.1,steps=10``, and back.

An unknown name or key is an error that names the nearest known one. Numbers declare their limits
with :func:`number`, and :func:`check_numbers` holds a new object to them.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import Any

__all__ = ["check_choice", "check_numbers", "nearest", "number", "parse_spec", "spec_of"]


def number(
    default: float | None,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    why: str = "",
    always: bool = False,
) -> Any:
    """A dataclass field that must be finite, in ``[low, high]`` and greater than ``above``.

    One that matters so much that a spec should always say it is written ``always``.
    """
    limits = {"low": low, "high": high, "above": above, "why": why, "always": always}
    return field(default=default, metadata=limits)


def check_numbers(instance: Any) -> None:
    """Raise unless every field made by :func:`number` lies within its limits."""
    hints = typing.get_type_hints(type(instance))
    for item in fields(instance):
        if "low" in item.metadata:
            _check_number(instance, item.name, item.metadata, _options(hints[item.name]))


def _check_number(
    instance: Any, name: str, limits: Mapping[str, Any], options: Sequence[Any]
) -> None:
    value, low, high, above = (
        getattr(instance, name),
        *(limits[key] for key in ("low", "high", "above")),
    )
    if value is None and type(None) in options:
        return
    kinds = (int, float) if float in options else (int,)
    good = isinstance(value, kinds) and not isinstance(value, bool)
    if good and math.isfinite(value) and low <= value <= high and value > above:
        return
    wanted = "a finite number" if float in options else "an integer"
    bounds = []
    if above > -math.inf:
        bounds.append(f"greater than {above:g}")
    if low > -math.inf and high < math.inf:
        bounds.append(f"in [{low:g}, {high:g}]")
    elif low > -math.inf:
        bounds.append(f"at least {low:g}")
    elif high < math.inf:
        bounds.append(f"at most {high:g}")
    why = f"; {limits['why']}" if limits["why"] else ""
    text = " ".join([wanted, " and ".join(bounds)]).strip()
    raise ValueError(f"{type(instance).__name__}: {name} must be {text}, got {value!r}{why}")


def check_choice(owner: str, name: str, value: object, known: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``known``.

    >>> check_choice("PGD", "norm", "l3", ["linf", "l2"])
    Traceback (most recent call last):
    ...
    ValueError: PGD: norm must be one of linf, l2, got 'l3'
    """
    if value not in known:
        raise ValueError(f"{owner}: {name} must be one of {', '.join(known)}, got {value!r}")


def parse_spec(text: str, registry: Mapping[str, type[Any]], what: str) -> Any:
    """The object that ``name:key=value,key=value`` asks for; ``what`` names its kind in errors."""
    name, _, arguments = text.strip().partition(":")
    name = name.strip().lower().replace("-", "_")
    if name not in registry:
        raise ValueError(f"there is no {what} {name!r}; {nearest(name, list(registry))}")
    kind = registry[name]
    hints = typing.get_type_hints(kind)
    known = {item.name: hints[item.name] for item in fields(kind)}
    values: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, raw = (piece.strip() for piece in pair.partition("="))
        if not equals:
            raise ValueError(f"{name}: expected key=value, got {pair!r}")
        if key not in known:
            raise ValueError(f"{name} has no setting {key!r}; {nearest(key, list(known))}")
        if key in values:
            raise ValueError(f"{name}: {key!r} is given twice")
        values[key] = _value(f"{name}: {key}", raw, _options(known[key]))
    return kind(**values)


def spec_of(instance: Any, registry: Mapping[str, type[Any]]) -> str:
    """The string that :func:`parse_spec` turns back into ``instance``, without most defaults."""
    name = next((name for name, kind in registry.items() if kind is type(instance)), None)
    if name is None:
        raise ValueError(f"{type(instance).__name__} is not in the registry of names")
    pairs = [
        f"{item.name}={_text(getattr(instance, item.name))}"
        for item in fields(instance)
        if item.metadata.get("always") or getattr(instance, item.name) != item.default
    ]
    return name + (":" + ",".join(pairs) if pairs else "")


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is not known.

    >>> nearest("esp", ["eps", "steps"])
    "did you mean 'eps'?"
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known are " + ", ".join(known) if known else "it has none"


def _options(wanted: Any) -> Sequence[Any]:
    return typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)


def _value(label: str, raw: str, options: Sequence[Any]) -> Any:
    if type(None) in options and raw.lower() == "none":
        return None
    if bool in options:
        if raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise ValueError(f"{label} must be true or false, got {raw!r}")
    if str in options:
        return raw
    try:
        return float(raw) if float in options else int(raw)
    except ValueError:
        kind = "a number" if float in options else "an integer"
        raise ValueError(f"{label} must be {kind}, got {raw!r}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

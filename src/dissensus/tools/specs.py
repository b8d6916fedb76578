"""Specs: settings written as ``name:key=value,key=value``, and back.

Objectives, attacks, optimisers, schedules, scores and transforms are all named this way. A wrapper
stands before a slash, as in ``learner_dropout:drop=0.4/augmented:beta=0.9``. An unknown name or key
raises an error that suggests the nearest known one. Numbers declare their limits with
:func:`number`, and :func:`check_numbers` holds a new object to them.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any

__all__ = [
    "check_choice",
    "check_integer",
    "check_keys",
    "check_name",
    "check_number",
    "check_numbers",
    "close_names",
    "join_spec",
    "nearest",
    "number",
    "parse_spec",
    "parse_values",
    "read_number",
    "read_settings",
    "spec_of",
    "split_spec",
    "split_specs",
]


_MISSING = object()

# ---- names --------------------------------------------------------------------------------------


def close_names(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Up to ``count`` of the ``known`` names that look like ``name``, the nearest first."""
    import difflib

    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)


def nearest(name: str, known: Iterable[str], count: int = 1) -> str:
    """A hint for a name that is not known.

    >>> nearest("esp", ["eps", "steps"])
    "did you mean 'eps'?"
    >>> nearest("radius", ["eps", "steps"])
    'known are eps, steps'
    """
    names = list(known)
    if close := close_names(name, names, count):
        return f"did you mean {' or '.join(map(repr, close))}?"
    return "known are " + ", ".join(names) if names else "it has none"


def check_name(name: str, known: Iterable[str], what: str) -> None:
    """Raise unless ``name`` is a ``known`` one; ``what`` says what it should name.

    >>> check_name("pdg", ["fgsm", "pgd"], "attack")
    Traceback (most recent call last):
    ...
    ValueError: there is no attack 'pdg'; did you mean 'pgd'?
    """
    names = list(known)
    if name not in names:
        raise ValueError(f"there is no {what} {name!r}; {nearest(name, names)}")


def check_choice(owner: str, name: str, value: object, known: Collection[str]) -> None:
    """Raise unless ``value`` is one of ``known``.

    >>> check_choice("PGD", "norm", "l3", ["linf", "l2"])
    Traceback (most recent call last):
    ...
    ValueError: PGD: norm must be one of linf, l2, got 'l3'
    """
    if value not in known:
        raise ValueError(f"{owner}: {name} must be one of {', '.join(known)}, got {value!r}")


def check_keys(owner: str, keys: Iterable[str], known: Iterable[str], what: str = "option") -> None:
    """Raise unless all ``keys`` that were given to ``owner`` are ``known``.

    >>> check_keys("fit", ["epoch"], ["epochs", "val"])
    Traceback (most recent call last):
    ...
    ValueError: fit has no option 'epoch'; did you mean 'epochs'?
    """
    names = list(known)
    for key in keys:
        if key not in names:
            raise ValueError(f"{owner} has no {what} {key!r}; {nearest(key, names)}")


# ---- numbers ------------------------------------------------------------------------------------


def check_integer(name: str, value: Any, low: float = 1, high: float = math.inf) -> int:
    """``value`` as an int; raises unless it is a whole number in ``[low, high]``.

    >>> check_integer("bins", 0)
    Traceback (most recent call last):
    ...
    ValueError: bins must be an integer of at least 1, got 0
    """
    if not _within(value, Integral, low, high):
        raise ValueError(f"{name} must be {_describe(Integral, low, high)}, got {value!r}")
    return int(value)


def check_number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """``value`` as a float; raises unless it is finite and within ``[low, high]``.

    It must also be greater than ``above`` and less than ``below``.

    >>> check_number("rate", 1, 0, below=1)
    Traceback (most recent call last):
    ...
    ValueError: rate must be a finite number of at least 0 and less than 1, got 1
    """
    limits = (low, high, above, below)
    if not _within(value, Real, *limits):
        raise ValueError(f"{name} must be {_describe(Real, *limits)}, got {value!r}")
    return float(value)


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

    ``always`` marks a number so important that :func:`spec_of` writes it even at its default.
    """
    limits = {"low": low, "high": high, "above": above, "why": why, "always": always}
    return field(default=default, metadata=limits)


def check_numbers(instance: Any) -> None:
    """Raise unless every field made by :func:`number` lies within its limits."""
    options = _field_options(type(instance))  # type: ignore[arg-type]  # a class is hashable
    for item in _settings(type(instance)):
        value, own = getattr(instance, item.name), item.metadata
        if "low" not in own or (value is None and type(None) in options[item.name]):
            continue
        kind = Real if float in options[item.name] else Integral
        limits = (own["low"], own["high"], own["above"])
        if not _within(value, kind, *limits):
            why = f"; {own['why']}" if own["why"] else ""
            label, wanted = f"{type(instance).__name__}: {item.name}", _describe(kind, *limits)
            raise ValueError(f"{label} must be {wanted}, got {value!r}{why}")


def _settings(kind: type[Any]) -> list[Field[Any]]:
    """The fields of a dataclass that its constructor takes."""
    return [item for item in fields(kind) if item.init]


def _within(
    value: Any,
    kind: Any,
    low: float,
    high: float,
    above: float = -math.inf,
    below: float = math.inf,
) -> bool:
    if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return bool(low <= value <= high and above < value < below)


def _describe(
    kind: Any, low: float, high: float, above: float = -math.inf, below: float = math.inf
) -> str:
    bounds = [f"greater than {above:g}"] if above > -math.inf else []
    if low > -math.inf and high < math.inf:
        bounds.append(f"in [{low:g}, {high:g}]")
    elif low > -math.inf:
        bounds.append(f"of at least {low:g}")
    elif high < math.inf:
        bounds.append(f"of at most {high:g}")
    bounds += [f"less than {below:g}"] if below < math.inf else []
    noun = "a finite number" if kind is Real else "an integer"
    return f"{noun} {' and '.join(bounds)}".strip()


# ---- specs --------------------------------------------------------------------------------------


#: Code of one's own by its import path, with settings: ``my_file.py:Spread:strength=2``.
_OWN = re.compile(r"([^:=]+\.py|[A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(?::(.*))?")


def parse_spec(
    text: str,
    registry: Mapping[str, type[Any]],
    what: str,
    own: Callable[[str, str], Any] | None = None,
) -> Any:
    """The object that ``text`` asks for: a dataclass of ``registry`` with the settings given.

    ``what`` names the kind in errors. A dataclass with a field of this name wraps another object
    of the registry, which stands after a slash. ``own(path, settings)`` makes what an import path
    names.
    """
    path = None if own is None else _OWN.fullmatch(text.strip())
    if own is not None and path and path[1] not in registry and _is_module(path[1]):
        return own(f"{path[1]}:{path[2]}", path[3] or "")
    outer, slash, inner = text.strip().partition("/")
    name, settings = split_spec(outer)
    check_name(name, registry, what)
    kind = registry[name]
    known = [item.name for item in _settings(kind)]
    values = read_settings(
        name, settings, kind, [key for key in known if key != what], separator=":"
    )
    if slash:
        if what not in known:
            raise ValueError(f"{name!r} wraps no other {what}; drop '/{inner}'")
        values[what] = parse_spec(inner, registry, what, own)
    return kind(**values)


def _is_module(place: str) -> bool:
    """Whether a place could be a module or a file, and is no misspelt name of a registry."""
    return "." in place or find_spec(place) is not None


def spec_of(instance: Any, registry: Mapping[str, type[Any]], what: str) -> str:
    """The string that :func:`parse_spec` turns back into ``instance``, without most defaults."""
    kind = type(instance)
    name = next((name for name, known in registry.items() if known is kind), None)
    if name is None:
        raise ValueError(f"{type(instance).__name__} is no {what} of the registry")
    try:
        default = registry[name]()
    except TypeError:  # it has fields without a default
        default = None
    values = {
        item.name: getattr(instance, item.name)
        for item in _settings(kind)
        if item.metadata.get("always")
        or getattr(instance, item.name) != getattr(default, item.name, _MISSING)
    }
    values.pop(what, None)
    inner = getattr(instance, what, None)
    text = join_spec(name, values, separator=":")
    if inner is None:
        return text
    own = inner.spec() if hasattr(inner, "spec") else spec_of(inner, registry, what)
    return f"{text}/{own}"


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """The name and the settings of ``name:key=value,…``, as they are written.

    >>> split_spec("Learner-Dropout: drop = 0.4")
    ('learner_dropout', {'drop': '0.4'})
    """
    name, _, arguments = text.strip().partition(":")
    name = name.strip().lower().replace("-", "_")
    settings: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals:
            raise ValueError(f"{name}: expected key=value, got {pair!r}")
        if key in settings:
            raise ValueError(f"{name}: {key!r} is given twice")
        settings[key] = value
    return name, settings


def split_specs(text: str) -> list[str]:
    """The specs of a list with commas; what looks like ``key=value`` belongs to the one before.

    >>> split_specs("pds,combined:score=energy,distance=knn:k=5,bma:temperature=2")
    ['pds', 'combined:score=energy,distance=knn:k=5', 'bma:temperature=2']
    """
    specs: list[str] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        if specs and "=" in piece.partition(":")[0]:
            specs[-1] += f",{piece}"
        else:
            specs.append(piece)
    return specs


def join_spec(name: str, settings: Mapping[str, Any], separator: str = "/") -> str:
    """The spec of ``name`` with these settings; tuples are written with ``separator``.

    >>> join_spec("adam", {"lr": (0.001, 0.01), "weight_decay": 0.0})
    'adam:lr=0.001/0.01,weight_decay=0'
    """
    pairs = [f"{key}={_format(value, separator)}" for key, value in settings.items()]
    return name + (":" + ",".join(pairs) if pairs else "")


def read_settings(
    name: str,
    settings: Mapping[str, str],
    kind: type[Any],
    known: Sequence[str],
    separator: str = "/",
) -> dict[str, Any]:
    """Settings as values of the types that the dataclass ``kind`` declares.

    ``known`` are the fields that ``name`` has. Several numbers stand with ``separator``.
    """
    check_keys(name, settings, known, "setting")
    options = _field_options(kind)  # type: ignore[arg-type]
    return {
        key: _read(f"{name}: {key}", raw, options[key], separator) for key, raw in settings.items()
    }


@cache
def _field_options(kind: type[Any]) -> dict[str, Sequence[Any]]:
    """The types that each field of a dataclass may have."""
    hints = typing.get_type_hints(kind)
    unions = (types.UnionType, typing.Union)
    return {
        item.name: typing.get_args(hint) if typing.get_origin(hint) in unions else (hint,)
        for item in fields(kind)
        for hint in [hints[item.name]]
    }


def _read(label: str, raw: str, options: Sequence[Any], separator: str) -> Any:
    if type(None) in options and raw.lower() == "none":
        return None
    if bool in options:
        if raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise ValueError(f"{label} must be true or false, got {raw!r}")
    if str in options:
        return raw
    several = tuple[float, ...] in options and (float not in options or separator in raw)
    try:
        if several:
            return tuple(float(value) for value in raw.split(separator))
        return float(raw) if float in options else int(raw)
    except ValueError:
        kind = "a number" if float in options else "an integer"
        kind = f"numbers with {separator!r} between them" if several else kind
        raise ValueError(f"{label} must be {kind}, got {raw!r}") from None


def _format(value: Any, separator: str) -> str:
    if isinstance(value, tuple):
        return separator.join(_format(item, separator) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


# ---- lists of values ----------------------------------------------------------------------------

#: The most values of one range; more is likely a typo.
_MOST_VALUES = 10_000


def parse_values(text: str, where: str) -> list[Any]:
    """Values with commas between them, or ranges ``start:stop:step``.

    ``where`` names them in errors. A range includes its end, if a step leads there, and its values
    are those of decimal arithmetic. A value with slashes is a list.

    >>> parse_values("0:0.2:0.1,30/30", "grid")
    [0.0, 0.1, 0.2, [30, 30]]
    """
    values: list[Any] = []
    for item in (piece.strip() for piece in text.split(",")):
        numbers = _range(item, where)
        values += [_read_value(item, where)] if numbers is None else numbers
    if {type(value) for value in values} == {int, float}:  # then all are meant as fractions
        return [float(value) for value in values]
    return values


def _range(item: str, where: str) -> list[Any] | None:
    """The values of ``start:stop:step``; None for what is no range."""
    pieces = [piece.strip() for piece in item.split(":")]
    try:
        numbers = [Decimal(piece) for piece in pieces]
    except InvalidOperation:
        return None
    if len(numbers) != 3:
        return None
    start, stop, step = numbers
    if not all(number.is_finite() for number in numbers) or not step or (stop - start) * step < 0:
        raise ValueError(f"{where}: the range {item} leads nowhere; write start:stop:step")
    count = int((stop - start) / step) + 1
    if count > _MOST_VALUES:
        raise ValueError(f"{where}: the range {item} has {count} values, over {_MOST_VALUES}")
    whole = all(re.fullmatch(r"[+-]?\d+", piece) for piece in pieces)
    values = [start + place * step for place in range(count)]
    return [int(value) if whole else float(value) for value in values]


def _read_value(text: str, where: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "/" in text:
        numbers = [read_number(piece.strip(), where) for piece in text.split("/")]
        return text if any(isinstance(number, str) for number in numbers) else numbers
    return read_number(text, where)


def read_number(text: str, where: str) -> int | float | str:
    """A whole number or a fraction; other text stays as it is, and infinity or NaN raises."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if not math.isfinite(number):
            raise ValueError(f"{where} must be finite, got {text}")
        return number
    return text

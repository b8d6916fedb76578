"""Keys of a grid: what it may vary, and settings with a point of it put in.

A key is a setting of the objective (``beta``), of the optimiser (``lr``), an option of ``dissensus
train`` (``batch_size``), or an option of the model (``model.hidden``).
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from dissensus.models import MODELS
from dissensus.objectives import OBJECTIVES, parse
from dissensus.runs.settings import Sections, setting_fields
from dissensus.specs import join_spec, nearest, split_spec
from dissensus.sweeps.grid import Grid, Point, points, written
from dissensus.training.optim import Optimizer

__all__ = ["check_keys", "check_points", "known_keys", "with_point"]

#: Options of ``dissensus train`` that a grid may vary.
OPTIONS = (
    *("objective", "members", "combine", "epochs", "batch_size", "schedule", "patience"),
    *("freeze_patience", "select_by", "clip", "augment", "adversarial"),
)

#: Settings of every optimiser, or of one kind, which says so itself.
OPTIMIZER_KEYS = ("lr", "weight_decay", "momentum")

_MODEL = "model."
_SETTINGS = setting_fields()


def known_keys(sections: Sections) -> list[str]:
    """All keys that a grid over ``sections`` may vary; any ``model.…`` for a model of one's own."""
    own = _objective_keys(str(sections["training"]["objective"]))
    builder = MODELS.get(str(sections["model"].get("name", "")))
    names = () if builder is None else inspect.signature(builder).parameters
    options = [_MODEL + name for name in names if name not in ("input_shape", "outputs")]
    return list(dict.fromkeys([*own, *OPTIMIZER_KEYS, *OPTIONS, *options]))


def check_keys(grid: Grid, sections: Sections, option: str = "--grid") -> None:
    """Raise for a key that is not known, or that the objectives of the grid do not all have."""
    objectives = [str(text) for text in grid.get("objective", [sections["training"]["objective"]])]
    for text in objectives:
        one = {**sections, "training": {**sections["training"], "objective": text}}
        known = known_keys(one)
        foreign = str(sections["model"].get("name", "")) not in MODELS
        for key in grid:
            if key in known or (foreign and key.startswith(_MODEL) and key != _MODEL):
                continue
            if key in ("seed", "split_seed", "member_seed"):
                raise ValueError(f"{option} {key}: seeds differ by repeat; use --repeats")
            who = f" with objective {text!r}" if len(objectives) > 1 else ""
            raise ValueError(f"{option} cannot vary {key!r}{who}; {nearest(key, known)}")


def with_point(sections: Sections, point: Point) -> Sections:
    """Settings with the values of ``point`` put in; what refuses one says it in its own words.

    >>> sections = {"training": {"objective": "augmented", "optimizer": "adam"}, "model": {}}
    >>> with_point(sections, {"beta": 0.5, "lr": 0.01})["training"]
    {'objective': 'augmented:beta=0.5', 'optimizer': 'adam:lr=0.01'}
    """
    changed = {name: dict(values) for name, values in sections.items()}
    training = changed["training"]
    for key in sorted(point, key=lambda key: key != "objective"):  # others belong to it
        value = point[key]
        if key in OPTIONS:
            place, text = _SETTINGS[key].metadata, _SETTINGS[key].type == "str | None"
            value = written(value) if text else value
            changed.setdefault(place["section"], {})[place["key"]] = value
        elif key in OPTIMIZER_KEYS:
            training["optimizer"] = _put(str(training["optimizer"]), key, value)
        elif key.startswith(_MODEL):
            changed.setdefault("model_options", {})[key.removeprefix(_MODEL)] = value
        else:
            training["objective"] = _put_objective(str(training["objective"]), key, value)
    return changed


def check_points(grid: Grid, sections: Sections, option: str = "--grid") -> None:
    """Raise for a value that the objective or the optimiser refuses, in their words."""
    for point in points(grid):
        try:
            training = with_point(sections, point)["training"]
            parse(str(training["objective"]))
            Optimizer.parse(str(training["optimizer"]))
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from error


def _put(text: str, key: str, value: Any) -> str:
    """``name:key=value,…`` with ``key`` set to ``value``."""
    name, settings = split_spec(text)
    settings.pop(key, None)
    return join_spec(name, {**settings, key: written(value)})


def _put_objective(text: str, key: str, value: Any) -> str:
    """As :func:`_put`, in the outermost of wrapped objectives that has this setting."""
    layers = text.split("/")
    for place, layer in enumerate(layers):
        if key in _layer_keys(layer):
            layers[place] = _put(layer, key, value)
            return "/".join(layers)
    layers[0] = _put(layers[0], key, value)  # which then says that it has none
    return "/".join(layers)


def _objective_keys(text: str) -> list[str]:
    parse(text)  # says what is wrong with it
    return [key for layer in text.split("/") for key in _layer_keys(layer)]


def _layer_keys(layer: str) -> list[str]:
    kind = OBJECTIVES.get(split_spec(layer)[0])
    if kind is None:
        return []
    # How members are combined is an option of its own, which the objective follows.
    return [item.name for item in fields(kind) if item.name not in ("objective", "combine")]

"""Plan of a sweep: settings, a grid over them, repeats, and perhaps a search first.

A key of a grid is a setting of the objective (``beta``), of the optimiser (``lr``), an option of
``dissensus train`` (``batch_size``), or an option of the model (``model.hidden``).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dissensus.models import MODELS
from dissensus.objectives import OBJECTIVES, parse
from dissensus.runs.config import absolute_model, absolute_path, complete_config
from dissensus.runs.settings import Sections, setting_fields
from dissensus.sweeps.cells import UNSET, Cell, brief, plain
from dissensus.sweeps.grid import Grid, Point, file_name, format_value, points
from dissensus.tools.files import format_toml, read_toml, write_text
from dissensus.tools.specs import check_numbers, join_spec, nearest, number, split_spec
from dissensus.training.optim import Optimizer

_SWEEP, SUMMARY, CELLS, SEARCH = "sweep.toml", "summary.json", "cells", "search"

#: The most cells of a sweep: points of the grid times repeats.
MAX_CELLS = 100_000

#: Sections that say where and how to compute, not what, and so are free to change.
_LOCAL = ("machine", "run")


#: Options of ``dissensus train`` that a grid may vary.
_OPTIONS = (
    *("objective", "members", "combine", "epochs", "batch_size", "schedule", "patience"),
    *("freeze_patience", "select_by", "clip", "augment", "adversarial", "shuffle", "bootstrap"),
)

#: Settings of every optimiser, or of one kind, which says so itself.
_OPTIMIZER_KEYS = ("lr", "weight_decay", "momentum")

_MODEL = "model."
_SETTINGS = setting_fields()


@dataclass(frozen=True)
class Plan:
    """A grid of settings, each trained ``repeats`` times; checked on construction.

    ``sections`` are the settings of ``dissensus train``, in their sections. Repeat r adds r to
    every seed: the split of the data, the initial weights and the order of batches are its own.
    With ``space``, each repeat first searches it for the setting with the lowest validation error
    (``trials`` trials, ``batch`` at once, by the settings outside of the grid), and its points of
    the grid are then trained with that setting.
    """

    sections: Sections
    grid: Grid = field(default_factory=dict)
    repeats: int = number(1, low=1)
    space: Grid = field(default_factory=dict)
    trials: int = number(20, low=1)
    batch: int = number(5, low=1)

    def __post_init__(self) -> None:
        check_numbers(self)
        if "name" not in self.sections["data"]:
            raise ValueError("say what to train on, such as --data digits or --data table.csv")
        twice = [key for key in self.space if key in self.grid]
        if twice:
            raise ValueError(f"{twice[0]} is both in --grid and in --search; leave one out")
        for grid, option in ((self.grid, "--grid"), (self.space, "--search")):
            cells = math.prod(len(values) for values in grid.values()) * self.repeats
            if cells > MAX_CELLS:
                raise ValueError(f"{option} has {cells} cells; {MAX_CELLS} are the most")
            _check_keys(grid, self.sections, option)
            for point in points(grid):  # the objective and the optimiser say what they refuse
                try:
                    training = with_point(self.sections, point)["training"]
                    parse(str(training["objective"]))
                    Optimizer.parse(str(training["optimizer"]))
                except ValueError as error:
                    raise ValueError(f"{option}: {error}") from error

    # ---- cells ----------------------------------------------------------------------------------

    def cells(self, task: str, chosen: Mapping[int, Point] | None = None) -> list[Cell]:
        """Every point of the grid in every repeat, repeat by repeat, as cells with whole settings.

        ``task`` is that of the data; ``chosen`` are the choices of the search by repeat.
        """
        return [
            self.cell(task, point, repeat, (chosen or {}).get(repeat, {}), number)
            for repeat in range(self.repeats)
            for number, point in enumerate(points(self.grid))
        ]

    def cell(self, task: str, point: Point, repeat: int, chosen: Point, number: int = 0) -> Cell:
        """One point in one repeat, with all its settings."""
        return plain(  # type: ignore[no-any-return]
            {
                "name": file_name(point, repeat),
                "point": point,
                "number": number,
                "repeat": repeat,
                "chosen": chosen,
                "config": self.config(task, {**chosen, **point}, repeat),
            }
        )

    def trial(self, task: str, choice: Point, repeat: int) -> Cell:
        """A trial of the search: a cell that is judged on validation data alone."""
        return {**self.cell(task, choice, repeat, {}), "only": "val"}

    def study_name(self, out: str | Path, repeat: int) -> str:
        """The name of a repeat's search in optuna's storage: from the folder and the settings."""
        asked = {name: dict(v) for name, v in self.asked().items() if name not in _LOCAL}
        asked["data"].pop("data_dir", None)
        del asked["sweep"]["repeats"]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return f"{Path(out).resolve().name}-{digest[:8]}-repeat-{repeat}"

    def config(self, task: str, point: Point, repeat: int) -> Sections:
        """The settings of one training, whole, as ``dissensus train`` would keep them."""
        sections = with_point(self.sections, point)
        for section in ("data", "training", "ensemble"):
            if section == "ensemble" and "seed" not in sections[section]:
                continue  # the same as that of training
            sections[section]["seed"] = sections[section].get("seed", 0) + repeat
        config, _ = complete_config(sections, task)
        config["data"].pop("data_dir", None)
        return {name: values for name, values in config.items() if name not in _LOCAL}

    # ---- on disk --------------------------------------------------------------------------------

    def asked(self) -> dict[str, Any]:
        """The content of ``sweep.toml``."""
        sections = {name: dict(v) for name, v in self.sections.items() if v and name != "run"}
        for key in ("name", "data_dir", "disagreement"):
            if key in sections["data"]:
                sections["data"][key] = absolute_path(sections["data"][key])
        sections["model"]["name"] = absolute_model(sections["model"]["name"])
        sweep: dict[str, Any] = {"repeats": self.repeats}
        if self.space:
            sweep |= {"trials": self.trials, "batch": self.batch}
        extra = {"sweep": sweep, "grid": self.grid, "search": self.space}
        asked: dict[str, Any] = plain({**sections, **{k: v for k, v in extra.items() if v}})
        return asked

    @classmethod
    def read(cls, out: str | Path) -> Plan | None:
        """The plan of the sweep in ``out``; None where there is none."""
        file = Path(out) / _SWEEP
        if not file.is_file():
            return None
        try:
            asked = read_toml(file)
            sweep = asked.pop("sweep")
            grid, space = asked.pop("grid", {}), asked.pop("search", {})
            return cls(asked, grid, space=space, **sweep)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error

    def keep(self, out: str | Path) -> None:
        """Write ``sweep.toml``, unless the folder holds a sweep with other settings: an error.

        The same sweep with more repeats continues; finished cells are kept.
        """
        before = Plan.read(out)
        if before is not None:
            changes = list(_changes(before.asked(), self.asked()))
            if changes:
                raise ValueError(
                    f"{out} holds a sweep with other settings ({'; '.join(changes)}); choose "
                    "another --out, or delete that folder"
                )
        if before is None or self.repeats > before.repeats:
            write_text(Path(out) / _SWEEP, format_toml(self.asked()))


def _changes(old: Sections, new: Sections) -> Iterator[str]:
    """The settings that differ, except for where to compute and for added repeats."""
    for section in dict.fromkeys([*old, *new]):
        if section in _LOCAL:
            continue
        before, after = old.get(section, {}), new.get(section, {})
        for key in dict.fromkeys([*before, *after]):
            # None is not written: it means unset.
            was, now = (UNSET if v is None else v for v in (before.get(key), after.get(key)))
            more = (section, key) == ("sweep", "repeats") and before[key] <= after[key]
            if was != now and not more and (section, key) != ("data", "data_dir"):
                yield f"{section}.{key} was {brief(was)}, now {brief(now)}"


# ---- keys of a grid -----------------------------------------------------------------------------


def known_keys(sections: Sections) -> list[str]:
    """All keys that a grid over ``sections`` may vary; any ``model.…`` for a model of one's own."""
    objective = str(sections["training"]["objective"])
    parse(objective)  # says what is wrong with it
    layers = objective.split("/")
    builder = MODELS.get(str(sections["model"].get("name", "")))
    names = () if builder is None else inspect.signature(builder).parameters
    options = [_MODEL + name for name in names if name not in ("input_shape", "outputs")]
    settings = [key for layer in layers for key in _layer_keys(layer)]
    return list(dict.fromkeys([*settings, *_OPTIMIZER_KEYS, *_OPTIONS, *options]))


def _check_keys(grid: Grid, sections: Sections, option: str) -> None:
    """Raise for a key that is not known, or that the objectives of the grid do not all have."""
    objectives = [str(text) for text in grid.get("objective", [sections["training"]["objective"]])]
    foreign = str(sections["model"].get("name", "")) not in MODELS
    for text in objectives:
        known = known_keys({**sections, "training": {**sections["training"], "objective": text}})
        for key in grid:
            if key in known or (foreign and key.startswith(_MODEL) and key != _MODEL):
                continue
            if key in ("seed", "split_seed", "member_seed"):
                raise ValueError(f"{option} {key}: seeds differ by repeat; use --repeats")
            who = f" with objective {text!r}" if len(objectives) > 1 else ""
            raise ValueError(f"{option} cannot vary {key!r}{who}; {nearest(key, known)}")


def with_point(sections: Sections, point: Point) -> Sections:
    """Settings with the values of ``point``; objectives and optimisers check them later.

    >>> sections = {"training": {"objective": "augmented", "optimizer": "adam"}, "model": {}}
    >>> with_point(sections, {"beta": 0.5, "lr": 0.01})["training"]
    {'objective': 'augmented:beta=0.5', 'optimizer': 'adam:lr=0.01'}
    """
    changed = {name: dict(values) for name, values in sections.items()}
    training = changed["training"]
    for key in sorted(point, key=lambda key: key != "objective"):  # others belong to it
        value = point[key]
        if key in _OPTIONS:
            item, text = _SETTINGS[key].metadata, _SETTINGS[key].type == "str | None"
            value = format_value(value) if text else value
            changed.setdefault(item["section"], {})[item["key"]] = value
        elif key in _OPTIMIZER_KEYS:
            training["optimizer"] = _put(str(training["optimizer"]), key, value)
        elif key.startswith(_MODEL):
            changed.setdefault("model_options", {})[key.removeprefix(_MODEL)] = value
        else:
            layers = str(training["objective"]).split("/")
            # The outermost of wrapped objectives that has it; else the first says that it has none.
            place = next((i for i, layer in enumerate(layers) if key in _layer_keys(layer)), 0)
            layers[place] = _put(layers[place], key, value)
            training["objective"] = "/".join(layers)
    return changed


def _put(text: str, key: str, value: Any) -> str:
    """``name:key=value,…`` with ``key`` set to ``value``."""
    name, settings = split_spec(text)
    settings.pop(key, None)
    return join_spec(name, {**settings, key: format_value(value)})


def _layer_keys(layer: str) -> list[str]:
    kind = OBJECTIVES.get(split_spec(layer)[0])
    if kind is None:
        return []
    # How members are combined is an option of its own, which the objective follows.
    return [item.name for item in fields(kind) if item.name not in ("objective", "combine")]

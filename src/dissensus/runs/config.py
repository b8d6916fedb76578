"""Config of a run: its settings with nothing left open, fitted to the data and with whole paths."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.settings import Sections

if TYPE_CHECKING:
    from dissensus.objectives import Objective

__all__ = ["absolute_model", "absolute_path", "complete_config", "fit_objective"]


def complete_config(sections: Sections, task: str) -> tuple[Sections, Objective]:
    """The config that a run keeps, and its objective; ``task`` is that of the data."""
    config = {name: dict(values) for name, values in sections.items() if name != "run" and values}
    training, ensemble = config["training"], config["ensemble"]
    ensemble.setdefault("seed", training["seed"])
    text, combine = training["objective"], ensemble.get("combine")
    objective, ensemble["combine"] = fit_objective(text, task, combine)
    training["objective"] = objective.spec()
    for key in ("name", "data_dir", "disagreement"):
        if key in config["data"]:
            config["data"][key] = absolute_path(config["data"][key])
    for key in ("val_shards", "test_shards"):
        if key in config.get("data_options", {}):
            config["data_options"][key] = absolute_path(config["data_options"][key])
    config["model"]["name"] = absolute_model(config["model"]["name"])
    return config, objective


def fit_objective(text: str, task: str, combine: str | None) -> tuple[Objective, str]:
    """The objective and the combination, made to fit the task and each other where nothing is said.

    A regression trains with squared error; an objective that averages does it as the ensemble does.

    >>> fit_objective("augmented:beta=0.1", "regression", None)[0].spec()
    'augmented:loss=mse,combine=mean,beta=0.1'
    """
    from dissensus.objectives import parse

    objective = parse(text)
    if task == "regression":
        if "loss=" not in text and _inner_setting(objective, "loss") == "cross_entropy":
            objective = _replace(objective, loss="mse", combine=None)
        return objective, combine or "mean"
    own = _inner_setting(objective, "combine") or "probability"
    if combine is not None and combine != own and "combine=" not in text:
        objective = _replace(objective, combine=combine)
    return objective, combine or own


def _replace(objective: Any, **changes: Any) -> Any:
    """``objective``, or what it wraps, with the settings changed that it has."""
    if hasattr(objective, "objective"):
        inner = _replace(objective.objective, **changes)
        return dataclasses.replace(objective, objective=inner)
    known = {item.name for item in dataclasses.fields(objective)}
    return dataclasses.replace(objective, **{k: v for k, v in changes.items() if k in known})


def _inner_setting(objective: Any, name: str) -> Any:
    """A setting of ``objective``, or of what it wraps; None if it has no such setting."""
    while hasattr(objective, "objective"):
        objective = objective.objective
    return getattr(objective, name, None)


def absolute_path(name: str) -> str:
    """A path that is still right from another folder; the name of a data set stays as it is."""
    from dissensus.data import DATASETS, is_shards

    path = Path(name).expanduser()
    if is_shards(name):
        return str(Path.cwd() / path)
    known = name.lower().replace("-", "_") in DATASETS
    return str(path.resolve()) if path.exists() and not known else name


def absolute_model(name: str) -> str:
    """The name of a model, with an absolute path if it is ``file.py:name``."""
    file, colon, function = name.rpartition(":")
    return f"{absolute_path(file)}:{function}" if colon and file.endswith(".py") else name

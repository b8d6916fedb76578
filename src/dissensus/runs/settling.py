"""From settings to what a training takes: nothing left open, all of it fitting the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.specs import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.data import Augment, Data
    from dissensus.ensemble import Ensemble
    from dissensus.objectives import Objective
    from dissensus.robustness import AdversarialBatches

__all__ = [
    "augmentation",
    "changes",
    "check_changes",
    "disagreement_inputs",
    "fitting",
    "settled",
    "whole_model",
    "whole_path",
]

Sections = dict[str, dict[str, Any]]


def settled(sections: Sections, task: str) -> tuple[Sections, Objective]:
    """The config as a run keeps it, and its objective: nothing open, and paths whole.

    ``task`` is that of the data, classification or regression.
    """
    config = {name: dict(values) for name, values in sections.items() if name != "run" and values}
    training, ensemble = config["training"], config["ensemble"]
    ensemble.setdefault("seed", training["seed"])
    objective, ensemble["combine"] = fitting(training["objective"], task, ensemble.get("combine"))
    training["objective"] = objective.spec()
    for section, key in (("data", "name"), ("data", "data_dir"), ("data", "disagreement")):
        if key in config[section]:
            config[section][key] = whole_path(config[section][key])
    for key in ("val_shards", "test_shards"):
        if key in config.get("data_options", {}):
            own = config["data_options"]
            config["data_options"] = {**own, key: whole_path(own[key])}
    config["model"]["name"] = whole_model(config["model"]["name"])
    return config, objective


def fitting(text: str, task: str, combine: str | None) -> tuple[Objective, str]:
    """The objective and the combination, made to fit the task and each other where nothing is said.

    A regression trains with squared error, and an objective that averages does it as the ensemble.

    >>> fitting("augmented:beta=0.1", "regression", None)[0].spec()
    'augmented:loss=mse,combine=mean,beta=0.1'
    """
    from dissensus.objectives import parse

    objective = parse(text)
    if task == "regression":
        if "loss=" not in text and _own(objective, "loss") == "cross_entropy":
            objective = _replaced(objective, loss="mse", combine=None)
        return objective, combine or "mean"
    own = _own(objective, "combine") or "probability"
    if combine is not None and combine != own and "combine=" not in text:
        objective = _replaced(objective, combine=combine)
    return objective, combine or own


def _replaced(objective: Any, **changes: Any) -> Any:
    """``objective``, or what it wraps, with the settings changed that it has."""
    if hasattr(objective, "objective"):
        inner = _replaced(objective.objective, **changes)
        return dataclasses.replace(objective, objective=inner)
    known = {item.name for item in dataclasses.fields(objective)}
    return dataclasses.replace(objective, **{k: v for k, v in changes.items() if k in known})


def _own(objective: Any, name: str) -> Any:
    """A setting of ``objective``, or of what it wraps; None if it has no such setting."""
    while hasattr(objective, "objective"):
        objective = objective.objective
    return getattr(objective, name, None)


def whole_path(name: str) -> str:
    """A path that is still right from another folder; the name of a data set stays as it is."""
    from dissensus.data import DATASETS, is_shards

    path = Path(name).expanduser()
    if is_shards(name):
        return str(Path.cwd() / path)
    known = name.lower().replace("-", "_") in DATASETS
    return str(path.resolve()) if path.exists() and not known else name


def whole_model(name: str) -> str:
    """The name of a model, with a whole path if it is ``file.py:name``."""
    file, colon, function = name.rpartition(":")
    return f"{whole_path(file)}:{function}" if colon and file.endswith(".py") else name


def augmentation(name: str | None) -> Augment | None:
    """The augmentation of that name; None for none."""
    from dissensus.data import AUGMENTATIONS

    if name is None or name == "none":
        return None
    check_name(name, AUGMENTATIONS, "augmentation")
    return AUGMENTATIONS[name]


def check_changes(asked: Mapping[str, Any], x: Tensor | None = None) -> None:
    """Raise for an augmentation or an adversary that there is not, or that ``x`` does not suit."""
    augmentation(asked.get("augment"))
    attack = _adversary(asked)
    if attack is None:
        return
    from dissensus.data import Examples
    from dissensus.robustness import adversary, check_inputs

    adversary(attack)
    if x is not None:
        check_inputs(x[:256] if isinstance(x, Examples) else x)  # not all that are on disk


def changes(asked: Mapping[str, Any], ens: Ensemble) -> Augment | AdversarialBatches | None:
    """What is done to each training batch of ``ens``: augmentation, then adversarial examples."""
    augment = augmentation(asked.get("augment"))
    attack = _adversary(asked)
    if attack is None:
        return augment
    from dissensus.robustness import AdversarialBatches

    return AdversarialBatches(ens, attack, augment=augment)


def _adversary(asked: Mapping[str, Any]) -> str | None:
    name = asked.get("adversarial")
    return None if name is None or name == "none" else str(name)


def disagreement_inputs(asked: Mapping[str, Any], data: Data) -> Tensor | None:
    """Unlabelled inputs for training; of another data set its training part.

    So its test part can still serve as unknown inputs. ``asked`` is the section ``[data]``.
    """
    from dissensus.data import find_inputs

    name = asked.get("disagreement")
    if name is None:
        return None
    return find_inputs(
        name,
        data,
        part="train",
        labelled=False,
        target=asked.get("target"),
        data_dir=asked.get("data_dir"),
        seed=asked["seed"],
    ).x

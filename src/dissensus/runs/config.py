"""Config of a run: its settings with nothing left open, and what they do to training batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.settings import Sections
from dissensus.tools.specs import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.data import Augment, Data, Strangers
    from dissensus.ensemble import Ensemble
    from dissensus.objectives import Objective
    from dissensus.robustness import AdversarialBatches


def complete_config(
    sections: Sections, task: str, *, trust: bool = False
) -> tuple[Sections, Objective]:
    """The config that a run keeps, and its objective; ``task`` is that of the data.

    ``trust`` runs an objective that is named by its import path.
    """
    config = {name: dict(values) for name, values in sections.items() if name != "run" and values}
    training, ensemble = config["training"], config["ensemble"]
    ensemble.setdefault("seed", training["seed"])
    text, combine = training["objective"], ensemble.get("combine")
    objective, ensemble["combine"] = _fit_objective(text, task, combine, trust=trust)
    training["objective"] = objective.spec()
    for key in ("name", "data_dir", "disagreement"):
        if key in config["data"]:
            config["data"][key] = absolute_path(config["data"][key])
    for key in ("val_shards", "test_shards"):
        if key in config.get("data_options", {}):
            config["data_options"][key] = absolute_path(config["data_options"][key])
    config["model"]["name"] = absolute_model(config["model"]["name"])
    return config, objective


def _fit_objective(
    text: str, task: str, combine: str | None, *, trust: bool = False
) -> tuple[Objective, str]:
    """The objective and the combination, made to fit the task and each other where nothing is said.

    A regression trains with squared error; an objective that averages does it as the ensemble does.

    >>> _fit_objective("augmented:beta=0.1", "regression", None)[0].spec()
    'augmented:loss=mse,combine=mean,beta=0.1'
    """
    from dissensus.objectives import parse

    objective = parse(text, trust=trust)
    if task == "regression":
        if "loss=" not in text and _inner_setting(objective, "loss") == "cross_entropy":
            objective = _replace(objective, loss="mse", combine=None)
        return objective, combine or "mean"
    trained = _inner_setting(objective, "combine") or "probability"
    if combine not in (None, trained) and "combine=" not in text:
        objective = _replace(objective, combine=combine)
    return objective, combine or trained


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


# ---- augmentation -------------------------------------------------------------------------------


def augmentation(name: str | None) -> Augment | None:
    """The augmentation of that name; None for none."""
    from dissensus.data import AUGMENTATIONS

    if name is None or name == "none":
        return None
    check_name(name, AUGMENTATIONS, "augmentation")
    return AUGMENTATIONS[name]


def check_augmentation(asked: Mapping[str, Any], x: Tensor | None = None) -> None:
    """Raise for an unknown augmentation or adversary in ``[data]``, or one unsuitable for ``x``."""
    augmentation(asked.get("augment"))
    attack = _adversary(asked)
    if attack is None:
        return
    from dissensus.data import OnDisk
    from dissensus.robustness import adversary, check_inputs

    adversary(attack)
    if x is not None:
        check_inputs(x[:256] if isinstance(x, OnDisk) else x)  # not all that are on disk


def batch_augmentation(
    asked: Mapping[str, Any], ens: Ensemble
) -> Augment | AdversarialBatches | None:
    """What ``[data]`` does to each training batch of ``ens``: augment, then add adversaries."""
    augment = augmentation(asked.get("augment"))
    attack = _adversary(asked)
    if attack is None:
        return augment
    from dissensus.robustness import AdversarialBatches

    return AdversarialBatches(ens, attack, augment=augment)


def _adversary(asked: Mapping[str, Any]) -> str | None:
    name = asked.get("adversarial")
    return None if name is None or name == "none" else str(name)


# ---- unlabelled inputs --------------------------------------------------------------------------


def disagreement_inputs(asked: Mapping[str, Any], data: Data) -> Tensor | Strangers | None:
    """The unlabelled inputs that ``[data]`` asks for: strangers, or inputs by name.

    Strangers of a table keep the inputs of each of its columns together. Of another data set it is
    the training part, so that its test part can still serve as unknown inputs.
    """
    from dissensus.data import Strangers, find_inputs

    name = asked.get("disagreement")
    if name is None:
        return None
    if name.partition(":")[0] == "strangers":
        return dataclasses.replace(Strangers.parse(name), groups=data.groups)
    return find_inputs(
        name,
        data,
        part="train",
        labelled=False,
        target=asked.get("target"),
        data_dir=asked.get("data_dir"),
        seed=asked["seed"],
    ).x

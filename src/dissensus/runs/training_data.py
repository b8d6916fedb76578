"""Training data of a run: its splits, its augmentation, and unlabelled inputs to disagree on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data_summary import DataSummary, check_same_data
from dissensus.runs.folder import read_config
from dissensus.specs import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.data import Augment, Data
    from dissensus.ensemble import Ensemble
    from dissensus.robustness import AdversarialBatches

__all__ = [
    "augmentation",
    "batch_augmentation",
    "check_augmentation",
    "data_of",
    "disagreement_inputs",
    "load_data",
]

Config = Mapping[str, Mapping[str, Any]]


# ---- splits -------------------------------------------------------------------------------------


def load_data(config: Config) -> Data:
    """The data that the sections ``[data]`` and ``[data_options]`` of a config ask for."""
    from dissensus import data

    asked = config.get("data", {})
    if "name" not in asked:
        raise ValueError(
            "the run does not say what its data are, as it was not made by `dissensus train`; "
            "name them with --data"
        )
    known = ("data_dir", "seed", "val", "test", "hold_out")
    settings = {key: asked[key] for key in known if asked.get(key) is not None}
    options = {key: asked[key] for key in ("target", "task") if asked.get(key) is not None}
    options |= config.get("data_options", {})
    for key in ("drop", "categorical"):  # names of columns; one alone is a list of one
        if isinstance(options.get(key), str):
            options[key] = [options[key]]
    return data.load(asked["name"], **settings, **options)


def data_of(run: str | Path, *, data_dir: str | Path | None = None) -> Data:
    """The data of a run in the same splits; raises if they have changed."""
    config = read_config(run)
    if data_dir is not None:
        config["data"] = {**config.get("data", {}), "data_dir": str(data_dir)}
    data, stored = load_data(config), DataSummary.read(run)
    if stored is not None:
        check_same_data(stored, DataSummary.of(data), run)
    return data


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
    from dissensus.data import Examples
    from dissensus.robustness import adversary, check_inputs

    adversary(attack)
    if x is not None:
        check_inputs(x[:256] if isinstance(x, Examples) else x)  # not all that are on disk


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


def disagreement_inputs(asked: Mapping[str, Any], data: Data) -> Tensor | None:
    """The unlabelled inputs that ``[data]`` asks for; of another data set its training part.

    So its test part can still serve as unknown inputs.
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

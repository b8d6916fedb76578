"""Hub folders, an ensemble to share: ``model.safetensors``, ``config.json`` and a model card.

``config.json`` names the model of the members, and says what is known about the data and how the
run was trained. No file in it can run code when it is loaded; a network of one's own is named by
its import path, and only ``trust=True`` runs it. ``dissensus.export`` writes such folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dissensus.ensemble import Ensemble
    from dissensus.models import MemberFactory

from dissensus.files import read_json, read_safetensors

__all__ = [
    "CONFIG",
    "FORMAT",
    "WEIGHTS",
    "build_ensemble",
    "is_hub_folder",
    "read_hub_config",
    "read_hub_weights",
]

CONFIG, WEIGHTS, FORMAT = "config.json", "model.safetensors", "dissensus.model/1"

Config = Mapping[str, Any]


def is_hub_folder(folder: str | Path) -> bool:
    """Whether ``folder`` is a hub folder, and not a run."""
    path = Path(folder)
    return (path / CONFIG).is_file() and not (path / "config.toml").exists()


def read_hub_config(folder: str | Path) -> dict[str, Any]:
    """``config.json``, checked; an error says what is wrong with it."""
    file = Path(folder) / CONFIG
    config = read_json(file)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        got = config.get("format") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{file} is not of an ensemble: expected {FORMAT!r}, got {got!r}")
    asked = config.get("ensemble")
    if not isinstance(asked, dict) or not {"members", "combine", "execution"} <= set(asked):
        raise ValueError(f"{file} lacks members, combine or execution of the ensemble")
    for key in ("training", "data", "data_options"):
        if not isinstance(config.setdefault(key, {}), dict):
            raise ValueError(f"{file}: {key} must be a mapping")
    return config


def read_hub_weights(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of ``model.safetensors``, on the CPU."""
    return read_safetensors(Path(folder) / WEIGHTS)[0]


def build_ensemble(
    config: Config,
    folder: str | Path,
    make_member: Callable[[], nn.Module] | None = None,
    *,
    trust: bool = False,
) -> Ensemble:
    """A new ensemble of the right shape, with random weights."""
    import torch

    from dissensus.ensemble import Ensemble

    asked = config["ensemble"]
    how = {"combine": asked["combine"], "execution": asked["execution"]}
    models = config.get("model")
    if make_member is not None:
        ens = Ensemble(make_member, members=asked["members"], **how)
    elif isinstance(models, list) and models:
        members = [_factory(model, folder, trust=trust)() for model in models]
        ens = Ensemble.from_members(members, **how)
    elif isinstance(models, dict):
        ens = Ensemble(_factory(models, folder, trust=trust), members=asked["members"], **how)
    else:
        raise ValueError(
            f"{folder} does not say how its members are made; pass make_member=, the function that "
            "makes one, or into=, an ensemble built the same way, to dissensus.load"
        )
    kind = getattr(torch, str(asked.get("dtype", "float32")), None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"{folder}: dtype must be one of torch, got {asked.get('dtype')!r}")
    return ens.to(kind)


def check_trust(name: str, *, trust: bool) -> None:
    """Raise for a model named by its import path, unless it is trusted."""
    from dissensus.models import MODELS

    if name not in MODELS and ":" in name and not trust:
        raise ValueError(
            f"the model is {name}, code from outside of Dissensus; if you trust it, and whoever "
            "made this run, pass trust=True (--trust) to run it"
        )


def _factory(model: Config, folder: str | Path, *, trust: bool) -> MemberFactory:
    from dissensus.models import make_factory

    try:
        name, shape, outputs = str(model["name"]), list(model["input_shape"]), model["outputs"]
        options: dict[str, Any] = dict(model.get("options") or {})
        given: Sequence[Any] | None = model.get("normalize")
        normalize = None if given is None else (given[0], given[1])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}: its model cannot be read: {error!r}") from error
    check_trust(name, trust=trust)
    file, colon, function = name.rpartition(":")
    if colon and file.endswith(".py"):
        name = f"{Path(folder).resolve() / file}:{function}"  # the file is beside the config
    return make_factory(name, shape, outputs, normalize=normalize, **options)

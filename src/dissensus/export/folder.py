"""A folder to hand on: weights, how to build what they belong to, and a card for people."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus._version import __version__
from dissensus.detection import Detector
from dissensus.ensemble import Ensemble
from dissensus.export.card import model_card
from dissensus.export.deployed import check_detector
from dissensus.export.findings import Findings, found_in
from dissensus.export.metadata import backbone_of
from dissensus.files import replace_atomically, write_safetensors, write_text
from dissensus.models import MODELS, MemberFactory
from dissensus.runs import Facts, load, member_factory, read_config
from dissensus.runs.loading import put_weights
from dissensus.runs.portable import CONFIG, FORMAT, WEIGHTS, build

__all__ = ["save_folder", "save_run"]


def save_folder(
    ens: Ensemble,
    folder: str | Path,
    model: MemberFactory | Sequence[MemberFactory] | None = None,
    *,
    facts: Facts | None = None,
    detector: Detector | None = None,
    findings: Findings | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "",
    license: str | None = None,
) -> list[Path]:
    """Write ``ens`` into an empty ``folder`` as model hubs take it, and return the files.

    ``dissensus.load(folder)`` brings it back, to the same bits: ``model.safetensors`` holds the
    weights, ``config.json`` how the members are made, ``README.md`` is a model card. ``model`` is
    what made the members (:func:`dissensus.models.make_factory`), a list of one a member for unlike
    ones; without it, loading needs ``make_member=`` or ``into=``. Code of your own that it names as
    ``file.py:name`` is copied into the folder, and run by those who pass ``trust=True`` alone.

    ``facts`` say what is known about the data, ``findings`` what was measured, ``settings`` the
    sections ``training`` and ``data`` of a run; :func:`save_run` takes all of it from a run.

    >>> import tempfile
    >>> from dissensus.models import make_factory
    >>> make = make_factory("mlp", (4,), 3)
    >>> folder = tempfile.mkdtemp()
    >>> [file.name for file in save_folder(Ensemble(make, members=2), folder, make)]
    ['model.safetensors', 'README.md', 'config.json']
    >>> load(folder)(torch.zeros(1, 4)).shape
    torch.Size([2, 1, 3])
    """
    path = Path(folder)
    if path.is_dir() and any(entry.name[0] != "." for entry in path.iterdir()):
        raise ValueError(f"{path} is not empty; choose a new folder, or empty it first")
    if detector is not None:
        check_detector(detector)
    state = {key: t.detach().cpu().contiguous().clone() for key, t in ens.state_dict().items()}
    config = _config(ens, model, facts, settings or {}, name)
    _check_comes_back(ens, config, model, state)
    code = _own_code(model)
    card = model_card(config, facts, findings or Findings(), detector=detector, license=license)
    write_safetensors(path / WEIGHTS, state, {"format": "pt"})  # as other readers want it
    written = [path / WEIGHTS]
    for file in code:
        replace_atomically(path / file.name, partial(shutil.copyfile, file))
        written.append(path / file.name)
    if detector is not None:
        detector.save(path / "detector.json")
        written.append(path / "detector.json")
    write_text(path / "README.md", card)
    write_text(path / CONFIG, json.dumps(config, indent=1, allow_nan=False) + "\n")
    return [*written, path / "README.md", path / CONFIG]


def save_run(
    run: str | Path,
    folder: str | Path,
    *,
    detector: Detector | None = None,
    diagnosis: Mapping[str, Any] | None = None,
    name: str = "",
    license: str | None = None,
    trust: bool = False,
) -> list[Path]:
    """:func:`save_folder` of a run of the command line, with a card of what its files say.

    ``diagnosis`` is ``diagnose(…).to_dict()``, where there is one of these weights.
    """
    config, facts = read_config(run), Facts.read(run)
    model = None
    if facts is not None and "name" in config.get("model", {}):
        model = member_factory(config, facts, trust=trust)
    if model is None:
        raise ValueError(
            f"{run} does not say how its members are made, as it was not made by `dissensus "
            "train`; load it in Python and use dissensus.export.save_folder"
        )
    return save_folder(
        load(run, trust=trust),
        folder,
        model,
        facts=facts,
        detector=detector,
        findings=found_in(run, diagnosis=diagnosis),
        settings={
            "training": {"seed": config["ensemble"].get("seed", 0), **config["training"]},
            "data": _kept(config.get("data", {}), "target", "augment", "adversarial"),
            "data_options": _kept(config.get("data_options", {}), "header"),
        },
        name=name or Path(run).resolve().name,
        license=license,
    )


def _kept(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """What may leave the machine: no paths."""
    return {key: values[key] for key in keys if values.get(key) is not None}


# ---- config.json --------------------------------------------------------------------------------


def _config(
    ens: Ensemble,
    model: MemberFactory | Sequence[MemberFactory] | None,
    facts: Facts | None,
    settings: Mapping[str, Mapping[str, Any]],
    name: str,
) -> dict[str, Any]:
    described: Any = None
    if isinstance(model, MemberFactory):
        described = _described(model)
    elif model is not None:
        described = [_described(one) for one in model]
        if len(described) != ens.members:
            raise ValueError(f"model must name every member, got {len(described)} of {ens.members}")
    config = {
        "format": FORMAT,
        "library_name": "dissensus",
        "name": name,
        "task": "regression" if ens.combine == "mean" else "classification",
        "ensemble": {
            "members": ens.members,
            "combine": ens.combine,
            "execution": ens.execution,
            "dtype": str(_dtype(ens)).removeprefix("torch."),
        },
        "model": described,
        "facts": None if facts is None else _described_data(facts),
        **{section: dict(values) for section, values in settings.items()},
        "versions": {
            "dissensus": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"options of a model must be plain values to be written down: {error}"
        ) from error
    return config


def _described(model: MemberFactory) -> dict[str, Any]:
    file = _code_file(model)
    name = model.model if file is None else f"{file.name}:{model.model.rpartition(':')[2]}"
    return {
        "name": name,
        "input_shape": list(model.input_shape),
        "outputs": model.outputs,
        "normalize": None if model.normalize is None else [list(part) for part in model.normalize],
        "options": dict(model.options),
    }


def _described_data(facts: Facts) -> dict[str, Any]:
    """The facts, without the path of a backbone's file."""
    found = asdict(facts)
    backbone = found["preprocessing"].get("backbone")
    if backbone:
        backbone["name"] = backbone_of(facts)
    return found


def _code_file(model: MemberFactory) -> Path | None:
    place, colon, _ = model.model.rpartition(":")
    if model.model in MODELS or not colon or not place.endswith(".py"):
        return None
    return Path(place).expanduser().resolve()


def _own_code(model: MemberFactory | Sequence[MemberFactory] | None) -> list[Path]:
    """Files that the members are made by, each once."""
    models = [model] if isinstance(model, MemberFactory) else list(model or ())
    found = {file: None for file in map(_code_file, models) if file is not None}
    if len({file.name for file in found}) < len(found):
        raise ValueError(
            f"two files of code have one name: {', '.join(map(str, found))}; rename one"
        )
    return list(found)


def _dtype(ens: Ensemble) -> torch.dtype:
    kinds = {t.dtype for t in ens.parameters() if t.is_floating_point()}
    if len(kinds) > 1:
        raise ValueError(f"members must be of one type, got {sorted(map(str, kinds))}")
    return kinds.pop() if kinds else torch.float32


def _check_comes_back(
    ens: Ensemble,
    config: Mapping[str, Any],
    model: MemberFactory | Sequence[MemberFactory] | None,
    state: dict[str, Tensor],
) -> None:
    """Raise if ``model`` is not what made the members; with their weights nobody could load it."""
    if model is None or ens.backbone is not None:
        return
    if isinstance(model, MemberFactory):
        made = build(config, "", model)
    else:
        asked = config["ensemble"]
        made = Ensemble.from_members([one() for one in model], asked["combine"])
    put_weights(made.to(_dtype(ens)), dict(state), "the ensemble")

"""Hub folders: weights, a config that says how to build their networks, and a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dissensus.detection import Detector
from dissensus.ensemble import Ensemble
from dissensus.ensemble.saving import describe, weights_of
from dissensus.export.card import RunResults, model_card, read_results
from dissensus.export.module import backbone_name, check_detector, check_weights, versions
from dissensus.models import MODELS, MemberFactory
from dissensus.runs.data import DataSummary
from dissensus.runs.folder import read_config
from dissensus.runs.load import load, make_ensemble, member_factory, put_weights
from dissensus.tools.files import replace_atomically, write_safetensors, write_text
from dissensus.tools.records import HUB_CONFIG, HUB_WEIGHTS

Model = MemberFactory | Sequence[MemberFactory] | None


def save_folder(
    ens: Ensemble,
    folder: str | Path,
    model: Model = None,
    *,
    summary: DataSummary | None = None,
    detector: Detector | None = None,
    results: RunResults | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "",
    license: str | None = None,
) -> list[Path]:
    """Write ``ens`` into an empty ``folder`` as model hubs take it, and return the files.

    ``dissensus.load(folder)`` brings it back, to the same bits: ``model.safetensors`` holds the
    weights, ``config.json`` how the members are made, ``README.md`` is a model card. ``model`` is
    what made the members (:func:`dissensus.models.make_factory`), a list with one for each member
    if they are unlike; without it, what the ensemble was made with, or else loading needs
    ``make_member=`` or ``into=``. Code of your own that it names as ``file.py:name`` is copied into
    the folder, and runs only for those who pass ``trust=True``.

    ``summary`` describes the data, ``results`` hold what was measured, ``settings`` the sections
    ``training`` and ``data`` of a run; :func:`save_run` takes all of it from a run.

    >>> import tempfile
    >>> from dissensus.models import make_factory
    >>> make = make_factory("mlp", (4,), 3)
    >>> folder = tempfile.mkdtemp()
    >>> [file.name for file in save_folder(Ensemble(make, members=2), folder, make)]
    ['model.safetensors', 'README.md', 'config.json']
    >>> import torch
    >>> load(folder)(torch.zeros(1, 4)).shape
    torch.Size([2, 1, 3])
    """
    path = Path(folder)
    if path.is_dir() and any(entry.name[0] != "." for entry in path.iterdir()):
        raise ValueError(f"{path} is not empty; choose a new folder, or empty it first")
    check_weights(ens)
    if detector is not None:
        check_detector(detector, folder=True)
    model, state = model or ens.made_by, weights_of(ens)
    config = _config(ens, model, summary, settings or {}, name)
    if model is not None and ens.backbone is None:  # else nobody could load the weights
        put_weights(make_ensemble(config, model), state, "the ensemble")
    code = _code_files(model)
    card = model_card(config, summary, results or RunResults(), detector=detector, license=license)
    write_safetensors(path / HUB_WEIGHTS, state, {"format": "pt"})  # as other readers want it
    for file in code:
        replace_atomically(path / file.name, partial(shutil.copyfile, file))
    names = [HUB_WEIGHTS, *(file.name for file in code)]
    if detector is not None:
        detector.save(path / "detector.json")
        names.append("detector.json")
        names += ["detector.safetensors"] if detector.distances else []
        names += [] if detector.tuned is None else ["detector.tuned.safetensors"]
    write_text(path / "README.md", card)
    write_text(path / HUB_CONFIG, json.dumps(config, indent=1, allow_nan=False) + "\n")
    return [path / name for name in (*names, "README.md", HUB_CONFIG)]


def save_run(
    run: str | Path,
    folder: str | Path,
    *,
    detector: Detector | None = None,
    results: RunResults | None = None,
    name: str = "",
    license: str | None = None,
    trust: bool = False,
) -> list[Path]:
    """:func:`save_folder` of a run of the command line, with a card made from its files."""
    config = read_config(run)
    summary = DataSummary.require(run, "dissensus.load and dissensus.export.save_folder")
    return save_folder(
        load(run, trust=trust),
        folder,
        member_factory(config, summary, trust=trust),
        summary=summary,
        detector=detector,
        results=results or read_results(run),
        settings={
            "training": {"seed": config["ensemble"].get("seed", 0), **config["training"]},
            "data": _chosen(config.get("data", {}), "target", "augment", "adversarial"),
            "data_options": _chosen(config.get("data_options", {}), "header"),
        },
        name=name or Path(run).resolve().name,
        license=license,
    )


def _chosen(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The settings that may leave the machine: no paths."""
    return {key: values[key] for key in keys if values.get(key) is not None}


# ---- config.json --------------------------------------------------------------------------------


def _config(
    ens: Ensemble,
    model: Model,
    summary: DataSummary | None,
    settings: Mapping[str, Mapping[str, Any]],
    name: str,
) -> dict[str, Any]:
    if model is not None and not isinstance(model, MemberFactory) and len(model) != ens.members:
        raise ValueError(f"model must name every member, got {len(model)} of {ens.members}")
    models = []
    for each in _factories(model):
        file = _code_file(each)
        own = each.model if file is None else f"{file.name}:{each.model.rpartition(':')[2]}"
        models.append({**each.describe(), "name": own})
    facts = None if summary is None else asdict(summary)
    if facts and facts["preprocessing"].get("backbone"):  # without the path of its file
        facts["preprocessing"]["backbone"]["name"] = backbone_name(summary)
    config = {
        **describe(ens),
        "name": name,
        "model": models[0] if isinstance(model, MemberFactory) else models or None,
        "facts": facts,
        **{section: dict(values) for section, values in settings.items()},
        "versions": versions(),
    }
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"options of a model must be plain values: {error}") from error
    return config


def _factories(model: Model) -> list[MemberFactory]:
    return [model] if isinstance(model, MemberFactory) else list(model or ())


def _code_file(model: MemberFactory) -> Path | None:
    """The file of a model that is code of one's own."""
    file, colon, _ = model.model.rpartition(":")
    if model.model in MODELS or not colon or not file.endswith(".py"):
        return None
    return Path(file).expanduser().resolve()


def _code_files(model: Model) -> list[Path]:
    """The files of code that make the members, each once."""
    files = dict.fromkeys(file for file in map(_code_file, _factories(model)) if file is not None)
    if len({file.name for file in files}) < len(files):
        raise ValueError(f"two files of code have one name: {', '.join(map(str, files))}")
    return list(files)

"""What ``dissensus train`` does: data and ensemble from settings, fit, evaluate, record."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.cli.figures import figures
from dissensus.cli.settings import SETTINGS, Sections
from dissensus.data import AUGMENTATIONS, DATASETS, Augment, Data, fit_images, load
from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, parse
from dissensus.records import read_record, write_record
from dissensus.runs import (
    Facts,
    check_same_data,
    device_named,
    load_data,
    make_ensemble,
    read_inputs,
)
from dissensus.runs.folder import CONFIG, METRICS, RECORD
from dissensus.training import History, Recipe, fit, predict
from dissensus.training.checkpoint import check_writable

__all__ = ["Outcome", "default_out", "run_training"]


@dataclass(frozen=True)
class Outcome:
    """What a training run came to; ``figures`` by the name of the split."""

    out: Path
    config: Sections
    history: History
    figures: dict[str, dict[str, Any]]


def run_training(
    sections: Sections,
    out: Path,
    *,
    stored: Sections | None = None,
    trust: bool = False,
    progress: bool = True,
) -> Outcome:
    """Train as ``sections`` ask, in the folder ``out``; ``stored`` is the config of a run there.

    Writes the run's files, the outputs on validation and test data under ``predictions/``, and
    adds their figures to ``record.json``.
    """
    _check_folder(out, stored)
    machine = sections["machine"]
    if "threads" in machine:
        _use_threads(machine["threads"])
    if "name" not in sections["data"]:
        raise ValueError("say what to train on, such as --data digits or --data table.csv")
    training = sections["training"]
    parse(training["objective"])  # what is wrong is said before anything is loaded
    recipe = Recipe.of({key: value for key, value in training.items() if key != "objective"})
    augment = _augmentation(sections["data"].get("augment"))
    data = load_data(sections)
    facts = Facts.of(data, channels=bool(sections["model"].get("normalize")))
    config, objective = _settled(sections, data, stored)
    ens = make_ensemble(config, facts, trust=trust).to(device_named(machine["device"]))
    extra = _disagreement_inputs(config, facts, data)
    _keep_facts(facts, out, stored)
    history = fit(
        ens,
        data.train,
        objective,
        val=data.val if len(data.val[0]) else None,
        disagreement=extra,
        augment=augment,
        out=out,
        resume=stored is not None,
        config=config,
        progress=progress,
        recipe=recipe,
    )
    found = _keep_predictions(ens, data, facts, out, history)
    _keep_figures(out, config, facts, found)
    return Outcome(out, config, history, found)


def default_out(sections: Sections) -> Path:
    """``runs/digits-ldr-0``: the data, the objective and the seed."""
    name = Path(str(sections["data"].get("name", "run"))).stem
    objective = str(sections["training"]["objective"]).partition(":")[0].replace("/", "-")
    return Path("runs") / f"{name}-{objective}-{sections['training']['seed']}"


# ---- settings that depend on the data -----------------------------------------------------------


def _settled(sections: Sections, data: Data, stored: Sections | None) -> tuple[Sections, Objective]:
    """The config as the run keeps it: nothing open, paths whole, what is local as it was."""
    config = {name: dict(values) for name, values in sections.items() if name != "run" and values}
    training, ensemble = config["training"], config["ensemble"]
    ensemble.setdefault("seed", training["seed"])
    objective, ensemble["combine"] = _fitting(
        training["objective"], data.task, ensemble.get("combine")
    )
    training["objective"] = objective.spec()
    for section, key in (("data", "name"), ("data", "data_dir"), ("data", "disagreement")):
        if key in config[section]:
            config[section][key] = _whole_path(config[section][key])
    file, colon, name = config["model"]["name"].rpartition(":")
    if colon and file.endswith(".py"):
        config["model"]["name"] = f"{_whole_path(file)}:{name}"
    if stored is not None:
        _keep_local(config, stored)
    return config, objective


def _fitting(text: str, task: str, combine: str | None) -> tuple[Objective, str]:
    """The objective and the combination, made to fit the task and each other where nothing is said.

    A regression trains with squared error, and an objective that averages does it as the ensemble.
    """
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


def _whole_path(name: str) -> str:
    """A path that is still right from another folder; the name of a data set stays as it is."""
    path = Path(name).expanduser()
    known = name.lower().replace("-", "_") in DATASETS
    return str(path.resolve()) if path.exists() and not known else name


def _keep_local(config: Sections, stored: Sections) -> None:
    """Where and how to compute may change when a run is resumed; its config stays as it began."""
    for setting in SETTINGS.values():
        if setting.local and setting.section in config:
            config[setting.section].pop(setting.key, None)
            if setting.key in stored.get(setting.section, {}):
                config[setting.section][setting.key] = stored[setting.section][setting.key]


def _augmentation(name: str | None) -> Augment | None:
    if name is None or name == "none":
        return None
    if name not in AUGMENTATIONS:
        close = difflib.get_close_matches(name, AUGMENTATIONS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(AUGMENTATIONS)}"
        raise ValueError(f"there is no augmentation {name!r}; {hint}")
    return AUGMENTATIONS[name]


def _disagreement_inputs(config: Mapping[str, Any], facts: Facts, data: Data) -> Tensor | None:
    """Unlabelled inputs: a file's, an extra set's of the data, or another data set's for training.

    Its training part, so that its test part can still serve as unknown inputs.
    """
    asked = config["data"]
    name = asked.get("disagreement")
    if name is None:
        return None
    if name in data.extra:
        return data.extra[name][0]
    if Path(name).is_file():
        return read_inputs(name, facts, target=asked.get("target")).x
    x = load(name, data_dir=asked.get("data_dir"), seed=asked["seed"]).train[0]
    if tuple(x.shape[1:]) != data.input_shape and x.ndim == 4 and len(data.input_shape) == 3:
        x = fit_images(x, data.input_shape)
    if tuple(x.shape[1:]) != data.input_shape:
        raise ValueError(
            f"the inputs of {name} have the shape {tuple(x.shape[1:])}, those of {facts.name} "
            f"{data.input_shape}; --disagreement needs the same"
        )
    return x


# ---- files --------------------------------------------------------------------------------------


def _check_folder(out: Path, stored: Sections | None) -> None:
    """Say before the data are loaded that a run is in the way."""
    if stored is None and ((out / CONFIG).exists() or (out / METRICS).exists()):
        raise ValueError(
            f"there is a run in {out} already; go on with it by --resume, or choose another --out"
        )


def _keep_facts(facts: Facts, out: Path, stored: Sections | None) -> None:
    check_writable(out, 0)
    kept = None if stored is None else Facts.read(out)
    if kept is None:
        facts.write(out)
    else:
        check_same_data(kept, facts, out)


def _keep_predictions(
    ens: Ensemble, data: Data, facts: Facts, out: Path, history: History
) -> dict[str, dict[str, Any]]:
    found = {}
    for part in ("test", "val"):
        split = data.splits()[part]
        if not len(split[0]):
            continue
        meta = {
            "data": facts.name,
            "split": part,
            "combine": ens.combine,
            "best_epoch": history.best_epoch,
            "classes": facts.classes,
        }
        predictions = predict(ens, split, meta=meta)
        predictions.save(out / "predictions" / f"{part}.safetensors")
        found[part] = figures(predictions, ens.combine, ens.weights, facts)
    return found


def _keep_figures(
    out: Path, config: Sections, facts: Facts, found: dict[str, dict[str, Any]]
) -> None:
    record = read_record(out / RECORD)
    record |= {
        "data": {"name": facts.name, "task": facts.task, "rows": facts.rows},
        "model": config["model"]["name"],
        "combine": config["ensemble"]["combine"],
    }
    write_record(out / RECORD, record | found)


def _use_threads(threads: int) -> None:
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)

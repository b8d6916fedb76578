"""What ``dissensus train`` does: data and ensemble from settings, fit, evaluate, record."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dissensus.cli.ranks import Ranks
from dissensus.cli.settings import SETTINGS, Sections
from dissensus.data import Data
from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective, parse
from dissensus.records import read_record, write_record
from dissensus.runs import (
    Facts,
    changes,
    check_changes,
    check_same_data,
    device_named,
    disagreement_inputs,
    load_data,
    make_ensemble,
    settled,
)
from dissensus.runs.folder import CONFIG, METRICS, RECORD
from dissensus.runs.metrics import compute_metrics
from dissensus.training import History, Recipe, fit, predict
from dissensus.training.checkpoint import check_writable

__all__ = ["Outcome", "default_out", "run_training", "use_threads"]

Callback = Callable[[dict[str, Any], Ensemble], bool | None]


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
    callbacks: Sequence[Callback] = (),
    ranks: Ranks | None = None,
) -> Outcome:
    """Train as ``sections`` ask, in the folder ``out``; ``stored`` is the config of a run there.

    Writes the run's files, the outputs on validation and test data under ``predictions/``, and
    adds their figures to ``record.json``. ``ranks`` are the processes that do it together; the
    first writes.
    """
    together = Ranks(None, "auto") if ranks is None else ranks
    together.on_first(lambda: _check_folder(out, stored))
    machine = sections["machine"]
    if "threads" in machine:
        use_threads(machine["threads"])
    if "name" not in sections["data"]:
        raise ValueError("say what to train on, such as --data digits or --data table.csv")
    training = sections["training"]
    parse(training["objective"])  # what is wrong is said before anything is loaded
    recipe = Recipe.of({key: value for key, value in training.items() if key != "objective"})
    check_changes(sections["data"])
    data = together.first_first(lambda: load_data(sections))
    check_changes(sections["data"], data.train[0])
    facts = Facts.of(data, channels=bool(sections["model"].get("normalize")))
    config, objective = _settled(sections, data, stored)
    ens = make_ensemble(config, facts, trust=trust).to(device_named(machine["device"]))
    extra = disagreement_inputs(config["data"], data)
    augment = changes(config["data"], ens)
    together.on_first(lambda: _keep_facts(facts, out, stored))
    history = fit(
        ens,
        data.train,
        objective,
        val=data.val if len(data.val[0]) else None,
        disagreement=extra,
        augment=augment,
        callbacks=callbacks,
        out=out,
        resume=stored is not None,
        config=config,
        progress=progress,
        distributed=together.settings or False,
        recipe=recipe,
    )
    if not together.first:
        return Outcome(out, config, history, {})
    found = _keep_predictions(ens, data, facts, out, history, progress=progress)
    _keep_figures(out, config, facts, found)
    return Outcome(out, config, history, found)


def default_out(sections: Sections) -> Path:
    """``runs/digits-ldr-0``: the data, the objective and the seed."""
    path = Path(str(sections["data"].get("name", "run")))
    name = re.split(r"[*?{[]", path.stem)[0].strip("-_.") or path.parent.name  # of a pattern
    objective = str(sections["training"]["objective"]).partition(":")[0].replace("/", "-")
    return Path("runs") / f"{name}-{objective}-{sections['training']['seed']}"


# ---- settings that depend on the data -----------------------------------------------------------


def _settled(sections: Sections, data: Data, stored: Sections | None) -> tuple[Sections, Objective]:
    """The config as the run keeps it: nothing open, what is local as it was."""
    config, objective = settled(sections, data.task)
    if stored is not None:
        _keep_local(config, stored)
    return config, objective


def _keep_local(config: Sections, stored: Sections) -> None:
    """Where and how to compute may change when a run is resumed; its config stays as it began."""
    for setting in SETTINGS.values():
        if setting.local and setting.section in config:
            config[setting.section].pop(setting.key, None)
            if setting.key in stored.get(setting.section, {}):
                config[setting.section][setting.key] = stored[setting.section][setting.key]


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
    ens: Ensemble, data: Data, facts: Facts, out: Path, history: History, *, progress: bool
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
        predictions = predict(ens, split, meta=meta, progress=progress)
        predictions.save(out / "predictions" / f"{part}.safetensors")
        found[part] = compute_metrics(predictions, ens.combine, ens.weights, facts)
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


def use_threads(threads: int) -> None:
    """Let torch use so many threads."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)

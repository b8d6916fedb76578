"""Training of a run: data and ensemble from settings, fit, evaluation, record.

A run is a folder: ``config.toml`` (what was asked), ``data.json`` (about its data),
``metrics.jsonl`` (one line for each epoch), a checkpoint to resume from, ``predictions/`` on
validation and test data, and ``record.json`` (what came out).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.config import (
    batch_augmentation,
    check_augmentation,
    complete_config,
    disagreement_inputs,
)
from dissensus.runs.data import DataSummary, check_same_data, load_data
from dissensus.runs.evaluate import compute_metrics, metrics_table
from dissensus.runs.folder import read_config, remove_run
from dissensus.runs.load import device_named, make_ensemble
from dissensus.runs.processes import Processes, distributed_settings
from dissensus.runs.settings import Sections, Settings, is_local, resolve, setting_fields
from dissensus.tools.files import lock_folder, remove_parts
from dissensus.tools.progress import ProgressBar
from dissensus.tools.records import CONFIG, METRICS, RECORD, read_record, write_record
from dissensus.tools.verbs import Result, collect, option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dissensus.data import Data
    from dissensus.ensemble import Ensemble
    from dissensus.training import History

Callback = Callable[[dict[str, Any], "Ensemble"], bool | None]

#: The most threads that torch may be asked to use.
MAX_THREADS = 1024

_PROCESSES = "Several processes (torchrun)"


@dataclass(frozen=True)
class Train(Settings):
    """Options of :func:`train`: the settings of a run, and the processes that train it."""

    overwrite: bool = option(
        False, "Replace the run in --out; files that are not a run's stay.", panel="Run"
    )
    track: tuple[str, ...] = option(
        (),
        "Send the metrics of each epoch to tensorboard, mlflow or wandb; may be repeated.",
        metavar="NAME",
        panel="Run",
    )
    distributed: bool | None = option(
        None,
        "Spread members over the processes that torchrun has started; by default if it has.",
        panel=_PROCESSES,
    )
    mesh: str | None = option(
        None,
        "Processes along members and along the rows of a batch, such as 4x2.",
        metavar="MEMBERSxDATA",
        panel=_PROCESSES,
    )
    rank_timeout: float = option(
        300.0, "Seconds to wait for a process that does not answer.", panel=_PROCESSES
    )
    sync_batchnorm: bool = option(
        False, "Let BatchNorm see whole batches where their rows are spread.", panel=_PROCESSES
    )


@dataclass(frozen=True, repr=False)
class TrainedRun(Result):
    """A run that has been trained: its folder, config and history, and metrics by split.

    ``prepared`` says in a sentence how a table became inputs. ``quiet`` is True if nothing should
    be printed; so for all processes but the first.
    """

    path: Path
    config: Sections
    history: History
    metrics: dict[str, dict[str, Any]]
    prepared: str = ""
    quiet: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Path, config, epochs and metrics."""
        epochs = {"epochs": len(self.history.epochs), "best_epoch": self.history.best_epoch}
        return {"run": str(self.path), "config": self.config, **epochs, **self.metrics}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each split, with its scalar metrics."""
        return [
            {"split": split} | {k: v for k, v in values.items() if isinstance(v, int | float)}
            for split, values in self.metrics.items()
        ]

    def display(self) -> Iterator[RenderableType]:
        """One line about the training, the metrics, and commands to go on with."""
        config, history, trust = self.config, self.history, _trust_flag(self.path)
        yield ""
        yield (
            f"{config['data']['name']}, {config['ensemble']['members']} × "
            f"{config['model']['name']}, {config['training']['objective']}: "
            f"{len(history.epochs)} epochs in {history.seconds:.1f} s"
            f"{', stopped by patience' if history.ended == 'patience' else ''}; "
            f"best epoch: {history.best_epoch}"
        )
        if self.prepared:
            yield f"Prepared: {self.prepared}"
        if self.metrics:
            yield metrics_table(self.metrics, short=True)
        files = "config.toml, metrics.jsonl, record.json, checkpoint, predictions/"
        yield f"Written to {self.path}: {files}"
        yield "Next steps:"
        folder = [] if self.path.parent == Path("runs") else [str(self.path.parent)]
        paths = ["--input", "x.npz", "--output", "p.npz"]
        for words in (
            ["evaluate", str(self.path), *trust],
            ["predict", str(self.path), *paths, *trust],
            ["runs", *folder],
        ):
            yield "  " + shlex.join(["dissensus", *words])


def train(
    options: Train | None = None, *, callbacks: Sequence[Callback] = (), **settings: Any
) -> TrainedRun:
    """Train an ensemble in a run folder; ``settings`` are the fields of :class:`Train`.

    ``callbacks`` are those of ``ds.fit``, which also shows the progress unless ``quiet`` is set. A
    model or objective that ``settings`` name by its import path is run; one that a file names, or
    the run that is resumed, only with ``trust``.

    ::

        run = ds.runs.train(data="digits", objective="adp", epochs=5, out="runs/adp")
        run.metrics["test"]["accuracy"]
    """
    options = collect(Train, options, settings)
    asked = resolve(options)
    out = _run_folder(asked)
    if options.overwrite and asked["run"]["resume"]:
        raise ValueError("--resume continues a run and --overwrite replaces it; leave one out")
    processes = Processes(distributed_settings(options), asked["machine"]["device"])
    with lock_folder(out, processes.on_first):
        exists = (out / CONFIG).exists
        resume = processes.resumes(asked["run"]["resume"], exists)
        stored = read_config(out) if resume and exists() else None
        sections = resolve(options, stored)
        trust = {
            name: options.trust or getattr(options, name) is not None
            for name in ("model", "objective")
        }
        replaced = options.overwrite and stored is None
        callbacks = [*callbacks, *_trackers(options.track, out)]
        return _train(sections, out, stored, processes, trust, callbacks, replaced=replaced)


def _train(
    sections: Sections,
    out: Path,
    stored: Sections | None,
    processes: Processes,
    trust: dict[str, bool],
    callbacks: Sequence[Callback],
    *,
    replaced: bool,
) -> TrainedRun:
    """Train as ``sections`` ask; ``stored`` is the config of the run in ``out`` to resume.

    With ``replaced`` a run that is there is removed once everything else is ready.
    """
    from dissensus.objectives import parse
    from dissensus.training import Recipe, fit

    quiet = sections["run"]["quiet"] or not processes.first
    if stored is None and not replaced:
        processes.on_first(lambda: _check_folder(out))
    machine, training = sections["machine"], sections["training"]
    if "threads" in machine:
        use_threads(machine["threads"])
    if "name" not in sections["data"]:
        if sections["run"]["resume"] and stored is None:
            raise ValueError(f"there is no run in {out} to resume; begin anew with --data")
        raise ValueError("say what to train on, such as --data digits or --data table.csv")
    # A mistake in the objective is reported before anything is loaded.
    parse(training["objective"], trust=trust["objective"])
    recipe = Recipe.of({key: value for key, value in training.items() if key != "objective"})
    check_augmentation(sections["data"])
    data = processes.first_then_others(lambda: load_data(sections))
    if stored is None and "guess" in data.preprocessing:
        with ProgressBar("data", show=not quiet) as bar:
            bar.say(data.preprocessing["guess"])
    check_augmentation(sections["data"], data.train[0])
    summary = DataSummary.of(data, channels=bool(sections["model"].get("normalize")))
    config, objective = complete_config(sections, data.task, trust=trust["objective"])
    if stored is not None:
        _keep_local_settings(config, stored)
    ens = make_ensemble(config, summary, trust=trust["model"]).to(device_named(machine["device"]))
    unlabelled = disagreement_inputs(config["data"], data)
    if replaced:
        processes.on_first(lambda: remove_run(out))
    processes.on_first(lambda: _write_summary(summary, out, stored))
    history = fit(
        ens,
        data.train,
        objective,
        val=data.val if len(data.val[0]) else None,
        disagreement=unlabelled,
        augment=batch_augmentation(config["data"], ens),
        callbacks=callbacks,
        out=out,
        resume=stored is not None,
        config=config,
        progress=not quiet,
        distributed=processes.settings or False,
        recipe=recipe,
    )
    if not processes.first:
        return TrainedRun(out, config, history, {}, quiet=quiet)
    metrics = _write_predictions(ens, data, summary, out, history, progress=not quiet)
    record = read_record(out / RECORD) | {
        "data": {"name": summary.name, "task": summary.task, "rows": summary.rows},
        "model": config["model"]["name"],
        "combine": ens.combine,
    }
    write_record(out / RECORD, record | metrics)
    return TrainedRun(out, config, history, metrics, summary.prepared, quiet)


def resume_command(options: Train) -> str | None:
    """The command that resumes the run of ``options`` after Ctrl-C; None if nothing was written."""
    out = _run_folder(resolve(options))
    if not (out / CONFIG).exists():
        return None
    return shlex.join(
        ["dissensus", "train", "--resume", "--out", str(out), *_trust_flag(out, "objective")]
    )


def use_threads(threads: int) -> None:
    """Let torch use this many threads."""
    import torch

    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads must be from 1 to {MAX_THREADS}, got {threads}")
    torch.set_num_threads(threads)


def _run_folder(sections: Sections) -> Path:
    """``--out``; else ``runs/digits-ldr-0``: the data, the objective and the seed."""
    if "out" in sections["run"]:
        return Path(sections["run"]["out"])
    path = Path(str(sections["data"].get("name", "run")))
    name = re.split(r"[*?{[]", path.stem)[0].strip("-_.") or path.parent.name  # of a pattern
    objective = str(sections["training"]["objective"]).partition(":")[0]
    objective = Path(objective).stem if objective.endswith(".py") else objective.replace("/", "-")
    return Path("runs") / f"{name}-{objective}-{sections['training']['seed']}"


def _trust_flag(run: Path, also: str = "model") -> list[str]:
    """The flag that a command on ``run`` needs, if its model is code from elsewhere.

    To go on training, the ``"objective"`` matters as well.
    """
    from dissensus.objectives import parse

    try:
        config = read_config(run)
        foreign = ":" in str(config.get("model", {}).get("name", ""))
        if also == "objective":
            parse(str(config["training"].get("objective", "independent")))
    except ValueError as error:
        return ["--trust"] if "pass --trust" in str(error) else []
    return ["--trust"] if foreign else []


def _trackers(names: Sequence[str], out: Path) -> list[Callback]:
    if not names:
        return []
    from dissensus.training.callbacks import make_trackers

    try:
        return make_trackers(names, out)
    except ImportError as error:
        raise ValueError(str(error)) from error


def _keep_local_settings(config: Sections, stored: Sections) -> None:
    """Where and how to compute may change when a run is resumed; its config stays as it was."""
    for item in filter(is_local, setting_fields().values()):
        section, key = item.metadata["section"], item.metadata["key"]
        if section in config:
            config[section].pop(key, None)
            if key in stored.get(section, {}):
                config[section][key] = stored[section][key]


# ---- files --------------------------------------------------------------------------------------


def _check_folder(out: Path) -> None:
    """Raise, before the data are loaded, if a run is in the way."""
    if (out / CONFIG).exists() or (out / METRICS).exists():
        raise ValueError(f"there is a run in {out}; add --resume, replace it with --overwrite")


def _write_summary(summary: DataSummary, out: Path, stored: Sections | None) -> None:
    from dissensus.training.run_folder import prepare_folder

    prepare_folder(out, 0)
    before = None if stored is None else DataSummary.read(out)
    if before is None:
        summary.write(out)
    else:
        check_same_data(before, summary, out)


def _write_predictions(
    ens: Ensemble, data: Data, summary: DataSummary, out: Path, history: History, *, progress: bool
) -> dict[str, dict[str, Any]]:
    """Predict test and validation data, write the outputs, and return their metrics by split."""
    from dissensus.training import predict

    remove_parts(out / "predictions")
    metrics = {}
    for name in ("test", "val"):
        split = data.splits()[name]
        if not len(split[0]):
            continue
        meta = {
            "data": summary.name,
            "split": name,
            "combine": ens.combine,
            "best_epoch": history.best_epoch,
            "classes": summary.classes,
        }
        predictions = predict(ens, split, meta=meta, progress=progress)
        predictions.save(out / "predictions" / f"{name}.safetensors")
        metrics[name] = compute_metrics(predictions, ens.combine, ens.weights, summary)
    return metrics

"""Run folders: what their files say, without loading any weights.

A hub folder is an ensemble to share, written by ``dissensus.export`` or ``Ensemble.save``:
``model.safetensors``, a ``config.json`` that names the model of its members, and a model card.
No file in it can run code when it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dissensus.runs.settings import check_settings
from dissensus.tools.files import check_types, parse_json, read_json, read_toml
from dissensus.tools.records import (
    CHECKPOINT,
    CONFIG,
    HUB_CONFIG,
    HUB_FORMAT,
    METRICS,
    PREVIOUS,
    RECORD,
    STATE,
    TRACKING,
    read_metrics,
    read_record,
)

#: Records that commands leave in a run: the file, and the format that it names.
RESULTS = {
    "diagnose": ("diagnosis.json", "dissensus.diagnosis/1"),
    "ood": ("ood/ood.json", "dissensus.ood/1"),
    "attack": ("robustness/record.json", "dissensus.robustness/1"),
}

#: The files that train, diagnose, ood and attack write into a run.
_RUN_FILES = (
    *(METRICS, RECORD, CHECKPOINT, PREVIOUS, STATE, "data.json", TRACKING),
    *(name for name, _ in RESULTS.values()),
    "predictions/*.safetensors",
    *("ood/roc-*.png", "ood/histograms-*.png", "ood/examples-*.???"),
    *("robustness/accuracy.???", "robustness/examples.???"),
    *("robustness/adversarial.npz", "robustness/adversarial.safetensors"),
    CONFIG,
)

_HUB_SCHEMA = {
    "name": str | None,
    "task": str | None,
    "ensemble": {"members": int, "combine": str, "execution": str, "dtype": str | None},
    "model": dict | list | None,
    **dict.fromkeys(("training", "data", "data_options", "versions", "facts"), dict | None),
}

#: How many levels below a folder are searched for runs.
_DEPTH = 4


@dataclass(frozen=True)
class RunDescription:
    """One run as its files describe it: what was asked, how far it came, and its metrics.

    ``state`` is ``"finished"``, ``"stopped"`` (there is a checkpoint to resume from), ``"begun"``
    (there is none yet) or ``"unreadable"``, and then ``problem`` says why. ``val`` are the metrics
    of the best epoch; ``test`` those in the record, if they belong to the same weights.
    """

    path: Path
    state: str
    problem: str = ""
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    epochs: int = 0
    batch: int = 0
    best_epoch: int = 0
    ended: str = ""
    val: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    written: float = 0.0

    def asked(self, section: str, key: str) -> Any:
        """One setting of ``config.toml``, or None."""
        return self.config.get(section, {}).get(key)

    def standing(self) -> str:
        """Where the run stands, in words."""
        of = f"{self.epochs} of {self.asked('training', 'epochs')} epochs"
        if self.state == "finished":
            why = {"patience": ", ended by patience", "callback": ", ended by a callback"}
            return f"finished after {of}{why.get(self.ended, '')}"
        if self.state == "stopped" and self.epochs == 0:
            return "stopped in its first epoch; these are the weights so far"
        if self.state == "stopped":
            return f"stopped after {of}; this is the best epoch so far"
        return self.problem or "begun, without a checkpoint yet"


def read_config(run: str | Path) -> dict[str, dict[str, Any]]:
    """``config.toml`` of a run folder, or the sections that a hub folder has in ``config.json``."""
    path = Path(run)
    if not path.is_dir():
        raise ValueError(
            f"there is no run folder {path}; `dissensus runs` lists the runs there are"
        )
    if is_hub_folder(path):
        return _sections(read_hub_config(path))
    file = path / CONFIG
    if not file.is_file():
        raise ValueError(f"{path} is not a run: it has no {CONFIG}")
    config = _sections(read_toml(file))
    if "training" not in config or "ensemble" not in config:
        raise ValueError(f"{file} is not the config of a run: it lacks [ensemble] or [training]")
    check_settings(config, file)
    return config


def remove_run(folder: str | Path) -> None:
    """Remove the files of a run, and no others; raises if they are of something else."""
    path = Path(folder)
    if (path / CONFIG).exists():
        read_config(path)
    for pattern in _RUN_FILES:
        for file in path.glob(pattern):
            file.unlink()
    for name in {pattern.partition("/")[0] for pattern in _RUN_FILES if "/" in pattern}:
        with suppress(OSError):  # there is none, or it holds other files
            (path / name).rmdir()


def _sections(read: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {section: values for section, values in read.items() if isinstance(values, dict)}


def is_hub_folder(folder: str | Path) -> bool:
    """Whether ``folder`` is a hub folder, and not a run."""
    path = Path(folder)
    return (path / HUB_CONFIG).is_file() and not (path / CONFIG).exists()


def read_hub_config(folder: str | Path) -> dict[str, Any]:
    """``config.json``, checked; an error says what is wrong with it."""
    file = Path(folder) / HUB_CONFIG
    config: dict[str, Any] = read_json(file, {})
    if config.get("format") != HUB_FORMAT:
        got = config.get("format")
        raise ValueError(f"{file} is not of an ensemble: expected {HUB_FORMAT!r}, got {got!r}")
    check_types(config, _HUB_SCHEMA, file)
    for key in ("training", "data", "data_options"):
        config[key] = config.get(key) or {}
    # Its model has a form of its own, which ``runs.load`` checks.
    settings = {section: config[section] for section in ("ensemble", "training", "data")}
    check_settings(settings, file)
    return config


def describe(run: str | Path) -> RunDescription:
    """Describe a run by its files; raises if they cannot be read."""
    path = Path(run)
    if is_hub_folder(path):
        raise ValueError(
            f"{path} is not a run but a hub folder, made to be shared; its README.md describes it"
        )
    config = read_config(path)
    newest = max(_modified(path / name) for name in (CONFIG, METRICS, CHECKPOINT))
    state = _checkpoint_state(path / CHECKPOINT)
    if state is None:
        return RunDescription(path, "begun", config=config, written=newest)
    epochs, best_epoch = _whole(state, "epoch"), _whole(state, "best_epoch")
    record = read_record(path / RECORD) if (path / RECORD).is_file() else {}
    current = record.get("epochs") == epochs and record.get("best_epoch") == best_epoch
    ended = str(state.get("ended") or "")
    metrics = read_metrics(path)
    return RunDescription(
        path,
        "finished" if ended else "stopped",
        config=config,
        epochs=epochs,
        batch=_whole(state, "batch"),
        best_epoch=best_epoch,
        ended=ended,
        val=next((_mapping(m.get("val")) for m in metrics if m["epoch"] == best_epoch), {}),
        test=_mapping(record.get("test")) if current else {},
        written=newest,
    )


def read_result(run: str | Path, command: str) -> dict[str, Any]:
    """The record that ``dissensus COMMAND`` left in a run; empty if there is none.

    An error says why it cannot be used: a record older than the run's own is of other weights.
    """
    path, (name, kind) = Path(run), RESULTS[command]
    if not (path / name).is_file():
        return {}
    record = read_record(path / name)
    if record.get("format") != kind:
        raise ValueError(f"it is not a record of `dissensus {command}`")
    trained = read_record(path / RECORD) if (path / RECORD).is_file() else {}
    if _written(record) < _written(trained):
        again = f"dissensus {command} {path}"
        raise ValueError(f"it is older than the run's last training; run `{again}` again")
    return record


def find_runs(folder: str | Path = "runs") -> list[RunDescription]:
    """Every run at or below ``folder``, newest first.

    A folder that cannot be read, is half written or holds something else is one entry with the
    state ``"unreadable"``; nothing in it raises.
    """
    top = Path(folder)
    if not top.is_dir():
        raise ValueError(
            f"there is no folder {top}; `dissensus train --help` says how to make a run"
        )
    runs = [_try_describe(path) for path in _candidates(top)]
    return sorted(runs, key=lambda run: -run.written)


def _try_describe(path: Path) -> RunDescription:
    try:
        return describe(path)
    except Exception as error:  # one damaged folder must not hide the others
        text = " ".join((str(error) or type(error).__name__).split())
        problem = text.replace(f"{path}{os.sep}", "").replace(f"{path} is ", "")
        return RunDescription(path, "unreadable", problem, written=_modified(path))


def _candidates(top: Path) -> Iterator[Path]:
    """Folders that are runs, and folders directly below ``top`` that hold none."""
    if _looks_like_run(top):
        yield top
        return
    for path in _subfolders(top):
        yield from list(_runs_below(path, _DEPTH - 1)) or [path]


def _runs_below(path: Path, depth: int) -> Iterator[Path]:
    if _looks_like_run(path):
        yield path
    elif depth > 0:
        for inner in _subfolders(path):
            yield from _runs_below(inner, depth - 1)


def _looks_like_run(path: Path) -> bool:
    return any(os.path.lexists(path / name) for name in (CONFIG, METRICS, CHECKPOINT))


def _subfolders(path: Path) -> list[Path]:
    try:
        entries = sorted(path.iterdir())
        return [p for p in entries if p.is_dir() and not p.is_symlink() and p.name[0] != "."]
    except OSError:
        return []


def _checkpoint_state(file: Path) -> dict[str, Any] | None:
    """The plain values in the header of a checkpoint; its tensors are not read."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="numpy") as opened:
            values = (opened.metadata() or {}).get("values", "")
        state: dict[str, Any] = parse_json(values, "its state", {}, finite=False)
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(f"{file} is not a checkpoint that can be read: {error}") from error
    return state


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _written(record: dict[str, Any]) -> str:
    """When a record was written (ISO 8601, UTC); empty where it does not say."""
    return str(_mapping(record.get("environment")).get("written") or "")


def _whole(values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    return value if type(value) is int else 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

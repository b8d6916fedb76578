"""Sweeps: the folders of ``dissensus sweep``, and β sweeps in the records of experiments."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dissensus.runs import DataSummary
from dissensus.show.contents import (
    Floats,
    HeldOut,
    Method,
    Number,
    Record,
    Reference,
    Sweep,
    SweepLine,
    SweepPoint,
    finite,
)
from dissensus.show.metrics import SWEEP_METRICS
from dissensus.show.run_files import HELD_OUT_ROWS, Log
from dissensus.tools.files import read_toml
from dissensus.tools.records import read_record

#: Other names of metrics in the test results of an experiment's cell.
_ALIASES = {"ensemble_error": "error"}

#: Settings that a line's name leaves out if the others are enough to tell it apart.
_MINOR = ("optimizer", "schedule", "epochs", "batch_size", "model_options")

#: Fewer values of β than this are a comparison, not a sweep.
_FEWEST = 3


# ---- sweep folders ------------------------------------------------------------------------------


def read_sweep(path: Path, log: Log) -> Sweep:
    """The sweep in ``path``."""
    config = read_toml(path / "sweep.toml")
    summary = log.add(Record(path / "summary.json", read_record(path / "summary.json")))
    axis = _axis(config.get("grid", {}))
    cells = [Record(f, read_record(f)) for f in sorted((path / "cells").glob("[!.]*.json"))]
    groups: dict[str, list[SweepPoint]] = {}
    for row in summary.rows("rows"):
        settings = _other_settings(row.at("point"), axis)
        repeats = [cell for cell in cells if cell.at("cell.point") == row.at("point")]
        groups.setdefault(settings, []).append(_summary_point(row, axis, repeats))
    lines = [
        SweepLine(label, tuple(sorted(points, key=lambda point: point.x)))
        for label, points in groups.items()
    ]
    if not lines:
        raise ValueError(f"{summary.file.name} has no rows")
    data = Path(str(config.get("data", {}).get("name", "data"))).stem
    objective = str(config.get("training", {}).get("objective", "")).partition(":")[0]
    members = config.get("ensemble", {}).get("members", "?")
    return Sweep(
        path.resolve().name,
        summary.file,
        axis,
        f"{data}, {objective}, {members} members",
        int(config.get("sweep", {}).get("repeats", 1)),
        tuple(lines),
        _held_out(path, cells, axis, lines[0].label),
        ", ".join(text for key in ("best.label", "chosen_by") if (text := summary.text(key))),
    )


def _axis(grid: Mapping[str, Any]) -> str:
    """The key along which the sweep is drawn: β, or the first key with several numbers."""
    for key in sorted(grid, key=lambda key: key != "beta"):
        values = grid[key] if isinstance(grid[key], list) else []
        if all(finite(value) is not None for value in values) and len(set(values)) > 1:
            return key
    raise ValueError("no key of its grid has several numbers, so there is no axis to draw along")


def _other_settings(point: Mapping[str, Any], axis: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in point.items() if key != axis)


def _mean_number(mean: float, sd: float | None, source: Reference, parts: Floats | None) -> Number:
    """A mean over repeats, with ± one standard deviation as its interval."""
    if sd is None:
        return Number(mean, source, parts=parts)
    return Number(mean, source, mean - sd, mean + sd, parts)


def _summary_point(row: Record, axis: str, cells: Sequence[Record]) -> SweepPoint:
    """Means of a point; ``cells`` are its repeats, which those of other points share."""
    numbers = {}
    cells = sorted(cells, key=lambda cell: cell.at("cell.repeat") or 0)
    for name in SWEEP_METRICS:
        key = f"diagnosis.{name}" if name == "debiased_share" else f"test.{name}"
        mean, sd = row.number(f"{key}.mean"), row.number(f"{key}.sd")
        if mean is not None:
            repeats = (cell.number(f"result.{key}") for cell in cells)
            values = [number.value for number in repeats if number is not None]
            parts = np.array(values) if len(values) == row.at("done") else None
            deviation = None if sd is None else sd.value
            numbers[name] = _mean_number(mean.value, deviation, mean.source, parts)
    verdicts = {str(word): int(count) for word, count in (row.at("verdicts") or {}).items()}
    return SweepPoint(float(row.at("point")[axis]), numbers, verdicts)


def _held_out(path: Path, cells: Sequence[Record], axis: str, label: str) -> dict[float, HeldOut]:
    """Members' outputs for the same rows at each point of the first line, from one repeat."""
    summary = DataSummary.read(path)
    classes = tuple(summary.classes) if summary is not None else ()
    held_out: dict[float, HeldOut] = {}
    for record in cells:
        point = record.at("cell.point")
        if not isinstance(point, dict) or not isinstance(record.at("result.held_out"), dict):
            continue
        if _other_settings(point, axis) != label:
            continue
        outputs = record.array("result.held_out.outputs")
        targets = record.array("result.held_out.targets")
        if outputs.ndim != 3 or len(targets) != outputs.shape[1]:
            raise ValueError(
                f"{record.file}: result.held_out must be outputs [members][rows][outputs]"
            )
        held_out[float(point[axis])] = HeldOut(
            outputs[:, :HELD_OUT_ROWS],
            targets[:HELD_OUT_ROWS],
            classes,
            record.reference("result.held_out.outputs"),
        )
    return dict(sorted(held_out.items()))


# ---- runs ---------------------------------------------------------------------------------------


def runs_as_sweep(methods: Sequence[Method]) -> Sweep | None:
    """Runs with different β on the same data, as a sweep of one repeat."""
    groups: dict[tuple[str, int, str], dict[float, Method]] = {}
    for method in methods:
        if method.beta is not None:
            group = groups.setdefault((method.data, method.members, method.split), {})
            group.setdefault(method.beta, method)
    (data, members, split), by_beta = max(
        groups.items(), key=lambda item: len(item[1]), default=(("", 0, ""), {})
    )
    if len(by_beta) < 2:
        return None
    points, held_out = [], {}
    for beta, method in sorted(by_beta.items()):
        numbers, diagnosis = dict(method.numbers), method.diagnosis
        if diagnosis is not None:
            part, space = judged_space(diagnosis)
            share = diagnosis.number(f"debiased_share.{part}.{space}.share")
            numbers |= {} if share is None else {"debiased_share": share}
        points.append(SweepPoint(beta, numbers, {method.verdict: 1} if method.verdict else {}))
        if method.held_out is not None:
            held_out[beta] = method.held_out
    words = f"{data}, {members} members, one run each, {split}"
    path = next(iter(by_beta.values())).path
    lines = (SweepLine("", tuple(points)),)
    return Sweep("the runs", path, "beta", words, 1, lines, held_out)


def judged_space(diagnosis: Record) -> tuple[str, str]:
    """The split that was judged, and the space in which the run combines its members."""
    own = {"mean": "outputs", "score": "score"}
    part = diagnosis.text("judged_on") or "test"
    return part, own.get(diagnosis.text("combine"), "probability")


# ---- records of experiments ---------------------------------------------------------------------


def read_experiment_sweeps(record: Record) -> list[Sweep]:
    """β sweeps in the record of an experiment: one line for each of its settings."""
    groups: dict[str, tuple[dict[str, Any], dict[float, list[Mapping[str, Any]]]]] = {}
    for row in record.rows("cells"):
        setting, tests = _cell_tests(row)
        key = json.dumps(setting, sort_keys=True)
        for beta, test in tests:
            groups.setdefault(key, (setting, {}))[1].setdefault(beta, []).append(test)
    sweeps = [group for group in groups.values() if len(group[1]) >= _FEWEST]
    if not sweeps:
        return []
    settings = [setting for setting, _ in sweeps]
    lines, repeats = [], 1
    for setting, by_beta in sweeps:
        points = [_mean_point(record, beta, by_beta[beta]) for beta in sorted(by_beta)]
        repeats = max(repeats, *(len(tests) for tests in by_beta.values()))
        lines.append(SweepLine(_label(setting, settings), tuple(points)))
    words = f"{record.text('paper')}, {record.text('scale')} scale"
    return [Sweep(record.text("study"), record.file, "beta", words, repeats, tuple(lines))]


def _cell_tests(row: Record) -> tuple[dict[str, Any], list[tuple[float, Mapping[str, Any]]]]:
    """A cell's settings except β and the seed, and its test results by β."""
    cell, result = row.at("cell"), row.at("result")
    if not isinstance(cell, dict) or not isinstance(result, dict):
        return {}, []
    setting = {k: v for k, v in cell.items() if k not in ("name", "seed", "run", "beta")}
    several = result.get("betas")
    parts = several if isinstance(several, list) else [{**result, "beta": cell.get("beta")}]
    tests: list[tuple[float, Mapping[str, Any]]] = []
    for part in filter(lambda part: isinstance(part, dict), parts):
        beta, test = finite(part.get("beta")), part.get("test")
        if beta is not None and isinstance(test, dict):
            tests.append((beta, test))
    return setting, tests


def _mean_point(record: Record, beta: float, tests: Sequence[Mapping[str, Any]]) -> SweepPoint:
    numbers = {}
    for name in SWEEP_METRICS:
        key = name if any(name in test for test in tests) else _ALIASES.get(name, name)
        values = [value for test in tests if (value := finite(test.get(key))) is not None]
        if values:
            mean = statistics.fmean(values)
            sd = statistics.stdev(values) if len(values) > 1 else None
            where = f"cells[β = {beta:g}].test.{key}, mean of {len(values)}"
            numbers[name] = _mean_number(mean, sd, Reference(record.file, where), np.array(values))
    return SweepPoint(beta, numbers)


def _label(setting: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> str:
    """The settings that differ from the others'."""
    unlike = [key for key in setting if any(o.get(key) != setting[key] for o in settings)]
    main = [key for key in unlike if key not in _MINOR]
    unique = sum(all(o.get(key) == setting[key] for key in main) for o in settings) == 1
    words = [
        setting[key] if isinstance(setting[key], str) else f"{setting[key]} {key}"
        for key in (main if unique else unlike)
    ]
    return ", ".join(words) or str(setting.get("data", setting.get("table", "")))

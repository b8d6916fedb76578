"""Sweeps: the folders of ``dissensus sweep``, and β sweeps in the records of experiments."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dissensus.records import read_record
from dissensus.report.found import HeldOut, Number, Record, Source, Sweep, SweepLine, SweepPoint
from dissensus.report.reading_records import floats
from dissensus.report.reading_runs import HELD_OUT_ROWS
from dissensus.runs import Facts

__all__ = ["read_study_sweeps", "read_sweep"]

#: What figures show of a point: the name here, and its place in a row of ``summary.json``.
_FIGURES = {
    "err": ("test", "ensemble_error"),
    "member_err": ("test", "member_error"),
    "div": ("test", "diversity"),
    "accuracy": ("test", "accuracy"),
    "debiased": ("diagnosis", "debiased_share"),
}

#: The same in a cell of an experiment; the first name that is there.
_STUDY_FIGURES = {
    "err": ("ensemble_error", "error"),
    "member_err": ("member_error",),
    "div": ("diversity",),
    "accuracy": ("accuracy",),
}

#: Settings that a line's name leaves out where the others tell it from the rest.
_MINOR = ("optimizer", "schedule", "epochs", "batch_size", "model_options")

#: Fewer values of β than this are a comparison, not a sweep.
_FEWEST = 3


# ---- sweep folders ------------------------------------------------------------------------------


def read_sweep(path: Path, keep: Callable[[Record], Record]) -> Sweep:
    """The sweep in ``path`` along β, or along its first key with several numbers."""
    asked = tomllib.loads((path / "sweep.toml").read_text(encoding="utf-8"))
    summary = keep(Record(path / "summary.json", read_record(path / "summary.json")))
    axis = _axis(asked.get("grid", {}))
    grouped: dict[str, list[SweepPoint]] = {}
    for place, row in enumerate(summary.rows("rows")):
        point = row["point"]
        others = ", ".join(f"{key} {value}" for key, value in point.items() if key != axis)
        grouped.setdefault(others, []).append(_point(summary, f"rows[{place}]", row, axis))
    lines = [
        SweepLine(label, tuple(sorted(points, key=lambda one: one.x)))
        for label, points in grouped.items()
    ]
    training, ensemble = asked.get("training", {}), asked.get("ensemble", {})
    data = Path(str(asked.get("data", {}).get("name", "data"))).stem
    objective = str(training.get("objective", "")).partition(":")[0]
    return Sweep(
        path.resolve().name,
        summary.file,
        axis,
        f"{data}, {objective}, {ensemble.get('members', '?')} members",
        int(asked.get("sweep", {}).get("repeats", 1)),
        tuple(lines),
        _held_out(path, axis, lines[0].label if lines else ""),
    )


def _axis(grid: Mapping[str, Any]) -> str:
    def numeric(values: Any) -> bool:
        return isinstance(values, list) and len({v for v in values if _number(v)}) > 1

    if numeric(grid.get("beta")):
        return "beta"
    for key, values in grid.items():
        if numeric(values) and all(_number(value) for value in values):
            return str(key)
    raise ValueError("its grid has no key with several numbers, so there is no axis to draw along")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _point(summary: Record, key: str, row: Mapping[str, Any], axis: str) -> SweepPoint:
    numbers = {}
    for name, (part, figure) in _FIGURES.items():
        mean = summary.number(f"{key}.{part}.{figure}.mean")
        sd = summary.number(f"{key}.{part}.{figure}.sd")
        if mean is not None:
            ends = (None, None) if sd is None else (mean.value - sd.value, mean.value + sd.value)
            numbers[name] = Number(mean.value, mean.source, *ends)
    verdicts = {str(word): int(count) for word, count in row.get("verdicts", {}).items()}
    return SweepPoint(float(row["point"][axis]), numbers, verdicts, bool(row.get("best")))


def _held_out(path: Path, axis: str, label: str) -> dict[float, HeldOut]:
    """What members say of the same rows at each point of the first line, from the first repeat."""
    facts = Facts.read(path)
    classes = tuple(facts.classes) if facts is not None else ()
    found: dict[float, HeldOut] = {}
    for file in sorted((path / "cells").glob("[!.]*.json")):
        record = Record(file, read_record(file))
        point, kept = record.at("cell.point"), record.at("result.held_out")
        if not isinstance(point, dict) or not isinstance(kept, dict):
            continue
        if ", ".join(f"{key} {value}" for key, value in point.items() if key != axis) != label:
            continue
        source = Source(file, "result.held_out.outputs")
        outputs = floats(kept["outputs"], source)
        targets = floats(kept["targets"], Source(file, "result.held_out.targets"))
        if outputs.ndim != 3 or len(targets) != outputs.shape[1]:
            raise ValueError(f"{file}: result.held_out must be outputs [members][rows][outputs]")
        rows = slice(0, HELD_OUT_ROWS)
        found[float(point[axis])] = HeldOut(outputs[:, rows], targets[rows], classes, source)
    return dict(sorted(found.items()))


# ---- records of experiments ---------------------------------------------------------------------


def read_study_sweeps(record: Record) -> list[Sweep]:
    """β sweeps in the record of an experiment: one line for each setting that it was made with."""
    grouped: dict[str, tuple[dict[str, Any], dict[float, list[Mapping[str, Any]]]]] = {}
    for row in record.rows("cells"):
        setting, tests = _cell_tests(row)
        key = json.dumps(setting, sort_keys=True)
        for beta, test in tests:
            grouped.setdefault(key, (setting, {}))[1].setdefault(beta, []).append(test)
    grouped = {key: own for key, own in grouped.items() if len(own[1]) >= _FEWEST}
    if not grouped:
        return []
    settings = [setting for setting, _ in grouped.values()]
    lines, most = [], 1
    for setting, by_beta in grouped.values():
        points = [_mean_point(record, beta, by_beta[beta]) for beta in sorted(by_beta)]
        most = max(most, *(len(tests) for tests in by_beta.values()))
        lines.append(SweepLine(_label(setting, settings), tuple(points)))
    words = f"{record.text('paper')}, {record.text('scale')} scale"
    return [Sweep(record.text("study"), record.file, "beta", words, most, tuple(lines))]


def _cell_tests(
    row: Mapping[str, Any],
) -> tuple[dict[str, Any], list[tuple[float, Mapping[str, Any]]]]:
    """A cell's settings but for β and the seed, and its test figures by β."""
    cell, result = row.get("cell"), row.get("result")
    if not isinstance(cell, dict) or not isinstance(result, dict):
        return {}, []
    setting = {k: v for k, v in cell.items() if k not in ("name", "seed", "run", "beta")}
    several = result.get("betas")
    parts = several if isinstance(several, list) else [{**result, "beta": cell.get("beta")}]
    tests: list[tuple[float, Mapping[str, Any]]] = [
        (float(part["beta"]), part["test"])
        for part in parts
        if isinstance(part, dict)
        and _number(part.get("beta"))
        and isinstance(part.get("test"), dict)
    ]
    return setting, tests


def _mean_point(record: Record, beta: float, tests: Sequence[Mapping[str, Any]]) -> SweepPoint:
    numbers = {}
    for name, keys in _STUDY_FIGURES.items():
        for key in keys:
            values = [float(test[key]) for test in tests if _number(test.get(key))]
            if not values:
                continue
            mean = statistics.fmean(values)
            told = f"cells[β = {beta:g}].test.{key}, mean of {len(values)}"
            ends: tuple[float | None, float | None] = (None, None)
            if len(values) > 1:
                sd = statistics.stdev(values)
                ends = mean - sd, mean + sd
            numbers[name] = Number(mean, Source(record.file, told), *ends)
            break
    return SweepPoint(beta, numbers)


def _label(setting: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> str:
    """What a setting differs in from the others."""
    unlike = [key for key in setting if any(o.get(key) != setting[key] for o in settings)]
    main = [key for key in unlike if key not in _MINOR]
    alone = sum(all(o.get(key) == setting[key] for key in main) for o in settings) == 1
    words = [
        setting[key] if isinstance(setting[key], str) else f"{setting[key]} {key}"
        for key in (main if alone else unlike)
    ]
    return ", ".join(words) or str(setting.get("data", setting.get("table", "")))

"""Sweeps: the folders of ``dissensus sweep``, and runs that differ in β."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from dissensus.runs import DataSummary
from dissensus.show.contents import (
    HeldOutRows,
    Method,
    Number,
    Record,
    SweepLine,
    SweepPoint,
    finite,
)
from dissensus.show.figure import mark_best
from dissensus.show.metrics import METRICS, SWEEP_METRICS
from dissensus.show.run_files import HELD_OUT_ROWS, Log
from dissensus.tools.files import read_toml
from dissensus.tools.records import read_record

# ---- sweep folders ------------------------------------------------------------------------------


def read_sweep(path: Path, log: Log) -> list[SweepLine]:
    """The sweep in ``path``: a line along its axis for each of its other settings."""
    config = read_toml(path / "sweep.toml")
    summary = log.add(Record(path / "summary.json", read_record(path / "summary.json")))
    axis = _axis(config.get("grid", {}))
    cells = [Record(f, read_record(f)) for f in sorted((path / "cells").glob("[!.]*.json"))]
    groups: dict[str, list[SweepPoint]] = {}
    for row in summary.rows("rows"):
        repeats = [cell for cell in cells if cell.at("cell.point") == row.at("point")]
        settings = _other_settings(row.at("point"), axis)
        groups.setdefault(settings, []).append(_summary_point(row, axis, repeats))
    if not groups:
        raise ValueError(f"{summary.file.name} has no rows")
    data = Path(str(config.get("data", {}).get("name", "data"))).stem
    objective = str(config.get("training", {}).get("objective", "")).partition(":")[0]
    members = config.get("ensemble", {}).get("members", "?")
    name, setting = path.resolve().name, f"{data}, {objective}, {members} members"
    return [
        SweepLine(
            shorten(f"{name}: {label}" if label else f"{name} ({setting})", 70, placeholder="…"),
            summary.file,
            axis,
            int(config.get("sweep", {}).get("repeats", 1)),
            _marked(sorted(points, key=lambda point: point.x)),
            _held_out(path, cells, axis, label),
            ", ".join(text for key in ("best.label", "chosen_by") if (text := summary.text(key))),
        )
        for label, points in groups.items()
    ]


def _marked(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """``points`` with the best of each metric marked, where repeats can be compared."""
    verdicts, columns = [point.verdict for point in points], {}
    for name in SWEEP_METRICS:
        numbers, better = [point.numbers.get(name) for point in points], METRICS[name].better
        # ± one standard deviation is no interval of the mean: without parts nothing is marked.
        repeated = all(n is None or (n.parts is not None and len(n.parts) > 1) for n in numbers)
        if better and repeated:
            numbers = mark_best(numbers, verdicts, highest=better == "high")
        columns[name] = numbers
    return [
        replace(
            point,
            numbers={key: n for key, column in columns.items() if (n := column[place]) is not None},
        )
        for place, point in enumerate(points)
    ]


def _axis(grid: Mapping[str, Any]) -> str:
    """The key along which the sweep is drawn: β, or the first key with several numbers."""
    for key in sorted(grid, key=lambda key: key != "beta"):
        values = grid[key] if isinstance(grid[key], list) else []
        if all(finite(value) is not None for value in values) and len(set(values)) > 1:
            return key
    raise ValueError("no key of its grid has several numbers, so there is no axis to draw along")


def _other_settings(point: Mapping[str, Any], axis: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in point.items() if key != axis)


def _summary_point(row: Record, axis: str, cells: Sequence[Record]) -> SweepPoint:
    """Means of a point; ``cells`` are its repeats, which those of other points share."""
    numbers: dict[str, Number] = {}
    cells = sorted(cells, key=lambda cell: cell.at("cell.repeat") or 0)
    for name in SWEEP_METRICS:
        key = f"diagnosis.{name}" if name == "debiased_share" else f"test.{name}"
        mean, sd = row.number(f"{key}.mean"), row.number(f"{key}.sd")
        if mean is None:
            continue
        repeats = (cell.number(f"result.{key}") for cell in cells)
        values = [number.value for number in repeats if number is not None]
        parts = np.array(values) if len(values) == row.at("done") else None
        numbers[name] = replace(mean, parts=parts)
        if sd is not None:
            low, high = mean.value - sd.value, mean.value + sd.value
            numbers[name] = replace(mean, parts=parts, low=low, high=high)
    verdicts = {str(word): int(count) for word, count in (row.at("verdicts") or {}).items()}
    return SweepPoint(float(row.at("point")[axis]), numbers, verdicts)


def _held_out(
    path: Path, cells: Sequence[Record], axis: str, label: str
) -> dict[float, HeldOutRows]:
    """Members' outputs for the same rows at each point of the first line, from one repeat."""
    summary = DataSummary.read(path)
    classes = tuple(summary.classes) if summary is not None else ()
    held_out: dict[float, HeldOutRows] = {}
    for record in cells:
        point = record.at("cell.point")
        if not isinstance(point, dict) or not isinstance(record.at("result.held_out"), dict):
            continue
        if _other_settings(point, axis) == label:
            outputs = record.array("result.held_out.outputs", ndim=3)
            shape = np.shape(record.at("result.held_out.targets"))
            targets = record.array("result.held_out.targets", ndim=len(shape))
            if len(targets) != outputs.shape[1]:
                raise ValueError(f"{record.file}: result.held_out must have a target for each row")
            held_out[float(point[axis])] = HeldOutRows(
                outputs[:, :HELD_OUT_ROWS],
                targets[:HELD_OUT_ROWS],
                classes,
                record.reference("result.held_out.outputs"),
            )
    return dict(sorted(held_out.items()))


# ---- runs ---------------------------------------------------------------------------------------


def runs_as_sweep(methods: Sequence[Method]) -> SweepLine | None:
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
        numbers = dict(method.numbers)
        if method.diagnosis is not None:
            share, _ = debiased_share_of(method.diagnosis, judged_space(method.diagnosis)[1])
            numbers |= {} if share is None else {"debiased_share": share}
        points.append(SweepPoint(beta, numbers, {method.verdict: 1} if method.verdict else {}))
        if method.held_out is not None:
            held_out[beta] = method.held_out
    name = f"the runs ({data}, {members} members, one run each, {split})"
    path = next(iter(by_beta.values())).path
    return SweepLine(name, path, "beta", 1, points, held_out)


def judged_space(diagnosis: Record) -> tuple[str, str]:
    """The split that was judged, and the space in which the run combines its members."""
    own = {"mean": "outputs", "score": "score"}
    part = diagnosis.text("judged_on") or "test"
    return part, own.get(diagnosis.text("combine"), "probability")


def debiased_share_of(diagnosis: Record, space: str) -> tuple[Number | None, float]:
    """The share of the spread that constant offsets explain, and share · DIV / ERR."""
    part, _ = judged_space(diagnosis)
    share = diagnosis.number(f"debiased_share.{part}.{space}.share")
    ratio = diagnosis.number(f"explosion.{part}.ratio")
    return share, share.value * ratio.value if share and ratio else 0.0

"""What ``dissensus ood`` keeps: ``ood.json``, and the images that divide members most and least."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.cli.ood_examples import divergent, plain_name
from dissensus.files import replace_atomically, write_text
from dissensus.records import environment, write_record
from dissensus.shift import (
    Prepared,
    Question,
    Study,
    curve_rows,
    detection_rows,
    group_means,
    histogram_rows,
)

__all__ = ["keep_study", "record_of", "write_csv"]


def keep_study(
    folder: Path,
    question: Question,
    runs: list[Path],
    studies: dict[str, Study],
    prepared: dict[str, Prepared],
) -> dict[str, Any]:
    """Write ``ood.json`` and ``examples-METHOD.npz`` to ``folder``; returns the record.

    ``examples`` in the record has one row an image: the place of its pixels (``file``, and its
    number in ``images`` ``[images, channels, height, width]``, uint8), whether it is one of the
    ``most`` or the ``least`` divergent of its set, its score, and what ensemble and members say.
    """
    record = record_of(question, runs, studies, prepared)
    rows: list[dict[str, Any]] = []
    for method, made in prepared.items():
        rows += _keep_examples(folder, method, made, studies[method])
    record["examples"] = rows
    write_record(folder / "ood.json", record)
    return record


def _keep_examples(folder: Path, method: str, made: Prepared, found: Study) -> list[dict[str, Any]]:
    name = f"examples-{plain_name(method)}.npz"
    rows: list[dict[str, Any]] = []
    images: list[NDArray[np.uint8]] = []
    for part, divided in divergent(made, found).items():
        for kind, examples in (("most", divided.most), ("least", divided.least)):
            for example in examples:
                row: dict[str, Any] = {"method": method, "set": part, "kind": kind}
                row["score"] = divided.score
                row |= {"value": example.score, "predicted": example.predicted}
                row |= {"others": list(example.others), "truth": example.truth}
                rows.append({**row, "file": name, "image": len(images)})
                images.append(np.rint(example.image * 255).astype(np.uint8))
    if images:

        def write(part: Path) -> None:
            with part.open("wb") as file:
                np.savez_compressed(file, images=np.stack(images))

        replace_atomically(folder / name, write)
    return rows


def record_of(
    question: Question,
    runs: list[Path],
    studies: dict[str, Study],
    prepared: dict[str, Prepared],
) -> dict[str, Any]:
    """What ``ood.json`` holds, but for the examples.

    ``detection`` has one row a method, score and set, ``curves`` the points of its ROC curve
    (``fpr``, ``tpr``), ``histograms`` one row a method and score (``edges``, ``share[set]``,
    ``threshold``), ``accuracy[method][set]`` who decides how well.
    """
    rows = [row for name, found in studies.items() for row in detection_rows(name, found)]
    grouped = _groups(question, prepared)
    means = [
        {"method": name, "score": score, "group": group, **values}
        for name, found in studies.items()
        for score, sets in found.detection.items()
        for group, values in group_means(sets, grouped).items()
    ]
    return {
        "format": "dissensus.ood/1",
        "runs": [str(run) for run in runs],
        "question": asdict(question),
        "id": {name: found.id_name for name, found in studies.items()},
        "groups": grouped,
        "detection": rows,
        "group_means": means,
        "temperatures": {name: found.temperature for name, found in studies.items()},
        "curves": [row for name, found in studies.items() for row in curve_rows(name, found)],
        "histograms": [
            row for name, found in studies.items() for row in histogram_rows(name, found)
        ],
        "accuracy": {
            name: {part: measured.record() for part, measured in found.accuracy.items()}
            for name, found in studies.items()
        },
        "environment": environment(),
    }


def _groups(question: Question, prepared: dict[str, Prepared]) -> dict[str, list[str]]:
    made = next(iter(prepared.values()), None)
    if made is not None:
        return made.groups
    asked = {"near": question.near, "far": question.far}
    return {group: [Path(text).stem for text in texts] for group, texts in asked.items() if texts}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write ``rows`` as CSV, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())

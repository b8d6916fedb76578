"""Tables of detection: what cannot be told from the best of its column is marked, and only that."""

import io
from typing import Any

import pytest
from rich.console import Console

from dissensus.runs.detect_tables import DetectionTable


def row(score: str, auroc: float, half: float | None) -> dict[str, Any]:
    ends = {} if half is None else {"auroc_low": auroc - half, "auroc_high": auroc + half}
    return {"method": "run", "score": score, "set": "far", "auroc": auroc, **ends}


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        ([row("a", 0.9, 0.02), row("b", 0.89, 0.02), row("c", 0.6, 0.02)], {"a", "b"}),
        ([row("a", 0.9, 0.02), row("b", 0.89, 0.02)], set()),  # nothing can be told apart
        ([row("a", 0.9, None), row("b", 0.2, None)], set()),  # no intervals
        ([row("a", 0.9, 0.01)], set()),
    ],
)
def test_marks_are_what_cannot_be_told_from_the_best(
    rows: list[dict[str, Any]], marked: set[str]
) -> None:
    record = {"detection": rows, "groups": {}, "group_means": []}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(DetectionTable(record, "auroc"))
    lines = [line.split() for line in console.export_text().splitlines()]
    shown = {line[0]: line[1] for line in lines if line and line[0] in "abc"}
    shown |= {line[1]: line[2] for line in lines if len(line) > 2 and line[1] in "abc"}
    assert set(shown) == {r["score"] for r in rows}
    assert {name for name, value in shown.items() if value.startswith("*")} == marked

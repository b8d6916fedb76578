"""Intervals over images, of the runs that there are."""

from typing import Any

import numpy as np
import pytest

from dissensus.papers.comparisons import Runs
from dissensus.papers.per_image import InTheseRuns, PerImage

FIRST, SECOND = Runs("ours", {"ours": True}), Runs("theirs", {"ours": False})


def record(ours: bool, seed: int, values: list[float]) -> dict[str, Any]:
    cell = {"ours": ours, "seed": seed, "data": "digits"}
    return {"cell": cell, "result": {"values": values}}


def check(*, same: bool, effects: dict[str, float] | None = None) -> InTheseRuns:
    read = PerImage(
        "gain", lambda _: lambda r: np.array(r["result"]["values"]), "{:.2f}", same_images=same
    )
    return InTheseRuns(FIRST, SECOND, read, effects=effects or {})


RUNS = [
    record(True, 0, [1.0, 2.0, 3.0, 2.0]),
    record(False, 0, [0.0, 0.0, 0.0, 0.0]),
    record(True, 1, [2.0, 1.0, 2.0, 3.0]),
    record(False, 1, [0.0, 1.0, 0.0, 0.0]),
    record(True, 2, [9.0, 9.0, 9.0, 9.0]),  # has no partner
]


def test_images_of_all_runs_by_hand() -> None:
    """Differences 1 2 3 2 and 2 0 2 3: mean 1.875, s² = 6.875 / 7, half = 1.96 · s / √8."""
    found = check(same=False)(RUNS)
    half = 1.96 * np.sqrt(6.875 / 7 / 8)
    assert found.verdict == "holds"
    assert found.measured == (
        f"gain: ours 2.00, theirs 0.12, difference +1.88 [+{1.875 - half:.2f}, "
        f"+{1.875 + half:.2f}] over 8 images of 2 runs (larger)"
    )
    assert found.smallest == f"{half:.2f}"


def test_the_same_images_count_once() -> None:
    """Means over runs 1.5 1 2.5 2.5: mean 1.875, s² = 1.6875 / 3, half = 1.96 · s / √4."""
    found = check(same=True)(RUNS)
    half = 1.96 * np.sqrt(1.6875 / 3 / 4)
    assert "over 4 images of 2 runs" in found.measured
    assert found.smallest == f"{half:.2f}"


@pytest.mark.parametrize(
    ("shift", "effect", "verdict"),
    [(0.0, None, "holds"), (1.5, None, "undecided"), (1.5, 3.0, "contradicted")],
)
def test_verdicts(shift: float, effect: float | None, verdict: str) -> None:
    runs = [
        record(r["cell"]["ours"], r["cell"]["seed"], [v - shift for v in r["result"]["values"]])
        if r["cell"]["ours"]
        else r
        for r in RUNS
    ]
    effects = {} if effect is None else {"digits": effect}
    assert check(same=False, effects=effects)(runs).verdict == verdict
    assert check(same=False)(runs[:1]).verdict == "not tested at this scale"

"""Intervals over images, of the runs that there are."""

from typing import Any

import numpy as np
import pytest

from reproductions.old.comparisons import Quantity, Runs
from reproductions.old.per_image import (
    InTheseRuns,
    PerImage,
    SharesInTheseRuns,
    images_interval,
    shares_interval,
)

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


def test_images_that_are_all_alike_leave_the_mean_open_by_three_of_their_number() -> None:
    """If more than 3 / n were right, none of n images would be with p < (1 − 3 / n)ⁿ < 5 %."""
    none_right = images_interval([np.zeros(120), np.zeros(80)])
    assert (none_right.low, none_right.mean, none_right.high) == (-0.015, 0.0, 0.015)
    assert (1 - none_right.high) ** 200 < 0.05
    assert images_interval([np.array([0.25])]).high == np.inf


# ---- shares -------------------------------------------------------------------------------------


def share_record(ours: bool, share: float, seed: int = 0) -> dict[str, Any]:
    cell = {"ours": ours, "seed": seed, "data": "digits"}
    return {"cell": cell, "result": {"share": share, "images": 400}}


SHARE = SharesInTheseRuns(
    Quantity("share", lambda record: record["result"]["share"], "{:.2f}"),
    FIRST,
    SECOND,
    images=lambda record: record["result"]["images"],
)


def test_a_share_by_hand() -> None:
    """0.8 and 0.5 of 400 images: 1.96 · √((0.16 + 0.25) / 400) = 0.0627."""
    found = SHARE([share_record(True, 0.8), share_record(False, 0.5)])
    assert found.verdict == "holds"
    assert found.measured == (
        "share: ours 0.80, theirs 0.50, difference +0.30 [+0.24, +0.36] over 400 images of 1 run "
        "(larger)"
    )
    assert found.smallest == "0.06"


def test_more_runs_on_the_same_images_do_not_narrow_a_share() -> None:
    sides = {True: 0.8, False: 0.5}
    runs = [share_record(ours, sides[ours], seed) for ours in sides for seed in (0, 1)]
    assert SHARE(runs).smallest == SHARE(runs[::2]).smallest


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_shares_of_nothing_and_of_everything_are_not_compared(share: float) -> None:
    found = SHARE([share_record(True, share), share_record(False, share)])
    assert found.verdict == "not tested at this scale"
    assert "400 images on both sides" in found.measured


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_the_interval_of_shares_covers_what_it_should(alike: float) -> None:
    """Means over three attempts, the same difficulty of an image for both sides if ``alike``."""
    random = np.random.default_rng(0)
    images, covered = 200, []
    for _ in range(2000):
        hard = random.uniform(-alike, alike, images)[:, None]
        first = (random.random((images, 3)) < 0.55 + hard * 0.8).mean()
        second = (random.random((images, 3)) < 0.5 + hard * 0.8).mean()
        gain = shares_interval(float(first), float(second), images)
        covered.append(gain.low <= 0.05 <= gain.high)
    assert np.mean(covered) >= 0.95

"""Comparisons: quantities and runs of records, and the checks that claims are built from."""

from typing import Any

import pytest

from reproductions.base import Finding
from reproductions.comparisons import (
    AboveZero,
    Larger,
    Quantity,
    Runs,
    Within,
    all_of,
    at,
    cell_values,
    curve_series,
    group_by_data,
    quantity_table,
)
from reproductions.statistics import larger_than, mean_interval

CANNOT = "not tested at this scale"
ERROR = Quantity("error", at("test", "error"))
JOINT, INDEPENDENT = Runs("joint", {"beta": 1.0}), Runs("independent", {"beta": 0.0})


def record(beta: float, seed: int, error: float, data: str = "digits") -> dict[str, Any]:
    cell = {"data": data, "beta": beta, "seed": seed}
    return {"cell": cell, "result": {"test": {"error": error, "members": [error, error + 1]}}}


def runs(gain: float, data: str = "digits") -> list[dict[str, Any]]:
    return [
        record(beta, seed, 1 + gain * beta + 0.01 * seed * beta, data)
        for beta in (0.0, 1.0)
        for seed in range(3)
    ]


# ---- reading ------------------------------------------------------------------------------------


def test_quantities_are_read_by_seed_and_missing_ones_left_out() -> None:
    records = [record(0.0, 3, 0.5), {"cell": {"seed": 4}, "result": {}}]
    assert ERROR.values(records) == {3: 0.5}
    assert Quantity("", at("test", "members")).values(records[:1]) == {3: 1.0}  # a mean
    assert Quantity("", at("test", "members", 1)).values(records[:1]) == {3: 1.5}
    assert ERROR.text(records) == "0.500"
    assert ERROR.text([]) == "–"


def test_a_series_has_the_interval_of_each_point() -> None:
    records = runs(1.0)
    series = ERROR.series("error", ["β = 0", "β = 1"], [INDEPENDENT.of(records), JOINT.of(records)])
    estimate = ERROR.estimate(JOINT.of(records))
    assert series.y == pytest.approx([1.0, 2.01])
    assert series.low is not None
    assert series.low[1] == pytest.approx(estimate.low)


def test_a_curve_has_the_interval_of_each_point_and_the_length_of_the_shortest() -> None:
    curves = [[1.0, 2.0, 9.0], [2.0, 4.0, 9.0, 9.0], [3.0, 3.0]]
    series = curve_series("error", range(1, 5), curves, 0)
    points = [mean_interval([1.0, 2.0, 3.0]), mean_interval([2.0, 4.0, 3.0])]
    assert list(series.x) == [1, 2]
    assert series.y == [point.mean for point in points]
    assert series.low == [point.low for point in points]
    assert curve_series("error", range(1, 5), curves[:1], 0).low is None  # one run has no band


def test_differences_are_of_the_seeds_that_both_have() -> None:
    some = [record(0.0, 2, 0.5), record(0.0, 1, 0.25), record(0.0, 3, 9.0)]
    assert ERROR.differences(some, INDEPENDENT.of(runs(0.0))) == {1: -0.75, 2: -0.5}


def test_a_table_has_a_row_for_each_label_and_a_column_for_each_quantity() -> None:
    records = runs(1.0)
    rows = {(f"{beta:g}",): Runs("", {"beta": beta}).of(records) for beta in (0.0, 1.0)}
    header, (first, second) = quantity_table(["β"], rows, [ERROR])
    assert header == ["β", "error"]
    assert first == ["0", "1.000 [1.000, 1.000]"]
    assert second[1].startswith("2.010 [")
    assert cell_values(records, "beta") == [0.0, 1.0]


# ---- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.5, "holds"), (-0.5, "contradicted"), (-0.01, "undecided")]
)
def test_larger_follows_the_interval(gain: float, verdict: str) -> None:
    finding = Larger(ERROR, JOINT, INDEPENDENT, published="1 and 2")(runs(gain))
    assert finding.verdict == verdict
    assert finding.measured.startswith("error: joint ")
    assert finding.published == "1 and 2"


def test_larger_must_hold_in_every_group_with_runs_of_both() -> None:
    alone = [record(1.0, seed, 9.0, "mnist") for seed in range(3)]
    check = Larger(ERROR, JOINT, INDEPENDENT, group_by_data)
    finding = check(runs(0.5) + alone)
    assert finding.verdict == "holds"
    assert finding.measured.startswith("digits: error")
    assert check(runs(0.5) + runs(-0.5, "cifar10")).verdict == "contradicted"
    assert check(alone).verdict == CANNOT
    assert check([one for one in runs(0.5) if one["cell"]["seed"] == 0]).verdict == CANNOT


def test_larger_can_compare_two_quantities_of_the_same_runs() -> None:
    members = Quantity("error", at("test", "members", 1))
    check = Larger(members, JOINT, JOINT, against=ERROR)
    assert "difference 1.000 [1.000, 1.000]" in check(runs(0.5)).measured


def test_above_zero_names_the_cases_against_it() -> None:
    def check(**cases: list[float]) -> Finding:
        return AboveZero("gain", lambda _: cases)([])

    assert check(a=[1.0, 1.1], b=[2.0, 2.1]).verdict == "holds"
    finding = check(a=[1.0, 1.1], b=[-2.0, 2.1])
    assert finding.verdict == "undecided"
    assert finding.measured.endswith("Not shown to be above 0 on b")
    assert check(a=[1.0, 1.1], b=[-2.0, -2.1]).verdict == "contradicted"
    assert check(a=[1.0]).verdict == CANNOT


def test_within_must_hold_in_every_case() -> None:
    def check(**cases: list[float]) -> Finding:
        return Within("gain", lambda _: cases, -0.5, 0.5, "{:+.2f}", "about 0")([])

    finding = check(a=[0.10, 0.12], b=[-0.10, -0.12])
    assert finding.verdict == "holds"
    assert finding.measured.startswith("gain: a +0.11 [")
    assert finding.published == "about 0"
    assert finding.smallest == "a 0.13; b 0.13"  # 12.7 · 0.0141 / √2, without a sign
    assert check(a=[0.1, 0.11], b=[0.4, 0.6]).verdict == "undecided"
    assert check(a=[0.1, 0.11], b=[0.8, 0.81]).verdict == "contradicted"
    assert check(a=[0.1]).verdict == CANNOT


def test_no_pairs_no_verdict() -> None:
    found = larger_than([], [], ("a", "b"), "loss")
    assert found.verdict == "not tested at this scale"
    assert all_of({}).verdict == "not tested at this scale"


def test_one_failure_decides_over_many() -> None:
    good, bad = Finding("holds", "yes"), Finding("contradicted", "no")
    unknown = Finding("not tested at this scale", "?")
    assert all_of({"a": good, "b": good}).verdict == "holds"
    assert all_of({"a": good, "b": unknown}).verdict == "not tested at this scale"
    assert all_of({"a": unknown, "b": bad}).verdict == "contradicted"
    assert all_of({"a": good, "b": bad}).measured == "a: yes; b: no"

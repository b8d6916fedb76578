"""Quantities and runs of records, and the checks that claims are built from: planted both ways."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reproductions.comparisons import (
    Equal,
    Finding,
    Larger,
    Quantity,
    Runs,
    Within,
    at,
    cell_values,
    group_by_data,
    groups_named,
    interval_text,
    larger,
    pooled,
)
from reproductions.experiment import Table, quantity_table
from reproductions.statistics import CANNOT, over_images

ERROR = Quantity("error", at("test", "error"))
JOINT, INDEPENDENT = Runs("joint", {"beta": 1.0}), Runs("independent", {"beta": 0.0})
LARGER = larger(ERROR, JOINT, INDEPENDENT, group_by_data)


def record(beta: float, seed: int, error: float, data: str = "digits") -> dict[str, Any]:
    cell = {"data": data, "beta": beta, "seed": seed}
    return {"cell": cell, "result": {"test": {"error": error, "members": [error, error + 1]}}}


def runs(gain: float, data: str = "digits", seeds: int = 3) -> list[dict[str, Any]]:
    """Joint runs whose error is larger by about ``gain``."""
    return [
        record(beta, seed, 1 + seed + gain * beta + 0.01 * seed * beta, data)
        for beta in (0.0, 1.0)
        for seed in range(seeds)
    ]


# ---- reading ------------------------------------------------------------------------------------


def test_a_quantity_is_read_by_seed_and_left_out_where_it_was_not_measured() -> None:
    few = [record(0.0, 3, 0.5), {**record(0.0, 4, 0.5), "result": {}}]
    assert ERROR.values(few) == {3: 0.5}
    assert Quantity("mean", at("test", "members")).values(few) == {3: 1.0}
    assert (ERROR.text(few), ERROR.text([])) == ("0.500", "–")
    assert interval_text([1.0, 2.0, 3.0], "{:.1f}") == "2.0 [-0.5, 4.5]"


def test_a_series_has_intervals_where_there_are_several_runs() -> None:
    several, single = JOINT.of(runs(1.0)), [record(0.0, 0, 0.5)]
    series = ERROR.series("a", [1.0, 2.0], [several, several], 2, limits=(2.5, 3.5))
    assert (series.y, series.low, series.high) == ([pytest.approx(3.01)] * 2, [2.5] * 2, [3.5] * 2)
    assert ERROR.series("a", [1.0, 2.0], [several, single]).low is None


def test_records_are_grouped_and_filtered_by_the_settings_of_their_cells() -> None:
    both = runs(1.0) + runs(1.0, "cifar10")
    assert list(group_by_data(both)) == ["digits", "CIFAR-10"]
    assert list(groups_named(group_by_data, "CIFAR")(both)) == ["CIFAR-10"]
    assert list(groups_named(group_by_data, "CIFAR", absent=True)(both)) == ["digits"]
    assert len(JOINT.of(both)) == 6
    assert cell_values(both, "beta") == [0.0, 1.0]


def test_a_table_names_its_rows() -> None:
    rows = {("digits", kind.name): kind.of(runs(1.0)) for kind in (JOINT, INDEPENDENT)}
    table = quantity_table(["data", "training"], rows, [ERROR])
    assert table.by_row()["digits, independent"] == {"error": "2.000 [-0.484, 4.484]"}
    with pytest.raises(ValueError, match="rows and columns need different names"):
        Table(["a", "b"], [["x", "1"], ["x", "2"]]).by_row()


# ---- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "verdict"), [(1.0, "holds"), (-1.0, "contradicted")])
def test_larger_follows_the_records(gain: float, verdict: str) -> None:
    found = LARGER(runs(gain))
    assert found.verdict == verdict
    effect = found.effects["digits"]
    assert effect.quantity == "error, joint minus independent"
    assert effect.estimate.mean == pytest.approx(gain + 0.01)
    assert effect.sides == pytest.approx((2 + gain + 0.01, 2.0))
    assert str(effect).startswith(f"{gain + 0.01:+.3f} [")
    assert effect.measured == f"{2 + gain + 0.01:.3f}, 2.000"


def test_each_group_with_both_kinds_of_runs_is_a_case() -> None:
    lonely = JOINT.of(runs(1.0, "mnist"))
    assert list(LARGER(runs(1.0) + runs(1.0, "cifar10") + lonely).effects) == ["digits", "CIFAR-10"]
    assert LARGER(runs(1.0) + runs(-1.0, "cifar10")).verdict == "contradicted"
    assert LARGER(lonely).verdict == CANNOT
    assert LARGER(runs(1.0, seeds=1)).verdict == CANNOT  # one run has no interval


def test_a_margin_and_a_published_effect_move_the_verdict() -> None:
    assert replace(LARGER, margin=0.9)(runs(1.0)).verdict == "holds"
    assert replace(LARGER, margin=1.1)(runs(1.0)).verdict == "contradicted"
    small = replace(LARGER, published={"digits": 3.0})(runs(1.0))
    assert small.verdict == "holds"
    assert small.effects["digits"].judgement.small


def test_over_images_one_run_is_enough() -> None:
    bits = {0: (np.arange(100) % 4 > 0).astype(float)}, {0: (np.arange(100) % 2).astype(float)}
    check = Larger("accuracy", ("a", "b"), lambda _: {"": bits}, interval=over_images)
    assert check([]).verdict == "holds"
    assert check([]).effects[""].estimate.runs == 100
    assert replace(check, names=("b", "a"), pairs=lambda _: {"": bits[::-1]})([]).verdict == (
        "contradicted"
    )


@pytest.mark.parametrize(
    ("first", "second", "published", "tested"),
    [
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], None, False),  # an attack that breaks nothing
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], None, False),
        ([0.9, 0.92, 0.88], [0.9, 0.89, 0.91], 0.4, False),  # no room for 20 points
        ([0.9, 0.92, 0.88], [0.9, 0.89, 0.91], 0.1, True),
        ([0.99, 0.98, 0.99], [0.9, 0.89, 0.9], 0.4, True),  # it decides all the same
    ],
)
def test_a_share_needs_room(
    first: list[float], second: list[float], published: float | None, tested: bool
) -> None:
    sides = dict(enumerate(first)), dict(enumerate(second))
    printed = {} if published is None else {"": published}
    check = Larger("accuracy", ("a", "b"), lambda _: {"": sides}, share=True, published=printed)
    assert (check([]).verdict != CANNOT) == tested
    assert bool(check([]).effects) == tested
    assert replace(check, share=False)([]).effects


def test_a_number_within_a_range() -> None:
    def check(*values: float, **bounds: float) -> str:
        return Within("ratio", lambda _: {"a": list(values)}, **bounds)([]).verdict

    assert check(1.0, 1.1, 1.2, low=0) == "holds"
    assert check(1.0, 1.1, 1.2, high=0.5) == "contradicted"
    assert check(1.0, 1.1, 1.2, high=1.2) == "undecided"
    assert check(1.0, low=0) == CANNOT


def test_exact_values_are_equal_up_to_rounding() -> None:
    check = Equal(("a", "b"), lambda records, key: records[0][key])
    assert check([{"a": 1e-15, "b": 0.0}]) == Finding("holds", "deviation 1.0e-15")
    assert check([{"a": 0.0, "b": 0.0}]).measured == "deviation 0"
    assert check([{"a": 1e-15, "b": 1e-11}]).verdict == "contradicted"


def test_several_findings_are_pooled_by_case() -> None:
    parts = {"a": LARGER(runs(1.0)), "b": LARGER(runs(-1.0)), "c": Finding(CANNOT, "no runs")}
    found = pooled(parts)
    assert found.verdict == "contradicted"
    assert found.chance == pytest.approx(2 * parts["b"].chance)
    assert list(found.effects) == ["a digits", "b digits"]
    assert found.measured == "c no runs"

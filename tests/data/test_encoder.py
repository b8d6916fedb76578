"""The encoder of columns: hand-worked values, a slow reference, and what outliers may do."""

import numpy as np
import pytest

from dissensus.data import Encoder
from dissensus.data.encoder import BEYOND

NUMBER = np.array([True])


def undo(encoder: Encoder, x: np.ndarray) -> np.ndarray:
    """Inputs before they are centred and divided."""
    return encoder(x) * encoder.scale + encoder.mean


def slow_encoding(value: float, edges: np.ndarray) -> list[float]:
    """Gorishniy et al. 2022, Eq. 1, bin by bin, with the ends going on for a while."""
    found = []
    for place in range(1, len(edges)):
        share = (value - edges[place - 1]) / (edges[place] - edges[place - 1])
        lowest = -BEYOND if place == 1 else 0.0
        highest = 1 + BEYOND if place == len(edges) - 1 else 1.0
        found.append(min(max(share, lowest), highest))
    return found


def slow_edges(values: list[float], bins: int) -> list[float]:
    """All of few values; else common ones, the ends, and quantiles of the other values.

    A quantile is the smallest value below or at which a share of t / T of the others lies.
    """
    if len(set(values)) <= bins + 1:
        return sorted(set(values))
    common = {v for v in values if values.count(v) * bins > len(values)}
    others = sorted(v for v in values if v not in common)
    steps = bins - len(common)
    quantiles = {
        next(v for i, v in enumerate(others, 1) if i * steps >= t * len(others))
        for t in range(steps + 1)
    }
    return sorted(common | quantiles | {min(values), max(values)})


def test_it_is_the_slow_reference() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=90) ** 3, rng.integers(0, 6, 90), rng.random(90) < 0.5])
    x[rng.random(90) < 0.2, 0] = np.nan  # a common value, the mean
    encoder = Encoder.fit(x, np.array([True, True, False]), bins=7)
    filled = x.copy()
    filled[np.isnan(x[:, 0]), 0] = np.nanmean(x[:, 0])
    new = rng.normal(0, 4, size=(40, 3))
    for rows in (x, new):
        full = np.where(np.isnan(rows), filled[0], rows)
        full[:, 0] = np.where(np.isnan(rows[:, 0]), np.nanmean(x[:, 0]), rows[:, 0])
        expected = []
        for row in full:
            inputs: list[float] = []
            for column in range(2):
                own = filled[:, column]
                inputs.append(np.clip((row[column] - own.mean()) / own.std(), -5, 5))
                inputs += slow_encoding(row[column], np.array(slow_edges(own.tolist(), 7)))
            expected.append([*inputs, np.clip(row[2], -5, 5)])
        np.testing.assert_allclose(undo(encoder, rows), expected, atol=1e-12)
    inputs_of_training = encoder(x)
    np.testing.assert_allclose(inputs_of_training.mean(0), 0.0, atol=1e-12)
    assert encoder.inputs == inputs_of_training.shape[1]
    np.testing.assert_allclose(inputs_of_training.std(0)[encoder.scale > 0.1], 1.0)


def test_values_worked_by_hand() -> None:
    """Edges 0, 1, 3: a half is half of bin 1; 2 is half of bin 2; beyond, a slope goes on."""
    column = np.array([0.0, 1.0, 3.0])[:, None]
    encoder = Encoder.fit(column, NUMBER, bins=2)
    np.testing.assert_array_equal(encoder.edges[0], [0.0, 1.0, 3.0])
    new = np.array([0.5, 2.0, -0.5, -100.0, 4.0, 1e300])[:, None]
    expected = [[0.5, 0], [1, 0.5], [-0.5, 0], [-BEYOND, 0], [1, 1.5], [1, 1 + BEYOND]]
    np.testing.assert_allclose(undo(encoder, new)[:, 1:], expected, atol=1e-12)


def test_a_common_value_takes_one_edge() -> None:
    """12 of 20 values are 0, the other 8 are 1 to 8: 0, and thirds of the others, as bins are 4."""
    column = np.array([0.0] * 12 + list(range(1, 9)))[:, None]
    np.testing.assert_array_equal(Encoder.fit(column, NUMBER, bins=4).edges[0], [0, 1, 3, 6, 8])


@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_a_weight_is_a_repetition(factor: float) -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack([rng.normal(size=60), rng.integers(0, 9, 60), rng.random(60) < 0.1])
    x[:7, 0] = np.nan
    times = rng.integers(1, 5, 60)
    kinds = np.array([True, True, False])
    weighed = Encoder.fit(x, kinds, factor * times)
    repeated = Encoder.fit(x.repeat(times, 0), kinds)
    for mine, other in zip(weighed.edges, repeated.edges, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_allclose(mine, other)
    np.testing.assert_allclose(weighed(x), repeated(x), atol=1e-10)


def test_few_values_and_constants_enter_once() -> None:
    x = np.column_stack([np.full(20, 7.0), np.arange(20) % 2, np.arange(20) % 3, np.ones(20)])
    encoder = Encoder.fit(x, np.array([True, True, True, False]))
    assert [edges is None for edges in encoder.edges] == [True, True, False, True]
    assert encoder.inputs == 1 + 1 + 3 + 1
    np.testing.assert_array_equal(encoder(x)[:, [0, -1]], 0.0)
    assert np.abs(encoder(x + 1e6)).max() < 100


def test_no_row_outweighs_the_others() -> None:
    """A level that is nearly always 0, and outliers up to the ends of float32."""
    x = np.column_stack([np.random.default_rng(0).normal(size=1000), np.zeros(1000)])
    x[0, 1] = 1.0
    x[1, 0] = 1e30
    encoder = Encoder.fit(x, np.array([True, False]))
    assert np.abs(encoder(x)).max() < 50
    assert encoder(np.array([[0.0, 1.0]]))[0, -1] == pytest.approx(0.999 / 0.1)
    ends = encoder(np.array([[3e38, 1.0], [-3e38, 0.0], [5e-324, 0.0]]))
    assert np.isfinite(ends).all()
    assert np.abs(ends).max() < 50
    tiny = Encoder.fit(np.arange(9.0)[:, None] * 5e-324, NUMBER)  # bins whose width has no inverse
    assert np.isfinite(tiny(np.array([[1.0], [-1.0], [0.0]]))).all()

"""Curves and histograms small enough to keep and to draw."""

import numpy as np

from dissensus.detection import histogram_edges, thinned


def test_a_thinned_curve_keeps_its_shape() -> None:
    x = np.sort(np.random.default_rng(0).random(5000))
    x[0], x[-1] = 0, 1
    thin_x, thin_y = thinned(x, np.sqrt(x))
    assert 100 < len(thin_x) <= 402
    assert (thin_x[0], thin_x[-1], thin_y[-1]) == (0, 1, 1)
    np.testing.assert_allclose(np.interp(x, thin_x, thin_y), np.sqrt(x), atol=0.01)


def test_one_value_alone_has_a_bin() -> None:
    edges = histogram_edges(np.ones(5))
    assert edges[0] < 1 < edges[-1]

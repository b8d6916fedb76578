"""Figures of detection say what they were given."""

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from dissensus.detection import (
    Divergent,
    Example,
    Study,
    compare,
    histogram_edges,
    thinned,
)
from dissensus.show import Panel, draw
from dissensus.show.detection import divergent_plot, histogram_plot, roc_plot


def test_a_thinned_curve_keeps_its_shape() -> None:
    x = np.sort(np.random.default_rng(0).random(5000))
    x[0], x[-1] = 0, 1
    thin_x, thin_y = thinned(x, np.sqrt(x))
    assert 100 < len(thin_x) <= 402
    assert (thin_x[0], thin_x[-1], thin_y[-1]) == (0, 1, 1)
    np.testing.assert_allclose(np.interp(x, thin_x, thin_y), np.sqrt(x), atol=0.01)


def study_of(**sets: tuple[float, float, int]) -> Study:
    """Scores of each set from the first to the second value, so many of them; test is known."""
    scores = {name: {"pds": torch.linspace(*ends)} for name, ends in sets.items()}
    val = {"pds": torch.tensor([0.0, 1.5])}
    return compare(scores, "test", validation=val, accept=1.0, bootstrap=0)


def test_each_set_has_a_panel_with_its_curves() -> None:
    figure = draw(roc_plot(study_of(test=(0, 1, 5), near=(0, 1, 5), far=(2, 3, 5))))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert titles == ["near", "far"]
    assert legends == [["pds 0.500", "chance"], ["pds 1.000", "chance"]]


def test_histograms_show_shares_and_the_threshold() -> None:
    plot = histogram_plot(study_of(test=(0, 1, 50), far=(2, 3, 20)))
    (panel,) = plot.panels
    assert isinstance(panel, Panel)
    assert [sum(series.y) for series in panel.series] == pytest.approx([1.0, 1.0])
    (axes,) = draw(plot).axes
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5]
    assert (
        histogram_edges(np.ones(5))[0] < 1 < histogram_edges(np.ones(5))[-1]
    )  # one value alone has a bin


def test_examples_tell_truth_prediction_and_dissent() -> None:
    apart = Example(np.zeros((3, 4, 4)), 0.5, "comic $book", ["hat", "mask"], "cowboy hat")
    alike = Example(np.zeros((1, 4, 4)), 0.1, "zebra")
    figure = draw(divergent_plot(Divergent("pds", [apart], [alike]), "test"))
    top, bottom = figure.axes
    assert top.get_title() == "GT: cowboy hat, 0.5"
    (bold,) = top.texts
    assert (bold.get_text(), bold.get_fontweight()) == (r"comic \$book", "bold")
    assert top.get_xlabel() == "\nhat, mask"
    assert bottom.get_title() == "0.1"
    assert [top.get_ylabel(), bottom.get_ylabel()] == [
        "most\ndivergent\nby pds (test)",
        "least\ndivergent\nby pds (test)",
    ]

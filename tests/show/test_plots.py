"""Renderers: matplotlib and Plotly draw what the plot says."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.detection import Divergent, Example, Study, compare
from dissensus.show import Image, Matrix, Panel, Plot, Rule, Series, Text, draw, histogram, save
from dissensus.show.detection import divergent_plot, histogram_plot, roc_plot
from dissensus.show.plot import plot_json

METHODS = ["ADP", "LDR"]


def every_kind() -> Plot:
    """A plot with each kind of series and panel."""
    line = Series("line", [1, 2, 3], [0.1, 0.2, 0.3], 0, low=[0.0, 0.1, 0.2], high=[0.2, 0.3, 0.4])
    pairs = [
        Series("a", METHODS, [1.0, 2.0], 0, "bars", low=[0.5, 1.0], high=[1.5, 3.0]),
        Series("b", METHODS, [3.0, 4.0], 1, "bars"),
    ]
    points = Series("points", METHODS, [0.1, 0.2], "accent", "points", marker=3)
    steps = histogram("scores", [0.1, 0.2, 5.0], np.array([0.0, 0.5, 1.0]), fill=True)
    return Plot(
        [
            Panel("epoch", "error", [line], "title $", rules=(Rule("y", 0.2, "chance"),)),
            Panel("", "value", pairs, legend="upper left"),
            Panel("method", "value", pairs, horizontal=True),
            Panel("", "sum", pairs, stacked=True),
            Panel("", "AUROC", [points], horizontal=True, y_range=(0.0, 1.0)),
            Panel("score", "share", [steps], y_percent=True, from_zero=True, ticks=False),
            Panel("λ", "error", [line], x_log=True, y_log=True, x_range=(1.0, 10.0)),
            Matrix("members", np.array([[np.nan, 0.5], [0.25, 1.0]]), y="attacked"),
            Image(np.zeros((1, 4, 4)), "zebra", "horse", "cow", "most", alert=True),
            Text("no data"),
        ],
        "Everything.",
        columns=5,
    )


@pytest.mark.slow
def test_matplotlib_draws_every_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = every_kind()
    figure = draw(plot)
    line, bars, turned, stack, points, _, logs, matrix, image, text = figure.axes
    assert list(line.lines[0].get_ydata()) == [0.1, 0.2, 0.3]
    assert [word.get_text() for word in bars.get_legend().get_texts()] == ["a", "b"]
    left = [patch.get_x() for patch in bars.patches]
    assert left[0] < left[2] < left[1] < left[3]  # the methods' bars stand side by side
    assert [patch.get_width() for patch in turned.patches] == [1, 2, 3, 4]
    assert [word.get_text() for word in turned.get_yticklabels()] == METHODS
    assert (turned.get_xlabel(), turned.get_ylabel()) == ("value", "method")
    edges = (-0.5, len(METHODS) - 0.5)  # a name has the same room wherever it stands
    assert (bars.get_xlim(), turned.get_ylim()) == (edges, edges[::-1])
    assert [patch.get_y() for patch in stack.patches] == [0, 0, 1, 2]
    assert points.get_xlim() == (0, 1)
    assert (logs.get_xscale(), logs.get_yscale()) == ("log", "log")
    assert [word.get_text() for word in matrix.texts] == ["0.50", "0.25", "1.00"]
    assert (image.get_title(), image.texts[0].get_text()) == ("zebra", "horse")
    assert text.texts[0].get_text() == "no data"
    names = [word.get_text() for word in figure.legends[0].get_texts()]
    assert names == ["line", "a", "b", "points", "scores"]
    first = save(plot, tmp_path / "first.svg").read_bytes()
    assert save(plot, tmp_path / "second.svg").read_bytes() == first
    assert save(figure, tmp_path / "third.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"a figure must be \.svg or \.png, got x\.pdf"):
        save(plot, tmp_path / "x.pdf")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'dissensus\[plots\]'"):
        draw(every_kind())


def test_drawing_leaves_no_trace(tmp_path: Path) -> None:
    mpl = pytest.importorskip("matplotlib")
    before = dict(mpl.rcParams)
    save(every_kind(), tmp_path / "plot.svg")
    assert dict(mpl.rcParams) == before


def test_the_page_gets_the_same_numbers() -> None:
    panels = plot_json(every_kind())["panels"]
    json.dumps(panels, allow_nan=False)
    (line,) = panels[0]["series"]
    assert [line[key] for key in ("y", "low")] == [[0.1, 0.2, 0.3], [0.0, 0.1, 0.2]]
    assert panels[0]["rules"] == [["y", 0.2, "chance"]]
    assert "x_log" not in panels[0]  # what is false is left out
    assert (panels[6]["x_log"], panels[6]["x_range"]) == (True, [1.0, 10.0])
    (steps,) = panels[5]["series"]
    assert (len(steps["x"]), steps["y"]) == (3, [0.66667, 0.33333])
    assert (panels[7]["kind"], panels[7]["values"]) == ("Matrix", [[None, 0.5], [0.25, 1.0]])


def study_of(**sets: tuple[float, float, int]) -> Study:
    """Scores of each set from the first to the second value, so many of them; test is known."""
    scores = {name: {"pds": torch.linspace(*ends)} for name, ends in sets.items()}
    return compare(scores, "test", thresholds={"pds": 1.5}, bootstrap=0)


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
    sides = [f"{kind}\ndivergent\nby pds (test)" for kind in ("most", "least")]
    assert [top.get_ylabel(), bottom.get_ylabel()] == sides


def test_pixels_of_images() -> None:
    assert Image(np.full((1, 2, 3), 255, np.uint8)).pixels.shape == (2, 3, 3)
    assert Image(np.full((1, 2, 3), 255, np.uint8)).pixels.max() == 1.0
    assert Image(np.ones((3, 2, 2)), inverted=True).pixels.max() == 0.0

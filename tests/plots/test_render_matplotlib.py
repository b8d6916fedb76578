"""Static figures: each one is drawn, with its lines where the numbers are."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import dissensus.report  # noqa: F401
from dissensus.plots.plot import Panel
from dissensus.plots.render_matplotlib import draw, save
from dissensus.report import FIGURES, read
from dissensus.report.found import Contents


@pytest.fixture(scope="module")
def contents(folders: Path, runs: list[Path]) -> Contents:
    return read([*runs, folders / "sweeps" / "beta"])


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(name: str, contents: Contents, tmp_path: Path) -> None:
    plot = FIGURES[name].make(contents)
    assert plot is not None
    figure = draw(plot)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == len(plot.views[0].panels)
    assert "<svg" in save(figure, tmp_path / f"{name}.svg").read_text()[:1000]


def test_lines_are_where_the_numbers_are(contents: Contents) -> None:
    plot = FIGURES["training"].make(contents)
    assert plot is not None
    panel = plot.views[0].panels[2]
    assert isinstance(panel, Panel)
    axes = draw(plot).axes[2]
    for line, series in zip(axes.lines, panel.series, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), series.y)
    assert [text.get_text() for text in draw(plot).legends[0].get_texts()] == [
        method.name for method in contents.methods
    ]


def test_another_view_and_what_is_wrong(contents: Contents, tmp_path: Path) -> None:
    plot = FIGURES["roc"].make(contents)
    assert plot is not None
    first, other = (draw(plot, choice).axes[0].lines[0].get_ydata() for choice in ("pds", "bma"))
    assert not np.array_equal(first, other)
    with pytest.raises(ValueError, match="roc has no view 'energy'; it has: pds; bma"):
        draw(plot, "energy")
    with pytest.raises(ValueError, match=r"a figure goes to \.svg or \.png, got x\.pdf"):
        save(draw(plot), tmp_path / "x.pdf")

"""Plots: neutral descriptions of figures, which matplotlib or Plotly draws.

:mod:`~dissensus.plots.plot` has the data classes and shows how to use them. Drawing needs
matplotlib: ``pip install 'dissensus[plots]'``.
"""

from dissensus.plots.plot import (
    AnyPanel,
    Image,
    Matrix,
    Panel,
    Plot,
    Rule,
    Series,
    Text,
    estimates,
    histogram,
)
from dissensus.plots.render_matplotlib import draw, save

__all__ = [
    "AnyPanel",
    "Image",
    "Matrix",
    "Panel",
    "Plot",
    "Rule",
    "Series",
    "Text",
    "draw",
    "estimates",
    "histogram",
    "save",
]

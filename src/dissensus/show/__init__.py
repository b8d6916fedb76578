"""Plots and the report's page.

A plot is a neutral description (:mod:`~dissensus.show.plot`), which :func:`save` draws for papers
and the report draws on its page. Names load on first use, so that ``dissensus report --help``
answers without NumPy. Drawing needs matplotlib: ``pip install 'dissensus[plots]'``.
"""

from typing import TYPE_CHECKING

from dissensus.tools.lazy import lazy_attributes

if TYPE_CHECKING:
    from dissensus.show.plot import (
        AnyPanel,
        Image,
        Matrix,
        Panel,
        Plot,
        Rule,
        Series,
        Text,
        histogram,
    )
    from dissensus.show.renderer import draw, save

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
    "histogram",
    "save",
]

_PLACES = {name: f"plot:{name}" for name in __all__}
_PLACES |= {name: f"renderer:{name}" for name in ("draw", "save")}
__getattr__ = lazy_attributes(__name__, _PLACES)

"""Export of ensembles for use elsewhere: one file for a runtime, or a folder to share.

:func:`export_run` is what ``dissensus export`` does. :func:`to_onnx` and :func:`to_pt2` write a
graph that needs no Dissensus: raw inputs in, combined prediction, members and scores out.
:func:`save_folder` and :func:`save_run` write weights, a config and a model card, as model hubs
take them; ``dissensus.load`` brings them back.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dissensus.export.run import Export, ExportedRun, export_run

if TYPE_CHECKING:
    from dissensus.export.graph import to_onnx, to_pt2
    from dissensus.export.hub import save_folder, save_run
    from dissensus.export.module import example_for
    from dissensus.export.results import RunResults, read_results

__all__ = [
    "Export",
    "ExportedRun",
    "RunResults",
    "example_for",
    "export_run",
    "read_results",
    "save_folder",
    "save_run",
    "to_onnx",
    "to_pt2",
]

#: Names that need torch, and so load on first use, with their modules.
_HEAVY = {
    "RunResults": "results",
    "example_for": "module",
    "read_results": "results",
    "save_folder": "hub",
    "save_run": "hub",
    "to_onnx": "graph",
    "to_pt2": "graph",
}


def __getattr__(name: str) -> object:
    """Import ``name`` when it is first asked for."""
    if name not in _HEAVY:
        raise AttributeError(f"module 'dissensus.export' has no attribute {name!r}")
    return getattr(import_module(f"dissensus.export.{_HEAVY[name]}"), name)

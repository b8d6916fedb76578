"""Export of ensembles for use elsewhere: one file for a runtime, or a folder to share.

:func:`export_run` is what ``dissensus export`` does. :func:`to_onnx` and :func:`to_pt2` write a
graph that needs no Dissensus: raw inputs in, combined prediction, members and scores out.
:func:`save_folder` and :func:`save_run` write weights, a config and a model card, as model hubs
take them; ``dissensus.load`` brings them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dissensus.export.run import Export, ExportedRun, export_run
from dissensus.tools.lazy import lazy_attributes

if TYPE_CHECKING:
    from dissensus.export.card import RunResults, read_results
    from dissensus.export.graph import to_onnx, to_pt2
    from dissensus.export.hub import save_folder, save_run
    from dissensus.export.module import example_for

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

#: These need torch.
__getattr__ = lazy_attributes(
    __name__,
    {
        "RunResults": "card:RunResults",
        "example_for": "module:example_for",
        "read_results": "card:read_results",
        "save_folder": "hub:save_folder",
        "save_run": "hub:save_run",
        "to_onnx": "graph:to_onnx",
        "to_pt2": "graph:to_pt2",
    },
)

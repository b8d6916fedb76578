"""An ensemble for use elsewhere: one file that any runtime takes, or a folder to hand on.

:func:`to_onnx` and :func:`to_pt2` write a graph that needs no Dissensus: raw inputs in, combined
prediction, members and scores out. :func:`save_folder` and :func:`save_run` write weights, a config
and a model card, as model hubs take them; ``dissensus.load`` brings them back.
"""

from __future__ import annotations

from dissensus.export.deployed import example_for
from dissensus.export.files import to_onnx, to_pt2
from dissensus.export.findings import Findings, found_in
from dissensus.export.folder import save_folder, save_run

__all__ = [
    "Findings",
    "example_for",
    "found_in",
    "save_folder",
    "save_run",
    "to_onnx",
    "to_pt2",
]

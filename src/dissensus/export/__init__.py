"""An ensemble for use elsewhere: one file that any runtime takes, or a folder to hand on.

:func:`to_onnx` and :func:`to_pt2` write a graph that needs no Dissensus: raw inputs in, combined
prediction, members and scores out.
"""

from __future__ import annotations

from dissensus.export.files import to_onnx, to_pt2

__all__ = ["to_onnx", "to_pt2"]

"""The report: run folders, sweeps and records in, one web page out.

:func:`build` makes the page, :func:`read` gives what it is made of. Nothing is trained or attacked:
every number comes from a file, and the page says from which.
"""

from __future__ import annotations

from dissensus.report.figures import FIGURES
from dissensus.report.page import build
from dissensus.report.reading import read

__all__ = ["FIGURES", "build", "read"]

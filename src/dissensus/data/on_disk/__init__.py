"""Data too large for memory: examples on disk, and shards in tar files or Parquet."""

from __future__ import annotations

from dissensus.data.on_disk.examples import Examples, Targets, as_float
from dissensus.data.on_disk.shards import is_shards, load_shards, open_shards

__all__ = [
    "Examples",
    "Targets",
    "as_float",
    "is_shards",
    "load_shards",
    "open_shards",
]

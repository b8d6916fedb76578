"""Data that are too large for memory: folders of images, and shards in tar files or Parquet."""

from __future__ import annotations

from dissensus.data.shards.examples import Examples, Targets, as_float
from dissensus.data.shards.finding import is_shards
from dissensus.data.shards.loading import load_pictures, load_shards, open_shards

__all__ = [
    "Examples",
    "Targets",
    "as_float",
    "is_shards",
    "load_pictures",
    "load_shards",
    "open_shards",
]

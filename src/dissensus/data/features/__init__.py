"""Features of a frozen backbone on disk: written once, streamed into training."""

from __future__ import annotations

from dissensus.data.features.rows import StoredRows
from dissensus.data.features.store import FeatureStore, is_store, load_store
from dissensus.data.features.writing import FeatureWriter

__all__ = ["FeatureStore", "FeatureWriter", "StoredRows", "is_store", "load_store"]

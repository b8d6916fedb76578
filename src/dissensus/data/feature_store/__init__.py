"""Stores of features of a frozen backbone: written once, streamed into training."""

from __future__ import annotations

from dissensus.data.feature_store.store import FeatureStore, StoredRows, is_store, load_store
from dissensus.data.feature_store.writer import FeatureWriter

__all__ = ["FeatureStore", "FeatureWriter", "StoredRows", "is_store", "load_store"]

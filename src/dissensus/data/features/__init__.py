"""Features of a frozen backbone, computed once: what ldr trains its heads on (Appendix A.5).

>>> import tempfile, torch
>>> from dissensus import data
>>> backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
>>> folder = tempfile.mkdtemp()
>>> store = extract(backbone, data.load("digits"), folder, ood=["corrupt:5"], progress=False)
>>> store.data().train[0].shape[1:], list(store.parts)
(torch.Size([16]), ['train', 'val', 'test', 'corrupt5'])
"""

from __future__ import annotations

from dissensus.data.feature_store import FeatureStore, FeatureWriter, StoredRows, is_store
from dissensus.data.features.backbones import (
    BACKBONES,
    TRANSFORMS,
    Backbone,
    Transform,
    load_backbone,
    weights_digest,
)
from dissensus.data.features.extraction import extract

__all__ = [
    "BACKBONES",
    "TRANSFORMS",
    "Backbone",
    "FeatureStore",
    "FeatureWriter",
    "StoredRows",
    "Transform",
    "extract",
    "is_store",
    "load_backbone",
    "weights_digest",
]

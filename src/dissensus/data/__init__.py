"""Data sets: seeded splits that never overlap, statistics from the training rows alone.

>>> data = load("wine", seed=1)
>>> data
Data('wine': classification, (221,), 3 classes; train 114, val 28, test 36)
>>> abs(float(data.train[0].mean())) < 1e-6
True
"""

from __future__ import annotations

from dissensus.data.arrow import Examples
from dissensus.data.augmentations import (
    AUGMENTATIONS,
    Augment,
    random_crop,
    random_flip,
    random_rotation,
    random_shift,
)
from dissensus.data.corruptions import CORRUPTIONS, corrupt, corrupt_mixture
from dissensus.data.dataset import (
    HELD_OUT,
    Data,
    OnDisk,
    data_places,
    hold_out_classes,
    split_rows,
)
from dissensus.data.encoder import Encoder, Scaler
from dissensus.data.feature_store import FeatureStore, FeatureWriter, StoredRows, is_store
from dissensus.data.image_folder import ImageFolder
from dissensus.data.images import fit_images
from dissensus.data.input_files import Inputs, read_inputs
from dissensus.data.inputs import find_inputs, take_part
from dissensus.data.preparation import Preparation
from dissensus.data.sets import DATASETS, FORMATS, OOD_SETS, load, load_ood, load_table
from dissensus.data.shards import is_shards
from dissensus.data.strangers import STRANGERS, Strangers
from dissensus.data.table import Table

__all__ = [
    "AUGMENTATIONS",
    "CORRUPTIONS",
    "DATASETS",
    "FORMATS",
    "HELD_OUT",
    "OOD_SETS",
    "STRANGERS",
    "Augment",
    "Data",
    "Encoder",
    "Examples",
    "FeatureStore",
    "FeatureWriter",
    "ImageFolder",
    "Inputs",
    "OnDisk",
    "Preparation",
    "Scaler",
    "StoredRows",
    "Strangers",
    "Table",
    "corrupt",
    "corrupt_mixture",
    "data_places",
    "find_inputs",
    "fit_images",
    "hold_out_classes",
    "is_shards",
    "is_store",
    "load",
    "load_ood",
    "load_table",
    "random_crop",
    "random_flip",
    "random_rotation",
    "random_shift",
    "read_inputs",
    "split_rows",
    "take_part",
]

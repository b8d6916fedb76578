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

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dissensus._version import __version__
from dissensus.data.augmentations import AUGMENTATIONS, Augment
from dissensus.data.backbones import (
    BACKBONES,
    TRANSFORMS,
    Backbone,
    Transform,
    load_backbone,
    weights_digest,
)
from dissensus.data.dataset import Data
from dissensus.data.feature_store import FeatureStore, FeatureWriter, StoredRows, is_store
from dissensus.data.inputs import CorruptedImages, find_inputs
from dissensus.data.sets import dataset_name, load
from dissensus.data.shards import is_shards
from dissensus.tools.guards import device_named
from dissensus.tools.progress import ProgressBar
from dissensus.tools.specs import check_integer, check_name

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


def extract(
    backbone: nn.Module | Backbone | str,
    data: Data | str | Path,
    out: str | Path,
    *,
    ood: Sequence[str] = (),
    transform: Transform | str | None = None,
    split_at: str | None = None,
    tokens: int | None = None,
    passes: int = 1,
    augment: Augment | str | None = None,
    dtype: str = "float16",
    batch_size: int = 64,
    limit: int | None = None,
    chunk: int = 4096,
    seed: int = 0,
    val: float | int = 0.2,
    data_dir: str | Path | None = None,
    options: dict[str, Any] | None = None,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> FeatureStore:
    """Write the features of ``data`` and of unknown inputs to the folder ``out``.

    ``backbone`` is a module or a name for :func:`load_backbone`; it runs in evaluation mode without
    gradients; ``split_at`` and ``tokens`` go to that function. ``data`` is a data set, or an
    argument of ``data.load``; folders of images are read one by one, however large. ``ood`` names
    further sets (``svhn``, ``corrupt:5``, a folder). With ``augment`` the training part is stored
    ``passes`` times, changed at random each time. ``limit`` draws that many rows of each part.

    Interrupted, the same call goes on after the last ``chunk`` of rows, and ends with the same
    bytes (for the same ``batch_size``); a call for anything else is refused.
    """
    if isinstance(augment, str):
        check_name(augment, AUGMENTATIONS, "augmentation")
        augment = None if augment == "none" else AUGMENTATIONS[augment]
    check_integer("passes", passes)
    check_integer("batch_size", batch_size)
    if passes > 1 and augment is None:
        raise ValueError("several passes are all the same without --augment; name one")
    chosen = Transform.parse(transform) if isinstance(transform, str) else transform
    used = _backbone(backbone, split_at, tokens, chosen)
    size = used.transform.size
    known = _load(data, size, seed, val, data_dir, dict(options or {}))
    sets = {**known.splits(), **known.extra}
    for text in ood:
        inputs = find_inputs(text, known, match=False, size=size, seed=seed, data_dir=data_dir)
        if inputs.name in sets:
            raise ValueError(f"there are two parts named {inputs.name!r}; leave --ood {text} out")
        sets[inputs.name] = inputs.x, inputs.y
    parts = {name: _part(x, y, limit, seed) for name, (x, y) in sets.items() if len(x)}
    where = device_named(device)
    used.module.to(where)
    extractor = _Extractor(used, where, batch_size, seed)
    first = next(iter(parts.values()))
    shape = extractor.features(first.inputs(0, min(2, len(first)))).shape[1:]
    settings: dict[str, Any] = {
        "dtype": dtype,
        "classes": known.classes,
        "backbone": used.facts(),
        "transform": used.transform.plain(),
        "data": {
            "name": known.name,
            "seed": seed,
            "passes": passes,
            "parts": {name: source.fingerprint() for name, source in parts.items()},
        },
        "versions": {
            "dissensus": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            **used.versions,
        },
    }
    if augment is not None:
        settings["transform"]["augment"] = dataclasses.asdict(augment)
    count = {name: passes if name == "train" else 1 for name in parts}
    total = sum(len(source) * count[name] for name, source in parts.items())
    with (
        FeatureWriter(out, shape, **settings) as writer,
        ProgressBar("features", total, show=progress) as bar,
    ):
        for place, (name, source) in enumerate(parts.items()):
            bar.update(title=name)
            compute = partial(
                extractor.features_of, source, place, augment if name == "train" else None
            )
            settings = {"passes": count[name], "chunk": chunk, "on_rows": bar.advance}
            writer.compute(name, len(source), source.y, compute, **settings)
    return FeatureStore(out)


@dataclass(frozen=True, eq=False)
class _Extractor:
    """A backbone with its settings. Each chunk of rows has its own batches and its own seed."""

    backbone: Backbone
    device: torch.device
    batch_size: int
    seed: int

    def features_of(
        self,
        source: PartInputs,
        place: int,
        augment: Augment | None,
        number: int,
        start: int,
        stop: int,
    ) -> NDArray[Any]:
        """The features of rows ``start`` to ``stop`` of the part at ``place``, in a pass."""
        words = [self.seed, place, number, start]
        own = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) >> 24
        generator = torch.Generator().manual_seed(own)
        batches = []
        for first in range(start, stop, self.batch_size):
            x = source.inputs(first, min(first + self.batch_size, stop))
            batches.append(self.features(x if augment is None else augment(x, generator)))
        return np.concatenate(batches)

    def features(self, x: Tensor) -> NDArray[Any]:
        """The features of a batch, in float32."""
        inputs = self.backbone.transform(x).to(self.device)
        try:
            with torch.inference_mode():
                outputs = self.backbone.module(inputs)
        except RuntimeError as error:
            if "memory" in str(error):
                raise
            given = f"{self.backbone.name} cannot take inputs {tuple(inputs.shape)}"
            raise ValueError(f"{given} ({error}); give a transform") from error
        if not isinstance(outputs, Tensor) or outputs.ndim < 2 or len(outputs) != len(x):
            got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(f"a backbone must give [batch, …] for a batch of {len(x)}, got {got}")
        features: NDArray[Any] = outputs.float().cpu().numpy()
        return features


# ---- parts --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartInputs:
    """Some rows of inputs, in memory or on disk, with their labels."""

    x: Any
    y: NDArray[np.int64] | None
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, start: int, stop: int) -> Tensor:
        """Inputs ``start`` to ``stop``, images in [0, 1]."""
        rows = self.rows[start:stop]
        if isinstance(self.x, CorruptedImages):
            return self.x.corrupt(self.x.x[rows], start)
        inputs: Tensor = self.x[rows]
        return inputs

    def fingerprint(self) -> str:
        """A digest of the inputs, the chosen rows and their labels."""
        digest = hashlib.sha256(_digest(self.x).encode())
        for array in (self.rows, self.y):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _part(x: Any, y: Tensor | None, limit: int | None, seed: int) -> PartInputs:
    """At most ``limit`` rows, drawn by the seed, in their order."""
    rows = np.arange(len(x), dtype=np.int64)
    if limit is not None and check_integer("limit", limit) < len(x):
        rows = np.sort(np.random.default_rng([seed, 2]).permutation(len(x))[:limit])
    if y is None:
        return PartInputs(x, None, rows)
    return PartInputs(x, y.numpy().astype(np.int64)[rows], rows)


def _digest(x: Any) -> str:
    """A digest of inputs; of those on disk, of their names and sizes."""
    if isinstance(x, CorruptedImages):
        return f"{_digest(x.x)} {x.kind} {x.severity} {x.seed}"
    if hasattr(x, "digest"):
        return str(x.digest)
    digest = hashlib.sha256(f"{tuple(x.shape)}".encode())
    for start in range(0, len(x), 4096):
        digest.update(np.ascontiguousarray(x[start : start + 4096].numpy()).data)
    return digest.hexdigest()


def _load(
    data: Data | str | Path,
    size: int | None,
    seed: int,
    val: float | int,
    data_dir: str | Path | None,
    options: dict[str, Any],
) -> Data:
    """A data set; images of a folder, or shards, are read when they are needed."""
    if not isinstance(data, Data):
        path = Path(data).expanduser()
        if is_shards(data):
            options = {"size": size or 224, **options}
        elif path.is_dir() and dataset_name(data) is None and not is_store(path):
            options = {"size": size or 224, "stream": True, **options}
        data = load(data, data_dir=data_dir, seed=seed, val=val, **options)
    if data.task != "classification":
        raise ValueError(f"features are kept with class labels; {data.name} is a {data.task}")
    return data


def _backbone(
    backbone: nn.Module | Backbone | str,
    split_at: str | None,
    tokens: int | None,
    transform: Transform | None,
) -> Backbone:
    if isinstance(backbone, str):
        return load_backbone(backbone, split_at=split_at, tokens=tokens, transform=transform)
    if split_at is not None or tokens is not None:
        raise ValueError("split_at is for a backbone by name; use models.split on a module")
    if isinstance(backbone, Backbone):
        return dataclasses.replace(backbone, transform=transform or backbone.transform)
    module = backbone.requires_grad_(False).eval()
    return Backbone(module, type(backbone).__name__, transform or Transform())

"""Run a frozen backbone over a data set once, and keep what it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from dissensus._version import __version__
from dissensus.data import Augment, Data, FeatureStore, FeatureWriter
from dissensus.features.backbones import Backbone, load_backbone
from dissensus.features.sources import Source, Sources, ood_source, sources
from dissensus.features.transforms import Transform

__all__ = ["extract"]


def extract(
    backbone: nn.Module | Backbone | str,
    data: Data | str | Path,
    out: str | Path,
    *,
    ood: Sequence[str] = (),
    transform: Transform | str | None = None,
    split_at: str | None = None,
    passes: int = 1,
    augment: Augment | None = None,
    dtype: str = "float16",
    batch_size: int = 64,
    limit: int | None = None,
    shard_rows: int = 4096,
    seed: int = 0,
    val: float | int = 0.2,
    data_dir: str | Path | None = None,
    options: dict[str, Any] | None = None,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> FeatureStore:
    """Write the features of ``data`` and of unknown inputs to the folder ``out``.

    ``backbone`` is a module or a name for :func:`load_backbone`; it runs in evaluation mode without
    gradients. ``data`` is a data set, or what ``data.load`` takes; folders of images are read one
    by one, however large. ``ood`` names further sets (``svhn``, ``corrupt:5``, a folder). With
    ``augment`` the training part is stored ``passes`` times, changed by chance each time.
    ``limit`` draws so many rows of each part.

    Interrupted, the same call goes on after the last whole shard, and ends with the same bytes (for
    the same ``batch_size``); a call for anything else is refused.
    """
    _check(passes, augment, batch_size)
    chosen = Transform.parse(transform) if isinstance(transform, str) else transform
    used = _backbone(backbone, split_at, chosen)
    size = used.transform.size
    known = sources(data, size=size, seed=seed, val=val, data_dir=data_dir, options=options)
    parts = dict(known.parts)
    for name in ood:
        part, source = ood_source(name, known, size=size, seed=seed, data_dir=data_dir)
        if part in parts:
            raise ValueError(f"there are two parts named {part!r}; leave --ood {name} out")
        parts[part] = source
    parts = {name: source.limited(limit, seed) for name, source in parts.items()}
    run = _Run(used, torch.device(device), batch_size, augment, seed)
    settings: dict[str, Any] = {
        "dtype": dtype,
        "classes": known.classes,
        "shard_rows": shard_rows,
        "backbone": used.facts(),
        "transform": used.transform.plain() | _augmentation(augment),
        "data": _facts(known, parts, seed, passes),
        "versions": _versions(used),
    }
    with FeatureWriter(out, run.shape(parts), **settings) as writer:
        _write(writer, run, parts, passes, progress)
    return FeatureStore(out)


def _write(
    writer: FeatureWriter, run: _Run, parts: dict[str, Source], passes: int, progress: bool
) -> None:
    count = {name: passes if name == "train" else 1 for name in parts}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), disable=not progress, transient=True) as bar:
        total = sum(len(source) * count[name] for name, source in parts.items())
        task = bar.add_task("features", total=total)
        for place, (name, source) in enumerate(parts.items()):
            bar.update(task, description=name)
            writer.compute(
                name,
                len(source),
                source.labels,
                run.features_of(place, source, changed=name == "train"),
                passes=count[name],
                on_shard=lambda rows: bar.advance(task, rows),
            )


class _Run:
    """A backbone at work: batches never reach over a shard, and chance starts anew at each."""

    def __init__(
        self,
        backbone: Backbone,
        device: torch.device,
        batch_size: int,
        augment: Augment | None,
        seed: int,
    ) -> None:
        self.module, self.transform = backbone.module.to(device), backbone.transform
        self.device, self.batch_size = device, batch_size
        self.augment, self.seed = augment, seed

    def shape(self, parts: dict[str, Source]) -> tuple[int, ...]:
        """The shape of one example's features, from two examples."""
        source = next(iter(parts.values()))
        return self._features(source.inputs(0, min(2, len(source)))).shape[1:]

    def features_of(
        self, place: int, source: Source, *, changed: bool
    ) -> Callable[[int, int, int], NDArray[Any]]:
        """What computes the features of some rows of a part."""

        def compute(number: int, start: int, stop: int) -> NDArray[Any]:
            words = [self.seed, place, number, start]
            own = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 24)
            generator = torch.Generator().manual_seed(own)
            found = []
            for first in range(start, stop, self.batch_size):
                x = source.inputs(first, min(first + self.batch_size, stop))
                if source.change is not None:
                    x = source.change(x, first)
                if changed and self.augment is not None:
                    x = self.augment(x, generator)
                found.append(self._features(x))
            return np.concatenate(found)

        return compute

    def _features(self, x: Tensor) -> NDArray[Any]:
        with torch.inference_mode():
            found = self.module(self.transform(x).to(self.device))
        if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != len(x):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"a backbone must give a tensor [batch, …] for a batch of {len(x)}, got {got}; "
                "wrap it in a module that does"
            )
        features: NDArray[Any] = found.float().cpu().numpy()
        return features


def _check(passes: int, augment: Augment | None, batch_size: int) -> None:
    if passes < 1 or batch_size < 1:
        raise ValueError(f"passes and batch_size must be at least 1, got {passes}, {batch_size}")
    if passes > 1 and augment is None:
        raise ValueError("several passes are all the same without --augment; name one")


def _backbone(
    backbone: nn.Module | Backbone | str, split_at: str | None, transform: Transform | None
) -> Backbone:
    if isinstance(backbone, str):
        return load_backbone(backbone, split_at=split_at, transform=transform)
    if split_at is not None:
        raise ValueError("split_at is for a backbone by name; use models.split on a module")
    if isinstance(backbone, Backbone):
        return dataclasses.replace(backbone, transform=transform or backbone.transform)
    module = backbone.requires_grad_(False).eval()
    return Backbone(module, type(backbone).__name__, transform or Transform())


def _augmentation(augment: Augment | None) -> dict[str, Any]:
    return {} if augment is None else {"augment": dataclasses.asdict(augment)}


def _facts(known: Sources, parts: dict[str, Source], seed: int, passes: int) -> dict[str, Any]:
    return {
        "name": known.name,
        "seed": seed,
        "passes": passes,
        "parts": {name: source.fingerprint() for name, source in parts.items()},
    }


def _versions(backbone: Backbone) -> dict[str, str]:
    own = {"dissensus": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return own | backbone.versions

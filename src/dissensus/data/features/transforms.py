"""Transforms of a backbone's inputs: a size, a number of channels, mean and deviation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dissensus.data import fit_images
from dissensus.specs import check_name, read_settings, split_spec

__all__ = ["TRANSFORMS", "Transform"]


@dataclass(frozen=True)
class Transform:
    """Images in [0, 1] brought to ``channels`` × ``size`` × ``size``, then ``(x − mean) / std``.

    What is None stays as the data have it. With nothing set, inputs of any shape pass unchanged.

    >>> Transform.parse("imagenet:size=64")(torch.full((2, 1, 8, 8), 0.485))[0, :, 0, 0]
    tensor([0.0000, 0.1295, 0.3511])
    """

    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.size is not None and (type(self.size) is not int or self.size < 1):
            raise ValueError(f"size must be a positive number of pixels, got {self.size!r}")
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std must be given together")
        if self.mean is not None and self.std is not None:
            if len(self.mean) != len(self.std):
                raise ValueError(
                    f"mean and std must have one number a channel, got {self.mean} and {self.std}"
                )
            if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
                raise ValueError(f"mean must be finite and std positive, got {self}")

    @classmethod
    def parse(cls, text: str) -> Transform:
        """One of :data:`TRANSFORMS`, with changes: ``imagenet:size=384``, ``none:mean=0.5,std=1``.

        Slashes separate the numbers of several channels.
        """
        name, settings = split_spec(text)
        check_name(name, TRANSFORMS, "transform")
        known = ("size", "mean", "std")
        return replace(TRANSFORMS[name], **read_settings(name, settings, cls, known))

    def __call__(self, x: Tensor) -> Tensor:
        channels = None if self.mean is None or len(self.mean) == 1 else len(self.mean)
        if self.size is not None or (channels is not None and x.ndim == 4):
            if x.ndim != 4:
                raise ValueError(
                    f"this transform is for images [rows, channels, height, width], got "
                    f"{tuple(x.shape)}; use --transform none for other inputs"
                )
            height, width = x.shape[2:] if self.size is None else (self.size, self.size)
            x = fit_images(x, (channels or x.shape[1], height, width))
        if self.mean is None or self.std is None:
            return x
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (x - torch.tensor(self.mean).view(shape)) / torch.tensor(self.std).view(shape)

    def plain(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: Transforms by name; a backbone of a library brings its own.
TRANSFORMS: dict[str, Transform] = {
    "none": Transform(),
    "imagenet": Transform(224, *_IMAGENET),
    "effnetlite": Transform(224, (127 / 255,) * 3, (128 / 255,) * 3),  # (x − 127) / 128 of bytes
}

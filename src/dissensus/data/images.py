"""Images in memory: pixels as a data set, rows drawn from it, and images of another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from dissensus.data.dataset import Data, Request, Split, divide

__all__ = ["Pixels", "draw_rows", "fit_images", "image_data", "to_unit"]

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Pixels:
    """One part of an image set: ``x`` uint8 ``[rows, channels, height, width]`` and labels."""

    x: Bytes
    y: NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.x.dtype != np.uint8:
            raise ValueError(
                f"pixels must be uint8 [rows, channels, height, width], got {self.x.dtype} "
                f"{self.x.shape}"
            )
        if self.y.shape != (len(self.x),):
            raise ValueError(f"{len(self.x)} images have labels of shape {self.y.shape}")


def to_unit(pixels: Bytes) -> Tensor:
    """uint8 pixels as float32 in [0, 1]."""
    return torch.from_numpy(np.require(pixels, requirements=["C", "W"])).float().div_(255)


def image_data(
    name: str,
    train: Pixels,
    test: Pixels,
    request: Request,
    *,
    classes: Sequence[str],
    source: str,
    limit: int | None = None,
    test_limit: int | None = None,
) -> Data:
    """Images in [0, 1] with the official test part kept and validation cut from train.

    ``limit`` and ``test_limit`` draw that many rows of train (before validation is cut) and of
    test, at random but the same for the same seed. Row numbers of test follow those of train.
    """
    for part, pixels in (("train", train), ("test", test)):
        low, high = (int(pixels.y.min()), int(pixels.y.max())) if len(pixels.y) else (0, 0)
        if low < 0 or high >= len(classes):
            raise ValueError(
                f"{name}: {part} labels run from {low} to {high}, there are {len(classes)} classes"
            )
    parts = {"train": train, "test": test}
    rows = {
        "train": draw_rows(len(train.x), limit, request.seed, "limit"),
        "test": draw_rows(len(test.x), test_limit, request.seed, "test_limit"),
    }

    def pick(part: str, places: NDArray[np.int64]) -> Split:
        pixels, chosen = parts[part], rows[part][places]
        return to_unit(pixels.x[chosen]), torch.from_numpy(pixels.y[chosen].astype(np.int64))

    return divide(
        name,
        "classification",
        {"train": rows["train"], "test": rows["test"] + len(train.x)},
        pick,
        request,
        classes=tuple(classes),
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 255"]},
        source=source,
    )


def draw_rows(count: int, limit: int | None, seed: int, name: str) -> NDArray[np.int64]:
    """``limit`` of ``count`` rows, drawn by the seed, in their order; all where it is None."""
    if limit is None:
        return np.arange(count, dtype=np.int64)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= count:
        raise ValueError(f"{name} must be a number of rows from 1 to {count}, got {limit!r}")
    # Another stream than the one that cuts validation, which starts from the seed alone.
    order: NDArray[np.int64] = np.random.default_rng([seed, 1]).permutation(count)[:limit]
    return np.sort(order).astype(np.int64)


def fit_images(x: Tensor, input_shape: Sequence[int]) -> Tensor:
    """Bring images ``[rows, channels, height, width]`` to ``(channels, height, width)``.

    Colour becomes grey by the mean of the channels, grey becomes colour by repetition; sizes
    change by area averaging downwards and bilinearly upwards. So a set of unknown images can be
    given to a model that was trained on others.

    >>> fit_images(torch.rand(2, 3, 32, 32), (1, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """
    shape = tuple(input_shape)
    if x.ndim != 4 or len(shape) != 3:
        raise ValueError(
            f"images must be [rows, channels, height, width] and the shape wanted (channels, "
            f"height, width), got {tuple(x.shape)} and {shape}"
        )
    channels, height, width = shape
    if x.shape[1] != channels:
        grey = x.mean(1, keepdim=True)
        x = grey.expand(-1, channels, -1, -1)
    if tuple(x.shape[2:]) != (height, width):
        smaller = height <= x.shape[2] and width <= x.shape[3]
        how: dict[str, Any] = (
            {"mode": "area"} if smaller else {"mode": "bilinear", "align_corners": False}
        )
        x = interpolate(x, size=(height, width), **how)
    return x.contiguous()

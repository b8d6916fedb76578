"""The papers' augmentations on batched tensors, with randomness for each example.

Crops, flips and shifts move pixels by index and are exact; rotations interpolate. All randomness
comes from the generator that is passed, so that a resumed run draws what an unbroken one draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from dissensus.tools.guards import describe, guarded
from dissensus.tools.specs import check_integer, check_number


@dataclass(frozen=True)
class Augment:
    """Rotation, shift, crop and flip in this order; a setting of 0 leaves its step out.

    ``rotate`` is the largest angle in degrees, ``shift`` the largest move as a share of the side,
    ``crop`` the padding in pixels before a crop of the old size, ``flip`` the probability of a
    horizontal flip.

    >>> augment = Augment(crop=4, flip=0.5)
    >>> augment(torch.rand(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    crop: int = 0
    flip: float = 0.0
    rotate: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        check_integer("crop", self.crop, 0)
        check_number("flip", self.flip, 0, 1)
        check_number("rotate", self.rotate, 0, 180)
        check_number("shift", self.shift, 0, below=1)

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Return ``x`` ``[batch, channels, height, width]`` with each image changed at random."""
        x = random_rotation(x, self.rotate, generator)
        x = random_shift(x, self.shift, generator)
        x = random_crop(x, self.crop, generator)
        return random_flip(x, self.flip, generator)


#: The augmentation of each paper for CIFAR. Their texts name the kinds at most; the sizes are
#: those of the authors' code.
AUGMENTATIONS: dict[str, Augment] = {
    "none": Augment(),
    "collusion": Augment(crop=4, flip=0.5, rotate=15.0),
    "adp": Augment(flip=0.5, shift=0.1),
}


@guarded
def random_crop(x: Tensor, padding: int, generator: Generator) -> Tensor:
    """Pad with zeros on all sides and cut the old size at a random place, for each image."""
    check_images(x)
    if padding == 0:
        return x
    batch, _, height, width = x.shape
    top = _integers(0, 2 * padding, batch, generator, x)
    left = _integers(0, 2 * padding, batch, generator, x)
    padded = pad(x, (padding,) * 4)
    return _gather(padded, top[:, None] + _range(height, x), left[:, None] + _range(width, x))


@guarded
def random_shift(x: Tensor, share: float, generator: Generator) -> Tensor:
    """Move each image by up to ``share`` of its side; its border pixels fill the gap.

    Whole pixels, all offsets within the limit equally likely.
    """
    check_images(x)
    if share == 0:
        return x
    batch, _, height, width = x.shape
    most = int(share * height), int(share * width)
    down = _integers(-most[0], most[0], batch, generator, x)
    right = _integers(-most[1], most[1], batch, generator, x)
    rows = (_range(height, x) - down[:, None]).clamp(0, height - 1)
    columns = (_range(width, x) - right[:, None]).clamp(0, width - 1)
    return _gather(x, rows, columns)


@guarded
def random_flip(x: Tensor, probability: float, generator: Generator) -> Tensor:
    """Mirror each image left to right with the given probability."""
    check_images(x)
    if probability == 0:
        return x
    flipped = _uniform(x.shape[0], generator, x) < probability
    return torch.where(flipped[:, None, None, None], x.flip(-1), x)


@guarded
def random_rotation(x: Tensor, degrees: float, generator: Generator) -> Tensor:
    """Turn each image about its centre by an angle uniform in ±``degrees``; black corners.

    Bilinear interpolation, in pixels: a picture that is not square is turned, not sheared.
    """
    check_images(x)
    if degrees == 0:
        return x
    batch, _, height, width = x.shape
    angle = (2 * _uniform(batch, generator, x) - 1) * math.radians(degrees)
    cos, sin = angle.cos(), angle.sin()
    theta = torch.zeros(batch, 2, 3, dtype=x.dtype, device=x.device)
    theta[:, 0, 0], theta[:, 0, 1] = cos, -sin * height / width
    theta[:, 1, 0], theta[:, 1, 1] = sin * width / height, cos
    grid = affine_grid(theta, list(x.shape), align_corners=False)
    return grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def check_images(x: Tensor) -> None:
    """Raise unless ``x`` is a batch of images."""
    if x.ndim != 4 or not x.is_floating_point():
        axes = "[batch, channels, height, width]"
        raise ValueError(f"images must be floats {axes}, got {describe(x)}")


def _uniform(count: int, generator: Generator, like: Tensor) -> Tensor:
    drawn = torch.rand(count, generator=generator, device=generator.device)
    return drawn.to(device=like.device, dtype=like.dtype)


def _integers(low: int, high: int, count: int, generator: Generator, like: Tensor) -> Tensor:
    """Whole numbers from ``low`` to ``high``, both included."""
    drawn = torch.randint(low, high + 1, (count,), generator=generator, device=generator.device)
    return drawn.to(like.device)


def _range(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


def _gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``out[n, c, i, j] = x[n, c, rows[n, i], columns[n, j]]``."""
    batch = _range(x.shape[0], x)[:, None, None, None]
    channels = _range(x.shape[1], x)[None, :, None, None]
    return x[batch, channels, rows[:, None, :, None], columns[:, None, None, :]]

"""Images: decoded from files, as numbers in [0, 1], and brought to another size.

Pillow opens only the formats that are listed here, as some others start programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from dissensus.data.dataset import missing_extra
from dissensus.tools.files import open_regular
from dissensus.tools.guards import guarded
from dissensus.tools.specs import check_integer

Bytes = NDArray[np.uint8]


def to_unit(pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 pixels as float32 in [0, 1]."""
    return torch.from_numpy(np.require(pixels, requirements=["C", "W"])).float().div_(255)


def draw_rows(count: int, limit: int | None, seed: int, name: str) -> NDArray[np.int64]:
    """``limit`` of ``count`` rows, drawn by the seed, in their order; all where it is None."""
    if limit is None:
        return np.arange(count, dtype=np.int64)
    check_integer(name, limit, 1, count)
    # Another stream than the one that cuts validation, which starts from the seed alone.
    order: NDArray[np.int64] = np.random.default_rng([seed, 1]).permutation(count)[:limit]
    return np.sort(order).astype(np.int64)


@guarded
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
        got = f"{tuple(x.shape)} for the shape {shape}"
        raise ValueError(f"images must be [rows, channels, height, width], got {got}")
    channels, height, width = shape
    if x.shape[1] != channels:
        grey = x.mean(1, keepdim=True)
        x = grey.expand(-1, channels, -1, -1)
    if tuple(x.shape[2:]) != (height, width):
        smaller = height <= x.shape[2] and width <= x.shape[3]
        mode, align = ("area", None) if smaller else ("bilinear", False)
        x = interpolate(x, size=(height, width), mode=mode, align_corners=align)
    return x.contiguous()


# ---- files --------------------------------------------------------------------------------------

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})

#: The most pixels of an image, before and after it is scaled, where ``max_pixels`` says nothing.
MAX_PIXELS = 64_000_000


def open_image(source: Path | IO[bytes], where: str, max_pixels: int = MAX_PIXELS) -> Any:
    """An image in RGB, as Pillow has it; ``where`` names it in errors.

    Its header is read first: an image of more than ``max_pixels`` is not decoded.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("reading images", "Pillow", "pillow") from error
    with open_regular(source, where) if isinstance(source, Path) else source as file:
        try:
            with Image.open(file, formats=_image_formats()) as opened:  # its header alone
                size = opened.size
                if size[0] * size[1] <= max_pixels:
                    return _eight_bits(opened).convert("RGB")
        except Exception as error:  # decoders raise all kinds for damaged images
            raise ValueError(f"{where} cannot be read as an image ({error})") from error
    raise _too_large(where, *size, max_pixels)


def _eight_bits(image: Any) -> Any:
    """An image of at most 8 bits a channel; Pillow itself would cut 16 bits off at 255."""
    from PIL import Image

    if image.mode[0] not in "IF":
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.max() > 0xFFFF:
        raise ValueError(f"its mode {image.mode} has no range; save it with 8 or 16 bits")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))


def _too_large(where: str, width: int, height: int, most: int) -> ValueError:
    return ValueError(f"{where} has {width} × {height} pixels, more than max_pixels={most} allows")


@cache
def _image_formats() -> tuple[str, ...]:
    """Pillow's names of the formats of :data:`IMAGE_SUFFIXES`; some others start programs."""
    from PIL import Image

    Image.init()
    known = ("JPEG", "MPO", "PNG", "BMP", "WEBP", "TIFF", "PPM")
    return tuple(name for name in known if name in Image.OPEN)


def decode_image(
    source: Path | IO[bytes], size: int, where: str = "", max_pixels: int = MAX_PIXELS
) -> Bytes:
    """The middle of an image, uint8 ``[3, size, size]``.

    Its shorter side is scaled to ``size · 256/224`` first: ImageNet's evaluation protocol. An image
    that has more than ``max_pixels``, or would have when it is scaled, is an error.
    """
    where = where or str(source)
    image = open_image(source, where, max_pixels)
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if width * height > max_pixels:
        raise _too_large(f"{where}, scaled for size={size},", width, height, max_pixels)
    image = image.resize((width, height), 2)  # bilinear
    left, top = (width - size) // 2, (height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.uint8)
    return pixels.transpose(2, 0, 1)

"""Images as PNG inside the page: a writer of a few lines, for grey and colour alike."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from dissensus.report.found import Images

__all__ = ["data_uri", "png", "reduced"]

_LARGEST = 96  # pixels of a side; larger images are averaged down


def png(image: Images) -> bytes:
    """``image`` ``[channels, height, width]``, one channel (grey) or three (colour), as PNG.

    >>> png(np.zeros((1, 2, 2), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    channels, height, width = image.shape
    if channels not in (1, 3) or image.dtype != np.uint8:
        raise ValueError(
            f"an image must be uint8 [1 or 3, height, width], got {image.dtype} {image.shape}"
        )
    rows = np.moveaxis(image, 0, -1).reshape(height, width * channels)
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(unfiltered.tobytes(), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def data_uri(image: Images) -> str:
    """``image``, made small enough, as a ``data:`` address; other channels than 1 or 3 as grey."""
    if image.shape[0] not in (1, 3):
        image = image.mean(0, keepdims=True).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(reduced(image))).decode("ascii")


def reduced(image: Images, largest: int = _LARGEST) -> Images:
    """``image`` averaged over squares until no side is longer than ``largest``.

    >>> reduced(np.full((1, 200, 100), 7, np.uint8)).shape
    (1, 66, 33)
    """
    side = -(-max(image.shape[1:]) // largest)
    if side <= 1:
        return image
    channels, height, width = image.shape
    cut = image[:, : height // side * side, : width // side * side]
    blocks = cut.reshape(channels, height // side, side, width // side, side)
    found: Images = blocks.mean((2, 4)).round().astype(np.uint8)
    return found


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

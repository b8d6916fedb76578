"""Pictures of the page: images as PNG inside of it, by a writer of a few lines."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from dissensus.show.contents import Images

_LARGEST = 96  # pixels of a side; larger images are averaged down


def data_uri(image: Images) -> str:
    """``image``, made small enough, as a ``data:`` address; other channels than 1 or 3 as grey."""
    if image.shape[0] not in (1, 3):
        image = image.mean(0, keepdims=True).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(shrink(image))).decode("ascii")


def png(image: Images) -> bytes:
    """``image`` uint8 ``[channels, height, width]``, one channel (grey) or three, as PNG.

    >>> png(np.zeros((1, 2, 2), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    channels, height, width = image.shape
    color = {1: 0, 3: 2}[channels]
    rows = np.moveaxis(image, 0, -1).reshape(height, width * channels)
    unfiltered = np.pad(rows, ((0, 0), (1, 0)))  # each row begins with the number of its filter
    content = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0),
        b"IDAT": zlib.compress(unfiltered.tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in content.items()
    )


def shrink(image: Images) -> Images:
    """``image`` averaged over squares until no side is longer than 96 pixels.

    >>> shrink(np.full((1, 200, 100), 7, np.uint8)).shape
    (1, 66, 33)
    """
    side = -(-max(image.shape[1:]) // _LARGEST)
    channels, height, width = image.shape
    cut = image[:, : height // side * side, : width // side * side]
    blocks = cut.reshape(channels, height // side, side, width // side, side)
    averaged: Images = blocks.mean((2, 4)).round().astype(np.uint8)
    return averaged

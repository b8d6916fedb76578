"""Folders of images in the ImageNet layout, ``class/picture.jpg``.

``root/train/class/…`` with ``root/test/…`` or ``root/val/…``, or ``root/class/…`` alone. Without a
``test`` folder the ``val`` folder is the test set, as it is for ImageNet, and validation is cut
from train.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.base import Data, Request, missing_extra
from dissensus.data.images import Pixels, image_data, to_unit

__all__ = [
    "IMAGE_SUFFIXES",
    "ImageFolder",
    "decode_image",
    "find_images",
    "load_folder",
    "read_image",
]

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})

#: Larger sets are not read into memory at once.
_LARGEST = 4 << 30


class ImageFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images below ``root/class/`` one at a time, for a DataLoader over sets of any size.

    Each is scaled so that its shorter side is ``size · 256/224``, cut to its central ``size`` ×
    ``size`` pixels (ImageNet's evaluation protocol), and given as float32 ``[3, size, size]`` in
    [0, 1]. Classes are the names of the folders in alphabetical order, or those of ``classes``.
    """

    def __init__(
        self, root: str | Path, size: int = 224, classes: Sequence[str] | None = None
    ) -> None:
        root = Path(root)
        if not root.is_dir():
            raise ValueError(f"there is no folder {root}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a positive number of pixels, got {size!r}")
        found = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.classes = tuple(found if classes is None else classes)
        strangers = sorted(set(found) - set(self.classes))
        if strangers:
            raise ValueError(f"{root} has classes that train has not: {', '.join(strangers[:10])}")
        self.root, self.size = root, size
        self.files: list[tuple[Path, int]] = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in find_images(root / name)
        ]
        if not self.files:
            raise ValueError(
                f"{root} holds no images: the layout is class/picture.jpg, with one of "
                f"{', '.join(sorted(IMAGE_SUFFIXES))}"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return to_unit(self.pixels(index)), self.files[index][1]

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """The image as uint8 ``[3, size, size]``."""
        return read_image(self.files[index][0], self.size).transpose(2, 0, 1)

    def all_pixels(self) -> Pixels:
        """Every image in memory."""
        needed = _needed(len(self), self.size)
        if needed > _LARGEST:
            raise ValueError(
                f"{len(self)} images of {self.size} × {self.size} need {needed / 2**30:.1f} GiB of "
                "memory; lower size, or leave them on disk with stream=True"
            )
        x = np.stack([self.pixels(i) for i in range(len(self))])
        return Pixels(x, np.array([label for _, label in self.files], dtype=np.int64))


def load_folder(
    path: Path,
    request: Request,
    *,
    size: int = 64,
    limit: int | None = None,
    test_limit: int | None = None,
    stream: bool | None = None,
    workers: int = 0,
    on_error: str = "raise",
) -> Data:
    """A folder of images as ``[rows, 3, size, size]`` in [0, 1].

    In memory, or with ``stream=True`` read as they are used, by ``workers`` processes, with
    ``on_error="skip"`` without those that cannot be read. Where nothing is said about ``stream``,
    a set that needs more than 4 GiB of memory stays on disk.
    """
    if stream is None:
        limited = limit is not None or test_limit is not None
        stream = not limited and _too_many(path, size)
    if stream:
        from dissensus.data.shards import load_pictures

        if limit is not None or test_limit is not None:
            raise ValueError("limit and test_limit are for images in memory; leave stream out")
        return load_pictures(path, request, size=size, workers=workers, on_error=on_error)
    if workers or on_error != "raise":
        raise ValueError("workers and on_error are for images on disk; set stream=True")
    if not (path / "train").is_dir():
        return _one_folder(path, request, size, limit)
    train = ImageFolder(path / "train", size)
    held = next((path / part for part in ("test", "val") if (path / part).is_dir()), None)
    if held is None:
        return _one_folder(path / "train", request, size, limit)
    test = ImageFolder(held, size, train.classes)
    return image_data(
        path.name,
        train.all_pixels(),
        test.all_pixels(),
        request,
        classes=train.classes,
        source=str(path),
        limit=limit,
        test_limit=test_limit,
    )


def _too_many(path: Path, size: int) -> bool:
    """Whether the images below ``path`` need more memory than a set may; counts no further."""
    most = _LARGEST // _needed(1, size)
    return sum(1 for _ in islice(_images_below(path), most + 1)) > most


def _needed(images: int, size: int) -> int:
    return images * 3 * size**2 * 5  # once as bytes, once as float32


def _one_folder(path: Path, request: Request, size: int, limit: int | None) -> Data:
    images = ImageFolder(path, size)
    pixels = images.all_pixels()
    rows = Request(seed=request.seed, val=0, test=request.test).split(len(images))
    train, test = np.sort(rows[0]), np.sort(rows[2])
    data = image_data(
        path.name,
        Pixels(pixels.x[train], pixels.y[train]),
        Pixels(pixels.x[test], pixels.y[test]),
        Request(seed=request.seed, val=request.val),
        classes=images.classes,
        source=str(path),
        limit=limit,
    )
    # image_data numbers test after train; in one folder a row is a file.
    both = torch.from_numpy(np.concatenate([train, test]))
    named = {part: both[chosen] for part, chosen in data.rows.items()}
    return Data(**{**vars(data), "rows": named})


def find_images(folder: Path) -> list[Path]:
    """The images in a folder, at any depth, in the order of their paths."""
    return sorted(_images_below(folder))


def _images_below(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)


def read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """An image as ``[size, size, 3]``, cut as :class:`ImageFolder` says."""
    return decode_image(path, size, str(path))


@cache
def _formats() -> tuple[str, ...]:
    """Pillow's names of what :data:`IMAGE_SUFFIXES` are; it knows some that start programs."""
    from PIL import Image

    Image.init()
    known = ("JPEG", "MPO", "PNG", "BMP", "WEBP", "TIFF", "PPM")
    return tuple(name for name in known if name in Image.OPEN)


def decode_image(source: Path | IO[bytes], size: int, where: str) -> NDArray[np.uint8]:
    """The same from a file or from bytes; ``where`` says in an error what they are."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise missing_extra("reading images", "Pillow", "pillow") from error
    bad = (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError)
    try:
        with Image.open(source, formats=_formats()) as opened:
            image = opened.convert("RGB")
    except bad as error:
        raise ValueError(f"{where} cannot be read as an image ({error})") from error
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.uint8)

"""Folders of images in the ImageNet layout, ``class/picture.jpg``.

``root/train/class/…`` with ``root/test/…`` or ``root/val/…``, or ``root/class/…`` alone. Without a
``test`` folder the ``val`` folder is the test set, as it is for ImageNet, and validation is cut
from train.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.base import Data, Request, missing_extra
from dissensus.data.images import Pixels, image_data, to_unit

__all__ = ["IMAGE_SUFFIXES", "ImageFolder", "load_folder", "read_picture"]

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
        self.size = size
        self.files: list[tuple[Path, int]] = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((root / name).rglob("*"))
            if file.suffix.lower() in IMAGE_SUFFIXES
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
        return read_picture(self.files[index][0], self.size).transpose(2, 0, 1)

    def all_pixels(self) -> Pixels:
        """Every image in memory."""
        needed = len(self) * 3 * self.size**2 * 5  # once as bytes, once as float32
        if needed > _LARGEST:
            raise ValueError(
                f"{len(self)} images of {self.size} × {self.size} need {needed / 2**30:.1f} GiB of "
                "memory; lower size, or give a DataLoader over ImageFolder to fit"
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
) -> Data:
    """A folder of images as ``[rows, 3, size, size]`` in [0, 1], in memory."""
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


def read_picture(path: Path, size: int) -> NDArray[np.uint8]:
    """A picture, scaled and cut to its central square, as uint8 ``[size, size, 3]``."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise missing_extra("reading images", "Pillow", "pillow") from error
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError, UnidentifiedImageError) as error:
        raise ValueError(f"{path} cannot be read as an image ({error})") from error
    scale = size * 256 / 224 / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.uint8)

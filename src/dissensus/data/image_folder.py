"""Folders of images in the ImageNet layout, ``class/picture.jpg``.

``root/train/class/…`` with ``root/test/…`` or ``root/val/…``, or ``root/class/…`` alone. Without a
``test`` folder the ``val`` folder is the test set, as it is for ImageNet, and validation is cut
from train.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.dataset import Data, Request, Split, check_classes, divide, split_rows
from dissensus.data.formats import IMAGE_SUFFIXES, decode_image
from dissensus.data.images import draw_rows, fit_images, to_unit

__all__ = [
    "ImageFolder",
    "ImageRows",
    "find_images",
    "load_folder",
    "open_folder",
]

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
        names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.classes = tuple(names if classes is None else classes)
        check_classes(names, self.classes, root)
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
        file, label = self.files[index]
        return to_unit(decode_image(file, self.size)), label

    def part(self, rows: NDArray[np.int64], in_memory: bool) -> Split:
        """Some of the images with their labels; on disk they stand in for a tensor."""
        x = ImageRows(self.root, [self.files[row][0] for row in rows], self.size)
        y = torch.tensor([self.files[row][1] for row in rows], dtype=torch.int64)
        return x[:] if in_memory else cast(Tensor, x), y


class ImageRows:
    """Image files read as they are needed: ``rows[10:20]`` is ``[10, 3, size, size]`` in [0, 1].

    Cut as :class:`ImageFolder` does; with a ``shape`` brought to its channels, height and width.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        size: int,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.root, self.files, self.size, self.fit = root, list(files), size, shape
        self.shape = torch.Size((len(self.files), *(shape or (3, size, size))))

    @classmethod
    def below(cls, root: Path, size: int, shape: tuple[int, ...] | None = None) -> ImageRows:
        """All images in a folder, at any depth."""
        files = find_images(root)
        if not files:
            endings = ", ".join(sorted(IMAGE_SUFFIXES))
            raise ValueError(f"{root} holds no images; they end in {endings}")
        return cls(root, files, size, shape)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: slice | Sequence[int] | Tensor | NDArray[np.int64]) -> Tensor:
        files = self.files[index] if isinstance(index, slice) else [self.files[i] for i in index]
        pixels = np.empty((len(files), 3, self.size, self.size), np.uint8)
        for row, file in enumerate(files):
            pixels[row] = decode_image(file, self.size)
        x = to_unit(pixels)
        return x if self.fit is None else fit_images(x, self.fit)

    @property
    def digest(self) -> str:
        """A sha256 of the files' names and sizes."""
        lines = [f"{file.relative_to(self.root)} {file.stat().st_size}\n" for file in self.files]
        return hashlib.sha256(f"{self.size} {''.join(lines)}".encode()).hexdigest()


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
    ``on_error="skip"`` without those that cannot be read. By default,
    a set that needs more than 4 GiB of memory stays on disk.
    """
    if stream is None:
        limited = limit is not None or test_limit is not None
        stream = not limited and _too_many(path, size)
    if stream:
        from dissensus.data.on_disk import load_images

        if limit is not None or test_limit is not None:
            raise ValueError("limit and test_limit are for images in memory; leave stream out")
        return load_images(path, request, size=size, workers=workers, on_error=on_error)
    if workers or on_error != "raise":
        raise ValueError("workers and on_error are for images on disk; set stream=True")
    return _folder_data(path, request, size, limit=limit, test_limit=test_limit)


def open_folder(path: Path, request: Request, *, size: int) -> Data:
    """The same, divided alike, with images that are read as they are used."""
    return _folder_data(path, request, size, in_memory=False)


def _folder_data(
    path: Path,
    request: Request,
    size: int,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    in_memory: bool = True,
) -> Data:
    train = ImageFolder(path / "train" if (path / "train").is_dir() else path, size)
    held = [path / part for part in ("test", "val") if (path / part).is_dir()]
    if train.root != path and held:
        test = ImageFolder(held[0], size, train.classes)
        trained, tested = np.arange(len(train)), np.arange(len(test))
    else:
        test = train
        rows = split_rows(len(train), val=0, test=request.test_share, seed=request.seed)
        trained, tested = np.sort(rows[0]), np.sort(rows[2])
        request = Request(seed=request.seed, val=request.val)
    chosen = {
        "train": trained[draw_rows(len(trained), limit, request.seed, "limit")],
        "test": tested[draw_rows(len(tested), test_limit, request.seed, "test_limit")],
    }
    if in_memory:
        _check_memory(sum(map(len, chosen.values())), size)
    images = {"train": train, "test": test}
    # Test images in a folder of their own are numbered after those of train.
    after = 0 if test is train else len(train)
    return divide(
        path.resolve().name,
        "classification",
        {"train": chosen["train"], "test": chosen["test"] + after},
        lambda part, places: images[part].part(chosen[part][places], in_memory),
        request,
        classes=train.classes,
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 255"]},
        source=str(path),
    )


def _check_memory(images: int, size: int) -> None:
    needed = _needed(images, size)
    if needed > _LARGEST:
        raise ValueError(
            f"{images} images of {size} × {size} need {needed / 2**30:.1f} GiB of memory; lower "
            "size, or leave them on disk with stream=True"
        )


def _too_many(path: Path, size: int) -> bool:
    """Whether the images below ``path`` need more memory than a set may; counts no further."""
    most = _LARGEST // _needed(1, size)
    return sum(1 for _ in islice(_images_below(path), most + 1)) > most


def _needed(images: int, size: int) -> int:
    return images * 3 * size**2 * 5  # once as bytes, once as float32


def find_images(folder: Path) -> list[Path]:
    """The images in a folder, at any depth, in the order of their paths."""
    return sorted(_images_below(folder))


def _images_below(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)

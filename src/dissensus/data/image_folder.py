"""Folders of images in the ImageNet layout, ``class/picture.jpg``.

``root/train/class/…`` with ``root/test/…`` and ``root/val/…`` as they exist, or ``root/class/…``
alone. Without a ``test`` folder the ``val`` folder is the test set, as it is for ImageNet, and
validation is cut from train.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.arrow import Reading
from dissensus.data.dataset import (
    Data,
    OnDisk,
    Request,
    Rows,
    Split,
    as_float,
    check_classes,
    divide,
    split_rows,
)
from dissensus.data.images import IMAGE_SUFFIXES, decode_image, draw_rows, fit_images
from dissensus.data.shards import with_test
from dissensus.tools.files import check_size, max_bytes
from dissensus.tools.progress import ProgressBar
from dissensus.tools.specs import check_integer

_ENDINGS = ", ".join(sorted(IMAGE_SUFFIXES))


class ImageFiles(OnDisk):
    """Image files read as they are needed: ``images[10:20]`` is ``[10, 3, size, size]`` in [0, 1].

    Each is scaled so that its shorter side is ``size · 256/224`` and cut to its central ``size`` ×
    ``size`` pixels (ImageNet's evaluation protocol); with a ``shape`` it is then brought to these
    channels, height and width. ``files`` are paths below ``root``.
    """

    windowed = False  # each is a file of its own

    def __init__(
        self,
        root: Path,
        files: Sequence[str] | NDArray[np.bytes_],
        reading: Reading,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        # An array of bytes takes a tenth of the memory of paths.
        names = files if isinstance(files, np.ndarray) else [os.fsencode(name) for name in files]
        self.root, self.files, self.fit = root, np.array(names, dtype=np.bytes_), shape
        self.reading, self.workers, self.on_error = reading, reading.workers, reading.on_error
        self.shape = torch.Size((len(self.files), *(shape or (3, reading.size, reading.size))))
        self.row_bytes = self.shape[1:].numel()

    @classmethod
    def below(cls, root: Path, size: int, shape: tuple[int, ...] | None = None) -> ImageFiles:
        """All images in a folder, at any depth."""
        files = find_images(root)
        if not files:
            raise ValueError(f"{root} holds no images; they end in {_ENDINGS}")
        return cls(root, files, Reading(size), shape)

    def read(self, places: Rows) -> Tensor:
        size = self.reading.size
        # Memory of torch's own, which is aligned: where a batch lies decides about last bits.
        x = torch.empty((len(places), 3, size, size), dtype=torch.uint8)
        for row, name in enumerate(self.files[places]):
            file = self.root / os.fsdecode(name)
            x.numpy()[row] = decode_image(file, size, max_pixels=self.reading.max_pixels)
        return x if self.fit is None else fit_images(as_float(x), self.fit)

    @property
    def digest(self) -> str:
        """A sha256 of the files' names and sizes."""
        digest = hashlib.sha256(f"{self.reading.size} ".encode())
        for name in self.files:
            size = (self.root / os.fsdecode(name)).stat().st_size
            digest.update(name + f" {size}\n".encode())
        return digest.hexdigest()


class ImageFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images below ``root/class/`` with their labels one at a time, for a DataLoader.

    Classes are the names of the folders in alphabetical order, or those of ``classes``. An image
    of more than ``max_pixels`` is not decoded.
    """

    def __init__(
        self,
        root: str | Path,
        size: int = 224,
        classes: Sequence[str] | None = None,
        max_pixels: int | None = None,
    ) -> None:
        check_integer("size", size)
        reading = Reading(size) if max_pixels is None else Reading(size, max_pixels=max_pixels)
        files, labels, self.classes = list_folder(Path(root), classes)
        self.images, self.labels = ImageFiles(Path(root), files, reading), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


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
    max_pixels: int = Reading.max_pixels,
) -> Data:
    """A folder of images as ``[rows, 3, size, size]`` in [0, 1].

    They are in memory, or with ``stream=True`` read as they are used by ``workers`` processes;
    ``on_error="skip"`` then leaves out those that cannot be read. By default, a set that needs more
    than ``DISSENSUS_MAX_BYTES`` (4 GiB) of memory stays on disk. An image of more than
    ``max_pixels``, before or after it is scaled, counts as one that cannot be read.
    """
    reading = Reading(size, workers, on_error, max_pixels)
    folders = _find_parts(path)
    classes: tuple[str, ...] | None = None
    images: dict[str, tuple[ImageFiles, Tensor]] = {}
    ids: dict[str, Rows] = {}
    for part, root in folders.items():
        files, labels, classes = list_folder(root, classes)
        first = sum(map(len, ids.values()))  # other parts are numbered after train
        ids[part] = np.arange(first, first + len(files))
        images[part] = ImageFiles(root, files, reading), torch.from_numpy(labels)
    rows = {part: np.arange(len(own)) for part, own in ids.items()}
    if "test" not in rows:
        share, seed = request.test_share, request.seed
        train_rows, _, test_rows = split_rows(len(rows["train"]), val=0, test=share, seed=seed)
        images["test"], ids["test"] = images["train"], ids["train"]
        rows = {"train": np.sort(train_rows), "test": np.sort(test_rows)}
        request = Request(seed=seed, val=request.val)
    for part, most, option in (("train", limit, "limit"), ("test", test_limit, "test_limit")):
        rows[part] = rows[part][draw_rows(len(rows[part]), most, request.seed, option)]
    in_memory = _fits(sum(map(len, rows.values())), size, stream)
    if in_memory and (workers or on_error != "raise"):
        raise ValueError("workers and on_error are for images on disk; set stream=True")

    def pick(part: str, places: Rows) -> Split:
        (x, y), own = images[part], rows[part][places]
        kept = ImageFiles(x.root, x.files[own], reading)
        return kept[:] if in_memory else cast(Tensor, kept), y[own]

    return divide(
        path.resolve().name,
        "classification",
        {part: ids[part][own] for part, own in rows.items()},
        pick,
        request,
        classes=classes,
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 255"]},
        source=str(path),
    )


def _find_parts(path: Path) -> dict[str, Path]:
    """The folders of train, test and val, as far as they exist."""
    if not (path / "train").is_dir():
        return {"train": path}
    parts = ("train", "test", "val")
    return with_test({part: path / part for part in parts if (path / part).is_dir()})


def _fits(count: int, size: int, stream: bool | None) -> bool:
    """Whether images go into memory: as asked, by default if they fit."""
    needed = count * 3 * size**2 * 5  # once as bytes, once as float32
    if stream is False:
        check_size(needed, f"{count} images of {size} × {size}", "set stream=True")
    return needed <= max_bytes() if stream is None else not stream


def list_folder(
    root: Path, classes: Sequence[str] | None = None
) -> tuple[list[str], NDArray[np.int64], tuple[str, ...]]:
    """The images below ``root/class/``, their labels, and the classes, those of train if given."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    known = tuple(names if classes is None else classes)
    check_classes(names, known, root)
    files: list[str] = []
    counts = []
    with ProgressBar("listing images", len(known), delay=1.0) as bar:
        for name in known:
            own = [os.path.join(name, file) for file in find_images(root / name)]  # noqa: PTH118
            files += own
            counts.append(len(own))
            bar.advance()
    if not files:
        raise ValueError(f"{root} holds no images; the layout is class/picture.jpg")
    return files, np.repeat(np.arange(len(known)), counts), known


def find_images(folder: Path) -> list[str]:
    """The paths of all images below a folder, at any depth, in their order."""
    found: list[tuple[str, ...]] = []
    for place, _, files in os.walk(folder):
        inside = Path(place).relative_to(folder).parts
        found += [
            (*inside, file)
            for file in files
            if os.path.splitext(file)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122
        ]
    return [os.path.join(*parts) for parts in sorted(found)]  # noqa: PTH118

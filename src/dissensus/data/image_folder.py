"""Folders of images in the ImageNet layout, ``class/picture.jpg``.

``root/train/class/…`` with ``root/test/…`` and ``root/val/…`` as they exist, or ``root/class/…``
alone. Without a ``test`` folder the ``val`` folder is the test set, as it is for ImageNet, and
validation is cut from train.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.data.dataset import Data, Request, Split, check_classes, divide, split_rows
from dissensus.data.formats import IMAGE_SUFFIXES, MAX_PIXELS, decode_image
from dissensus.data.images import draw_rows, fit_images, to_unit
from dissensus.data.on_disk.examples import Batch, Reading, Source, read_each
from dissensus.data.on_disk.index import Index, OpenFiles, TableFile, indexed
from dissensus.data.on_disk.order import Numbers
from dissensus.data.on_disk.shards import examples_data, with_test
from dissensus.tools.progress import ProgressBar

#: Larger sets are not read into memory at once.
_LARGEST = 4 << 30
_ENDINGS = sorted(IMAGE_SUFFIXES)


class ImageFolder(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images below ``root/class/`` one at a time, for a DataLoader over sets of any size.

    Each is scaled so that its shorter side is ``size · 256/224``, cut to its central ``size`` ×
    ``size`` pixels (ImageNet's evaluation protocol), and given as float32 ``[3, size, size]`` in
    [0, 1]. Classes are the names of the folders in alphabetical order, or those of ``classes``. An
    image of more than ``max_pixels`` is not decoded.
    """

    def __init__(
        self,
        root: str | Path,
        size: int = 224,
        classes: Sequence[str] | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        root = Path(root)
        if not root.is_dir():
            raise ValueError(f"there is no folder {root}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a positive number of pixels, got {size!r}")
        names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.classes = tuple(names if classes is None else classes)
        check_classes(names, self.classes, root)
        self.root, self.size, self.max_pixels = root, size, max_pixels
        self.files: list[tuple[Path, int]] = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in find_images(root / name)
        ]
        _check_any(self.files, root)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self.files[index]
        return to_unit(decode_image(file, self.size, max_pixels=self.max_pixels)), label

    def part(self, rows: NDArray[np.int64], in_memory: bool) -> Split:
        """Some of the images with their labels; on disk they stand in for a tensor."""
        files = [self.files[row][0] for row in rows]
        x = ImageRows(self.root, files, self.size, max_pixels=self.max_pixels)
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
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.max_pixels = max_pixels
        self.root, self.files, self.size, self.fit = root, list(files), size, shape
        self.shape = torch.Size((len(self.files), *(shape or (3, size, size))))

    @classmethod
    def below(cls, root: Path, size: int, shape: tuple[int, ...] | None = None) -> ImageRows:
        """All images in a folder, at any depth."""
        files = find_images(root)
        if not files:
            raise ValueError(f"{root} holds no images; they end in {', '.join(_ENDINGS)}")
        return cls(root, files, size, shape)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: slice | Sequence[int] | Tensor | NDArray[np.int64]) -> Tensor:
        files = self.files[index] if isinstance(index, slice) else [self.files[i] for i in index]
        pixels = np.empty((len(files), 3, self.size, self.size), np.uint8)
        for row, file in enumerate(files):
            pixels[row] = decode_image(file, self.size, max_pixels=self.max_pixels)
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
    max_pixels: int = MAX_PIXELS,
) -> Data:
    """A folder of images as ``[rows, 3, size, size]`` in [0, 1].

    They are in memory, or with ``stream=True`` read as they are used by ``workers`` processes;
    ``on_error="skip"`` then leaves out those that cannot be read. By default, a set that needs more
    than 4 GiB of memory stays on disk. An image of more than ``max_pixels``, before or after it is
    scaled, is not decoded; that counts as one that cannot be read.
    """
    reading = Reading(size, None, workers, on_error, max_pixels)
    if stream is None:
        limited = limit is not None or test_limit is not None
        stream = not limited and _too_many(path, size)
    if stream:
        if limit is not None or test_limit is not None:
            raise ValueError("limit and test_limit are for images in memory; leave stream out")
        return _stream_folder(path, request, reading)
    if workers or on_error != "raise":
        raise ValueError("workers and on_error are for images on disk; set stream=True")
    return divide_folder(
        path, request, size, limit=limit, test_limit=test_limit, max_pixels=max_pixels
    )


def divide_folder(
    path: Path,
    request: Request,
    size: int,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    in_memory: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> Data:
    """A folder of images in memory, or read as they are used; both are divided alike."""
    folders = _find_parts(path)
    train = ImageFolder(folders.pop("train"), size, max_pixels=max_pixels)
    images = {"train": train}
    for part, root in folders.items():
        images[part] = ImageFolder(root, size, train.classes, max_pixels)
    rows = {part: np.arange(len(folder)) for part, folder in images.items()}
    # Images in folders of their own are numbered after those of train.
    first = dict(zip(images, np.cumsum([0, *map(len, rows.values())]).tolist(), strict=False))
    if "test" not in images:
        share = request.test_share
        train_rows, _, test_rows = split_rows(len(train), val=0, test=share, seed=request.seed)
        images["test"], first["test"] = train, 0
        rows = {"train": np.sort(train_rows), "test": np.sort(test_rows)}
        request = Request(seed=request.seed, val=request.val)
    for part, most, option in (("train", limit, "limit"), ("test", test_limit, "test_limit")):
        rows[part] = rows[part][draw_rows(len(rows[part]), most, request.seed, option)]
    count = sum(map(len, rows.values()))
    if in_memory and (needed := _bytes_needed(count, size)) > _LARGEST:
        raise ValueError(
            f"{count} images of {size} × {size} need {needed / 2**30:.1f} GiB of memory; lower "
            "size, or leave them on disk with stream=True"
        )
    return divide(
        path.resolve().name,
        "classification",
        {part: numbers + first[part] for part, numbers in rows.items()},
        lambda part, places: images[part].part(rows[part][places], in_memory),
        request,
        classes=train.classes,
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 255"]},
        source=str(path),
    )


def _find_parts(path: Path) -> dict[str, Path]:
    """The folders of train, test and val, as far as they exist."""
    if not (path / "train").is_dir():
        return {"train": path}
    parts = ("train", "test", "val")
    return with_test({part: path / part for part in parts if (path / part).is_dir()})


def _too_many(path: Path, size: int) -> bool:
    """Whether the images below ``path`` need more memory than a set may; counts no further."""
    most = _LARGEST // _bytes_needed(1, size)
    return sum(1 for _ in islice(_images_below(path), most + 1)) > most


def _bytes_needed(images: int, size: int) -> int:
    return images * 3 * size**2 * 5  # once as bytes, once as float32


def find_images(folder: Path) -> list[Path]:
    """The images in a folder, at any depth, in the order of their paths."""
    return sorted(_images_below(folder))


def _images_below(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)


def _check_any(files: object, root: Path) -> None:
    if not files:
        raise ValueError(
            f"{root} holds no images: the layout is class/picture.jpg, with one of "
            f"{', '.join(_ENDINGS)}"
        )


# ---- any number of images: their list stays on disk as well --------------------------------------


def _stream_folder(path: Path, request: Request, reading: Reading) -> Data:
    folders = {part: folder.resolve() for part, folder in _find_parts(path).items()}
    indexes = {
        part: indexed({"pictures": str(folder)}, partial(_build, folder))
        for part, folder in folders.items()
    }
    classes = tuple(indexes["train"].facts["classes"])
    sources: dict[str, Source] = {
        part: ImageSource(folder, indexes[part], classes, reading)
        for part, folder in folders.items()
    }
    notes = {"notes": ["pixels divided by 255"], "split_seed": request.seed}
    return examples_data(str(path), "classification", classes, sources, request, reading, (), notes)


def _build(root: Path, folder: Path) -> tuple[dict[str, Any], Sequence[Path]]:
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    entries, watched = TableFile(folder / "entries", "<i8", 2), [root]
    counts, offset = [], 0
    with (folder / "names").open("wb") as blob, ProgressBar("listing images", len(names)) as bar:
        for name in names:
            files = find_images(root / name)
            watched += [Path(place) for place, _, _ in os.walk(root / name)]
            texts = [os.fsencode(path.relative_to(root)) for path in files]
            places = np.cumsum([0, *map(len, texts)])
            if texts:
                entries.append(np.stack([offset + places[:-1], np.diff(places)], 1))
            blob.write(b"".join(texts))
            offset += int(places[-1])
            counts.append(len(texts))
            bar.advance()
    _check_any(sum(counts), root)
    return {"classes": names, "counts": counts}, watched


class ImageSource:
    """The images of an index by number; labels are positions in ``classes``."""

    ends: Numbers | None = None  # each is a file of its own

    def __init__(self, root: Path, index: Index, classes: Sequence[str], reading: Reading) -> None:
        size = reading.size
        self.root, self.size, self.max_pixels = root, size, reading.max_pixels
        self.shape: tuple[int, ...] = (3, size, size)
        names = index.facts["classes"]
        check_classes(names, classes, root)
        self.class_ends = np.cumsum(np.array(index.facts["counts"], dtype=np.int64))
        self.labels = np.array([classes.index(name) for name in names], dtype=np.int64)
        self.count, self.digest = int(self.class_ends[-1]), index.digest
        self.row_bytes = 3 * size * size
        self.entries = TableFile(index.folder / "entries", "<i8", 2)
        self.names, self.files = str(index.folder / "names"), OpenFiles(1)

    def read(self, numbers: Numbers) -> Batch:
        names = self.entries[numbers].tolist()

        def load(place: int) -> NDArray[np.uint8]:
            name = os.fsdecode(self.files.read(self.names, *names[place]))
            return decode_image(self.root / name, self.size, max_pixels=self.max_pixels)

        def targets(places: list[int]) -> NDArray[np.int64]:
            return self.targets(numbers[places])

        return read_each(len(numbers), self.shape, load, targets, pixels=True)

    def targets(self, numbers: Numbers) -> NDArray[np.int64]:
        return self.labels[np.searchsorted(self.class_ends, numbers, side="right")]

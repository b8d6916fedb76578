"""Image files, ``class/picture.jpg``, of any number; their list stays on disk as well."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.dataset import check_classes
from dissensus.data.formats import IMAGE_SUFFIXES, decode_image
from dissensus.data.image_folder import find_images
from dissensus.data.on_disk.examples import Batch, read_each
from dissensus.data.on_disk.index import Index, OpenFiles, TableFile, indexed
from dissensus.data.on_disk.order import Numbers
from dissensus.progress import ProgressBar

__all__ = ["ImageSource", "index_images"]


def index_images(root: Path) -> Index:
    """The list of the images below ``root/class/``."""
    return indexed({"pictures": str(root.resolve())}, partial(_build, root.resolve()))


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
    if not sum(counts):
        raise ValueError(
            f"{root} holds no images: the layout is class/picture.jpg, with one of "
            f"{', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    return {"classes": names, "counts": counts}, watched


class ImageSource:
    """The images of an index by number; labels are positions in ``classes``."""

    ends: Numbers | None = None  # each is a file of its own

    def __init__(self, root: Path, index: Index, classes: Sequence[str], size: int) -> None:
        self.root, self.size = root.resolve(), size
        self.shape: tuple[int, ...] = (3, size, size)
        own = index.facts["classes"]
        check_classes(own, classes, root)
        self.class_ends = np.cumsum(np.array(index.facts["counts"], dtype=np.int64))
        self.labels = np.array([classes.index(name) for name in own], dtype=np.int64)
        self.count, self.digest = int(self.class_ends[-1]), index.digest
        self.row_bytes = 3 * size * size
        self.entries = TableFile(index.folder / "entries", "<i8", 2)
        self.names, self.files = str(index.folder / "names"), OpenFiles(1)

    def read(self, numbers: Numbers) -> Batch:
        """The examples of these numbers, in their order."""
        places = self.entries[numbers].tolist()

        def path(place: int) -> Path:
            return self.root / os.fsdecode(self.files.read(self.names, *places[place]))

        def load(place: int) -> NDArray[Any]:
            return decode_image(path(place), self.size)

        return read_each(
            len(numbers),
            self.shape,
            pixels=True,
            load=load,
            where=lambda place: str(path(place)),
            targets=lambda kept: self.targets(numbers[kept]),
        )

    def targets(self, numbers: Numbers) -> NDArray[np.int64]:
        """The labels alone."""
        return self.labels[np.searchsorted(self.class_ends, numbers, side="right")]

"""MNIST, Fashion-MNIST and KMNIST: 28 × 28 grey images, 60,000 for training, 10,000 for testing."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.base import Data, Request
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.images import Pixels, image_data

__all__ = ["FAMILY", "Member", "load_mnist", "mnist_test_pixels", "read_idx"]

_IDX = {
    "train_x": "train-images-idx3-ubyte.gz",
    "train_y": "train-labels-idx1-ubyte.gz",
    "test_x": "t10k-images-idx3-ubyte.gz",
    "test_y": "t10k-labels-idx1-ubyte.gz",
}
_NO_NPZ = "no checksum of this file is known for certain: shape and labels are checked"
_ROWS = {"train": 60_000, "test": 10_000}


@dataclass(frozen=True)
class Member:
    """One data set of the family: folders that may hold it, its four files, its classes."""

    folders: tuple[str, ...]
    files: dict[str, RemoteFile]
    classes: tuple[str, ...]
    source: str


def _idx_files(base: str, checksums: dict[str, str]) -> dict[str, RemoteFile]:
    kinds = {32: "md5", 64: "sha256"}  # by the number of digits
    return {
        part: RemoteFile(name, f"{base}/{name}", f"{kinds[len(checksums[part])]}:{checksums[part]}")
        for part, name in _IDX.items()
    }


def _npz_files(base: str, checksums: dict[str, str]) -> dict[str, RemoteFile]:
    names = {
        "train_x": "kmnist-train-imgs.npz",
        "train_y": "kmnist-train-labels.npz",
        "test_x": "kmnist-test-imgs.npz",
        "test_y": "kmnist-test-labels.npz",
    }
    return {
        part: RemoteFile(
            name,
            f"{base}/{name}",
            checksums.get(part),
            unchecked="" if part in checksums else _NO_NPZ,
        )
        for part, name in names.items()
    }


FAMILY: dict[str, Member] = {
    "mnist": Member(
        ("mnist", "MNIST/raw"),
        # A mirror, because the original page no longer serves the files; the checksums are of the
        # original content, uncompressed.
        _idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train_x": "6bbc9ace898e44ae57da46a324031adb",
                "train_y": "a25bea736e30d166cdddb491f175f624",
                "test_x": "2646ac647ad5339dbf082846283269ea",
                "test_y": "27ae3e4e09519cfbb04c329615203637",
            },
        ),
        tuple("0123456789"),
        "MNIST (LeCun, Cortes, Burges); OpenML 554",
    ),
    "fashion_mnist": Member(
        ("fashion-mnist", "FashionMNIST/raw"),
        # Of the content: copies of these .gz files differ in the time and name in their headers.
        _idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            {
                "train_x": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train_y": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "test_x": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "test_y": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
        ),
        (
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        "Fashion-MNIST (Zalando Research); OpenML 40996",
    ),
    "kmnist": Member(
        ("kmnist", "KMNIST/raw"),
        _npz_files(
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
            {
                "test_x": "md5:dace6de62ca8b90843cc45366337d02e",
                "test_y": "md5:3ae489a79983d0fe386152684e3b5412",
            },
        ),
        ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        "KMNIST (CODH); OpenML 41982",
    ),
}


def load_mnist(
    name: str,
    request: Request,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    verify: bool = True,
) -> Data:
    """A member of :data:`FAMILY` as images ``[rows, 1, 28, 28]`` in [0, 1]."""
    member = FAMILY[name]
    paths = locate(list(member.files.values()), member.folders, request, what=name)
    return image_data(
        name,
        _pixels(member, "train", paths, verify),
        _pixels(member, "test", paths, verify),
        request,
        classes=member.classes,
        source=member.source,
        limit=limit,
        test_limit=test_limit,
    )


def mnist_test_pixels(name: str, request: Request, *, verify: bool = True) -> Pixels:
    """The test part alone; the training files need not be there."""
    member = FAMILY[name]
    files = [member.files["test_x"], member.files["test_y"]]
    return _pixels(member, "test", locate(files, member.folders, request, what=name), verify)


def _pixels(member: Member, part: str, paths: dict[str, Path], verify: bool) -> Pixels:
    files = member.files[f"{part}_x"], member.files[f"{part}_y"]
    x, y = (_array(paths[file.name], file, verify) for file in files)
    if verify and (x.shape != (_ROWS[part], 28, 28) or y.shape != (_ROWS[part],)):
        raise ValueError(
            f"{paths[files[0].name]} must hold {_ROWS[part]} images of 28 × 28 and as many labels, "
            f"got {x.shape} and {y.shape}; delete it and load again, or pass verify=False"
        )
    return Pixels(x.reshape(len(x), 1, *x.shape[1:]), y.astype(np.int64))


def _array(path: Path, file: RemoteFile, verify: bool) -> NDArray[np.uint8]:
    raw = content(path, file, verify=verify)
    return _read_npz(raw, path) if path.suffix == ".npz" else read_idx(raw, str(path))


def _read_npz(raw: bytes, path: Path) -> NDArray[np.uint8]:
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            array: NDArray[Any] = file["arr_0"]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be an .npz with one array, 'arr_0' ({error})") from error
    return array.astype(np.uint8, casting="same_kind")


def read_idx(raw: bytes, where: str) -> NDArray[np.uint8]:
    """The array of an idx file of bytes: two zeros, a type code, the axes, their sizes, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]), "toy")
    array([5, 6, 7], dtype=uint8)
    """
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{where} is not an idx file of bytes: it starts with {raw[:4].hex()!r}")
    axes = raw[3]
    shape = tuple(np.frombuffer(raw, ">u4", min(axes, (len(raw) - 4) // 4), 4).tolist())
    values = np.frombuffer(raw, np.uint8, offset=min(len(raw), 4 + 4 * axes))
    if len(shape) != axes or values.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(
            f"{where} is cut short or damaged: it states the shape {shape} and holds "
            f"{values.size} bytes"
        )
    return values.reshape(shape)

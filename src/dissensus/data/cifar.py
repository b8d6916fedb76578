"""CIFAR-10 and CIFAR-100 in their official *binary* version; the Python version is pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.data.base import Data, Request
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.images import Pixels, image_data

__all__ = ["CIFAR", "CifarSet", "cifar_test_pixels", "load_cifar", "read_cifar"]

_BASE = "https://www.cs.toronto.edu/~kriz"
_IMAGE = 3 * 32 * 32
_TEST_ROWS = 10_000

_CLASSES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CLASSES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class CifarSet:
    """One of the two sets: its files, and how many label bytes stand before each image."""

    folders: tuple[str, ...]
    train: tuple[RemoteFile, ...]
    test: RemoteFile
    label_bytes: int
    train_rows: int  # in each file
    classes: tuple[str, ...]


def _ten(name: str, md5: str) -> RemoteFile:
    return RemoteFile(name, f"{_BASE}/cifar-10-binary.tar.gz", f"md5:{md5}")


def _hundred(name: str) -> RemoteFile:
    return RemoteFile(
        name,
        f"{_BASE}/cifar-100-binary.tar.gz",
        unchecked="the official page states a checksum of the archive only; sizes are checked",
        archive_checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
    )


CIFAR: dict[str, CifarSet] = {
    "cifar10": CifarSet(
        ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        (
            _ten("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            _ten("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
            _ten("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            _ten("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            _ten("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
        ),
        _ten("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        label_bytes=1,
        train_rows=10_000,
        classes=tuple(_CLASSES_10.split()),
    ),
    "cifar100": CifarSet(
        ("cifar-100-binary", "cifar100/cifar-100-binary"),
        (_hundred("train.bin"),),
        _hundred("test.bin"),
        label_bytes=2,
        train_rows=50_000,
        classes=tuple(_CLASSES_100.split()),
    ),
}


def load_cifar(
    name: str,
    request: Request,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    verify: bool = True,
) -> Data:
    """One of :data:`CIFAR` as images ``[rows, 3, 32, 32]`` in [0, 1]; fine labels for 100."""
    which = CIFAR[name]
    locate([*which.train, which.test], which.folders, request, what=name)  # all at once
    return image_data(
        name,
        _pixels(which, which.train, request, name, verify),
        _pixels(which, (which.test,), request, name, verify),
        request,
        classes=which.classes,
        source=which.test.url,
        limit=limit,
        test_limit=test_limit,
    )


def cifar_test_pixels(name: str, request: Request, *, verify: bool = True) -> Pixels:
    """The test part alone."""
    return _pixels(CIFAR[name], (CIFAR[name].test,), request, name, verify)


def _pixels(
    which: CifarSet, files: Sequence[RemoteFile], request: Request, name: str, verify: bool
) -> Pixels:
    paths = locate(files, which.folders, request, what=name)
    parts = []
    for file in files:
        path = paths[file.name]
        part = read_cifar(content(path, file, verify=verify), str(path), which.label_bytes)
        wanted = _TEST_ROWS if file == which.test else which.train_rows
        if verify and len(part.x) != wanted:
            raise ValueError(
                f"{path} must hold {wanted} images, got {len(part.x)}; delete it and load again, "
                "or pass verify=False to use it as it is"
            )
        parts.append(part)
    return Pixels(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))


def read_cifar(raw: bytes, where: str, label_bytes: int = 1) -> Pixels:
    """Records of ``label_bytes`` labels (the last is the fine one) and 3 × 32 × 32 bytes.

    >>> read_cifar(bytes([7]) + bytes(3072), "toy").y
    array([7])
    """
    record = label_bytes + _IMAGE
    if not raw or len(raw) % record:
        raise ValueError(
            f"{where} is not a CIFAR binary file: {len(raw)} bytes are not a multiple of {record}; "
            "the Python version (pickle) is not read, get the binary one"
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return Pixels(
        rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].astype(np.int64)
    )

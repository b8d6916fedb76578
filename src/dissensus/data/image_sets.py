"""Known image sets: digits, MNIST and its kin, CIFAR, SVHN, with sources and checksums.

Checksums are of the content: copies of a ``.gz`` differ in the time and name in their headers.
CIFAR is read in its *binary* version, as the Python version is pickle.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus.data.dataset import Data, Request, Split, divide
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.images import draw_rows, open_image, to_unit
from dissensus.tools.files import damaged, read_npz
from dissensus.tools.guards import check_shape

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Pixels:
    """One part of an image set: ``x`` uint8 ``[rows, channels, height, width]`` and labels."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        check_shape(self.x, name="pixels", rows=None, channels=None, height=None, width=None)
        check_shape(self.y, name="labels", rows=len(self.x))


@dataclass(frozen=True)
class ImageSet:
    """An image set: ``read`` makes pixels of the contents of a part's files, by their paths.

    ``files`` are those of ``"train"`` and ``"test"``, which one of ``folders`` may hold; each part
    has ``rows`` images of ``shape``.
    """

    folders: tuple[str, ...]
    files: Mapping[str, tuple[RemoteFile, ...]]
    read: Callable[[Mapping[str, bytes]], Pixels]
    rows: Mapping[str, int]
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    source: str


# ---- readers ------------------------------------------------------------------------------------


def _idx(files: Mapping[str, bytes]) -> Pixels:
    """A file of images and one of labels."""
    x, y = (read_idx(raw, path) for path, raw in files.items())
    return Pixels(x[:, None], y.astype(np.int64))


def _npz(files: Mapping[str, bytes]) -> Pixels:
    """The same as two ``.npz`` of one array each."""
    arrays = []
    for path, raw in files.items():
        content = read_npz(raw, path)
        if "arr_0" not in content:
            raise ValueError(f"{path} must be an .npz with one array, 'arr_0', got {list(content)}")
        arrays.append(content["arr_0"].astype(np.uint8, casting="same_kind"))
    x, y = arrays
    return Pixels(x[:, None], y.astype(np.int64))


def _cifar(files: Mapping[str, bytes], label_bytes: int = 1) -> Pixels:
    parts = [read_cifar(raw, path, label_bytes) for path, raw in files.items()]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Pixels(x, y.astype(np.int64))


def _svhn(files: Mapping[str, bytes]) -> Pixels:
    """``X`` ``[32, 32, 3, rows]`` and ``y`` with 10 for the digit 0."""
    [(path, raw)] = files.items()
    from scipy.io import loadmat

    try:
        file = loadmat(io.BytesIO(raw), variable_names=["X", "y"])
        x, y = np.asarray(file["X"]), np.asarray(file["y"])
    except Exception as error:  # SciPy raises all kinds for damaged files
        raise damaged(path, ".mat with X and y", error) from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise ValueError(f"{path}: X must be uint8 [32, 32, 3, rows], got {x.dtype} {x.shape}")
    labels = y.reshape(-1).astype(np.int64) % 10
    return Pixels(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels)


def read_idx(raw: bytes, where: str) -> Bytes:
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
        raise ValueError(f"{where} is cut short: {values.size} bytes for the shape {shape}")
    return values.reshape(shape)


def read_cifar(raw: bytes, where: str, label_bytes: int = 1) -> tuple[Bytes, Bytes]:
    """Images and labels from records of ``label_bytes`` labels and 3 × 32 × 32 bytes.

    Of several labels the last is the fine one.

    >>> read_cifar(bytes([7]) + bytes(3072), "toy")[1]
    array([7], dtype=uint8)
    """
    record = label_bytes + 3 * 32 * 32
    if not raw or len(raw) % record:
        raise ValueError(f"{where} is not a CIFAR binary file; a pickle is not read")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


# ---- sources and checksums ----------------------------------------------------------------------


def _file(base: str, name: str, checksum: str | None = None) -> RemoteFile:
    return RemoteFile(name, f"{base}/{name}", checksum)


def _idx_files(base: str, *checksums: str) -> dict[str, tuple[RemoteFile, ...]]:
    """Files in MNIST's layout; checksums of images and labels, of train and then of test."""
    parts = {"train": "train", "test": "t10k"}
    kinds = ("images-idx3", "labels-idx1")
    sums = iter(checksums)
    return {
        part: tuple(_file(base, f"{word}-{kind}-ubyte.gz", next(sums)) for kind in kinds)
        for part, word in parts.items()
    }


def _cifar10_file(name: str, checksum: str) -> RemoteFile:
    return RemoteFile(name, f"{_CIFAR}/cifar-10-binary.tar.gz", checksum)


def _cifar100_file(name: str) -> RemoteFile:
    """The official page states a checksum of the archive only."""
    checksum = "md5:03b5dce01913d631647c71ecec9e9cb8"
    return RemoteFile(name, f"{_CIFAR}/cifar-100-binary.tar.gz", archive_checksum=checksum)


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"  # a mirror: the original page serves none
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_KMNIST = "http://codh.rois.ac.jp/kmnist/dataset/kmnist"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

_STRIP = "svhn_test_5k_reconstructed.png"
_STRIP_LABELS = "svhn_test_5k_labels.npz"

_FASHION_CLASSES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR_10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR_100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

#: Image sets by name.
IMAGE_SETS: dict[str, ImageSet] = {
    "mnist": ImageSet(
        folders=("mnist", "MNIST/raw"),
        files=_idx_files(
            _MNIST,
            "md5:6bbc9ace898e44ae57da46a324031adb",
            "md5:a25bea736e30d166cdddb491f175f624",
            "md5:2646ac647ad5339dbf082846283269ea",
            "md5:27ae3e4e09519cfbb04c329615203637",
        ),
        read=_idx,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        classes=tuple("0123456789"),
        source="MNIST (LeCun, Cortes, Burges); OpenML 554",
    ),
    "fashion_mnist": ImageSet(
        folders=("fashion-mnist", "FashionMNIST/raw"),
        files=_idx_files(
            _FASHION,
            "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        read=_idx,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        classes=tuple(_FASHION_CLASSES.split(",")),
        source="Fashion-MNIST (Zalando Research); OpenML 40996",
    ),
    "kmnist": ImageSet(
        folders=("kmnist", "KMNIST/raw"),
        files={
            "train": (  # of which no checksum is known for certain
                _file(_KMNIST, "kmnist-train-imgs.npz"),
                _file(_KMNIST, "kmnist-train-labels.npz"),
            ),
            "test": (
                _file(_KMNIST, "kmnist-test-imgs.npz", "md5:dace6de62ca8b90843cc45366337d02e"),
                _file(_KMNIST, "kmnist-test-labels.npz", "md5:3ae489a79983d0fe386152684e3b5412"),
            ),
        },
        read=_npz,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        source="KMNIST (CODH); OpenML 41982",
    ),
    "cifar10": ImageSet(
        folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        files={
            "train": (
                _cifar10_file("data_batch_1.bin", "md5:5dd7e06a14cb22eb9f671a540d1b7c25"),
                _cifar10_file("data_batch_2.bin", "md5:5ea93a67294ea407fff1d09f752e9692"),
                _cifar10_file("data_batch_3.bin", "md5:942cd6a4bcdd0dd3c604fbe906cb4421"),
                _cifar10_file("data_batch_4.bin", "md5:ae636b3ba5c66a11e91e8cb52e771fcb"),
                _cifar10_file("data_batch_5.bin", "md5:53f37980c15c3d472c316c40844f3f0d"),
            ),
            "test": (_cifar10_file("test_batch.bin", "md5:803d5f7f4d78ea53de84dbe85f74fb6d"),),
        },
        read=_cifar,
        rows={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        classes=tuple(_CIFAR_10_CLASSES.split()),
        source=f"{_CIFAR}/cifar-10-binary.tar.gz",
    ),
    "cifar100": ImageSet(
        folders=("cifar-100-binary", "cifar100/cifar-100-binary"),
        files={"train": (_cifar100_file("train.bin"),), "test": (_cifar100_file("test.bin"),)},
        read=partial(_cifar, label_bytes=2),
        rows={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        classes=tuple(_CIFAR_100_CLASSES.split()),  # the fine ones
        source=f"{_CIFAR}/cifar-100-binary.tar.gz",
    ),
    "svhn": ImageSet(
        folders=("svhn", "SVHN"),
        # The checksum of train is the one that public loaders use; it was not computed from a copy.
        files={
            "train": (_file(_SVHN, "train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),),
            "test": (_file(_SVHN, "test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),),
        },
        read=_svhn,
        rows={"train": 73_257, "test": 26_032},
        shape=(3, 32, 32),
        classes=tuple("0123456789"),
        source=_SVHN,
    ),
}


# ---- loading ------------------------------------------------------------------------------------


def load_image_set(
    name: str,
    request: Request,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    verify: bool = True,
) -> Data:
    """One of :data:`IMAGE_SETS` as images ``[rows, channels, height, width]`` in [0, 1].

    The official test part is kept and validation is cut from train. ``limit`` and ``test_limit``
    draw that many rows of train (before validation is cut) and of test, at random but the same for
    the same seed. Row numbers of test follow those of train.
    """
    images = IMAGE_SETS[name]
    locate([*images.files["train"], *images.files["test"]], images.folders, request, what=name)
    parts = {part: _pixels(name, part, request, verify) for part in ("train", "test")}
    for part, pixels in parts.items():
        low, high = (int(pixels.y.min()), int(pixels.y.max())) if len(pixels.y) else (0, 0)
        if low < 0 or high >= len(images.classes):
            raise ValueError(f"{name}: {part} labels run from {low} to {high}")
    limits = (("train", limit, "limit"), ("test", test_limit, "test_limit"))
    rows = {
        part: draw_rows(len(parts[part].x), most, request.seed, option)
        for part, most, option in limits
    }

    def pick(part: str, places: NDArray[np.int64]) -> Split:
        chosen = rows[part][places]
        return to_unit(parts[part].x[chosen]), torch.from_numpy(parts[part].y[chosen])

    return divide(
        name,
        "classification",
        {"train": rows["train"], "test": rows["test"] + len(parts["train"].x)},
        pick,
        request,
        classes=images.classes,
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 255"]},
        source=images.source,
    )


def load_test_pixels(name: str, request: Request, *, verify: bool = True) -> Pixels:
    """The test part alone; the training files need not be there.

    For SVHN, where the official file is missing, a strip of 5,000 test digits serves that were cut
    from the full photographs: good for unknown inputs, not for a published accuracy.
    """
    images = IMAGE_SETS[name]
    for folder in [place / each for place in request.places for each in images.folders]:
        official = (folder / images.files["test"][0].name).is_file()
        if name == "svhn" and not official and (folder / _STRIP).is_file():
            return _strip(folder)
    return _pixels(name, "test", request, verify)


def _pixels(name: str, part: str, request: Request, verify: bool) -> Pixels:
    images = IMAGE_SETS[name]
    paths = locate(images.files[part], images.folders, request, what=name)
    pixels = images.read(
        {str(paths[f.name]): content(paths[f.name], f, verify=verify) for f in images.files[part]}
    )
    wanted = (images.rows[part], *images.shape)
    if verify and pixels.x.shape != wanted:
        path = next(iter(paths.values()))
        raise ValueError(f"{path} must hold {wanted} pixels, got {pixels.x.shape}; delete it")
    return pixels


def _strip(folder: Path) -> Pixels:
    pixels = np.asarray(open_image(folder / _STRIP, str(folder / _STRIP)))
    if pixels.shape[0] % 32 or pixels.shape[1:] != (32, 3):
        raise ValueError(f"{folder / _STRIP} must be 32 pixels wide, got {pixels.shape}")
    y = read_npz(folder / _STRIP_LABELS)["y"].astype(np.int64)
    x = pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    return Pixels(np.ascontiguousarray(x), y)


def load_digits_images(request: Request) -> Data:
    """1,797 handwritten digits of 8 × 8 pixels in [0, 1], ten classes.

    >>> load_digits_images(Request(seed=0))
    Data('digits': classification, (1, 8, 8), 10 classes; train 1150, val 288, test 359)
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images / 16.0)[:, None].float()
    y = torch.from_numpy(bunch.target.astype(np.int64))
    return divide(
        "digits",
        "classification",
        {"train": np.arange(len(x))},
        lambda _, rows: (x[rows], y[rows]),
        request,
        classes=tuple(str(name) for name in bunch.target_names),
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 16"]},
        source="embedded in scikit-learn: sklearn.datasets.load_digits",
    )

"""Known image sets: digits, MNIST and its kin, CIFAR, SVHN, with sources and checksums.

Checksums are of the content: copies of a ``.gz`` differ in the time and name in their headers.
CIFAR is read in its *binary* version, as the Python version is pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dissensus.data.dataset import Data, Request, divide, tensors
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.formats import open_image, read_cifar, read_idx, read_mat, read_npz
from dissensus.data.images import Pixels, image_data

__all__ = ["IMAGE_SETS", "ImageSet", "load_digits_images", "load_image_set", "load_test_pixels"]


@dataclass(frozen=True)
class ImageSet:
    """An image set: ``read`` makes images and labels of the ``files`` of ``"train"`` or ``"test"``.

    ``folders`` may hold the files, ``rows`` images of ``shape`` are in each part.
    """

    folders: tuple[str, ...]
    files: Mapping[str, tuple[RemoteFile, ...]]
    read: Callable[[Sequence[bytes], Sequence[Path]], Pixels]
    rows: Mapping[str, int]
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    source: str


# ---- readers ------------------------------------------------------------------------------------


def _idx(raw: Sequence[bytes], paths: Sequence[Path]) -> Pixels:
    """A file of images and one of labels."""
    x, y = (read_idx(own, str(path)) for own, path in zip(raw, paths, strict=True))
    return Pixels(x[:, None], y.astype(np.int64))


def _npz(raw: Sequence[bytes], paths: Sequence[Path]) -> Pixels:
    """The same as two ``.npz`` of one array each."""
    arrays = [read_npz(own, str(path)) for own, path in zip(raw, paths, strict=True)]
    for path, own in zip(paths, arrays, strict=True):
        if "arr_0" not in own:
            raise ValueError(f"{path} must be an .npz with one array, 'arr_0', got {list(own)}")
    x, y = (own["arr_0"].astype(np.uint8, casting="same_kind") for own in arrays)
    return Pixels(x[:, None], y.astype(np.int64))


def _cifar10(raw: Sequence[bytes], paths: Sequence[Path], label_bytes: int = 1) -> Pixels:
    pairs = zip(raw, paths, strict=True)
    parts = [read_cifar(own, str(path), label_bytes) for own, path in pairs]
    x, y = (np.concatenate(own) for own in zip(*parts, strict=True))
    return Pixels(x, y.astype(np.int64))


def _cifar100(raw: Sequence[bytes], paths: Sequence[Path]) -> Pixels:
    return _cifar10(raw, paths, label_bytes=2)


def _svhn(raw: Sequence[bytes], paths: Sequence[Path]) -> Pixels:
    """``X`` ``[32, 32, 3, rows]`` and ``y`` with 10 for the digit 0."""
    x, y = read_mat(raw[0], str(paths[0]), ("X", "y"))
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise ValueError(f"{paths[0]}: X must be uint8 [32, 32, 3, rows], got {x.dtype} {x.shape}")
    labels = y.reshape(-1).astype(np.int64) % 10
    return Pixels(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels)


# ---- sources and checksums ----------------------------------------------------------------------


def _file(base: str, name: str, checksum: str | None = None, unchecked: str = "") -> RemoteFile:
    return RemoteFile(name, f"{base}/{name}", checksum, unchecked)


def _ten(name: str, checksum: str) -> RemoteFile:
    return RemoteFile(name, f"{_CIFAR}/cifar-10-binary.tar.gz", checksum)


def _hundred(name: str) -> RemoteFile:
    return RemoteFile(
        name,
        f"{_CIFAR}/cifar-100-binary.tar.gz",
        unchecked="the official page states a checksum of the archive only; sizes are checked",
        archive_checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
    )


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"  # a mirror: the original page serves none
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_KMNIST = "http://codh.rois.ac.jp/kmnist/dataset/kmnist"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

_UNCHECKED = "no checksum of this file is known for certain: shape and labels are checked"
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
        files={
            "train": (
                _file(_MNIST, "train-images-idx3-ubyte.gz", "md5:6bbc9ace898e44ae57da46a324031adb"),
                _file(_MNIST, "train-labels-idx1-ubyte.gz", "md5:a25bea736e30d166cdddb491f175f624"),
            ),
            "test": (
                _file(_MNIST, "t10k-images-idx3-ubyte.gz", "md5:2646ac647ad5339dbf082846283269ea"),
                _file(_MNIST, "t10k-labels-idx1-ubyte.gz", "md5:27ae3e4e09519cfbb04c329615203637"),
            ),
        },
        read=_idx,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        classes=tuple("0123456789"),
        source="MNIST (LeCun, Cortes, Burges); OpenML 554",
    ),
    "fashion_mnist": ImageSet(
        folders=("fashion-mnist", "FashionMNIST/raw"),
        files={
            "train": (
                _file(
                    _FASHION,
                    "train-images-idx3-ubyte.gz",
                    "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                ),
                _file(
                    _FASHION,
                    "train-labels-idx1-ubyte.gz",
                    "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                ),
            ),
            "test": (
                _file(
                    _FASHION,
                    "t10k-images-idx3-ubyte.gz",
                    "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                ),
                _file(
                    _FASHION,
                    "t10k-labels-idx1-ubyte.gz",
                    "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
            ),
        },
        read=_idx,
        rows={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        classes=tuple(_FASHION_CLASSES.split(",")),
        source="Fashion-MNIST (Zalando Research); OpenML 40996",
    ),
    "kmnist": ImageSet(
        folders=("kmnist", "KMNIST/raw"),
        files={
            "train": (
                _file(_KMNIST, "kmnist-train-imgs.npz", None, _UNCHECKED),
                _file(_KMNIST, "kmnist-train-labels.npz", None, _UNCHECKED),
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
                _ten("data_batch_1.bin", "md5:5dd7e06a14cb22eb9f671a540d1b7c25"),
                _ten("data_batch_2.bin", "md5:5ea93a67294ea407fff1d09f752e9692"),
                _ten("data_batch_3.bin", "md5:942cd6a4bcdd0dd3c604fbe906cb4421"),
                _ten("data_batch_4.bin", "md5:ae636b3ba5c66a11e91e8cb52e771fcb"),
                _ten("data_batch_5.bin", "md5:53f37980c15c3d472c316c40844f3f0d"),
            ),
            "test": (_ten("test_batch.bin", "md5:803d5f7f4d78ea53de84dbe85f74fb6d"),),
        },
        read=_cifar10,
        rows={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        classes=tuple(_CIFAR_10_CLASSES.split()),
        source=f"{_CIFAR}/cifar-10-binary.tar.gz",
    ),
    "cifar100": ImageSet(
        folders=("cifar-100-binary", "cifar100/cifar-100-binary"),
        files={"train": (_hundred("train.bin"),), "test": (_hundred("test.bin"),)},
        read=_cifar100,
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
    """One of :data:`IMAGE_SETS` as images ``[rows, channels, height, width]`` in [0, 1]."""
    which = IMAGE_SETS[name]
    every = [*which.files["train"], *which.files["test"]]
    locate(every, which.folders, request, what=name)  # all at once
    return image_data(
        name,
        _pixels(name, "train", request, verify),
        _pixels(name, "test", request, verify),
        request,
        classes=which.classes,
        source=which.source,
        limit=limit,
        test_limit=test_limit,
    )


def load_test_pixels(name: str, request: Request, *, verify: bool = True) -> Pixels:
    """The test part alone; the training files need not be there.

    For SVHN, where the official file is missing, a strip of 5,000 test digits serves that were cut
    from the full photographs: good for unknown inputs, not for a published accuracy.
    """
    if name == "svhn":
        folders = [place / own for place in request.places for own in IMAGE_SETS[name].folders]
        for folder in folders:
            official = (folder / IMAGE_SETS[name].files["test"][0].name).is_file()
            if not official and (folder / _STRIP).is_file():
                return _strip(folder)
    return _pixels(name, "test", request, verify)


def _pixels(name: str, part: str, request: Request, verify: bool) -> Pixels:
    which = IMAGE_SETS[name]
    files = which.files[part]
    located = locate(files, which.folders, request, what=name)
    paths = [located[file.name] for file in files]
    raw = [content(path, file, verify=verify) for path, file in zip(paths, files, strict=True)]
    pixels = which.read(raw, paths)
    wanted = (which.rows[part], *which.shape)
    if verify and pixels.x.shape != wanted:
        raise ValueError(
            f"{paths[0]} must hold {wanted} pixels, together with files like it, got "
            f"{pixels.x.shape}; delete it and load again, or pass verify=False to use it as it is"
        )
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
    x = (bunch.images / 16.0)[:, None]
    return divide(
        "digits",
        "classification",
        {"train": np.arange(len(x))},
        lambda _, rows: tensors(x, bunch.target, rows, "classification"),
        request,
        classes=tuple(str(name) for name in bunch.target_names),
        preprocessing={"split_seed": request.seed, "notes": ["pixels divided by 16"]},
        source="embedded in scikit-learn: sklearn.datasets.load_digits",
    )

"""SVHN: house numbers of 32 × 32 pixels; the official ``.mat`` files, or re-cut test digits."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from dissensus.data.base import Data, Request, missing_extra
from dissensus.data.download import RemoteFile, content, locate
from dissensus.data.images import Pixels, image_data

__all__ = ["SVHN_FILES", "load_svhn", "read_svhn", "svhn_test_pixels"]

_BASE = "http://ufldl.stanford.edu/housenumbers"
_FOLDERS = ("svhn", "SVHN")
_ROWS = {"train": 73_257, "test": 26_032}
_STRIP = "svhn_test_5k_reconstructed.png"
_STRIP_LABELS = "svhn_test_5k_labels.npz"

SVHN_FILES: dict[str, RemoteFile] = {
    # The checksum of train is the one that public loaders use; it was not computed from a copy.
    "train": RemoteFile(
        "train_32x32.mat", f"{_BASE}/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"
    ),
    "test": RemoteFile(
        "test_32x32.mat", f"{_BASE}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"
    ),
}


def load_svhn(
    request: Request,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    verify: bool = True,
) -> Data:
    """SVHN, cropped digits, as images ``[rows, 3, 32, 32]`` in [0, 1]; the digit 0 is class 0."""
    paths = locate(list(SVHN_FILES.values()), _FOLDERS, request, what="svhn")
    train, test = (
        _official(paths[file.name], file, part, verify) for part, file in SVHN_FILES.items()
    )
    return image_data(
        "svhn",
        train,
        test,
        request,
        classes=tuple("0123456789"),
        source=_BASE,
        limit=limit,
        test_limit=test_limit,
    )


def svhn_test_pixels(request: Request, *, verify: bool = True) -> Pixels:
    """Test digits as unknown inputs: the official file, or the re-cut strip where that lies there.

    The strip is 5,000 test digits cut anew from the full photographs: not the official pixels, so
    good for out-of-distribution inputs and not for a published accuracy.
    """
    for place in request.places:
        for folder in (place / name for name in _FOLDERS):
            official = (folder / SVHN_FILES["test"].name).is_file()
            if not official and (folder / _STRIP).is_file():
                return _strip(folder)
    file = SVHN_FILES["test"]
    path = locate([file], _FOLDERS, request, what="svhn")[file.name]
    return _official(path, file, "test", verify)


def _official(path: Path, file: RemoteFile, part: str, verify: bool) -> Pixels:
    pixels = read_svhn(content(path, file, verify=verify), str(path))
    if verify and len(pixels.x) != _ROWS[part]:
        raise ValueError(f"{path} must hold {_ROWS[part]} images, got {len(pixels.x)}")
    return pixels


def read_svhn(raw: bytes, where: str) -> Pixels:
    """``X`` ``[32, 32, 3, rows]`` and ``y`` with 10 for the digit 0, from a MATLAB file."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        file = loadmat(io.BytesIO(raw), variable_names=["X", "y"])
        x, y = np.asarray(file["X"]), np.asarray(file["y"]).reshape(-1)
    except (MatReadError, ValueError, TypeError, KeyError, OSError, NotImplementedError) as error:
        raise ValueError(f"{where} must be a .mat file with X and y ({error!r})") from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise ValueError(f"{where}: X must be uint8 [32, 32, 3, rows], got {x.dtype} {x.shape}")
    return Pixels(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10)


def _strip(folder: Path) -> Pixels:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_extra("the SVHN strip", "Pillow", "pillow") from error
    with Image.open(folder / _STRIP) as image:
        pixels = np.asarray(image.convert("RGB"))
    if pixels.shape[0] % 32 or pixels.shape[1:] != (32, 3):
        raise ValueError(f"{folder / _STRIP} must be 32 pixels wide, got {pixels.shape}")
    with np.load(folder / _STRIP_LABELS, allow_pickle=False) as labels:
        y = labels["y"].astype(np.int64)
    x = pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    return Pixels(np.ascontiguousarray(x), y)

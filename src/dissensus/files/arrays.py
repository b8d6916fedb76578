"""NumPy arrays in ``.npz`` and ``.npy`` files; those of Python objects are never loaded."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dissensus.files.atomic import replace_atomically
from dissensus.files.opening import unreadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["read_npy", "read_npz", "write_npz"]

_NPY_1 = b"\x93NUMPY\x01\x00"

#: What a damaged file makes NumPy, zipfile, zlib and the decoders raise.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(source: str | Path | bytes, where: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, or of its bytes, by name; errors call it ``where``."""
    import numpy as np

    try:
        with _opened(source) as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except _UNREADABLE as error:
        raise unreadable(source, ".npz", error, where) from error


def read_npy(source: str | Path | bytes, where: str = "") -> NDArray[Any]:
    """The array of an ``.npy`` file, or of its bytes; errors call it ``where``."""
    import numpy as np

    try:
        if isinstance(source, bytes) and source[:8] == _NPY_1:
            header = 10 + int.from_bytes(source[8:10], "little")
            if header <= len(source):
                dtype, shape, fortran = _npy_header(source[:header])
                flat = np.frombuffer(source, dtype, offset=header)
                return flat.reshape(shape, order="F" if fortran else "C")
        with _opened(source) as raw:
            array = np.load(raw, allow_pickle=False)
            if isinstance(array, np.ndarray):
                return array
            raise ValueError("it is an .npz file under another name")
    except _UNREADABLE as error:
        raise unreadable(source, ".npy", error, where) from error


def _opened(source: str | Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")


@lru_cache(maxsize=256)
def _npy_header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Type, shape and order; samples have few different headers, and parsing them is slow."""
    import numpy as np

    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(head[8:]))
    if dtype.hasobject:
        raise ValueError("its type is object")
    return dtype, shape, fortran


def write_npz(
    path: str | Path, arrays: Mapping[str, NDArray[Any]], *, compress: bool = True
) -> None:
    """Write ``arrays`` to an ``.npz`` file, whole or not at all."""
    import numpy as np

    def write(part: Path) -> None:
        save = np.savez_compressed if compress else np.savez
        with part.open("wb") as file:
            save(file, **arrays)  # type: ignore[arg-type]

    replace_atomically(path, write)

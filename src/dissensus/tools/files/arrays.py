"""NumPy arrays in ``.npz`` and ``.npy`` files; those of Python objects are never loaded."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dissensus.tools.files.atomic import replace_atomically
from dissensus.tools.files.opening import check_size, damaged, open_regular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NPY_1 = b"\x93NUMPY\x01\x00"

#: The longest header of an array; NumPy's own are of about 100 bytes.
_MAX_HEADER = 10_000


class ArrayHeader(NamedTuple):
    """The header of an array in a file, and the number of bytes of its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int


def read_npz(
    source: str | Path | bytes,
    where: str = "",
    choose: Callable[[dict[str, ArrayHeader]], Iterable[str]] | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, or of its bytes, by name; errors call it ``where``.

    All headers are read before any data. ``choose`` takes the headers and returns the names of the
    arrays to read, or raises; by default all are read. Together they may take :func:`max_bytes`.
    """
    import numpy as np

    with _open_source(source, where) as raw:
        name = where or _name(source)
        with _damage_of(name, ".npz"):
            archive = zipfile.ZipFile(raw)
            members = _members(archive)
            headers = {key: _member_header(archive, info) for key, info in members.items()}
        wanted = list(headers if choose is None else choose(headers))
        check_size(sum(headers[key].nbytes for key in wanted), name)
        arrays = {}
        with _damage_of(name, ".npz"):
            for key in wanted:
                with archive.open(members[key]) as stream:
                    arrays[key] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members by the names of their arrays; raises for what NumPy never writes."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.flag_bits & 1:
            raise ValueError(f"{info.filename!r} in it is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename!r} in it has the compression {info.compress_type}")
        key = info.filename.removesuffix(".npy")
        if key == info.filename or key in members:
            raise ValueError(f"{info.filename!r} in it is no array, or occurs twice")
        members[key] = info
    return members


def _member_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    with archive.open(info) as stream:
        header, start = _read_header(stream)
    if info.file_size < start + header.nbytes:
        raise ValueError(f"{info.filename!r} in it has fewer numbers than its shape {header.shape}")
    return header


def _read_header(stream: IO[bytes]) -> tuple[ArrayHeader, int]:
    """The header of an ``.npy`` stream, and where the data begin."""
    head = stream.read(8)
    if head[:6] != b"\x93NUMPY":
        raise ValueError("it holds no array of NumPy")
    width = 2 if head[6] == 1 else 4
    size = stream.read(width)
    length = int.from_bytes(size, "little")
    if length > _MAX_HEADER:
        raise ValueError(f"the header of an array claims {length} bytes")
    dtype, shape, _ = _npy_header(head + size + stream.read(length))
    return ArrayHeader(shape, dtype, math.prod(shape) * dtype.itemsize), 8 + width + length


def read_npy(source: str | Path | bytes, where: str = "") -> NDArray[Any]:
    """The array of an ``.npy`` file, or of its bytes; errors call it ``where``."""
    import numpy as np

    with _open_source(source, where) as raw, _damage_of(where or _name(source), ".npy"):
        if isinstance(source, bytes) and source[:8] == _NPY_1:
            start = 10 + int.from_bytes(source[8:10], "little")
            if start <= min(len(source), _MAX_HEADER):
                dtype, shape, fortran = _npy_header(source[:start])
                flat = np.frombuffer(source, dtype, offset=start)
                return flat.reshape(shape, order="F" if fortran else "C")
        header, start = _read_header(raw)
        if raw.seek(0, os.SEEK_END) < start + header.nbytes:
            raise ValueError(f"it has fewer numbers than its shape {header.shape}")
        raw.seek(0)
        array: NDArray[Any] = np.lib.format.read_array(raw, allow_pickle=False)
    return array


def _name(source: str | Path | bytes) -> str:
    return "data" if isinstance(source, bytes) else str(source)


def _open_source(source: str | Path | bytes, where: str) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else open_regular(source, where)


@contextmanager
def _damage_of(name: str, kind: str) -> Iterator[None]:
    """Turn whatever zipfile, zlib and NumPy raise for a damaged file into one error."""
    try:
        yield
    except Exception as error:
        raise damaged(name, kind, error) from error


@lru_cache(maxsize=256)
def _npy_header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Type, shape and order; samples have few different headers, and parsing them is slow."""
    import numpy as np

    formats = np.lib.format
    read = formats.read_array_header_1_0 if head[6] == 1 else formats.read_array_header_2_0
    shape, fortran, dtype = read(io.BytesIO(head[8:]))
    if dtype.hasobject:
        raise ValueError("its type is object")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
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

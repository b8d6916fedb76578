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

from dissensus.tools.files.access import check_size, damaged, open_regular, replace_atomically

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The longest header of an array; NumPy's own are of about 100 bytes.
_MAX_HEADER = 10_000

_PIECE = 1 << 20  # bytes that are read at once


class ArrayHeader(NamedTuple):
    """The header of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        """The number of bytes of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(
    source: str | Path | bytes,
    where: str = "",
    choose: Callable[[dict[str, ArrayHeader]], Iterable[str]] | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays of an ``.npz`` file, or of its bytes, by name; errors call it ``where``.

    All headers are read before any data. ``choose`` takes the headers and returns the names of the
    arrays to read, or raises; by default all are read. Together they may take :func:`max_bytes`.
    """
    with _open_source(source, where) as raw:
        name = where or _name(source)
        with _damage_of(name, ".npz"):
            archive = zipfile.ZipFile(raw)
            members = _members(archive)
            headers = {key: _member_header(archive, info) for key, info in members.items()}
        wanted = list(headers if choose is None else choose(headers))
        check_size(sum(headers[key].nbytes for key in wanted), name)
        with _damage_of(name, ".npz"):
            arrays = {}
            for key in wanted:
                with archive.open(members[key]) as stream:
                    arrays[key] = _read_array(stream)
    return arrays


def read_npy(source: str | Path | bytes, where: str = "") -> NDArray[Any]:
    """The array of an ``.npy`` file, or of its bytes; errors call it ``where``."""
    with _open_source(source, where) as raw, _damage_of(where or _name(source), ".npy"):
        size = raw.seek(0, os.SEEK_END)
        raw.seek(0)
        return _read_array(raw, size)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members by the names of their arrays; raises for what NumPy never writes."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        if info.flag_bits & 1:
            raise ValueError(f"{info.filename!r} in it is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename!r} in it has the compression {info.compress_type}")
        if key == info.filename or key in members:
            raise ValueError(f"{info.filename!r} in it is no array, or occurs twice")
        members[key] = info
    return members


def _member_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    with archive.open(info) as stream:
        return _read_header(stream, info.file_size)


def _read_array(stream: IO[bytes], size: int | None = None) -> NDArray[Any]:
    """The array of an ``.npy`` stream."""
    import numpy as np

    header = _read_header(stream, size)
    content = bytearray(header.nbytes)
    done = 0
    while piece := stream.read(min(_PIECE, header.nbytes - done)):
        content[done : done + len(piece)] = piece
        done += len(piece)
    if done < header.nbytes:
        raise ValueError(f"it has fewer numbers than its shape {header.shape}")
    flat: NDArray[Any] = np.frombuffer(content, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _read_header(stream: IO[bytes], size: int | None = None) -> ArrayHeader:
    """The header of an ``.npy`` stream of ``size`` bytes."""
    head = stream.read(8)
    if head[:6] != b"\x93NUMPY":
        raise ValueError("it holds no array of NumPy")
    width = 2 if head[6] == 1 else 4
    length = stream.read(width)
    if (bytes_of_header := int.from_bytes(length, "little")) > _MAX_HEADER:
        raise ValueError(f"the header of an array claims {bytes_of_header} bytes")
    header = _parse_header(head + length + stream.read(bytes_of_header))
    if size is not None and size < 8 + width + bytes_of_header + header.nbytes:
        raise ValueError(f"it has fewer numbers than its shape {header.shape}")
    return header


@lru_cache(maxsize=256)
def _parse_header(head: bytes) -> ArrayHeader:
    """Samples have few different headers, and parsing them is slow."""
    import numpy as np

    formats = np.lib.format
    read = formats.read_array_header_1_0 if head[6] == 1 else formats.read_array_header_2_0
    shape, fortran, dtype = read(io.BytesIO(head[8:]))
    if dtype.hasobject:
        raise ValueError("its type is object")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return ArrayHeader(shape, dtype, fortran)


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

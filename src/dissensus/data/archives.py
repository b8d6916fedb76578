"""Archives that may not write outside their folder."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dissensus.files import write_bytes

__all__ = ["LARGEST", "extract", "members"]

#: No official file or archive member is larger; a larger one is a mistake or an attack.
LARGEST = 4 << 30
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile)


def extract(archive: str | Path, folder: str | Path, wanted: Sequence[str]) -> None:
    """Write the members of a zip or tar whose file names are ``wanted`` into ``folder``.

    Every member's path is checked first: one that is absolute, climbs out with ``..``, or is a
    link or device refuses the whole archive, and nothing is written. Members land in ``folder``
    itself, under their last name.
    """
    archive, folder = Path(archive), Path(folder)
    with archive.open("rb") as stream:
        contents = members(str(archive), stream, wanted)
    for name, data in contents.items():
        write_bytes(folder / name, data)


def members(name: str, stream: IO[bytes], wanted: Sequence[str]) -> dict[str, bytes]:
    """The contents of the wanted members of an archive, once all of its paths are safe."""
    contents: dict[str, bytes] = {}
    nested: dict[str, bytes] = {}
    try:
        with _opened(name, stream) as (names, read):
            for path, kind, size in names:
                _check_member(name, path, kind, size)
            for path, kind, _ in names:
                last = PurePosixPath(path).name
                if kind == "file" and last in wanted and last not in contents:
                    contents[last] = read(path)
                elif kind == "file" and last.endswith(".zip"):
                    nested[last] = read(path)
    # RuntimeError: zipfile's word for an encrypted member or an unknown compression.
    except (*_DAMAGED, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{name} cannot be unpacked: it is damaged, cut short or of another kind ({error}); "
            "delete it and load again"
        ) from error
    for inner, data in nested.items():  # some of UCI's archives hold the original archive
        rest = [file for file in wanted if file not in contents]
        if rest:
            contents |= _members_if_any(f"{name}/{inner}", data, rest)
    lacking = [file for file in wanted if file not in contents]
    if lacking:
        raise ValueError(f"{name} does not hold {', '.join(lacking)}")
    return contents


def _members_if_any(name: str, data: bytes, wanted: Sequence[str]) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            there = {PurePosixPath(path).name for path in inner.namelist()}
    except zipfile.BadZipFile:
        return {}
    return members(name, io.BytesIO(data), [file for file in wanted if file in there])


Listing = Sequence[tuple[str, str, int]]


@contextmanager
def _opened(name: str, stream: IO[bytes]) -> Iterator[tuple[Listing, Callable[[str], bytes]]]:
    """Members as (path, kind, size) and a function that reads one, for zip and tar alike."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(stream) as archive:
            entries = [
                (info.filename, _zip_kind(info), info.file_size) for info in archive.infolist()
            ]
            yield entries, archive.read
        return
    with tarfile.open(fileobj=stream) as tar:
        listed = tar.getmembers()

        def read(path: str) -> bytes:
            member: IO[Any] | None = tar.extractfile(path)
            if member is None:
                raise tarfile.TarError(f"{path} is not a file")
            return bytes(member.read())

        yield [(info.name, _tar_kind(info), info.size) for info in listed], read


def _zip_kind(info: zipfile.ZipInfo) -> str:
    unix_type = (info.external_attr >> 16) & 0o170000
    if unix_type not in (0, 0o100000, 0o040000):
        return "link or device"
    return "folder" if info.is_dir() else "file"


def _tar_kind(info: tarfile.TarInfo) -> str:
    if info.isreg():
        return "file"
    return "folder" if info.isdir() else "link or device"


def _check_member(archive: str, path: str, kind: str, size: int) -> None:
    parts = path.replace("\\", "/").split("/")
    outside = path.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]
    if outside or kind == "link or device":
        why = "is a link or device" if not outside else "would be written outside its folder"
        raise ValueError(f"{archive} is not safe to unpack: its member {path!r} {why}")
    if size > LARGEST:
        raise ValueError(
            f"{archive} is not safe to unpack: its member {path!r} claims {size} bytes"
        )

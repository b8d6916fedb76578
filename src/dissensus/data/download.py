"""Official files: found on disk, or downloaded, checked and unpacked.

A file is looked for in the folders of a :class:`~dissensus.data.dataset.Request`; a missing one is
downloaded from its official source. Checksums are of the *content*, gunzipped, because mirrors
compress again. Nothing reaches its final name before it is whole and checked, and an archive may
not write outside its folder.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dissensus.data.dataset import Request
from dissensus.tools.files import write_bytes
from dissensus.tools.progress import ProgressBar

_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
_CHUNK = 1 << 20

#: No official file or archive member is larger; a larger one is a mistake or an attack.
LARGEST = 4 << 30
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class RemoteFile:
    """One official file: its name on disk, where it comes from, and how to know it.

    ``checksum`` is ``"md5:…"`` or ``"sha256:…"`` of the content (gunzipped for ``.gz``), or None
    with ``unchecked`` saying why; loaders then check shapes and counts. Where ``url`` ends as an
    archive the file is a member of it, and ``archive_checksum`` is of the archive's own bytes.
    """

    name: str
    url: str
    checksum: str | None = None
    unchecked: str = ""
    archive_checksum: str | None = None

    def __post_init__(self) -> None:
        if self.checksum is None and not self.unchecked:
            raise ValueError(f"{self.name} has no checksum: say why in unchecked")

    @property
    def archive(self) -> str | None:
        """The archive's file name, where the file comes inside one."""
        last = self.url.rpartition("/")[2]
        return last if last.endswith(_ARCHIVES) and last != self.name else None


def locate(
    files: Sequence[RemoteFile], folders: Sequence[str], request: Request, *, what: str
) -> dict[str, Path]:
    """Paths of all ``files``, downloading those that no folder holds.

    ``folders`` are names below each of the request's places; the first is where downloads go. A
    file compressed as ``name.gz`` may also lie there as ``name``.
    """
    paths = {
        file.name: _find([file.name, file.name.removesuffix(".gz")], folders, request)
        for file in files
    }
    missing = [file for file in files if paths[file.name] is None]
    for name in dict.fromkeys(file.archive for file in missing if file.archive):
        archive = _find([name], ["", *folders], request)
        if archive is not None:
            target = _writable(request, what) / folders[0]
            inside = [file.name for file in missing if file.archive == name]
            extract(archive, target, inside)
            paths |= {file: target / file for file in inside}
    missing = [file for file in missing if paths[file.name] is None]
    if missing:
        paths |= _download_all(missing, folders[0], request, what)
    return {name: path for name, path in paths.items() if path is not None}


def _find(names: Sequence[str], folders: Sequence[str], request: Request) -> Path | None:
    """The first file of these names in ``folders`` below a place, or in a place that is one."""
    for place in request.places:
        own = [place] if place.name in folders else []
        for folder in (*own, *(place / folder for folder in folders)):
            for name in names:
                if (folder / name).is_file():
                    return folder / name
    return None


def _writable(request: Request, what: str) -> Path:
    for place in request.places:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK):
            return place
    tried = ", ".join(str(place) for place in request.places) or "no folder"
    raise ValueError(f"{what}: no folder to download into (tried {tried}); set DISSENSUS_DATA")


# ---- reading and checking -----------------------------------------------------------------------


def content(path: Path, file: RemoteFile, *, verify: bool = True) -> bytes:
    """The bytes of a file, gunzipped, after a check against its official checksum."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = _gunzip(raw, path)
    if verify:
        _check(raw, file.checksum, str(path))
    return raw


def _gunzip(raw: bytes, path: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            data: bytes = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); delete it") from error
    if len(data) > LARGEST:
        raise ValueError(
            f"{path} unpacks to more than {LARGEST >> 30} GiB; it is not what it is named"
        )
    return data


def _check(raw: bytes, checksum: str | None, where: str) -> None:
    if checksum is None:
        return
    kind, _, expected = checksum.partition(":")
    got = hashlib.new(kind, raw, usedforsecurity=False).hexdigest()
    if got != expected:
        raise ValueError(
            f"{where} is not the official file: its {kind} is {got}, expected {expected}; delete "
            "it and load again, or pass verify=False"
        )


# ---- downloading --------------------------------------------------------------------------------


def _download_all(
    files: Sequence[RemoteFile], folder: str, request: Request, what: str
) -> dict[str, Path]:
    target = _writable(request, what) / folder
    if not request.download:
        raise ValueError(_how_to_get(files, target, f"{what} is not on this machine"))
    try:
        for file in files:
            if not (target / file.name).is_file():  # an archive brings several at once
                _download(file, files, target)
    except (OSError, http.client.HTTPException) as error:
        reason = f"{what} could not be downloaded ({error})"
        raise ValueError(_how_to_get(files, target, reason)) from error
    return {file.name: target / file.name for file in files}


def _how_to_get(files: Sequence[RemoteFile], target: Path, reason: str) -> str:
    wanted = dict.fromkeys((file.url, file.archive or file.name) for file in files)
    steps = "; ".join(f"get {url} and put it at {target / name}" for url, name in wanted)
    return f"{reason}: {steps}; or name the folder that holds it with data_dir= or DISSENSUS_DATA"


def _download(file: RemoteFile, files: Sequence[RemoteFile], target: Path) -> None:
    archive = file.archive
    raw = _get(file.url, archive or file.name)
    if archive is None:
        plain = _gunzip(raw, Path(file.name)) if file.name.endswith(".gz") else raw
        _check(plain, file.checksum, file.url)
        write_bytes(target / file.name, raw)
        return
    _check(raw, file.archive_checksum, file.url)
    inside = [other for other in files if other.archive == archive]
    contents = members(archive, io.BytesIO(raw), [other.name for other in inside])
    for other in inside:
        _check(contents[other.name], other.checksum, f"{other.name} in {file.url}")
    for name, data in contents.items():
        write_bytes(target / name, data)


def _get(url: str, name: str) -> bytes:
    """The bytes behind ``url``, with a progress bar on the terminal."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"only http and https are downloaded, got {url!r}")
    request = urllib.request.Request(url, headers={"User-Agent": "dissensus"})
    with (
        urllib.request.urlopen(request, timeout=60) as answer,
        ProgressBar(f"downloading {name}", unit="bytes") as bar,
    ):
        length = answer.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        bar.update(total=total)
        parts: list[bytes] = []
        size = 0
        while chunk := answer.read(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            bar.advance(len(chunk))
            if size > LARGEST:
                raise OSError(f"{url} is larger than {LARGEST >> 30} GiB")
    if total is not None and size != total:
        raise OSError(f"{url} ended after {size} of {total} bytes")
    return b"".join(parts)


# ---- archives -----------------------------------------------------------------------------------


def extract(archive: str | Path, folder: str | Path, wanted: Sequence[str]) -> None:
    """Write the members of a zip or tar whose file names are ``wanted`` into ``folder``.

    Every member's path is checked first: one that is absolute, climbs out with ``..``, or is a
    link or device refuses the whole archive, and nothing is written. Members land in ``folder``
    itself, under their last name.
    """
    with Path(archive).open("rb") as stream:
        contents = members(str(archive), stream, wanted)
    for name, data in contents.items():
        write_bytes(Path(folder) / name, data)


def members(name: str, stream: IO[bytes], wanted: Sequence[str]) -> dict[str, bytes]:
    """The contents of the wanted members of an archive, once all of its paths are safe."""
    contents = _wanted_members(name, stream, wanted)
    lacking = [file for file in wanted if file not in contents]
    if lacking:
        raise ValueError(f"{name} does not hold {', '.join(lacking)}")
    return contents


def _wanted_members(name: str, stream: IO[bytes], wanted: Sequence[str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    nested: dict[str, bytes] = {}
    try:
        with _open_archive(name, stream) as (entries, read):
            for path, kind, size in entries:
                _check_member(name, path, kind, size)
            for path, kind, _ in entries:
                last = PurePosixPath(path).name
                if kind == "file" and last in wanted and last not in contents:
                    contents[last] = read(path)
                elif kind == "file" and last.endswith(".zip"):
                    nested[last] = read(path)
    # RuntimeError: zipfile's word for an encrypted member or an unknown compression.
    except (*_DAMAGED, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{name} is damaged, cut short or no archive ({error})") from error
    for inner, data in nested.items():  # some of UCI's archives hold the original archive
        rest = [file for file in wanted if file not in contents]
        if rest and zipfile.is_zipfile(io.BytesIO(data)):
            contents |= _wanted_members(f"{name}/{inner}", io.BytesIO(data), rest)
    return contents


@contextmanager
def _open_archive(
    name: str, stream: IO[bytes]
) -> Iterator[tuple[list[tuple[str, str, int]], Callable[[str], bytes]]]:
    """Members as (path, kind, size) and a function that reads one, for zip and tar alike."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            yield [(info.filename, _zip_kind(info), info.file_size) for info in infos], archive.read
        return
    with tarfile.open(fileobj=stream) as tar:

        def read(path: str) -> bytes:
            member: IO[Any] | None = tar.extractfile(path)
            if member is None:
                raise tarfile.TarError(f"{path} is not a file")
            return bytes(member.read())

        yield [(info.name, _tar_kind(info), info.size) for info in tar.getmembers()], read


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
        raise ValueError(f"{archive} is not safe to unpack: {path!r} in it claims {size} bytes")

"""Official files: found on disk, or downloaded, checked and unpacked.

A file is looked for in the folders of a :class:`~dissensus.data.dataset.Request`; a missing one is
downloaded from its official source. Checksums are of the *content*, gunzipped, because mirrors
compress again. Nothing reaches its final name before it is whole and checked. Of an archive only
regular files with wanted names are read, and they are written under their last names, so that no
path in it leads anywhere.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from dissensus.data.dataset import Request
from dissensus.tools.files import write_bytes
from dissensus.tools.progress import ProgressBar

_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
_CHUNK = 1 << 20

#: No official file or archive member is larger; a larger one is a mistake or an attack.
LARGEST = 4 << 30


@dataclass(frozen=True)
class RemoteFile:
    """One official file: its name on disk, where it comes from, and how to know it.

    ``checksum`` is ``"md5:…"`` or ``"sha256:…"`` of the content (gunzipped for ``.gz``); where
    none is known, loaders check shapes and counts alone. Where ``url`` ends as an archive the file
    is a member of it, and ``archive_checksum`` is of the archive's own bytes.
    """

    name: str
    url: str
    checksum: str | None = None
    archive_checksum: str | None = None

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
    file compressed as ``name.gz`` may also lie there as ``name``, and an archive as it is.
    """
    paths: dict[str, Path] = {}
    missing: dict[str, list[RemoteFile]] = {}  # by their source
    for file in files:
        path = _find([file.name, file.name.removesuffix(".gz")], folders, request)
        if path is None:
            missing.setdefault(file.url, []).append(file)
        else:
            paths[file.name] = path
    if not missing:
        return paths
    target = _writable(request, what) / folders[0]
    absent = []
    for wanted in missing.values():
        paths |= {file.name: target / file.name for file in wanted}
        archive = wanted[0].archive
        path = _find([archive], ["", *folders], request) if archive else None
        if archive is None or path is None:
            absent.append(wanted)
        else:
            _write(members(archive, path.read_bytes(), [file.name for file in wanted]), target)
    if absent and not request.download:
        raise ValueError(_how_to_get(absent, target, f"{what} is not on this machine"))
    try:
        for wanted in absent:
            _write(_download(wanted), target)
    except (OSError, http.client.HTTPException) as error:
        reason = f"{what} could not be downloaded ({error})"
        raise ValueError(_how_to_get(absent, target, reason)) from error
    return paths


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
    tried = ", ".join(map(str, request.places)) or "no folder"
    raise ValueError(f"{what}: no folder to download into (tried {tried}); set DISSENSUS_DATA")


def _write(contents: dict[str, bytes], folder: Path) -> None:
    for name, data in contents.items():
        write_bytes(folder / name, data)


def _how_to_get(sources: Sequence[Sequence[RemoteFile]], target: Path, reason: str) -> str:
    first = [files[0] for files in sources]
    steps = [
        f"get {file.url} and put it at {target / (file.archive or file.name)}" for file in first
    ]
    ways = "; ".join(steps)
    return f"{reason}: {ways}; or name the folder that holds it with data_dir= or DISSENSUS_DATA"


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
        raise ValueError(f"{path} unpacks to more than {LARGEST >> 30} GiB; delete it")
    return data


def _check(raw: bytes, checksum: str | None, where: str) -> None:
    if checksum is None:
        return
    kind, _, expected = checksum.partition(":")
    got = hashlib.new(kind, raw, usedforsecurity=False).hexdigest()
    if got != expected:
        reason = f"its {kind} is {got}, expected {expected}"
        raise ValueError(f"{where} is not the official file: {reason}; delete it or verify=False")


# ---- downloading --------------------------------------------------------------------------------


def _download(files: Sequence[RemoteFile]) -> dict[str, bytes]:
    """The checked contents of files that come from one address."""
    first = files[0]
    raw = _get(first.url, first.archive or first.name)
    if first.archive is None:
        plain = _gunzip(raw, Path(first.name)) if first.name.endswith(".gz") else raw
        _check(plain, first.checksum, first.url)
        return {first.name: raw}
    _check(raw, first.archive_checksum, first.url)
    contents = members(first.archive, raw, [file.name for file in files])
    for file in files:
        _check(contents[file.name], file.checksum, f"{file.name} in {file.url}")
    return contents


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


def members(name: str, raw: bytes, wanted: Sequence[str]) -> dict[str, bytes]:
    """The contents of the files in a zip or tar whose last names are ``wanted``."""
    contents = _members(name, raw, wanted)
    lacking = [file for file in wanted if file not in contents]
    if lacking:
        raise ValueError(f"{name} does not hold {', '.join(lacking)}")
    return contents


def _members(name: str, raw: bytes, wanted: Sequence[str]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    nested: dict[str, bytes] = {}
    try:
        for path, size, read in _regular_files(name, raw):
            last = PurePosixPath(path).name
            if last not in wanted and not last.endswith(".zip"):
                continue
            if size > LARGEST:
                raise OSError(f"{path!r} in it claims {size} bytes")
            (contents if last in wanted else nested).setdefault(last, read())
    # RuntimeError: zipfile's word for an encrypted member or an unknown compression.
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
    ) as error:
        raise ValueError(f"{name} is damaged, cut short or no archive ({error})") from error
    for inner, data in nested.items():  # some of UCI's archives hold the original archive
        rest = [file for file in wanted if file not in contents]
        if rest and zipfile.is_zipfile(io.BytesIO(data)):
            contents |= _members(f"{name}/{inner}", data, rest)
    return contents


def _regular_files(name: str, raw: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Path, size and reader of each regular file in an archive: no links, no devices."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, info.file_size, partial(archive.read, info)
        return
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, member.size, file.read

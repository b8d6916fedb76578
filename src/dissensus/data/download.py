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
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dissensus.data.archives import LARGEST, extract, members
from dissensus.data.dataset import Request
from dissensus.files import write_bytes
from dissensus.progress import ProgressBar

__all__ = ["RemoteFile", "content", "locate"]

_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
_CHUNK = 1 << 20


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
    paths = {file.name: _find(file.name, folders, request) for file in files}
    missing = [file for file in files if paths[file.name] is None]
    for file in missing:
        if file.archive is None:
            continue
        archive = _find_archive(file.archive, folders, request)
        if archive is not None and paths[file.name] is None:
            target = _writable(request, what) / folders[0]
            inside = [other for other in missing if other.archive == file.archive]
            extract(archive, target, [other.name for other in inside])
            paths |= {other.name: target / other.name for other in inside}
    missing = [file for file in missing if paths[file.name] is None]
    if missing:
        paths |= _download_all(missing, folders[0], request, what)
    return {name: path for name, path in paths.items() if path is not None}


def _find(name: str, folders: Sequence[str], request: Request) -> Path | None:
    for place in request.places:
        for folder in _below(place, folders):
            for candidate in (folder / name, folder / name.removesuffix(".gz")):
                if candidate.is_file():
                    return candidate
    return None


def _find_archive(name: str, folders: Sequence[str], request: Request) -> Path | None:
    for place in request.places:
        for folder in (place, *_below(place, folders)):
            if (folder / name).is_file():
                return folder / name
    return None


def _below(place: Path, folders: Sequence[str]) -> list[Path]:
    """``place/folder`` for each folder; ``place`` too, where it is that very folder."""
    own = [place] if place.name in folders else []
    return own + [place / folder for folder in folders]


def _writable(request: Request, what: str) -> Path:
    for place in request.places:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK):
            return place
    tried = ", ".join(str(place) for place in request.places) or "no folder"
    raise ValueError(
        f"{what}: there is no folder to download into (tried {tried}); name one that can be "
        "written with data_dir= or DISSENSUS_DATA"
    )


# ---- reading and checking -----------------------------------------------------------------------


def content(path: Path, file: RemoteFile | None = None, *, verify: bool = True) -> bytes:
    """The bytes of a file, gunzipped, after a check against its official checksum."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = _gunzip(raw, path)
    if verify and file is not None and file.checksum is not None:
        _check(raw, file.checksum, str(path))
    return raw


def _gunzip(raw: bytes, path: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            data: bytes = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be unpacked: it is damaged or cut short ({error}); delete it and load "
            "again"
        ) from error
    if len(data) > LARGEST:
        raise ValueError(
            f"{path} unpacks to more than {LARGEST >> 30} GiB; it is not what it is named"
        )
    return data


def _check(raw: bytes, checksum: str, where: str) -> None:
    kind, _, expected = checksum.partition(":")
    got = hashlib.new(kind, raw, usedforsecurity=False).hexdigest()
    if got != expected:
        raise ValueError(
            f"{where} is not the official file: its {kind} is {got}, expected {expected}. It is "
            "damaged, cut short or another version: delete it and load again, or pass "
            "verify=False to use it as it is"
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
    if archive is None:
        raw = _get(file.url, file.name)
        plain = _gunzip(raw, Path(file.name)) if file.name.endswith(".gz") else raw
        if file.checksum is not None:
            _check(plain, file.checksum, file.url)
        write_bytes(target / file.name, raw)
        return
    raw = _get(file.url, archive)
    if file.archive_checksum is not None:
        _check(raw, file.archive_checksum, file.url)
    inside = [other for other in files if other.archive == archive]
    contents = members(archive, io.BytesIO(raw), [other.name for other in inside])
    for other in inside:
        if other.checksum is not None:
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

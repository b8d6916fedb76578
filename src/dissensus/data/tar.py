"""Samples of tar files in webdataset's form: neighbours with one name are one sample.

``0001.jpg`` and ``0001.cls`` are the fields ``jpg`` and ``cls`` of sample ``0001``. Tar files come
from strangers: nothing is extracted, nothing in them can run code, and a damaged file is an error,
never a shorter data set.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.images import IMAGE_SUFFIXES, MAX_PIXELS, decode_image
from dissensus.tools.files import check_regular, damaged, parse_json, read_npy
from dissensus.tools.guards import check_finite
from dissensus.tools.progress import ProgressBar

# As webdataset divides a name: the folder and all before the first dot, then the field.
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")
_LARGEST = 1 << 30  # bytes of a field

_LABELS = ("cls", "label", "class", "target", "y")
_KINDS = {
    **{suffix.removeprefix("."): "image" for suffix in IMAGE_SUFFIXES},
    **dict.fromkeys(("cls", "txt", "text", "label", "class", "target", "y", "id", "index"), "text"),
    "npy": "npy",
    "json": "json",
}
_PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")

Fields = dict[str, bytes]


def read_samples(shards: Sequence[str], field: str, target: str | None) -> Iterator[dict[str, Any]]:
    """Each sample's input, as the bytes and name of its ``field``, and its ``target`` decoded."""
    with ProgressBar("reading shards", len(shards)) as bar:
        for shard in shards:
            for key, fields in samples(shard):
                where = f"{shard}: {key}"
                name = f"{where}.{field}"
                sample: dict[str, Any] = {
                    "x": {"bytes": _field(fields, field, where), "path": name}
                }
                if target is not None:
                    kind, _, inside = target.partition(":")
                    raw = _field(fields, kind, where)
                    sample["y"] = _decode_target(raw, kind, inside, f"{where}.{kind}")
                yield sample
            bar.advance()


def samples(shard: str | Path) -> Iterator[tuple[str, Fields]]:
    """The samples of a shard: a name, and the contents of the files that have it, by field."""
    check_regular(shard)
    try:
        archive = tarfile.open(shard, "r:")  # noqa: SIM115 - entered below, where errors are ours
    except (tarfile.TarError, OSError) as error:
        reason = f"cannot be read as a tar without compression ({error})"
        raise ValueError(f"{shard} {reason}; unpack .tar.gz first") from error
    key, fields = "", Fields()
    with archive as tar:
        for info in _members(tar, shard):
            match = _NAME.match(info.name)
            if match is None or _META.match(info.name) or info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise ValueError(f"{shard}: {info.name!r} is a link or device, not a file")
            if info.size > _LARGEST:
                raise ValueError(f"{shard}: {info.name!r} claims {info.size} bytes")
            if match[1] != key and fields:
                yield key, fields
                fields = Fields()
            key, field = match[1], match[2].lower()
            if field in fields:
                raise ValueError(f"{shard}: sample {key} has the field {field!r} twice")
            fields[field] = _content(tar, info, shard)
    if not fields:
        raise ValueError(f"{shard} holds no samples")
    yield key, fields


def _members(tar: tarfile.TarFile, shard: str | Path) -> Iterator[tarfile.TarInfo]:
    """All members; raises where the file ends too early, which tarfile lets pass."""
    try:
        while (info := tar.next()) is not None:
            yield info
            tar.members = []  # type: ignore[attr-defined] # else it remembers them all
        assert tar.fileobj is not None
        tar.fileobj.seek(tar.offset)
        rest = tar.fileobj.read(512)
    except Exception as error:  # tarfile raises all kinds for damaged headers
        raise damaged(shard, "tar", error) from error
    # tarfile has read a block of zeros, which ends an archive, or has met something else.
    if rest.strip(b"\0"):
        raise ValueError(f"{shard} is damaged at byte {tar.offset}: there is no tar header")


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo, shard: str | Path) -> bytes:
    file = tar.extractfile(info)  # into memory
    content = b"" if file is None else file.read()
    if len(content) < info.size:
        raise ValueError(f"{shard} is damaged or cut short in {info.name!r}")
    return content


def choose_fields(shard: Path, field: str | None, target: str | None) -> tuple[str, str | None]:
    """The fields of input and target; those not given are found in a shard's first sample."""
    _, fields = next(samples(shard))
    if target is None:
        labels = [name for name in fields if name.partition(".")[0] in _LABELS and name != field]
        target = labels[0] if len(labels) == 1 else None
    if target is not None:
        _field(fields, target.partition(":")[0], str(shard))
    if field is not None:
        field_kind(field, str(shard))
        return field, target
    kinds: dict[str, list[str]] = {"image": [], "npy": []}
    refused = ""
    for name in fields:
        if name != (target or "").partition(":")[0]:
            try:
                kinds.get(field_kind(name, str(shard)), []).append(name)
            except ValueError as error:
                refused = f"; {error}"
    inputs = kinds["image"] or kinds["npy"]
    if len(inputs) != 1:
        found = ", ".join(fields)
        raise ValueError(f"{shard} has samples with {found}: set input= and target={refused}")
    return inputs[0], target


def _field(fields: Fields, name: str, where: str) -> bytes:
    if name not in fields:
        raise ValueError(f"{where} has no field {name!r}, it has {', '.join(fields)}")
    return fields[name]


# ---- fields: untrusted bytes as pixels, numbers or targets --------------------------------------


def field_kind(field: str, where: str) -> str:
    """The kind of a field by the end of its name: image, npy, json or text.

    >>> field_kind("left.jpg", "a.tar"), field_kind("cls", "a.tar")
    ('image', 'text')
    """
    last = field.rpartition(".")[2].lower()
    if last in _KINDS:
        return _KINDS[last]
    why = " is a pickle, which could run code and is never loaded; it" if last in _PICKLES else ""
    use = "use images (jpg, png, …), npy, json, cls or txt"
    raise ValueError(f"{where}: the field {field!r}{why} cannot be read; {use}")


def decode_input(
    data: bytes, kind: str, size: int, where: str, max_pixels: int = MAX_PIXELS
) -> NDArray[Any]:
    """Pixels uint8 ``[3, size, size]``, or numbers as float32."""
    if kind == "image":
        return decode_image(io.BytesIO(data), size, where, max_pixels)
    if kind == "npy":
        return finite_numbers(read_npy(data, where), where)
    if kind == "json":
        return finite_numbers(parse_json(data, where), where)
    raise ValueError(f"{where} is text, which is no input; name another field with input=")


def _decode_target(data: bytes, field: str, key: str, where: str) -> int | str | list[float]:
    """A label by number or name, or targets; ``key`` picks a value of a JSON object."""
    kind = field_kind(field, where)
    value: Any
    if kind == "npy":
        array = read_npy(data, where)
        value = int(array.reshape(())) if array.dtype.kind in "iub" and array.size == 1 else array
    elif kind == "json":
        value = parse_json(data, where)
        if key and (not isinstance(value, dict) or key not in value):
            raise ValueError(f"{where} is JSON without the key {key!r}")
        value = value[key] if key else value
    elif kind == "text":
        value = _text(data, where)
    else:
        raise ValueError(f"{where} is an image, which is no label; name another field with target=")
    if isinstance(value, int | str):
        return int(value) if isinstance(value, bool) else value
    return finite_numbers(value, where).reshape(-1).tolist()


def _text(data: bytes, where: str) -> int | str:
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error})") from error
    if not text or len(text) > 1000:
        raise ValueError(f"{where} must be a label, got {len(text)} characters")
    with suppress(ValueError):
        return int(text)
    return text


def finite_numbers(values: Any, where: str) -> NDArray[np.float32]:
    """Numbers as float32; raises for text, and for NaN and infinities."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise ValueError(f"got {array.dtype}")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} must hold numbers ({error})") from error
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(numbers).all():
        check_finite(numbers.copy(), name=where)
    return numbers

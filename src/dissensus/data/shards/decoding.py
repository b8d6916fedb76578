"""What a stranger's bytes may become: pixels, numbers, a label. Nothing here can run code."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.folder import IMAGE_SUFFIXES, decode_image

__all__ = ["Target", "decode_input", "decode_target", "kind_of"]

#: A label by number or by name, or the targets of a regression.
Target = int | str | NDArray[np.float32]

_TEXT = ("cls", "txt", "text", "label", "class", "target", "y", "id", "index")
_PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")
_VERSION_1 = b"\x93NUMPY\x01\x00"
_KINDS = {
    **{suffix.removeprefix("."): "image" for suffix in IMAGE_SUFFIXES},
    **dict.fromkeys(_TEXT, "text"),
    "npy": "npy",
    "json": "json",
}


def kind_of(field: str, where: str) -> str:
    """What a field of a sample is by the end of its name: image, npy, json or text.

    >>> kind_of("left.jpg", "a.tar"), kind_of("cls", "a.tar")
    ('image', 'text')
    """
    last = field.rpartition(".")[2].lower()
    if last in _KINDS:
        return _KINDS[last]
    why = ""
    if last in _PICKLES:
        why = " is a pickle, which could run code and is never loaded; it"
    raise ValueError(
        f"{where}: the field {field!r}{why} cannot be read; use images (jpg, png, …), npy, json, "
        "cls or txt"
    )


def decode_input(data: bytes, kind: str, size: int, where: str) -> NDArray[Any]:
    """Pixels uint8 ``[3, size, size]``, or numbers as float32."""
    if kind == "image":
        return decode_image(io.BytesIO(data), size, where).transpose(2, 0, 1)
    if kind == "npy":
        return finite(_npy(data, where), where)
    if kind == "json":
        return finite(_numbers(_json(data, where), where), where)
    raise ValueError(f"{where} is text, which is no input; name another field with input=")


def decode_target(data: bytes, kind: str, key: str, where: str) -> Target:
    """A label or targets; ``key`` picks a value of a JSON object."""
    if kind == "npy":
        return _of_array(_npy(data, where), where)
    if kind == "json":
        found = _json(data, where)
        if key:
            if not isinstance(found, dict) or key not in found:
                raise ValueError(f"{where} is JSON without the key {key!r}")
            found = found[key]
        return _of_value(found, where)
    if kind == "text":
        return _of_text(data, where)
    raise ValueError(f"{where} is an image, which is no label; name another field with target=")


def finite(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    """``array`` as float32; raise unless it holds finite numbers alone."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{where} must hold numbers, got {array.dtype}")
    numbers = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{where} holds NaN or infinite values")
    return numbers


def _of_value(found: Any, where: str) -> Target:
    if isinstance(found, bool | int | str):
        return int(found) if isinstance(found, bool) else found
    return _of_array(_numbers(found, where), where)


def _of_array(array: NDArray[Any], where: str) -> Target:
    if array.dtype.kind in "iub" and array.size == 1:
        return int(array.reshape(()))
    return finite(array, where).reshape(-1)


def _of_text(data: bytes, where: str) -> int | str:
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error})") from error
    if not text or len(text) > 1000:
        raise ValueError(f"{where} must be a label, got {len(text)} characters")
    try:
        return int(text)
    except ValueError:
        return text


def _npy(data: bytes, where: str) -> NDArray[Any]:
    try:
        known = 10 + int.from_bytes(data[8:10], "little")
        if data[:8] == _VERSION_1 and known <= len(data):
            dtype, shape, fortran = _header(data[:known])
            found = np.frombuffer(data, dtype, offset=known)
            return found.reshape(shape, order="F" if fortran else "C")
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError, MemoryError) as error:
        raise ValueError(
            f"{where} cannot be read as .npy: it is damaged, cut short, or holds Python objects, "
            f"which are never loaded ({error})"
        ) from error
    if not isinstance(found, np.ndarray):  # an .npz under another name
        raise ValueError(f"{where} must be one .npy array, got {type(found).__name__}")
    return found


@lru_cache(maxsize=256)
def _header(head: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """What the header of an .npy says; samples have few different ones, and parsing is slow."""
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(head[8:]))
    if dtype.hasobject:
        raise ValueError("its type is object")
    return dtype, shape, fortran


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read as JSON ({error})") from error


def _numbers(found: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} must hold numbers ({error})") from error

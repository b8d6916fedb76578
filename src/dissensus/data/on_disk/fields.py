"""Fields of examples: untrusted bytes as pixels, numbers or targets; none of them can run code."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.dataset import check_classes
from dissensus.data.formats import IMAGE_SUFFIXES, MAX_PIXELS, decode_image
from dissensus.tools.files import parse_json, read_npy

#: A label by number or by name, or the targets of a regression.
Target = int | str | NDArray[np.float32]

_TEXT = ("cls", "txt", "text", "label", "class", "target", "y", "id", "index")
_PICKLES = ("pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib")
_KINDS = {
    **{suffix.removeprefix("."): "image" for suffix in IMAGE_SUFFIXES},
    **dict.fromkeys(_TEXT, "text"),
    "npy": "npy",
    "json": "json",
}


def kind_of(field: str, where: str) -> str:
    """The kind of a field by the end of its name: image, npy, json or text.

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


def decode_input(
    data: bytes, kind: str, size: int, where: str, max_pixels: int = MAX_PIXELS
) -> NDArray[Any]:
    """Pixels uint8 ``[3, size, size]``, or numbers as float32."""
    if kind == "image":
        return decode_image(io.BytesIO(data), size, where, max_pixels)
    if kind == "npy":
        return finite(read_npy(data, where), where)
    if kind == "json":
        return finite(_numbers(parse_json(data, where), where), where)
    raise ValueError(f"{where} is text, which is no input; name another field with input=")


def decode_target(data: bytes, kind: str, key: str, where: str) -> Target:
    """A label or targets; ``key`` picks a value of a JSON object."""
    if kind == "npy":
        return _of_array(read_npy(data, where), where)
    if kind == "json":
        value = parse_json(data, where)
        if key:
            if not isinstance(value, dict) or key not in value:
                raise ValueError(f"{where} is JSON without the key {key!r}")
            value = value[key]
        return _of_value(value, where)
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


def _of_value(value: Any, where: str) -> Target:
    if isinstance(value, bool | int | str):
        return int(value) if isinstance(value, bool) else value
    return _of_array(_numbers(value, where), where)


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
    with suppress(ValueError):
        return int(text)
    return text


def _numbers(values: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} must hold numbers ({error})") from error


# ---- targets of a part --------------------------------------------------------------------------

_MOST_CLASSES = 1_000_000


class LabelScan:
    """A scan of all targets of a part; names are numbered in the order in which they occur.

    With ``values``, whole numbers are values to be predicted, not labels.
    """

    def __init__(self, *, values: bool = False) -> None:
        self.values = values
        self.kind = ""  # "number", "name" or "values"
        self.names: dict[str, int] = {}
        self.high, self.outputs = -1, 1

    def add(self, target: Target, where: str) -> NDArray[Any]:
        """The target as it is stored."""
        if isinstance(target, str):
            self._settle("name", where)
            return np.array([self.names.setdefault(target, len(self.names))], dtype=np.int64)
        if isinstance(target, int) and self.values:
            target = np.array([target], dtype=np.float32)
        if isinstance(target, int):
            self._settle("number", where)
            self.see(np.array([target]), where)
            return np.array([target], dtype=np.int64)
        if not self.kind:
            self.outputs = len(target)
        self._settle("values", where)
        if len(target) != self.outputs:
            raise ValueError(f"{where} has {len(target)} targets, others have {self.outputs}")
        return target

    def see(self, numbers: NDArray[Any], where: str) -> None:
        """Learn from labels that are numbers."""
        self._settle("number", where)
        outside = numbers[(numbers < 0) | (numbers >= _MOST_CLASSES)]
        if len(outside):
            raise ValueError(
                f"{where} has the label {int(outside[0])}; labels are numbers from 0 to below "
                f"{_MOST_CLASSES}, or names; for numbers to be predicted set task='regression'"
            )
        self.high = max(self.high, int(numbers.max()))

    def facts(self) -> dict[str, Any]:
        """Plain JSON."""
        facts = {"kind": self.kind, "names": list(self.names)}
        return {**facts, "high": self.high, "outputs": self.outputs}

    def _settle(self, kind: str, where: str) -> None:
        if self.kind not in ("", kind):
            raise ValueError(f"{where} has a {kind} as its target, others have a {self.kind}")
        self.kind = kind


class Labels:
    """Stored targets of a part as training wants them, given the classes of train.

    int64 ``[rows]`` for classification, float32 ``[rows, outputs]`` for regression.
    """

    def __init__(
        self, facts: Mapping[str, Any], task: str, classes: Sequence[str], where: str
    ) -> None:
        self.kind, self.task, self.names = str(facts["kind"]), task, list(facts["names"])
        self.outputs = int(facts["outputs"])
        self.stored = np.dtype(np.float32 if self.kind == "values" else np.int64)
        self.numbers: NDArray[np.int64] | None = None
        if task == "regression":
            if self.kind == "name":
                raise ValueError(f"the targets of {where} are names; regression needs numbers")
            return
        if self.kind == "values":
            raise ValueError(f"the targets of {where} are no labels; set task='regression'")
        if self.kind == "name":
            check_classes(self.names, classes, where)
            index = {name: number for number, name in enumerate(classes)}
            self.numbers = np.array([index[name] for name in self.names], dtype=np.int64)
        else:
            check_classes([str(facts["high"])] if facts["high"] >= len(classes) else [], (), where)

    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """``[rows, outputs]`` as stored, as training wants it."""
        if self.task == "regression":
            return stored.astype(np.float32)
        labels: NDArray[Any] = stored[:, 0]
        return labels.copy() if self.numbers is None else self.numbers[labels]


def class_names(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of train: names in alphabetical order, or all numbers up to the highest."""
    if facts["kind"] == "name":
        return tuple(sorted(facts["names"]))
    return tuple(str(number) for number in range(int(facts["high"]) + 1))

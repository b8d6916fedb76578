"""Results of ``dissensus ood`` and ``dissensus attack``, checked, with their images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dissensus.report.contents import AttackImages, Detection, Images, Record, Reference

__all__ = ["ATTACK", "OOD", "Log", "read_attacks", "read_detection"]

OOD, ATTACK = "dissensus.ood/1", "dissensus.robustness/1"

T = TypeVar("T")
P = ParamSpec("P")


class Log:
    """The records that were used, and notes on what was left out."""

    def __init__(self) -> None:
        self.records: dict[Path, Record] = {}
        self.notes: list[str] = []

    def keep(self, record: Record) -> Record:
        """Remember that ``record`` was used."""
        self.records[record.file.resolve()] = record
        return record

    def attempt(
        self, file: Path, read: Callable[P, T], *args: P.args, **settings: P.kwargs
    ) -> T | None:
        """The result of ``read(*args)``; None if ``file`` is damaged, with a note that says how."""
        try:
            return read(*args, **settings)
        except (ValueError, OSError, KeyError, TypeError, IndexError, AttributeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{file} is left out: {reason}")
            return None


def read_detection(record: Record, name: str) -> Detection:
    """The results of the run that an ``ood.json`` calls ``name``."""
    detection = Detection(record, name)
    for row in record.rows("curves"):
        _check_alike(row, "fpr", "tpr")
    for row in record.rows("histograms"):
        bins, share = len(row.array("edges")) - 1, row.arrays("share")
        if any(len(values) != bins for values in share.values()):
            raise ValueError(
                f"{row.file}: {row.prefix}.share must have one value for each bin of .edges"
            )
    if any(detection.id_name not in row.at("share") for row in detection.rows("histograms")):
        raise ValueError(f"{record.file}: histograms need the share of {detection.id_name}")
    return replace(detection, images=tuple(_divergent_images(detection)))


def _check_alike(row: Record, first: str, second: str) -> None:
    shapes = [row.array(key).shape for key in (first, second)]
    if shapes[0] != shapes[1] or len(shapes[0]) != 1:
        raise ValueError(
            f"{row.file}: {row.prefix}.{first} and .{second} must be lists of one length"
        )


def _divergent_images(detection: Detection) -> list[tuple[Record, Images]]:
    """The rows of the examples with their pixels, as far as these are there."""
    files: dict[str, Any] = {}
    images = []
    for row in detection.rows("examples"):
        name = Path(row.text("file")).name  # beside the record, wherever it points
        if name not in files:
            files[name] = _read_arrays(row.file.with_name(name), "images").get("images")
        index, pixels = row.number("image"), files[name]
        if index is None or pixels is None or pixels.ndim != 4 or not row.number("value"):
            continue
        images.append((row, pixels[int(index.value)]))
    return images


def _read_arrays(file: Path, *names: str) -> dict[str, Any]:
    """Arrays of an ``.npz`` by name; none if there is no file."""
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names if name in arrays.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ValueError(f"{file} cannot be read as .npz: {error}") from error


def read_attacks(record: Record, classes: Sequence[str] = ()) -> tuple[Record, AttackImages | None]:
    """A ``robustness/record.json``, checked, and the images beside it.

    ``classes`` are names for their labels.
    """
    for row in record.rows("curves"):
        _check_alike(row, "values", "accuracy")
    if record.at("transfer") is not None and record.array("transfer.accuracy").ndim != 2:
        raise ValueError(f"{record.file}: transfer.accuracy must be a matrix")
    return record, _attack_images(record, classes)


def _attack_images(record: Record, classes: Sequence[str]) -> AttackImages | None:
    file = record.file.with_name("examples.npz")
    names = ("original", "adversarial", "labels", "predictions")
    arrays = _read_arrays(file, *names)
    if len(arrays) < len(names):
        return None
    original, adversarial, labels, predictions = (arrays[name] for name in names)
    attacks = [row.text("attack") for row in record.rows("attacks")]
    shape = (len(predictions), *original.shape)
    if adversarial.shape != shape or original.ndim != 4 or len(attacks) < len(predictions):
        raise ValueError(f"{file} does not belong to {record.file.name} beside it")

    def names_of(numbers: Any) -> tuple[str, ...]:
        known = range(len(classes))
        return tuple(classes[n] if n in known else str(n) for n in map(int, numbers))

    return AttackImages(
        tuple(attacks[: len(predictions)]),
        original,
        adversarial,
        names_of(labels),
        tuple(names_of(row) for row in predictions),
        Reference(file, "original, adversarial, predictions"),
    )

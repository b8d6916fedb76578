"""Classes held out: unknown inputs for whoever has no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dissensus.data.base import Data, Split

__all__ = ["HELD_OUT", "hold_out_classes"]

#: The name of the set in ``Data.extra``.
HELD_OUT = "held_out"


def hold_out_classes(data: Data, classes: str | Sequence[str | int]) -> Data:
    """``data`` without these classes, whose rows are then ``extra["held_out"]``.

    No split has a row of them, so a model that is trained on the rest has never seen any; the
    remaining classes are numbered anew, in their order. ``classes`` are names, as a sequence or
    with commas between them.

    >>> from dissensus.data import load
    >>> hold_out_classes(load("wine"), "class_1")
    Data('wine': classification, (13,), 2 classes; train 75, val 14, test 18, extra held_out)
    """
    held = _indices(data, classes)
    kept = [index for index in range(len(data.classes)) if index not in held]
    numbers = torch.full((len(data.classes),), -1)
    numbers[kept] = torch.arange(len(kept))
    splits: dict[str, Split] = {}
    rows: dict[str, Tensor] = {}
    strange: list[Tensor] = []
    for part, (x, y) in data.splits().items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{data.name}: rows on disk cannot be held out by their class")
        known = numbers[y] >= 0
        splits[part] = x[known], numbers[y[known]]
        strange.append(x[~known])
        if part in data.rows:
            rows[part] = data.rows[part][known]
    names = [data.classes[index] for index in held]
    notes = [*data.preprocessing.get("notes", ()), f"classes held out: {', '.join(names)}"]
    return replace(
        data,
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
        classes=tuple(data.classes[index] for index in kept),
        rows=rows,
        extra={**data.extra, HELD_OUT: (torch.cat(strange), None)},
        preprocessing={**data.preprocessing, "notes": notes},
    )


def _indices(data: Data, classes: str | Sequence[str | int]) -> list[int]:
    """The classes' numbers; raises for names that are not there, or too many."""
    if data.task != "classification":
        raise ValueError(f"{data.name} is a regression: there are no classes to hold out")
    given = classes.split(",") if isinstance(classes, str) else classes
    names = list(dict.fromkeys(str(name).strip() for name in given))
    for name in names:
        if name not in data.classes:
            raise ValueError(
                f"hold_out: {data.name} has no class {name!r}; it has "
                f"{', '.join(data.classes[:30])}"
            )
    if not names or len(names) > len(data.classes) - 2:
        raise ValueError(
            f"hold_out must leave at least two of {len(data.classes)} classes, and name one, got "
            f"{names}"
        )
    return [data.classes.index(name) for name in names]

"""What the targets of a part are, learnt while it is indexed, and what they become in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.shards.decoding import Target

__all__ = ["LabelScan", "Labels", "class_names"]

_MOST_CLASSES = 1_000_000


class LabelScan:
    """Sees every target of a part once; a name becomes a number by when it was first seen.

    ``values`` takes whole numbers for values to be predicted, not for labels.
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
        if int(numbers.min()) < 0 or int(numbers.max()) >= _MOST_CLASSES:
            raise ValueError(
                f"{where} has the label {int(numbers[(numbers < 0).argmax()])}; labels are numbers "
                f"from 0 to below {_MOST_CLASSES}, or names; for numbers to be predicted set "
                "task='regression'"
            )
        self.high = max(self.high, int(numbers.max()))

    def facts(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kind": self.kind,
            "names": list(self.names),
            "high": self.high,
            "outputs": self.outputs,
        }

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
            index = {name: number for number, name in enumerate(classes)}
            _check_known([name for name in facts["names"] if name not in index], where)
            self.numbers = np.array([index[name] for name in facts["names"]], dtype=np.int64)
        else:
            _check_known([str(facts["high"])] if facts["high"] >= len(classes) else [], where)

    def __call__(self, stored: NDArray[Any]) -> NDArray[Any]:
        """``[rows, outputs]`` as stored, as training wants it."""
        if self.task == "regression":
            return stored.astype(np.float32)
        own = stored[:, 0]
        labels: NDArray[Any] = own.copy() if self.numbers is None else self.numbers[own]
        return labels


def class_names(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of train: names in alphabetical order, or all numbers up to the highest."""
    if facts["kind"] == "name":
        return tuple(sorted(facts["names"]))
    return tuple(str(number) for number in range(int(facts["high"]) + 1))


def _check_known(strangers: Sequence[str], where: str) -> None:
    if strangers:
        listed = ", ".join(strangers[:10])
        raise ValueError(f"{where} has classes that train has not: {listed}")

"""Callbacks of ``fit``: functions of each epoch, and further methods that they may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from dissensus.objectives import Terms


class Hooks:
    """The optional methods of callbacks; ``fit`` calls them in the first process alone.

    ``on_start(config)`` before the first step, ``on_step(step, terms)`` after each, with the steps
    taken so far and the objective's terms, and ``on_end(history)``, with None if training failed.
    """

    def __init__(self, callbacks: Sequence[Any], *, first: bool) -> None:
        self.callbacks = list(callbacks) if first else []
        self.steppers = [c.on_step for c in self.callbacks if hasattr(c, "on_step")]
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not self.ended:
            self.end(None)

    def start(self, config: dict[str, Any]) -> None:
        for callback in self.callbacks:
            if hasattr(callback, "on_start"):
                callback.on_start(config)

    def step(self, number: int, terms: Terms) -> None:
        for on_step in self.steppers:
            on_step(number, terms)

    def end(self, history: Any) -> None:
        self.ended = True
        for callback in self.callbacks:
            if hasattr(callback, "on_end"):
                callback.on_end(history)

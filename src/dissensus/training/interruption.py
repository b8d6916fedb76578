"""Interruption by Ctrl-C or SIGTERM, which lets a step finish."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

__all__ = ["Interruption", "Stopped"]


class Stopped(KeyboardInterrupt):
    """Training was interrupted after a step; what was done is saved if there is a run folder."""


class Interruption:
    """While entered, the first Ctrl-C or SIGTERM only sets ``wanted``; a second one interrupts.

    In a thread other than the main one signals cannot be caught, and ``wanted`` stays False.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True

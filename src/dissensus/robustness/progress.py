"""What people see while attacks run: a bar, on a terminal, for what takes more than a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["AttackProgress"]

_SECONDS_BEFORE_BAR = 2.0


class AttackProgress:
    """A bar over attacks, with elapsed and remaining time and the name of the one that runs."""

    def __init__(self, total: int, *, show: bool) -> None:
        self.total, self.done, self.name = total, 0, ""
        self.console = Console(stderr=True)
        self.show = show and self.console.is_terminal
        self.started, self.bar = time.monotonic(), None if not self.show else self._made()
        self.running = False

    def _made(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            speed_estimate_period=600.0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None and self.running:
            self.bar.stop()

    def next(self, name: str) -> Callable[[float], None]:
        """Begin the next attack; returns the function to call with the share of it that is done."""
        self.name = name
        number, self.done = self.done, self.done + 1

        def tick(share: float) -> None:
            if self.bar is None:
                return
            if not self.running and time.monotonic() - self.started > _SECONDS_BEFORE_BAR:
                self.running, self.task = True, self.bar.add_task("", total=self.total)
                self.bar.start()
            if self.running:
                self.bar.update(self.task, description=name, completed=number + share)

        tick(0.0)
        return tick

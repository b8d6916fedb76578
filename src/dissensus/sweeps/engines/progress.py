"""What people see while cells run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["CellProgress"]

_SECONDS_BETWEEN_LINES = 5.0


class CellProgress:
    """A bar over cells with elapsed and remaining time; failures stay on the screen."""

    def __init__(self, title: str, total: int, done: int, *, show: bool) -> None:
        self.title, self.total, self.done, self.show = title or "cells", total, done, show
        self.kept, self.failed = done, 0
        self.console = Console(stderr=True)
        self.last_line = 0.0
        self.bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.show and self.kept:
            self.say(f"{self.title}: {self.kept} of {self.total} cells are done already")
        if self.show and self.console.is_terminal and self.kept < self.total:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                # Cells take seconds to minutes, so the pace is that of the last half hour.
                TimeRemainingColumn(),
                TextColumn("{task.fields[last]}"),
                console=self.console,
                transient=True,
                speed_estimate_period=1800.0,
            )
            self.bar.start()
            self.task = self.bar.add_task(
                self.title, total=self.total, completed=self.done, last=""
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.show and kind is None and self.done > self.kept:
            failed = f", {self.failed} failed" if self.failed else ""
            self.say(f"{self.title}: {self.done} of {self.total} cells done{failed}")

    def record(self, record: dict[str, Any]) -> None:
        """Show that a cell has ended."""
        error = record.get("error")
        self.failed += error is not None
        self.done += error is None
        if not self.show:
            return
        if error is not None:
            self.say(f"{self.title}: {record['name']} failed: {error.splitlines()[0]}")
        if self.bar is not None:
            self.bar.update(
                self.task, completed=self.done + self.failed, last=f"[dim]{record['name']}"
            )
        elif time.monotonic() - self.last_line >= _SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.say(
                f"{self.title}: {self.done}/{self.total}, {record['name']} "
                f"took {record['seconds']:.1f} s"
            )

    def waiting(self, count: int) -> None:
        """Show that all cells that are left are being run by another program."""
        if self.show:
            self.say(f"{self.title}: {count} cells are run by another program; waiting for them")

    def say(self, text: str) -> None:
        """A line that stays."""
        console = self.console if self.bar is None else self.bar.console
        console.print(text, soft_wrap=True, highlight=False, markup=False)

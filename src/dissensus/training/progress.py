"""What people see while training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sized
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

__all__ = ["BatchProgress", "FleetProgress", "TrainingProgress"]

_SECONDS_BETWEEN_LINES = 5.0


class TrainingProgress:
    """A bar over the batches of all epochs with the key figures of the last one."""

    def __init__(self, title: str, epochs: int, batches: int, *, show: bool) -> None:
        self.epochs, self.batches, self.show = epochs, batches, show
        self.console = Console(stderr=True)
        self.title, self.last_line = title, 0.0
        self.unshown: dict[str, Any] | None = None
        self.bar: Progress | None = None

    def __enter__(self) -> Self:
        if self.show and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            total = self.epochs * self.batches
            self.task = self.bar.add_task(self.title, total=total, figures="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif self.unshown is not None and kind is None:
            self._line(self.unshown)

    def at(self, batches: int) -> None:
        """Show that so many batches of all epochs are done."""
        if self.bar is not None:
            self.bar.update(self.task, completed=batches)

    def epoch(self, record: dict[str, Any]) -> None:
        """Show the figures of an epoch that ended."""
        if not self.show:
            return
        if self.bar is not None:
            self.bar.update(self.task, figures=_figures(record))
            return
        if time.monotonic() - self.last_line >= _SECONDS_BETWEEN_LINES:
            self._line(record)
        else:
            self.unshown = record  # said at the end if it is the last one

    def _line(self, record: dict[str, Any]) -> None:
        self.last_line, self.unshown = time.monotonic(), None
        self.say(f"{self.title}: epoch {record['epoch']}/{self.epochs}, {_figures(record)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.show:
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def _figures(record: dict[str, Any]) -> str:
    parts = []
    for name in ("train", "val"):
        figures = record.get(name)
        if figures is None:
            continue
        text = f"{name} error {figures['ensemble_error']:.4f}"
        if "accuracy" in figures:
            text += f", accuracy {figures['accuracy']:.1%}"
        parts.append(text)
    return "; ".join(parts)


class BatchProgress:
    """A bar over the batches of a data set, on a terminal."""

    def __init__(self, title: str, batches: Sized, *, show: bool) -> None:
        console = Console(stderr=True)
        self.bar: Progress | None = None
        if show and console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            self.bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self.task = self.bar.add_task(title, total=len(batches))

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self) -> None:
        """One more batch is done."""
        if self.bar is not None:
            self.bar.advance(self.task)


class FleetProgress:
    """A bar over ensembles that train together, with how far those that are left have come."""

    def __init__(self, ensembles: int, *, show: bool) -> None:
        console = Console(stderr=True)
        self.bar: Progress | None = None
        if show and console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[figures]}"),
                console=console,
                transient=True,
            )
            self.task = self.bar.add_task("ensembles", total=ensembles, figures="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def finished(self) -> None:
        """One more ensemble has finished."""
        if self.bar is not None:
            self.bar.advance(self.task)

    def epoch(self, epoch: int, running: int) -> None:
        """The ensembles that train now have finished an epoch."""
        if self.bar is not None:
            self.bar.update(self.task, figures=f"{running} running, epoch {epoch}")

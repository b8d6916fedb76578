"""Progress bars: on a terminal and in notebooks, plain lines elsewhere, nothing on request.

>>> with ProgressBar("scoring", total=3, show=False) as bar:
...     for _ in range(3):
...         bar.advance()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from io import StringIO
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar", "make_console"]

SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_DRAWINGS = 5.0, 0.2


def make_console() -> Console:
    """The console that bars and lines are written to: standard error."""
    from dissensus.tools.console import InertConsole

    return InertConsole(stderr=True)


class ProgressBar:
    """A bar over counted work, with elapsed and remaining time; open it with ``with``.

    On a terminal and in a Jupyter notebook it vanishes when it closes. A bar that opens inside
    another one is drawn below it. Elsewhere, such as in a log file, only :meth:`log` and
    :meth:`say` write anything. With ``show=False`` there is no output at all.

    ``total`` is None where the amount of work is not known yet, ``completed`` is what was done
    before, ``unit="bytes"`` counts in megabytes, and ``delay`` seconds pass before the bar appears.
    """

    def __init__(
        self,
        title: str,
        total: float | None = None,
        *,
        show: bool = True,
        completed: float = 0,
        unit: str = "",
        delay: float = 0.0,
    ) -> None:
        self.title, self.total, self.completed = title, total, completed
        self.show, self.unit, self.delay, self.note = show, unit, delay, ""
        self._parts = 0
        self._line_time, self._unwritten = 0.0, ""
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._console = make_console() if self.show else None
        self._waits = self._live
        self._opened = time.monotonic()
        self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._waits = False
        if self._task is not None:
            _DISPLAY.remove(self._task)
            self._task = None
        if self._unwritten and kind is None:
            self.say(self._unwritten)

    def advance(self, amount: float = 1) -> None:
        """Add ``amount`` to what is done."""
        self.update(completed=self.completed + amount)

    def update(
        self,
        completed: float | None = None,
        *,
        title: str | None = None,
        total: float | None = None,
        note: str | None = None,
    ) -> None:
        """Change what the bar shows; ``note`` is a text that stands behind it."""
        self.completed = self.completed if completed is None else completed
        self.title = self.title if title is None else title
        self.total = self.total if total is None else total
        self.note = self.note if note is None else note
        self._draw()

    @property
    def _live(self) -> bool:
        """Whether bars can be drawn: on a terminal, or in a notebook."""
        return self._console is not None and (self._console.is_terminal or self._console.is_jupyter)

    @property
    def visible(self) -> bool:
        """Whether the bar is on a terminal or in a notebook now."""
        return self._task is not None

    def show_below(self, content: RenderableType) -> None:
        """Show ``content``, such as a table, below the bars until they close."""
        _DISPLAY.below = [content]

    def begin(self, title: str) -> Callable[[float], None]:
        """Begin the next of ``total`` parts; returns a function that takes the share of it done."""
        number, self._parts = self._parts, self._parts + 1

        def tick(share: float) -> None:
            self.update(completed=number + share, title=title)

        tick(0.0)
        return tick

    def log(self, text: str) -> None:
        """Print ``text`` where there are no bars: every few seconds at most, and at the end."""
        if self._console is None or self._live:
            return
        self._unwritten = text
        if time.monotonic() - self._line_time >= SECONDS_BETWEEN_LINES:
            self._line_time = time.monotonic()
            self.say(text)

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._unwritten = ""
        console = _DISPLAY.console or self._console
        if self._console is not None and console is not None:
            console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _draw(self) -> None:
        if self._task is None:
            if not self._waits or time.monotonic() - self._opened < self.delay:
                return
            assert self._console is not None
            self._task, self._waits = _DISPLAY.add(self._console, self._state()), False
        else:
            _DISPLAY.update(self._task, self._state())

    def _state(self) -> dict[str, Any]:
        amounts = [self.completed] if self.total is None else [self.completed, self.total]
        if self.unit == "bytes":
            count = "/".join(f"{amount / 1e6:.1f}" for amount in amounts) + " MB"
        else:
            count = "/".join(str(int(amount)) for amount in amounts)
        return {
            "description": self.title,
            "total": self.total,
            "completed": self.completed,
            "count": count,
            "note": self.note,
        }


class _NotebookCell:
    """The bars as HTML in the output of a notebook's cell; needs IPython alone, no widgets."""

    def __init__(self, progress: Progress) -> None:
        from IPython.display import display

        self.progress, self.shown = progress, 0.0
        self.handle = display(_bundle(""), raw=True, display_id=True)

    def refresh(self) -> None:
        """Draw the bars anew, a few times a second at most."""
        from dissensus.tools.console import InertConsole

        if time.monotonic() - self.shown < SECONDS_BETWEEN_DRAWINGS:
            return
        self.shown = time.monotonic()
        page = InertConsole(
            file=StringIO(), record=True, width=100, force_jupyter=False, color_system="truecolor"
        )
        page.print(self.progress.get_renderable())
        html = page.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        self.handle.update(_bundle(html), raw=True)

    def clear(self) -> None:
        """Leave an empty output."""
        self.handle.update(_bundle(""), raw=True)


def _bundle(html: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": ""}


class _Display:
    """All bars that are open: a screen has room for one live display, which they share."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.cell: _NotebookCell | None = None
        self.below: list[RenderableType] = []

    @property
    def console(self) -> Console | None:
        """Where lines go while bars are drawn, so that they land above them."""
        return None if self.progress is None else self.progress.console

    def add(self, console: Console, state: dict[str, Any]) -> TaskID:
        """Draw one more bar."""
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        display = self

        class Bars(Progress):
            def get_renderables(self) -> Iterable[RenderableType]:
                yield from super().get_renderables()
                yield from display.below

        if self.progress is None:
            self.progress = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=console,
                transient=True,
                # Steps may take minutes: the pace is that of the last half hour.
                speed_estimate_period=1800.0,
            )
            if console.is_jupyter:
                self.cell = _NotebookCell(self.progress)
            else:
                self.progress.start()
        return self.progress.add_task(**state)

    def update(self, task: TaskID, state: dict[str, Any]) -> None:
        """Redraw a bar."""
        assert self.progress is not None
        self.progress.update(task, **state)
        if self.cell is not None:
            self.cell.refresh()

    def remove(self, task: TaskID) -> None:
        """Take a bar away, and the display with the last one."""
        assert self.progress is not None
        if len(self.progress.tasks) == 1:
            if self.cell is None:
                self.progress.stop()
            else:
                self.cell.clear()
            self.progress, self.cell, self.below = None, None, []
        else:
            self.progress.remove_task(task)


_DISPLAY = _Display()

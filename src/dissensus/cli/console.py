"""Console output of commands: lines to copy, notes, and what to do after Ctrl-C."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["command", "note", "resumable", "say"]


def say(text: str) -> None:
    """Print one line as it is: no markup, no wrapping, so that it can be copied."""
    Console().print(Text(text), soft_wrap=True)


def note(text: str) -> None:
    """Print one line to standard error."""
    Console(stderr=True).print(Text(text), soft_wrap=True)


def command(*words: object) -> str:
    """A command to copy, quoted where the shell needs it.

    >>> command("dissensus", "evaluate", "my runs/a")
    "dissensus evaluate 'my runs/a'"
    """
    return shlex.join(str(word) for word in words)


@contextmanager
def resumable(resume_command: Callable[[], str | None], kept: str = "") -> Iterator[None]:
    """Let Ctrl-C end in the command that goes on from here, and exit status 130.

    ``resume_command`` gives None if nothing was written yet; ``kept`` says what was.
    """
    from dissensus.runs.processes import is_first_process

    try:
        yield
    except KeyboardInterrupt as stop:
        if is_first_process():
            again = resume_command()
            if again is None:
                note("dissensus: stopped before training began; nothing was written")
            else:
                note(f"dissensus: stopped; {kept}go on with: {again}")
        raise typer.Exit(130) from stop

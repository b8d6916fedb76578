"""Options of commands, built from the dataclasses in which verbs declare them, and their output.

To write a command (``evaluate`` in ``cli/evaluate.py`` is the pattern):

1. Beside the verb, in ``runs/<verb>.py``, declare a frozen dataclass: each field is an
   ``option(default, help, …)`` of ``dissensus.tools.verbs``. The module imports nothing
   heavy at its top.
2. There too write ``verb(run, options: Verb | None = None, *, progress=False, **settings)``. It
   begins with ``options = collect(Verb, options, settings)``, prints nothing, and returns a
   ``Result``. Export both in the room's ``__init__``.
3. In ``cli/`` write a function that is decorated with :func:`with_options`. The parameter
   annotated with the dataclass stands for all of its options; arguments, and options that concern
   printing alone (``--json``, ``--csv``, ``--quiet``), are ordinary typer parameters beside it.
4. The function calls the verb and prints: ``print_result(result, as_json=as_json)``. Its docstring,
   plain text, is the help page: paragraphs, ``Examples``, and indented commands, each with a remark
   after three spaces. List the function in ``app.COMMANDS``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dissensus.tools.console import InertConsole
from dissensus.tools.verbs import REQUIRED, Result, collect

RunFolder = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def say(text: str) -> None:
    """Print one line as it is: no markup, no wrapping, so that it can be copied."""
    InertConsole().say(text)


def note(text: str) -> None:
    """Print one line to standard error."""
    InertConsole(stderr=True).say(text)


def draw(result: Any, folder: Path) -> list[Path]:
    """Draw the figures of a result; without matplotlib a note, as the rest is worth having."""
    try:
        files: list[Path] = result.draw(folder)
    except ValueError as error:
        note(f"dissensus: {error}")
        return []
    return files


def print_result(result: Result, *, as_json: bool = False) -> None:
    """Print a result for people, or as JSON for programs."""
    if as_json:
        print(result.to_json())
    else:
        result.show()


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter of ``command`` that is an options dataclass by one for each option.

    Typer reads flags from a signature; this one is made from the dataclass, so that an option is
    declared once. The command is called with an object of the dataclass.
    """
    declared = inspect.signature(command, eval_str=True).parameters.values()
    (holder,) = (item for item in declared if dataclasses.is_dataclass(item.annotation))
    kind = holder.annotation
    others = [item.replace(kind=item.KEYWORD_ONLY) for item in declared if item is not holder]
    hints = typing.get_type_hints(kind)
    options = [_parameter(item, hints[item.name]) for item in dataclasses.fields(kind)]
    arguments = [item for item in others if _is_argument(item)]
    parameters = [*arguments, *options, *(item for item in others if not _is_argument(item))]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        named = {item.name: values.pop(item.name) for item in dataclasses.fields(kind)}
        command(**{holder.name: collect(kind, None, named)}, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(item, typer.models.ArgumentInfo) for item in metadata)


def _parameter(item: dataclasses.Field[Any], annotation: Any) -> inspect.Parameter:
    """The parameter from which typer makes the flag of one option."""
    more, name = item.metadata, item.name.replace("_", "-")
    choices = [kind for kind in _choices(annotation) if kind is not types.NoneType]
    negatable = choices == [bool] and item.default is not False
    flag = more["flag"] or (f"--{name}/--no-{name}" if negatable else f"--{name}")
    hidden = item.default is REQUIRED or any(item.default is value for value in (None, False, ()))
    text = more["help"] + (f" [default: {more['default_text']}]" if more["default_text"] else "")
    option = typer.Option(
        flag,
        help=text.replace("[", "\\["),
        metavar=more["metavar"],
        rich_help_panel=more["panel"],
        show_default=not hidden and not more["default_text"],
        min=more["min"],
    )
    default: Any = inspect.Parameter.empty if item.default is REQUIRED else item.default
    if any(typing.get_origin(choice) is tuple for choice in choices):
        annotation, default = list[str] | None, list(default) or None
    elif len(choices) > 1:  # the verb reads the text
        annotation = str | None
    special: Any = Annotated  # whose arguments a type checker wants to see written out
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=special[annotation, option],
    )


def _choices(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)

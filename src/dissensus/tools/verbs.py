"""Verbs: the options they take and the results they return.

A verb is a public function such as ``ds.runs.evaluate``. Its options are a frozen dataclass whose
fields are made by :func:`option`; Python callers pass them as keywords, and the command line builds
its flags from the same fields (``dissensus.cli.options``). Its result is a :class:`Result`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dissensus.tools.records import write_record
from dissensus.tools.specs import check_keys
from dissensus.tools.tabular import Tabular

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "REQUIRED",
    "Result",
    "collect",
    "data_dir_option",
    "device_option",
    "option",
    "trust_option",
]

#: The default of an option that must be given.
REQUIRED: Any = MISSING

T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    panel: str | None = None,
    default_text: str | None = None,
    min: float | None = None,
    **metadata: Any,
) -> Any:
    """A field of an options dataclass, with what the command line needs to know about it.

    ``help`` is plain text. ``flag`` is the name on the command line where it differs from the
    field's (``--ood``), ``panel`` the heading on the help page, ``default_text`` what that page
    says instead of the default. A field of type ``tuple[str, ...]`` can be repeated; if its type is
    ``tuple[str, ...] | dict[str, Any]``, Python may pass a dict. A ``bool`` with the default False
    has no ``--no`` form. Further keywords go into the field's metadata.
    """
    page = {"help": help, "metavar": metavar, "panel": panel, "default_text": default_text}
    metadata |= {**page, "flag": flag, "min": min}
    return field(default=default, metadata=metadata)


def data_dir_option() -> Any:
    """The option ``data_dir: Path | None`` of verbs that load a run's data."""
    return option(None, "The folder of the data sets, if it has moved.")


def trust_option() -> Any:
    """The option ``trust: bool`` of verbs that load a run's model."""
    return option(False, "Run the code that the run names as its model.")


def device_option() -> Any:
    """The option ``device: str`` of verbs that compute."""
    return option("auto", "cpu, cuda, …; auto takes a GPU if there is one.")


def collect(kind: type[T], options: T | None, settings: Mapping[str, Any]) -> T:
    """The options of a verb: ``options``, or the defaults, changed as ``settings`` say.

    An unknown name raises and names the nearest one. For an option that can be repeated, any
    sequence does, and one string stands for a sequence of one.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Greet:
    ...     name: str = option("you", "Whom to greet.")
    >>> collect(Greet, None, {"name": "Ada"})
    Greet(name='Ada')
    >>> collect(Greet, None, {"nam": "Ada"})
    Traceback (most recent call last):
    ...
    ValueError: greet has no option 'nam'; did you mean 'name'?
    """
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    verb = kind.__name__.removesuffix("Options").lower()
    check_keys(verb, settings, known)
    values = {
        name: _as_tuple(value) if str(known[name].type).startswith("tuple[") else value
        for name, value in settings.items()
    }
    if options is not None:
        return replace(options, **values)  # type: ignore[type-var]
    missing = [n for n, item in known.items() if item.default is MISSING and n not in values]
    if missing:
        raise ValueError(f"{verb} needs the option {missing[0]!r}")
    return kind(**values)


def _as_tuple(value: Any) -> tuple[Any, ...] | Mapping[str, Any]:
    """A sequence as a tuple, one value as a tuple of one; a mapping stays what it is."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return value
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


class Result(Tabular):
    """The result of a verb: it can be shown, saved as JSON, turned into a DataFrame and plotted."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything in it as plain JSON values."""

    @abstractmethod
    def display(self) -> Iterable[RenderableType]:
        """Lines of text (``str``, shown as they are) and rich tables, in the order shown."""

    def headline(self) -> str:
        """The first line of text that it shows."""
        texts = (item for item in self.display() if isinstance(item, str))
        return next((text.strip() for text in texts if text.strip()), f"{len(self.to_rows())} rows")

    def show(self) -> None:
        """Print it as the command line does."""
        from dissensus.tools.console import InertConsole

        console = InertConsole()
        if not console.is_terminal:
            console.width = max(console.width, 140)  # a file has no edge to break lines at
        self._print_to(console)

    def __str__(self) -> str:
        """The text that :meth:`show` prints."""
        from io import StringIO

        from dissensus.tools.console import InertConsole

        text = StringIO()
        self._print_to(InertConsole(file=text, width=120))
        return text.getvalue().rstrip("\n")

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def save(self, path: str | Path) -> None:
        """Write :meth:`to_dict` to a JSON file."""
        write_record(path, self.to_dict())

    def _print_to(self, console: Any) -> None:
        from rich.text import Text

        for item in self.display():
            if isinstance(item, str):  # no markup and no wrapping, so that it can be copied
                console.print(Text(item), soft_wrap=True)
            else:
                console.print(item)

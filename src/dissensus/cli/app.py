"""The commands, and how their errors are shown.

Nothing heavy is imported at the top of this module: help and version must answer at once, so
each command imports what it needs when it runs.
"""

import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dissensus._version import __version__
from dissensus.cli import (
    attack,
    diagnose,
    evaluate,
    export,
    features,
    figure,
    ood,
    predict,
    report,
    reproduce,
    runs,
    sweep,
    train,
)

DEBUG_VARIABLE = "DISSENSUS_DEBUG"

HELP = """
Deep ensembles whose members disagree where it helps.

Train them, find out whether their disagreement is real, and put it to work.

Examples

  dissensus demo   the whole idea, from end to end, on a small data set

  dissensus train --data digits --objective ldr:strength=2 --out runs/ldr

  dissensus evaluate runs/ldr   accuracy, calibration, diversity, each member

  dissensus diagnose runs/ldr   is its diversity real, or do members collude?

  dissensus ood runs/ldr --ood corrupt:5 --ood my_folder/   detect unknown inputs

  dissensus sweep --data digits --objective augmented --grid beta=0:1:0.1

  dissensus attack runs/adp --standard --eps 0.1   accuracy under attack

  dissensus predict runs/ldr --input x.npz --output p.npz

  dissensus export runs/ldr --out ldr.onnx   for other programs, or to share

  dissensus features --backbone timm:NAME --data photos/ --out features/

  dissensus runs   list the runs in a folder

  dissensus report runs --out report   one web page of everything

  dissensus reproduce --list   the papers' tables, figures and claims

  dissensus objectives   what an ensemble can be trained with

  dissensus attacks   what an adversary can do

  dissensus scores   what detects an out-of-distribution input

Errors are one sentence; with DISSENSUS_DEBUG=1 they come with a traceback.
"""


def _help_text(text: str) -> str:
    """A docstring as the help page shows it: paragraphs flow, and examples have a colour.

    A paragraph that is indented is an example, a command with a remark after three spaces.

    >>> _help_text("One\\nparagraph.\\n\\n  dissensus runs   of [all]")
    'One paragraph.\\n\\n  [cyan]dissensus runs[/cyan]   of \\\\[all]'
    """
    plain = "[/" not in text  # else it has markup of its own
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        flowing = re.sub(r"\n\s*", " ", paragraph)
        if plain:
            flowing = flowing.replace("[", "\\[")
            if flowing == "Examples":
                flowing = "[bold]Examples[/bold]"
            elif flowing.startswith("  "):
                command, gap, remark = flowing[2:].partition("   ")
                flowing = f"  [cyan]{command}[/cyan]{gap}{remark}"
        paragraphs.append(flowing)
    return "\n\n".join(paragraphs)


app = typer.Typer(
    name="dissensus",
    help=_help_text(HELP),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dissensus {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that belong to no command; the help text is ``HELP``."""


#: Every command by name; its docstring, or ``HELP`` beside it, is its help text.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "evaluate": evaluate.evaluate,
    "diagnose": diagnose.diagnose,
    "attack": attack.attack,
    "ood": ood.ood,
    "predict": predict.predict,
    "export": export.export,
    "reproduce": reproduce.reproduce,
    "features": features.features,
    "sweep": sweep.sweep,
    "runs": runs.runs,
    "report": report.report,
    "figure": figure.figure,
}

for _name, _command in COMMANDS.items():
    _text = getattr(sys.modules[_command.__module__], "HELP", _command.__doc__ or "")
    app.command(_name, help=_help_text(_text))(_command)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for runs and page.")] = Path("demo"),
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Fewer for a quick look.")] = 60,
    seed: Annotated[int, typer.Option("--seed", help="What all chance follows from.")] = 0,
) -> None:
    """Train, diagnose, test and attack five ensembles on real digits, and write the report page.

    It takes a minute or two and needs no network. Every number comes from the run itself.
    """
    from dissensus.demo import run

    run(out, epochs=epochs, seed=seed)


@app.command()
def objectives() -> None:
    """List every training objective with its settings and their defaults."""
    from dissensus.objectives import OBJECTIVES

    rows = ((name, _field_settings(kind), kind) for name, kind in OBJECTIVES.items())
    Console().print(_catalogue("Objectives", rows))


@app.command()
def attacks() -> None:
    """List every attack with its settings and their defaults."""
    from dissensus.robustness import ATTACKS

    rows = ((name, _field_settings(kind), kind) for name, kind in ATTACKS.items())
    Console().print(_catalogue("Attacks", rows))


@app.command()
def scores() -> None:
    """List every uncertainty and out-of-distribution score with its settings."""
    from dissensus.scores import SCORES

    rows = ((name, _keyword_settings(score), score) for name, score in SCORES.items())
    Console().print(_catalogue("Scores (higher means more out of distribution)", rows))


def main() -> None:
    """Run the command line; a mistake of the user ends in one sentence and exit status 2."""
    try:
        app()
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if not _expected(error) or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            raise
        print(f"dissensus: {_sentence(error)}", file=sys.stderr)
        sys.exit(2)


def _expected(error: Exception) -> bool:
    """Whether it may come from what was asked; torch tells lack of memory as RuntimeError."""
    lacking = any(text in str(error) for text in ("out of memory", "can't allocate memory"))
    return lacking or not isinstance(error, RuntimeError)


def _sentence(error: Exception) -> str:
    """Return the error's message on one line, a file error without its ``[Errno n]``."""
    if isinstance(error, MemoryError | RuntimeError):
        return "there is not enough memory; lower --batch-size or --members"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__


def _catalogue(title: str, rows: Iterable[tuple[str, Iterable[str], object]]) -> Table:
    """Return the table of a registry: each entry's name, settings and first docstring line."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("settings")
    table.add_column("what it is")
    for name, settings, entry in rows:
        # Text, not str: a shape such as [members, batch] would be taken for markup and vanish.
        table.add_row(name, Text("\n".join(settings)), Text(_summary(entry)))
    return table


def _field_settings(kind: type[Any]) -> Iterator[str]:
    """Yield ``name=default`` for each field, the bare name for a field without a default."""
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            yield f"{field.name}={field.default!r}"
        elif field.default_factory is not dataclasses.MISSING:
            yield f"{field.name}={field.default_factory()!r}"
        else:
            yield field.name


def _keyword_settings(function: Callable[..., Any]) -> Iterator[str]:
    """Yield ``name=default`` for each parameter after the first, which is the outputs."""
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        required = parameter.default is inspect.Parameter.empty
        yield parameter.name if required else f"{parameter.name}={parameter.default!r}"


def _summary(entry: object) -> str:
    """Return the first line of the entry's docstring, of the wrapped function for a partial."""
    while isinstance(entry, partial):
        entry = entry.func
    return (inspect.getdoc(entry) or "").partition("\n")[0]

"""The application: its commands, the lists of registries, and errors as one sentence.

Nothing heavy is imported at the top of this module: help and version must answer at once, so each
command imports what it needs when it runs.
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from dissensus._version import __version__
from dissensus.cli.attack import attack
from dissensus.cli.evaluate import diagnose, evaluate
from dissensus.cli.features import features
from dissensus.cli.ood import ood
from dissensus.cli.options import note
from dissensus.cli.predict import export, predict
from dissensus.cli.report import figure, report
from dissensus.cli.runs import runs
from dissensus.cli.train import sweep, train
from dissensus.tools.console import InertConsole

DEBUG_VARIABLE = "DISSENSUS_DEBUG"

HELP = """
Deep ensembles whose members disagree where it helps.

Train them, find out whether their disagreement is real, and put it to work.

Examples

  dissensus demo   the whole idea, from end to end, on a small data set

  dissensus train --data digits --objective adp --out runs/adp

  dissensus evaluate runs/adp   accuracy, calibration, diversity, each member

  dissensus diagnose runs/adp   is its diversity real, or do members collude?

  dissensus ood runs/adp --ood corrupt:5   detect unknown inputs

  dissensus attack runs/adp --attacks pgd:eps=0.1 --limit 100 --save npz   under attack

  dissensus predict runs/adp --input runs/adp/robustness/adversarial.npz --output p.csv

  dissensus export runs/adp --out adp.pt2   for other programs, or to share

  dissensus sweep --data wine --objective augmented --grid beta=0:1:0.25

  dissensus runs   list the runs in a folder

  dissensus report runs sweeps --out report   one web page of everything


  dissensus objectives   what an ensemble can be trained with

  dissensus attacks   what an adversary can do

  dissensus scores   what detects an out-of-distribution input

Errors are one sentence; `dissensus --debug …`, or DISSENSUS_DEBUG=1, adds a traceback.
"""


def _help_text(text: str) -> str:
    """A docstring as the help page shows it: paragraphs flow, and examples have a colour.

    A paragraph that is indented is an example, a command with a remark after three spaces.

    >>> _help_text("One\\nparagraph.\\n\\n  dissensus runs   of [all]")
    'One paragraph.\\n\\n  [cyan]dissensus runs[/cyan]   of \\\\[all]'
    """
    paragraphs = []
    for paragraph in inspect.cleandoc(text).replace("[", "\\[").split("\n\n"):
        flowing = re.sub(r"\n\s*", " ", paragraph)
        if flowing.startswith("Examples"):
            flowing = f"[bold]{flowing}[/bold]"
        elif flowing.startswith("  "):
            command, gap, remark = flowing[2:].partition("   ")
            flowing = f"  [cyan]{command}[/cyan]{gap}{remark}"
        paragraphs.append(flowing)
    return "\n\n".join(paragraphs)


#: What torch says when memory runs out.
_NO_MEMORY = ("out of memory", "can't allocate memory")


class _Commands(TyperGroup):
    """The commands; a mistake of the user, or of a file, ends in one sentence and status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that ``ctx`` names."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            own = isinstance(error, typer.Abort) or hasattr(error, "exit_code")  # click's own
            debug = ctx.params.get("debug") or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
            if own or debug:
                raise
            note(f"dissensus: {_sentence(error)}")
            ctx.exit(2)


app = typer.Typer(
    name="dissensus",
    cls=_Commands,
    help=_help_text(HELP),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Take the options that belong to no command; the help text is ``HELP``."""


#: Every command but the lists below; its name is the function's, its docstring the help text.
COMMANDS: tuple[Callable[..., None], ...] = (
    *(train, evaluate, diagnose, attack, ood, predict, export),
    *(features, sweep, runs, report, figure),
)

for _command in COMMANDS:
    app.command(help=_help_text(_command.__doc__ or ""))(_command)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs and the page.")] = Path(
        "demo"
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Fewer for a quick look.")] = 60,
    seed: Annotated[int, typer.Option(help="The seed of all randomness.")] = 0,
) -> None:
    """Train, diagnose, test and attack six ensembles on real digits, and write the report page.

    It takes a minute or two and needs no network. Every number comes from the run itself.
    """
    from dissensus.demo import run

    run(out, epochs=epochs, seed=seed)


@app.command()
def objectives() -> None:
    """List every training objective with its settings and their defaults."""
    from dissensus.objectives import OBJECTIVES

    _print_registry("Objectives", OBJECTIVES)


@app.command()
def attacks() -> None:
    """List every attack with its settings and their defaults."""
    from dissensus.robustness import ATTACKS

    _print_registry("Attacks", ATTACKS)


@app.command()
def scores() -> None:
    """List every uncertainty and out-of-distribution score with its settings."""
    from dissensus.detection import FITTED_SCORES
    from dissensus.scores import SCORES

    _print_registry("Scores (higher means more out of distribution)", SCORES)
    _print_registry("Scores that are fitted to training data, for `dissensus ood`", FITTED_SCORES)


def main() -> None:
    """Run the command line."""
    app()


def _sentence(error: Exception) -> str:
    """Return the error's message on one line, a file error without its ``[Errno n]``."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return "there is not enough memory; lower --batch-size or --members"
    if isinstance(error, OSError) and error.strerror:
        name = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{name}"
    if isinstance(error, ValueError | OSError | ImportError):
        return text or type(error).__name__
    # The last resort: what no check has foreseen, most likely because of a file.
    return (
        f"{type(error).__name__}: {text[:300]}; a file may be damaged or of another kind, or this "
        "is a bug: `dissensus --debug …` shows where it happened"
    )


def _print_registry(title: str, registry: Mapping[str, Callable[..., Any]]) -> None:
    """Print the name, settings and first docstring line of each class or function."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("settings")
    table.add_column("what it is")
    for name, entry in registry.items():
        function = entry.func if isinstance(entry, partial) else entry
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        # Text, not str: a shape such as [members, batch] would be taken for markup and vanish.
        table.add_row(name, Text("\n".join(_settings(entry))), Text(summary))
    InertConsole().print(table)


def _settings(entry: Callable[..., Any]) -> Iterator[str]:
    """Yield ``name=default`` for each setting, the bare name for one without a default."""
    parameters = list(inspect.signature(entry).parameters.values())
    factories: dict[str, Any] = {}
    if dataclasses.is_dataclass(entry):
        every = dataclasses.fields(entry)
        factories = {f.name: f.default_factory for f in every if callable(f.default_factory)}
    else:
        del parameters[0]  # the outputs, which a function scores
    for item in parameters:
        default = factories[item.name]() if item.name in factories else item.default
        yield item.name if default is item.empty else f"{item.name}={default!r}"

"""``dissensus train``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.ranks import asked_for, ranks, speaks
from dissensus.cli.resolving import resolve
from dissensus.cli.settings import Sections, with_settings

if TYPE_CHECKING:
    from dissensus.cli.job import Outcome

__all__ = ["HELP", "train"]

HELP = """
Train an ensemble and keep the run in a folder.

The folder holds what was asked (config.toml), one line an epoch (metrics.jsonl), a checkpoint to
go on from, outputs on validation and test data, and what came out (record.json). Ctrl-C finishes
the step and saves; --resume goes on to the same numbers as if nothing had happened.

[bold]Examples[/bold]

  [cyan]dissensus train --data digits --objective ldr:strength=2 --epochs 20 --out runs/ldr[/cyan]

  [cyan]dissensus train --resume --out runs/ldr --epochs 40[/cyan]

  [cyan]dissensus train --data flats.csv --target price --objective augmented:beta=0.5[/cyan]

  [cyan]dissensus train --data cifar10 --model resnet20 --optimizer sgd:lr=0.1 --augment adp[/cyan]

  [cyan]dissensus train --data digits --objective adp --adversarial fgsm[/cyan]   more robust

  [cyan]dissensus train --data x.npz --model my_file.py:make_member --model-option width=64[/cyan]

  [cyan]dissensus train --data imagenet/ --data-option stream=true --data-option workers=8[/cyan]

  [cyan]dissensus train --config ldr.toml --seed 1[/cyan]

  [cyan]torchrun --nproc-per-node 4 -m dissensus train --data cifar10 --model resnet20[/cyan]

A file for --config has the options' names as keys (data = "digits", batch_size = 64), options of
the model and the data in \\[model_options] and \\[data_options]. config.toml of any run, with the
same settings in sections, will do as well. What stands on the command line wins.
"""


_PROCESSES = "Several processes (torchrun)"


@with_settings
def train(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A TOML file with settings.", rich_help_panel="Run"),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Run the code that a file or run names as its model.",
            rich_help_panel="Run",
        ),
    ] = False,
    distributed: Annotated[
        bool | None,
        typer.Option(
            "--distributed/--no-distributed",
            help="Spread members over the processes that torchrun has started; as it is found.",
            rich_help_panel=_PROCESSES,
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="MEMBERSxDATA",
            help="Processes along members and along the rows of a batch, such as 4x2.",
            rich_help_panel=_PROCESSES,
        ),
    ] = None,
    rank_timeout: Annotated[
        float,
        typer.Option(
            "--rank-timeout",
            help="Seconds to wait for a process that does not answer.",
            rich_help_panel=_PROCESSES,
        ),
    ] = 300.0,
    sync_batchnorm: Annotated[
        bool,
        typer.Option(
            "--sync-batchnorm",
            help="Let BatchNorm see whole batches where their rows are spread.",
            rich_help_panel=_PROCESSES,
        ),
    ] = False,
    shard: Annotated[
        bool,
        typer.Option(
            "--shard",
            help="Split each member over the processes along data (FSDP2).",
            rich_help_panel=_PROCESSES,
        ),
    ] = False,
    **given: Any,
) -> None:
    """Train an ensemble; the help text is ``HELP``."""
    asked = resolve(given, config)
    settings = asked_for(
        distributed, mesh, rank_timeout, sync_batchnorm=sync_batchnorm, shard=shard
    )
    with _resumable(asked), ranks(settings, asked["machine"]) as together:
        from dissensus.cli.job import default_out, run_training

        out = Path(asked["run"].get("out") or default_out(asked))
        asked["run"]["out"] = str(out)
        resume = together.resuming(asked["run"]["resume"], lambda: _stored(out) is not None)
        stored = _stored(out) if resume else None
        sections = resolve(given, config, stored)
        quiet = sections["run"]["quiet"] or not together.first
        trusted = trust or given.get("model") is not None
        outcome = run_training(
            sections, out, stored=stored, trust=trusted, progress=not quiet, ranks=together
        )
        if not quiet:
            _show(outcome)


def _stored(out: Path) -> Sections | None:
    """The config of the run that is to be resumed; None where nothing was begun."""
    from dissensus.runs import read_config
    from dissensus.runs.folder import CONFIG

    return read_config(out) if (out / CONFIG).exists() else None


@contextmanager
def _resumable(asked: Sections) -> Iterator[None]:
    """Let Ctrl-C end in how to go on, and exit status 130."""
    from dissensus.cli.shown import command, note

    try:
        yield
    except KeyboardInterrupt as stop:
        if not speaks():
            raise typer.Exit(130) from stop
        out = asked["run"].get("out")
        if out is not None and (Path(out) / "config.toml").exists():
            again = command("dissensus", "train", "--resume", "--out", out, *_trust_of(out))
            note(f"dissensus: stopped; go on with: {again}")
        else:
            note("dissensus: stopped before training began; nothing was written")
        raise typer.Exit(130) from stop


def _trust_of(run: str | Path) -> list[str]:
    """The flag that a command on ``run`` needs, if its model is code from elsewhere."""
    from dissensus.runs import read_config

    try:
        name = str(read_config(run).get("model", {}).get("name", ""))
    except ValueError:
        return []
    return ["--trust"] if ":" in name else []


def _show(outcome: Outcome) -> None:
    from rich.console import Console

    from dissensus.cli.shown import command, say
    from dissensus.runs.metrics import metrics_table

    config, history, out = outcome.config, outcome.history, outcome.out
    training, trust = config["training"], _trust_of(outcome.out)
    say("")
    say(
        f"{config['data']['name']}, {config['ensemble']['members']} × {config['model']['name']}, "
        f"{training['objective']}: {len(history.epochs)} epochs in {history.seconds:.1f} s"
        f"{', ended by patience' if history.ended == 'patience' else ''}, "
        f"the best is number {history.best_epoch}"
    )
    if outcome.figures:
        Console().print(metrics_table(outcome.figures, short=True))
    say(f"Written to {out}: config.toml, metrics.jsonl, record.json, checkpoint, predictions/")
    say("What next:")
    say("  " + command("dissensus", "evaluate", out, *trust))
    words = ("dissensus", "predict", out, "--input", "x.npz", "--output", "p.npz", *trust)
    say("  " + command(*words))
    folder = [] if out.parent == Path("runs") else [out.parent]
    say("  " + command("dissensus", "runs", *folder))

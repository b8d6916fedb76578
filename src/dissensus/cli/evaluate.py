"""``dissensus evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dissensus.cli.options import DataDir, Device, Trust

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.runs import Run

__all__ = ["HELP", "evaluate"]

HELP = """
Judge a run on data: accuracy, calibration, diversity, and each member by itself.

Uses the weights of the best epoch; for a run that was stopped, of the best epoch so far. ERR is the
ensemble's error (cross-entropy, or squared error in regression), mean ERR that of its members, and
DIV what combining them takes off.

[bold]Examples[/bold]

  [cyan]dissensus evaluate runs/ldr[/cyan]   on the test split the run was made with

  [cyan]dissensus evaluate runs/ldr --split val[/cyan]

  [cyan]dissensus evaluate runs/flats --data new_flats.csv[/cyan]   all rows of a file

  [cyan]dissensus evaluate runs/ldr --json[/cyan]   numbers for a script
"""


def evaluate(
    run: Annotated[Path, typer.Argument(help="The run folder.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Other data: a data set by name, or a file or shards (all their examples).",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="train, val, test, or an extra set of the data.")
    ] = "test",
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = False,
    device: Device = "auto",
) -> None:
    """Judge a run; the help text is ``HELP``."""
    from dissensus.cli.figures import figures
    from dissensus.runs import Facts, describe, load
    from dissensus.training import predict

    told = describe(run)
    ens = load(run, trust=trust, device=device)
    where, x, y = _chosen(run, data, split, data_dir)
    predictions = predict(ens, (x, y), progress=not as_json)
    found = figures(predictions, ens.combine, ens.weights, Facts.read(run))
    if as_json:
        print(json.dumps(_numbers(told, where, found), indent=1))
    else:
        _show(told, where, found)


def _chosen(
    run: Path, data: str | None, split: str, data_dir: Path | None
) -> tuple[str, Tensor, Tensor]:
    """What to evaluate on, in words and as tensors."""
    from dissensus.data import is_shards
    from dissensus.runs import Facts, data_of, load_data, read_config, read_inputs

    config, facts = read_config(run), Facts.read(run)
    one = data is not None and (Path(data).is_file() or (is_shards(data) and not _folder(data)))
    if data is not None and one and facts is not None:
        options = {"target": config["data"].get("target")}
        header = bool(config.get("data_options", {}).get("header", True))
        inputs = read_inputs(data, facts, header=header, labelled=True, **options)
        assert inputs.y is not None
        return f"all examples of {data}", inputs.x, inputs.y
    if data is None:
        found = data_of(run, data_dir=data_dir)
    else:
        kept = {k: v for k, v in config.get("data", {}).items() if k in ("seed", "val", "test")}
        folder = {} if data_dir is None else {"data_dir": str(data_dir)}
        options = _reading_options(config, data)
        found = load_data({"data": {**kept, **folder, "name": data}, "data_options": options})
    sets = {**found.extra, **found.splits()}
    if split not in sets:
        raise ValueError(f"{found.name} has no split {split!r}; it has {', '.join(sets)}")
    x, y = sets[split]
    if y is None or not len(x):
        lacks = "no labels" if y is None else "no rows"
        raise ValueError(f"the split {split!r} of {found.name} has {lacks}; choose another --split")
    if facts is not None and [list(x.shape[1:]), found.outputs] != [
        facts.input_shape,
        facts.outputs,
    ]:
        raise ValueError(
            f"{found.name} has inputs of shape {tuple(x.shape[1:])} and {found.outputs} outputs, "
            f"the run takes {tuple(facts.input_shape)} and gives {facts.outputs}"
        )
    return f"{split} of {found.name}", x, y


def _folder(name: str) -> bool:
    return Path(name).is_dir()


def _reading_options(config: dict[str, dict[str, Any]], data: str) -> dict[str, Any]:
    """How the run read its images, for others in a folder."""
    from dissensus.data import is_shards

    own = config.get("data_options", {}) if _folder(data) else {}
    known = ["size", "workers", "on_error"] + ([] if is_shards(data) else ["stream"])
    return {key: own[key] for key in known if key in own}


def _numbers(told: Run, where: str, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": str(told.path),
        "state": told.state,
        "epochs": told.epochs,
        "best_epoch": told.best_epoch,
        "objective": told.asked("training", "objective"),
        "evaluated_on": where,
        **found,
    }


def _show(told: Run, where: str, found: dict[str, Any]) -> None:
    from rich.console import Console

    from dissensus.cli.shown import figures_table, members_table, say

    say(f"{told.path}: {told.asked('training', 'objective')}, {told.standing()}")
    say(f"Epoch {told.best_epoch}, {found['examples']} examples: {where}")
    console = Console()
    console.print()
    console.print(figures_table({"ensemble": found}))
    console.print()
    console.print(members_table(found))

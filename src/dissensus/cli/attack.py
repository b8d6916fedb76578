"""``dissensus attack``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HELP", "attack"]

HELP = """
Attack a run's ensemble and say what is left of its accuracy.

The headline is the worst case for each example over all attacks. Signs that an attack failed for
its own reasons (masked gradients, too few steps) are said in plain words. The attacker sees all
members and their gradients; inputs stay in 0 to 1. All numbers go to RUN/robustness.json.

An attack is written name:key=value,key=value. The names are fgsm, bim, pgd, mim, jsma, cw, ead,
reweighted, disguised, square, noise and autoattack (pip install 'dissensus\\[robustness]').

[bold]Examples[/bold]

  [cyan]dissensus attack runs/adp --attacks fgsm:eps=0.1 --attacks pgd:eps=0.1,steps=100[/cyan]

  [cyan]dissensus attack runs/adp --standard --eps 0.1 --limit 200[/cyan]   the honest number

  [cyan]dissensus attack runs/adp --paper[/cyan]   the adp paper's attacks: historical, weak

  [cyan]dissensus attack runs/adp --attacks pgd:eps=0.1,restarts=5 --json[/cyan]
"""

#: The ε of --standard where none is given.
_EPS = {"mnist": 0.1, "cifar10": 8 / 255, "cifar100": 8 / 255}


def attack(
    run: Annotated[Path, typer.Argument(help="The run folder.", show_default=False)],
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            "--attacks", help="An attack; may be given again, or many with spaces between them."
        ),
    ] = None,
    standard: Annotated[
        bool,
        typer.Option("--standard", help="AutoAttack, long PGD, reweighted members, Square."),
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The adp paper's attacks: historical, weak.")
    ] = False,
    eps: Annotated[
        float | None,
        typer.Option(
            "--eps", help="ε of --standard; else 0.1, or 8/255 for colour.", show_default=False
        ),
    ] = None,
    norm: Annotated[str, typer.Option("--norm", help="Norm of --standard: linf or l2.")] = "linf",
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Only the first so many.", show_default=False),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="train, val, test, or an extra set of the data.")
    ] = "test",
    seed: Annotated[int, typer.Option("--seed", help="Of random starts and targets.")] = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Examples at once.")] = 256,
    checks: Annotated[
        bool, typer.Option("--checks/--no-checks", help="Look for masked gradients: two more runs.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Where data sets are now.", show_default=False),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that the run names as its model.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, … or auto.")] = "auto",
) -> None:
    """Attack a run; the help text is ``HELP``."""
    from dissensus import robustness
    from dissensus.cli.shown import say
    from dissensus.records import environment, write_record
    from dissensus.runs import load

    if (attacks is not None) + standard + paper != 1:
        raise ValueError("choose one of --attacks, --standard and --paper")
    specs = [spec for text in attacks or [] for spec in text.replace(";", " ").split()]
    asked: dict[str, Any] = {"attacks": specs} if attacks is not None else {}
    for spec in specs:
        robustness.parse(spec)  # a mistake in the last one is told before the first has run
    ens = load(run, trust=trust, device=device)
    where, like, x, y = _chosen(run, split, data_dir)
    if limit is not None:
        x, y, where = x[:limit], y[:limit], f"the first {min(limit, len(x))} of {where}"
    if standard:
        asked = {"protocol": "standard", "eps": _EPS[like] if eps is None else eps, "norm": norm}
    if paper:
        asked = {"protocol": "paper", "like": like}
    found = robustness.evaluate(
        ens, x, y, **asked, checks=checks, batch_size=batch_size, seed=seed, progress=True
    )
    record = {
        "format": "dissensus.robustness/1",
        "evaluated_on": where,
        **found.to_dict(),
        "environment": environment(),
    }
    write_record(run / "robustness.json", record)
    if as_json:
        print(json.dumps(record, indent=1))
        return
    say(f"{run}: {where}")
    for line in found.report().splitlines():
        say(line)
    say(f"Record: {run / 'robustness.json'}")


def _chosen(run: Path, split: str, data_dir: Path | None) -> tuple[str, str, Tensor, Tensor]:
    """What to attack, in words; which of the paper's data it is like; inputs and labels."""
    from dissensus.runs import data_of

    found = data_of(run, data_dir=data_dir)
    sets = {**found.extra, **found.splits()}
    if split not in sets:
        raise ValueError(f"{found.name} has no split {split!r}; it has {', '.join(sets)}")
    x, y = sets[split]
    if y is None or not len(x):
        lacks = "no labels" if y is None else "no rows"
        raise ValueError(f"the split {split!r} of {found.name} has {lacks}; choose another --split")
    colour = len(found.input_shape) == 3 and found.input_shape[0] == 3
    like = ("cifar100" if found.outputs == 100 else "cifar10") if colour else "mnist"
    return f"{split} of {found.name}", like, x, y

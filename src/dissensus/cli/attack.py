"""``dissensus attack``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dissensus.cli.options import DataDir, Device, Trust

if TYPE_CHECKING:
    pass

__all__ = ["HELP", "attack"]

HELP = """
Attack a run's ensemble and say what is left of its accuracy.

The headline is the worst case for each example over all attacks. Signs that an attack failed for
its own reasons (masked gradients, too few steps) are said in plain words. The attacker sees all
members and their gradients; inputs stay in 0 to 1.

An attack is written name:key=value,key=value; `dissensus attacks` lists them with their settings.
--standard is today's honest set of attacks, with AutoAttack if it is installed (pip install
'dissensus\\[robustness]'); --paper is the adp paper's, historical and weak. They can be combined.

Written to RUN/robustness, or to --out: record.json with all numbers, accuracy.svg (against ε, steps
and restarts), examples.svg (images before and after), both as .png too, the images alone
(examples.npz), and all changed inputs with --save npz or --save safetensors.

[bold]Examples[/bold]

  [cyan]dissensus attack runs/adp --attacks fgsm:eps=0.1 --attacks pgd:eps=0.1,steps=100[/cyan]

  [cyan]dissensus attack runs/adp --standard --eps 0.1 --limit 200[/cyan]   the honest number

  [cyan]dissensus attack runs/adp --paper --limit 100[/cyan]   the adp paper's attacks

  [cyan]dissensus attack runs/adp --attacks pgd:eps=0.1 --curve 0.02:0.2:0.02 --save npz[/cyan]
"""


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
    curve: Annotated[
        str,
        typer.Option(
            "--curve",
            help="Values of ε for the strongest gradient attack: 0.05,0.1 or 0:0.2:0.05; or none.",
        ),
    ] = "auto",
    checks: Annotated[
        bool, typer.Option("--checks/--no-checks", help="Look for masked gradients: two more runs.")
    ] = True,
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer/--no-transfer",
            help="Try what fools one member on the others: PGD of 10 steps on each.",
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where files go; RUN/robustness.", show_default=False),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(
            "--save", help="Keep the changed inputs: npz or safetensors.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of random starts and targets.")] = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Examples at once.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    data_dir: DataDir = None,
    trust: Trust = False,
    device: Device = "auto",
) -> None:
    """Attack a run; the help text is ``HELP``."""
    from dissensus import robustness
    from dissensus.cli.attack_job import Asked, attack_run
    from dissensus.cli.shown import say

    if not (attacks or standard or paper):
        raise ValueError("say how to attack: --standard, --paper or --attacks pgd:eps=0.1")
    if (eps is not None or norm != "linf") and not standard:
        raise ValueError(
            "--eps and --norm are those of --standard; write them into an attack: "
            "--attacks pgd:eps=0.1,norm=l2"
        )
    if save not in (None, "npz", "safetensors"):
        raise ValueError(f"--save must be npz or safetensors, got {save!r}")
    own = [robustness.parse(spec) for text in attacks or [] for spec in text.split()]
    done = attack_run(
        run,
        Asked(own, paper, standard, eps, norm),
        limit=limit,
        split=split,
        curve=_values(curve),
        checks=checks,
        transfer=transfer,
        out=out,
        save=save,
        batch_size=batch_size,
        seed=seed,
        data_dir=data_dir,
        trust=trust,
        device=device,
    )
    if as_json:
        print(json.dumps(done.record, indent=1))
        return
    say(str(done.record["evaluated_on"]))
    for line in done.found.report().splitlines():
        say(line)
    say(f"Written to {done.folder}: {', '.join(done.files)}")


def _values(text: str) -> list[float] | None:
    """The values of --curve; None for auto."""
    from dissensus.sweeps.grid import parse_axis

    if text in ("auto", "none"):
        return None if text == "auto" else []
    _, values = parse_axis(f"eps={text}", "--curve")
    found = [value for value in values if value != 0]  # the clean accuracy is known
    if not all(isinstance(value, int | float) and value > 0 for value in found):
        raise ValueError(f"--curve must be values of ε above 0, auto or none, got {text!r}")
    return [float(value) for value in found]

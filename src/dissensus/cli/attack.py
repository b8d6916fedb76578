"""``dissensus attack``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dissensus.cli.options import DataDir, Device, Trust

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dissensus.robustness import Protocol, Robustness

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
and restarts), examples.svg (images before and after), both as .png too, and the changed inputs with
--save npz or --save safetensors.

[bold]Examples[/bold]

  [cyan]dissensus attack runs/adp --attacks fgsm:eps=0.1 --attacks pgd:eps=0.1,steps=100[/cyan]

  [cyan]dissensus attack runs/adp --standard --eps 0.1 --limit 200[/cyan]   the honest number

  [cyan]dissensus attack runs/adp --paper --limit 100[/cyan]   the adp paper's attacks

  [cyan]dissensus attack runs/adp --attacks pgd:eps=0.1 --curve 0.02:0.2:0.02 --save npz[/cyan]
"""

#: The ε of --standard where none is given.
_EPS = {"mnist": 0.1, "cifar10": 8 / 255, "cifar100": 8 / 255}

#: What --curve auto looks at, in units of the largest ε of the attacks.
_CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


class _Inputs(NamedTuple):
    """What is attacked: in words, which of the paper's data it is like, and the data."""

    where: str
    like: str
    x: Tensor
    y: Tensor
    classes: Sequence[str]


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
    from dissensus.runs import load

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
    given = _values(curve)  # a mistake is told before anything is loaded
    ens = load(run, trust=trust, device=device)
    inputs = _chosen(run, split, data_dir, limit)
    protocols = []
    if paper:
        protocols.append(robustness.paper(inputs.like))
    if standard:
        protocols.append(robustness.standard(_EPS[inputs.like] if eps is None else eps, norm))
    if own:
        protocols.append(robustness.Protocol("own", "attacks as asked for", tuple(own)))
    protocol = robustness.joined(protocols)
    found = robustness.evaluate(
        ens,
        inputs.x,
        inputs.y,
        protocol=protocol,
        curve=_around(protocol) if given is None else given,
        checks=checks,
        batch_size=batch_size,
        seed=seed,
    )
    _keep(found, inputs, run / "robustness" if out is None else out, save, as_json=as_json)


def _keep(
    found: Robustness, inputs: _Inputs, folder: Path, save: str | None, *, as_json: bool
) -> None:
    """Write all files, then say what was found and where it is."""
    from dissensus.cli.attack_figures import write_figures
    from dissensus.cli.shown import note, say
    from dissensus.records import environment, write_record

    record = {
        "format": "dissensus.robustness/1",
        "evaluated_on": inputs.where,
        **found.to_dict(),
        "environment": environment(),
    }
    write_record(folder / "record.json", record)
    try:
        figures = write_figures(found, folder, inputs.classes)
    except ValueError as error:  # matplotlib is not installed: the rest is still worth having
        note(f"dissensus: {error}")
        figures = []
    if save is not None:
        found.save(folder / f"adversarial.{save}")
    if as_json:
        print(json.dumps(record, indent=1))
        return
    say(inputs.where)
    for line in found.report().splitlines():
        say(line)
    names = ["record.json", *(path.name for path in figures)]
    names += [] if save is None else [f"adversarial.{save}"]
    say(f"Written to {folder}: {', '.join(names)}")


def _chosen(run: Path, split: str, data_dir: Path | None, limit: int | None) -> _Inputs:
    from dissensus.data import Examples
    from dissensus.runs import data_of

    found = data_of(run, data_dir=data_dir)
    sets = {**found.extra, **found.splits()}
    if split not in sets:
        raise ValueError(f"{found.name} has no split {split!r}; it has {', '.join(sets)}")
    x, y = sets[split]
    if y is None or not len(x):
        lacks = "no labels" if y is None else "no rows"
        raise ValueError(f"the split {split!r} of {found.name} has {lacks}; choose another --split")
    where = f"{split} of {found.name}"
    if limit is not None and limit < len(x):
        x, y, where = x[:limit], y[:limit], f"the first {limit} of {where}"
    if isinstance(x, Examples):
        if limit is None:
            raise ValueError(f"{where} is on disk, {len(x)} examples; say how many: --limit")
        x, y = x[:], y[:]
    colour = len(found.input_shape) == 3 and found.input_shape[0] == 3
    like = ("cifar100" if found.outputs == 100 else "cifar10") if colour else "mnist"
    return _Inputs(where, like, x, y, found.classes)


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


def _around(protocol: Protocol) -> list[float]:
    """Values of ε around those of the attacks; none where they are of two norms, or have no ε."""
    budgets = [found for found in (one.budget() for one in protocol.attacks) if found is not None]
    if len({norm for norm, _ in budgets}) != 1:
        return []
    largest = max(eps for _, eps in budgets)
    return [round(largest * factor, 12) for factor in _CURVE]

"""``dissensus attack``: the accuracy that adversaries leave a run's ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dissensus import runs
from dissensus.cli.options import AsJson, RunFolder, draw, print_result, say, with_options
from dissensus.runs import AttackOptions

Out = Annotated[
    Path | None, typer.Option(help="Folder for all files.", show_default="RUN/robustness")
]
Save = Annotated[
    str | None,
    typer.Option(help="Keep the changed inputs: npz or safetensors.", show_default=False),
]


@with_options
def attack(
    run: RunFolder,
    options: AttackOptions,
    out: Out = None,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """
    Attack a run's ensemble and report the accuracy that is left.

    The headline is the worst case for each example over all attacks. Signs that an attack failed
    for its own reasons (masked gradients, too few steps) are reported in plain words. The attacker
    sees all members and their gradients; inputs stay in 0 to 1.

    An attack is written name:key=value,key=value; `dissensus attacks` lists them with their
    settings. --standard is today's honest set of attacks, with AutoAttack if it is installed (pip
    install 'dissensus[robustness]'); --paper is that of the adp paper, historical and weak. They
    can be combined.

    Written to RUN/robustness, or to --out: record.json with all numbers, accuracy.svg (against ε,
    steps and restarts), examples.svg (images before and after), both as .png too, the images alone
    (examples.npz), and all changed inputs with --save npz or --save safetensors.

    Examples

      dissensus attack runs/adp --attacks fgsm:eps=0.1 --attacks pgd:eps=0.1,steps=50
      --limit 100

      dissensus attack runs/adp --standard --eps 0.1 --limit 100   the honest number: minutes

      dissensus attack runs/adp --paper --limit 20   the adp paper's attacks

      dissensus attack runs/adp --attacks pgd:eps=0.1 --limit 100 --curve 0.05:0.2:0.05
      --save npz
    """
    if save not in (None, "npz", "safetensors"):
        raise ValueError(f"--save must be npz or safetensors, got {save!r}")
    result = runs.attack(run, options, progress=True)
    folder = out or result.folder
    result.save(folder)
    files = ["record.json", *(path.name for path in draw(result, folder))]
    files += ["examples.npz"] if result.examples else []
    if save is not None:
        files.append(f"adversarial.{save}")
        result.robustness.save(folder / files[-1])
    print_result(result, as_json=as_json)
    if not as_json:
        say(f"Written to {folder}: {', '.join(files)}")

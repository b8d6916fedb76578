"""The demo: what collusion looks like, and which ensemble notices strange inputs, on real digits.

Ensembles of five small networks learn the digits 0 to 7 of scikit-learn's set under different
objectives. The digits 8 and 9 are kept from them and shown at the end. Every number printed comes
from this run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

from dissensus.decomposition import ambiguity, debias, decompose
from dissensus.detection import Estimate, evaluate
from dissensus.diagnostics import diagnose
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.objectives import parse
from dissensus.scores import SCORES
from dissensus.training import fit, predict

__all__ = ["run"]

MEMBERS, HIDDEN, EPOCHS, BATCH = 5, 64, 60, 64
KNOWN = 8  # classes that are trained on

#: What is compared: a short name, the objective, and what it does.
CONTENDERS = {
    "independent": ("independent", "each member learns on its own"),
    "joint": ("joint:combine=score", "trains the averaged score, as if it were one network"),
    "beta = 0.5": ("augmented:beta=0.5,combine=score", "half-way between the two"),
    "ADP": ("adp", "members agree on the digit and differ on the others"),
    "LDR": ("ldr:strength=0.1", "two members a batch, pushed apart on hard examples"),
}


@dataclass(frozen=True)
class Outcome:
    """What the demo tells about one ensemble."""

    accuracy: float
    member_accuracy: float
    error: float
    diversity: float
    offset_share: float
    auroc_pds: Estimate
    verdict: str


def run(epochs: int = EPOCHS, seed: int = 0) -> dict[str, Outcome]:
    """Train every contender, print the comparison, and return what it shows."""
    console = Console()
    torch.set_num_threads(1)  # networks this small are slower on two
    train, test, strange = _digits(seed)
    console.print(
        f"[bold]Dissensus[/]: {MEMBERS} members each, {len(train[0])} training digits of "
        f"{KNOWN} classes, {len(test[0])} test digits, {len(strange)} digits never seen (8 and 9)"
    )
    outcomes = {}
    make_member = make_factory("mlp", (64,), KNOWN, hidden=(HIDDEN, HIDDEN))
    columns = (TextColumn("{task.description:26}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for name, (spec, _) in CONTENDERS.items():
            task = progress.add_task(name, total=epochs)
            combine = getattr(parse(spec), "combine", "probability")
            ens = Ensemble(make_member, MEMBERS, seed, combine)
            fit(
                ens,
                train,
                spec,
                epochs=epochs,
                batch_size=BATCH,
                optimizer="adam:lr=2e-3",
                seed=seed,
                progress=False,
                callbacks=[partial(_advance, progress, task)],
            )
            outcomes[name] = _judge(ens, train, test, strange)
    console.print(_table(outcomes))
    console.print(_lesson(outcomes))
    return outcomes


def _advance(progress: Progress, task: TaskID, record: dict[str, Any], ens: Ensemble) -> None:
    progress.advance(task)


def _digits(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    images, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(images, dtype=torch.float32) / 16
    y = torch.as_tensor(labels)
    known = torch.nonzero(y < KNOWN).squeeze(1)
    order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    cut = int(0.6 * len(order))
    fit, rest = order[:cut], order[cut:]
    return (x[fit], y[fit]), (x[rest], y[rest]), x[y >= KNOWN]


def _judge(
    ens: Ensemble, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], strange: Tensor
) -> Outcome:
    with ens.evaluating():
        logits, unknown = ens(test[0]), ens(strange)
    labels, combine = test[1], ens.combine
    terms = decompose(logits, labels, combine=combine)
    hits = decompose(logits, labels, loss="zero_one", combine=combine)
    # A constant on all scores of a member changes no prediction, so it is taken out first.
    scores = logits - logits.mean(-1, keepdim=True)
    genuine = ambiguity(debias(scores)).sum() / ambiguity(scores).sum()
    pds = SCORES["pds"]
    return Outcome(
        accuracy=1 - float(hits.ensemble_error),
        member_accuracy=1 - float(hits.member_error),
        error=float(terms.ensemble_error),
        diversity=float(terms.diversity),
        offset_share=1 - float(genuine),
        auroc_pds=evaluate(pds(logits), pds(unknown)).auroc,
        verdict=diagnose(predict(ens, train), predict(ens, test), combine=combine).verdict.word,
    )


def _table(outcomes: dict[str, Outcome]) -> Table:
    title = "Test digits; last column: telling them from digits never seen"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("objective", no_wrap=True)
    for heading in ("accuracy", "member", "ERR", "DIV", "verdict", "AUROC, PDS"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, outcome in outcomes.items():
        table.add_row(
            name,
            f"{outcome.accuracy:.1%}",
            f"{outcome.member_accuracy:.1%}",
            f"{outcome.error:.3f}",
            f"{outcome.diversity:.3f}",
            outcome.verdict,
            f"{outcome.auroc_pds}",
        )
    return table


def _lesson(outcomes: dict[str, Outcome]) -> str:
    """Plain words about the run, built from its numbers."""
    alone, joint = outcomes["independent"], outcomes["joint"]
    best = max(outcomes, key=lambda name: outcomes[name].auroc_pds)
    points = 100 * (joint.member_accuracy - alone.member_accuracy)
    change = f"{abs(points):.1f} points {'less' if points < 0 else 'more'} accurate"
    return "\n".join(
        [
            *(f"- {name}: {what}." for name, (_, what) in CONTENDERS.items()),
            "",
            "ERR is the ensemble's loss; DIV what it gains over its members' mean loss; the "
            "verdict is that of `dissensus diagnose`: is their diversity real?",
            f"Training the average left a single member {change} than independent training, and "
            f"made DIV {joint.diversity / alone.diversity:.1f} times as large: disagreement that "
            f"cancels in the average, {joint.offset_share:.0%} of it plain shifts.",
            f"The digits 8 and 9 were told from the others best by {best}: AUROC "
            f"{outcomes[best].auroc_pds}.",
        ]
    )

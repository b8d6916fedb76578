"""How robust an ensemble is: many attacks, the worst of them for each example, and doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus.detection import Estimate
from dissensus.ensemble import Ensemble
from dissensus.progress import ProgressBar
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, all_steps
from dissensus.robustness.curves import Curve, curve_over_eps, own_curves
from dissensus.robustness.goals import Goal
from dissensus.robustness.gradient import PGD, GradientAttack
from dissensus.robustness.masking import Flag, Row, order_flags, probe_flags
from dissensus.robustness.outcome import Outcome, share
from dissensus.robustness.protocols import PROTOCOLS, Protocol, joined, paper, standard
from dissensus.robustness.report import report
from dissensus.robustness.running import predicted, run
from dissensus.robustness.saving import save_examples
from dissensus.robustness.victim import Victim, frozen
from dissensus.specs import check_choice

__all__ = ["Robustness", "Worst", "evaluate"]


@dataclass(frozen=True)
class Worst:
    """The worst case within one budget: an example counts if *any* attack broke it there."""

    norm: str
    eps: float
    accuracy: Estimate
    broken: Tensor


@dataclass(frozen=True)
class Robustness:
    """What :func:`evaluate` found.

    ``accuracy`` is the headline: the share of examples that no attack broke. ``worst`` has it for
    each budget; there an attack without a budget (C&W, EAD, JSMA) counts where it came near
    enough. ``rows`` are the attacks one by one, ``flags`` say in plain words where the numbers
    should not be trusted; without a flag they are still only an upper bound. ``inputs`` are the
    examples as they were.
    """

    label: str
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    flags: tuple[Flag, ...]
    notes: tuple[str, ...]
    seed: int
    inputs: Tensor
    setting: Mapping[str, Any] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """How many inputs were attacked."""
        return len(self.rows[0].outcome)

    @property
    def clean_accuracy(self) -> Estimate:
        """Accuracy without an attack."""
        return self.rows[0].outcome.clean_accuracy

    @property
    def broken(self) -> Tensor:
        """Whether any attack broke an example, bool ``[batch]``."""
        return torch.stack([row.outcome.broken for row in self.rows]).any(0)

    @property
    def accuracy(self) -> Estimate:
        """The worst case for each example over all attacks, whatever their budgets."""
        return share(int((~self.broken).sum()), self.examples)

    @property
    def worst(self) -> tuple[Worst, ...]:
        """The worst case for each norm and ε among the attacks, smallest ε first."""
        budgets = {row.outcome.attack.budget() for row in self.rows} - {None}
        found = []
        for norm, eps in sorted(budget for budget in budgets if budget is not None):
            broken = torch.stack([row.outcome.within(norm, eps) for row in self.rows]).any(0)
            left = share(int((~broken).sum()), self.examples)
            found.append(Worst(norm, eps, left, broken))
        return tuple(found)

    @property
    def breaker(self) -> Tensor:
        """Which row, the first of them, broke each example, ``[batch]``; −1 where none did."""
        broken = torch.stack([row.outcome.broken for row in self.rows])
        return torch.where(broken.any(0), broken.int().argmax(0), -1)

    def save(self, path: str | Path) -> None:
        """The changed inputs as ``.npz`` or ``.safetensors``; see :func:`save_examples`."""
        save_examples(self, path)

    def report(self) -> str:
        """The table, the headline, and what to doubt, to read."""
        return report(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON record."""
        return {
            "label": self.label,
            "examples": self.examples,
            "seed": self.seed,
            **self.setting,
            "clean_accuracy": _numbers(self.clean_accuracy),
            "worst_case": _numbers(self.accuracy),
            "budgets": [
                {"norm": worst.norm, "eps": worst.eps, **_numbers(worst.accuracy)}
                for worst in self.worst
            ],
            "attacks": [{"source": row.source, **row.outcome.to_dict()} for row in self.rows],
            "curves": [vars(curve) for curve in self.curves],
            "flags": [flag._asdict() for flag in self.flags],
            "notes": list(self.notes),
        }


def _numbers(value: Estimate) -> dict[str, float]:
    return {"accuracy": value.value, "low": value.low, "high": value.high}


def evaluate(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    attacks: Sequence[str | Attack] | None = None,
    *,
    protocol: str | Protocol | None = None,
    eps: float | None = None,
    norm: str = "linf",
    like: str = "mnist",
    surrogates: Mapping[str, Ensemble] | None = None,
    curve: Sequence[float] = (),
    checks: bool = True,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
) -> Robustness:
    """Attack ``ens`` at ``x`` in [0, 1] in many ways and take the worst case for each example.

    Give ``attacks`` (strings or attacks), a ``protocol``, or both: ``"standard"`` with ``eps`` and
    ``norm``, or ``"paper"``, the adp paper's parameters for data ``like`` mnist, cifar10 or
    cifar100. ``surrogates`` are other ensembles, by name: the strongest gradient attack is run on
    them and its results are tried on ``ens``. ``curve`` are values of ε for which the strongest
    gradient attack is run again. With ``checks`` two more runs on 128 examples look for masked
    gradients: at an ε that nothing can resist, and in float64.

    >>> ens = Ensemble(lambda: torch.nn.Linear(4, 3), members=2)
    >>> x = torch.rand(32, 4, generator=torch.Generator().manual_seed(0))
    >>> y = ens.predict(x).argmax(1)
    >>> found = evaluate(ens, x, y, ["fgsm:eps=0.2", "pgd:eps=0.2"], checks=False, progress=False)
    >>> found.accuracy <= min(row.outcome.accuracy for row in found.rows)
    True
    """
    chosen = _protocol(attacks, protocol, eps, norm, like)
    others = dict(surrogates or {})
    total = len(chosen.attacks) + len(others) + len(curve) + bool(checks)
    with ProgressBar("attacks", total, show=progress, delay=2.0) as bar:
        rows = []
        for attack in chosen.attacks:
            tick = bar.begin(attack.spec())
            rows.append(Row(run(ens, x, y, attack, None, None, batch_size, seed, tick)))
        probe = _strongest(rows)
        for name, other in others.items():
            tick = bar.begin(f"transfer from {name}")
            rows.append(_transferred(ens, other, name, x, y, probe, batch_size, seed, tick))
        curves = [drawn for row in rows for drawn in own_curves(row)]
        if len(curve):
            ticks = [bar.begin(f"{probe.spec()} at ε = {value:g}") for value in curve]
            curves.append(curve_over_eps(ens, x, y, probe, curve, batch_size, seed, ticks))
        flags = order_flags(rows)
        if checks:
            bar.begin("checks")(0.0)
            flags += probe_flags(ens, x, y, rows, batch_size, seed)
    setting = {"members": ens.members, "combine": ens.combine, "protocol": chosen.name}
    return Robustness(
        chosen.label, tuple(rows), tuple(curves), tuple(flags), chosen.notes, seed, x, setting
    )


def _protocol(
    attacks: Sequence[str | Attack] | None,
    protocol: str | Protocol | None,
    eps: float | None,
    norm: str,
    like: str,
) -> Protocol:
    if attacks is None and protocol is None:
        raise ValueError("give attacks=['pgd:eps=0.1', …] or protocol='standard' with eps=")
    if attacks is not None:
        if isinstance(attacks, str | Attack):
            attacks = [attacks]
        found = tuple(parse(attack) for attack in attacks)
        if not found:
            raise ValueError("attacks must name at least one attack, got none")
        if len({attack.spec() for attack in found}) < len(found):
            raise ValueError("an attack is given twice; leave one out")
        own = Protocol("own", "attacks as asked for", found)
        return own if protocol is None else joined([_named(protocol, eps, norm, like), own])
    assert protocol is not None
    return _named(protocol, eps, norm, like)


def _named(protocol: str | Protocol, eps: float | None, norm: str, like: str) -> Protocol:
    if isinstance(protocol, Protocol):
        return protocol
    check_choice("evaluate", "protocol", protocol, PROTOCOLS)
    if protocol == "paper":
        return paper(like)
    if eps is None:
        raise ValueError("protocol='standard' needs eps=, as 0.1 for MNIST or 8/255 for CIFAR-10")
    return standard(float(eps), norm)


def _strongest(rows: Sequence[Row]) -> GradientAttack:
    """The iterative gradient attack that left least; plain PGD if there is none."""
    iterative = [row.outcome for row in rows if row.iterative]
    if not iterative:
        budget = next((row.outcome.attack.budget() for row in rows), None)
        return PGD() if budget is None else PGD(norm=budget[0], eps=budget[1])
    attack = min(iterative, key=lambda outcome: outcome.accuracy.value).attack
    assert isinstance(attack, GradientAttack)
    return attack


def _transferred(
    ens: Ensemble,
    other: Ensemble,
    name: str,
    x: Tensor,
    y: Tensor,
    attack: GradientAttack,
    batch_size: int,
    seed: int,
    tick: Any,
) -> Row:
    """``attack`` made on ``other``, all its steps, and what ``ens`` predicts for its results."""
    outcome = run(other, x, y, all_steps(attack), None, None, batch_size, seed, tick)
    victim = Victim(ens)
    with frozen(ens):
        inputs = (part.to(ens.device, victim.dtype) for part in (x, outcome.adversarial))
        before, after = (predicted(victim, part, batch_size) for part in inputs)
    goal = Goal(outcome.labels, outcome.targets)
    seen = _seen(outcome, before.cpu(), after.cpu(), goal)
    return Row(seen, source=name)


def _seen(outcome: Outcome, before: Tensor, after: Tensor, goal: Goal) -> Outcome:
    return replace(
        outcome,
        clean_predictions=before.argmax(-1),
        predictions=after.argmax(-1),
        success=goal.reached(after),
    )

"""Robustness of an ensemble: many attacks, the worst case for each example, and warnings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.measures import Estimate, proportion
from dissensus.robustness.attacks import Protocol, choose_protocol, parse
from dissensus.robustness.base import Attack
from dissensus.robustness.checks import AttackRow, Flag, order_flags, probe_flags, strongest_attack
from dissensus.robustness.gradient import GradientAttack
from dissensus.robustness.outcome import run
from dissensus.robustness.transfer import attack_by_transfer
from dissensus.tools.files import write_npz, write_safetensors
from dissensus.tools.progress import ProgressBar
from dissensus.tools.tabular import Tabular


@dataclass(frozen=True, repr=False)
class Curve(Tabular):
    """Accuracy against ``over`` (eps, steps or restarts) for one attack, whose norm is ``norm``."""

    attack: str
    norm: str
    over: str
    values: tuple[float, ...]
    accuracy: tuple[float, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each point."""
        points = zip(self.values, self.accuracy, strict=True)
        return [{self.over: value, "accuracy": accuracy} for value, accuracy in points]

    def headline(self) -> str:
        """The attack, and the ends of the curve."""
        first, *_, last = [*self.accuracy, *self.accuracy]
        return f"{self.attack}, accuracy {first:.3f} to {last:.3f} over {self.over}"


@dataclass(frozen=True)
class Worst:
    """The worst case within one budget: an example counts if *any* attack broke it there."""

    norm: str
    eps: float
    accuracy: Estimate
    broken: Tensor


@dataclass(frozen=True, repr=False)
class Robustness(Tabular):
    """The result of :func:`evaluate`.

    ``accuracy`` is the headline: the share of examples that no attack broke. ``worst`` has it for
    each budget; there an attack without a budget (C&W, EAD, JSMA) counts where it came near
    enough. ``rows`` are the attacks one by one, ``flags`` say in plain words where the numbers
    cannot be trusted; without a flag they are still only an upper bound. ``inputs`` are the
    unchanged examples.
    """

    label: str
    rows: tuple[AttackRow, ...]
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
        return proportion(int((~self.broken).sum()), self.examples)

    @property
    def worst(self) -> tuple[Worst, ...]:
        """The worst case for each norm and ε among the attacks, smallest ε first."""
        budgets = {budget for row in self.rows if (budget := row.outcome.attack.budget())}
        cases = []
        for norm, eps in sorted(budgets):
            broken = torch.stack([row.outcome.within(norm, eps) for row in self.rows]).any(0)
            accuracy = proportion(int((~broken).sum()), self.examples)
            cases.append(Worst(norm, eps, accuracy, broken))
        return tuple(cases)

    @property
    def breaker(self) -> Tensor:
        """The first row that broke each example, ``[batch]``; −1 where none did."""
        broken = torch.stack([row.outcome.broken for row in self.rows])
        return torch.where(broken.any(0), broken.int().argmax(0), -1)

    def save(self, path: str | Path) -> None:
        """Write the changed inputs of every attack to ``path``, ``.npz`` or ``.safetensors``.

        ``x`` and ``y`` are inputs and labels as ``dissensus predict`` reads them: each example as
        the first attack that broke it made it, and as it was where none did; ``broken_by``
        ``[batch]`` is that attack, or −1. ``original`` are the inputs before, ``adversarial``
        ``[attacks, batch, …]`` all results and ``predictions`` ``[attacks, batch]`` what the
        ensemble makes of them. ``attacks`` names the attacks: an array of text in ``.npz``, a JSON
        list in the metadata of ``.safetensors``.
        """
        path = Path(path)
        if path.suffix not in (".npz", ".safetensors"):
            raise ValueError(f"adversarial examples go to .npz or .safetensors, got {path.name}")
        original, breaker = self.inputs.detach().cpu(), self.breaker
        adversarial = torch.stack([row.outcome.adversarial.cpu() for row in self.rows])
        changed = adversarial[breaker.clamp_min(0), torch.arange(len(breaker))].to(original.dtype)
        is_broken = (breaker >= 0).reshape(-1, *[1] * (original.ndim - 1))
        tensors = {
            "x": torch.where(is_broken, changed, original),
            "y": self.rows[0].outcome.labels,
            "broken_by": breaker,
            "original": original,
            "adversarial": adversarial,
            "predictions": torch.stack([row.outcome.predictions for row in self.rows]),
        }
        names = [row.label for row in self.rows]
        if path.suffix == ".npz":
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            write_npz(path, {**arrays, "attacks": np.array(names)})
        else:
            write_safetensors(path, tensors, {"attacks": json.dumps(names)})

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each attack: accuracy, its interval, and success rate."""
        return [
            {
                "attack": row.outcome.attack.spec(),
                "source": row.source,
                "accuracy": row.outcome.accuracy.value,
                "success_rate": row.outcome.success_rate.value,
                "examples": len(row.outcome),
                "seconds": round(row.outcome.seconds, 3),
                "accuracy_low": row.outcome.accuracy.low,
                "accuracy_high": row.outcome.accuracy.high,
            }
            for row in self.rows
        ]

    def headline(self) -> str:
        """Worst-case and clean accuracy, and the number of signs not to trust them."""
        doubts = f"; {len(self.flags)} signs not to trust it" if self.flags else ""
        return (
            f"worst case {self.accuracy} of {len(self.rows)} attacks, {self.clean_accuracy} "
            f"without, {self.examples} examples{doubts}"
        )

    def report(self) -> str:
        """The table, the worst case, and signs that the numbers cannot be trusted, as text."""
        doubts = ["No sign of masked gradients was found. That is no proof of their absence."]
        if self.flags:
            doubts = ["Do not trust these numbers yet:"]
            doubts += [f"- {flag.name}: {flag.text}" for flag in self.flags]
        head = f"{self.examples} examples, white-box on the whole ensemble, inputs in [0, 1]"
        lines = [head, f"Attacks: {self.label}", "", *_table(self), "", *_worst_cases(self), ""]
        return "\n".join([*lines, *doubts, *self.notes])

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


# ---- the report ---------------------------------------------------------------------------------

_HEADINGS = ("attack", "accuracy", "95% interval", "L∞", "L2", "L1", "L0", "∇ = 0")


def _table(result: Robustness) -> list[str]:
    rows = [_HEADINGS, ("none", *_accuracy(result.clean_accuracy), *[""] * 5)]
    for line in result.rows:
        outcome = line.outcome
        sizes = [outcome.distortion(norm) for norm in ("linf", "l2", "l1", "l0")]
        cells = ["–" if size is None else f"{size:.3g}" for size in sizes]
        zeros = f"{outcome.zero_share:.0%}" if int(outcome.gradients.sum()) else "–"
        rows.append((line.label, *_accuracy(outcome.accuracy), *cells, zeros))
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip() for row in rows
    ] + ["Distances are means over broken examples; ∇ = 0 is the share of gradients exactly 0."]


def _accuracy(value: Estimate) -> tuple[str, str]:
    return f"{value.value:.1%}", f"{value.low:.1%} to {value.high:.1%}"


def _worst_cases(result: Robustness) -> list[str]:
    cases = {
        f"Worst case for each example, {worst.norm} ε = {worst.eps:g}": worst.accuracy
        for worst in result.worst
    }
    if len(cases) != 1 or any(row.outcome.attack.budget() is None for row in result.rows):
        cases["Worst case over all attacks, whatever their size"] = result.accuracy
    return [
        "{}: {} (95% interval {})".format(case, *_accuracy(estimate))
        for case, estimate in cases.items()
    ]


# ---- evaluation ---------------------------------------------------------------------------------


def evaluate(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    attacks: Sequence[str | Attack] | None = None,
    *,
    protocol: Protocol | None = None,
    surrogates: Mapping[str, Ensemble] | None = None,
    curve: Sequence[float] = (),
    checks: bool = True,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
) -> Robustness:
    """Attack ``ens`` at ``x`` in [0, 1] in many ways and take the worst case for each example.

    Give ``attacks`` (strings or attacks), a ``protocol`` such as ``robustness.standard(0.1)``, or
    both. ``surrogates`` are other ensembles, by name: the strongest gradient attack is run on them
    and its results are tried on ``ens``. ``curve`` are values of ε for which the strongest gradient
    attack is run again. With ``checks`` two more runs on 128 examples look for masked gradients: at
    an ε that nothing can resist, and in float64.

    >>> ens = Ensemble(lambda: torch.nn.Linear(4, 3), members=2)
    >>> x = torch.rand(32, 4, generator=torch.Generator().manual_seed(0))
    >>> y = ens.predict(x).argmax(1)
    >>> result = evaluate(ens, x, y, ["fgsm:eps=0.2", "pgd:eps=0.2"], checks=False, progress=False)
    >>> result.accuracy <= min(row.outcome.accuracy for row in result.rows)
    True
    """
    chosen = choose_protocol(attacks, protocol)
    surrogates = surrogates or {}
    total = len(chosen.attacks) + len(surrogates) + len(curve) + bool(checks)
    with ProgressBar("attacks", total, show=progress, delay=2.0) as bar:
        rows = []
        for attack in chosen.attacks:
            tick = bar.begin(attack.spec())
            rows.append(AttackRow(run(ens, x, y, attack, batch_size, seed, tick)))
        probe = strongest_attack(rows)
        for name, surrogate in surrogates.items():
            tick = bar.begin(f"transfer from {name}")
            outcome = attack_by_transfer(ens, surrogate, x, y, probe, batch_size, seed, tick)
            rows.append(AttackRow(outcome, source=name))
        curves = [each for row in rows for each in _progress_curves(row)]
        if len(curve):
            curves.append(curve_over_eps(ens, x, y, probe, curve, batch_size, seed, bar.begin))
        flags = order_flags(rows)
        if checks:
            bar.begin("checks")(0.0)
            flags += probe_flags(ens, x, y, probe, rows, batch_size, seed)
    setting = {"members": ens.members, "combine": ens.combine, "protocol": chosen.name}
    return Robustness(
        chosen.label, tuple(rows), tuple(curves), tuple(flags), chosen.notes, seed, x, setting
    )


# ---- curves -------------------------------------------------------------------------------------


def curve_over_eps(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    attack: str | Attack,
    values: Sequence[float],
    batch_size: int = 256,
    seed: int = 0,
    begin: Callable[[str], Callable[[float], None]] | None = None,
) -> Curve:
    """Accuracy under ``attack`` for several ε; it cannot rise with ε.

    An example that broke at a smaller ε stays broken: its changed input lies in the larger ball
    too. ``begin`` is that of a progress bar.
    """
    base = parse(attack)
    budget = base.budget()
    if budget is None:
        raise ValueError(f"{base.spec()} has no ε to vary")
    sizes = tuple(float(value) for value in values)
    broken, accuracy = torch.zeros(len(x), dtype=torch.bool), {}
    for eps in sorted(sizes):
        changed = replace(base, eps=eps)  # type: ignore[call-arg]
        tick = None if begin is None else begin(changed.spec())
        broken |= run(ens, x, y, changed, batch_size, seed, tick).broken
        accuracy[eps] = float((~broken).double().mean())
    return Curve(base.spec(), budget[0], "eps", sizes, tuple(accuracy[eps] for eps in sizes))


def _progress_curves(row: AttackRow) -> list[Curve]:
    """Accuracy by steps of the first walk, and by restarts, from the outcome alone: no new runs."""
    outcome, attack = row.outcome, row.outcome.attack
    if row.source is not None or not isinstance(attack, GradientAttack) or attack.targeted:
        return []
    plan, curves = attack.plan(), []
    correct = outcome.clean_predictions == outcome.labels

    def curve(over: str, values: Sequence[int], broken: Sequence[Tensor]) -> Curve:
        accuracy = tuple(float((correct & ~each).double().mean()) for each in broken)
        return Curve(attack.spec(), attack.norm, over, tuple(map(float, values)), accuracy)

    if plan.early and plan.steps > 1:
        values = sorted({2**k for k in range(12) if 2**k < plan.steps} | {0, plan.steps})
        first = outcome.restart == 0
        curves.append(curve("steps", values, [first & (outcome.step <= n) for n in values]))
    if plan.restarts > 1:
        counts, tried = range(1, plan.restarts + 1), outcome.restart >= 0
        curves.append(curve("restarts", counts, [tried & (outcome.restart < n) for n in counts]))
    return curves

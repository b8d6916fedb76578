"""Outcomes of attacks: run one on an ensemble, and evaluate what it did example by example."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.measures import Estimate, proportion
from dissensus.outputs import check_labels
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, Case, Journal, Victim, distances, frozen, uniform
from dissensus.robustness.losses import Goal
from dissensus.tools.guards import check_finite, describe
from dissensus.tools.progress import ProgressBar
from dissensus.tools.specs import check_integer
from dissensus.tools.tabular import Tabular


@dataclass(frozen=True, repr=False)
class Outcome(Tabular):
    """The result of one attack, evaluated independently of what the attack itself reports.

    ``success`` ``[batch]`` says whether the attack got what it wants (a wrong class, or the
    target), ``broken`` whether the prediction is wrong; an example that was wrong from the start is
    both, unchanged. ``distances`` has L∞, L2, L1 and L0 of each change. ``gradients`` is how often
    each example's gradient was taken, ``zero_gradients`` and ``nan_gradients`` how often it was 0
    or not finite, ``queries`` how often outputs alone were looked at. ``step`` and ``restart`` are
    when an attack that stops early was through, −1 where it was not.
    """

    attack: Attack
    adversarial: Tensor
    labels: Tensor
    targets: Tensor | None
    clean_predictions: Tensor
    predictions: Tensor
    success: Tensor
    distances: Mapping[str, Tensor]
    gradients: Tensor
    zero_gradients: Tensor
    nan_gradients: Tensor
    queries: Tensor
    step: Tensor
    restart: Tensor
    seconds: float = field(compare=False, default=0.0)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def broken(self) -> Tensor:
        """Whether the prediction for the changed input is wrong, bool ``[batch]``."""
        return self.predictions != self.labels

    @property
    def accuracy(self) -> Estimate:
        """The share that is still predicted correctly, with Wilson's interval."""
        return proportion(int((~self.broken).sum()), len(self))

    @property
    def clean_accuracy(self) -> Estimate:
        """The share that was predicted correctly before."""
        return proportion(int((self.clean_predictions == self.labels).sum()), len(self))

    @property
    def success_rate(self) -> Estimate:
        """The share of examples where the attack got what it wants."""
        return proportion(int(self.success.sum()), len(self))

    @property
    def moved(self) -> Tensor:
        """Examples that were predicted correctly and that the attack broke."""
        return self.broken & (self.clean_predictions == self.labels)

    def distortion(self, norm: str) -> float | None:
        """The mean distance of the examples that the attack broke; None if there are none."""
        chosen = self.moved
        return float(self.distances[norm][chosen].mean()) if bool(chosen.any()) else None

    @property
    def zero_share(self) -> float:
        """The share of gradients that were exactly 0."""
        total = int(self.gradients.sum())
        return int(self.zero_gradients.sum()) / total if total else 0.0

    def within(self, norm: str, eps: float) -> Tensor:
        """Broken examples whose change is at most ``eps`` in ``norm``, bool ``[batch]``."""
        return self.broken & (self.distances[norm] <= eps * (1 + 1e-5) + 1e-6)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each example: predictions before and after, and how far it was moved."""
        columns = {
            "label": self.labels,
            "clean_prediction": self.clean_predictions,
            "prediction": self.predictions,
            "success": self.success,
            **self.distances,
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def headline(self) -> str:
        """Accuracy under the attack and without it."""
        return (
            f"accuracy {self.accuracy} under {self.attack.spec()}, {self.clean_accuracy} without, "
            f"{len(self)} examples"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record; the inputs themselves are left out."""
        accuracy = self.accuracy
        return {
            "attack": self.attack.spec(),
            "examples": len(self),
            "accuracy": accuracy.value,
            "interval": [accuracy.low, accuracy.high],
            "success_rate": self.success_rate.value,
            "distortion": {norm: self.distortion(norm) for norm in self.distances},
            "gradients": int(self.gradients.sum()),
            "zero_gradients": int(self.zero_gradients.sum()),
            "nan_gradients": int(self.nan_gradients.sum()),
            "queries": int(self.queries.sum()),
            "seconds": round(self.seconds, 3),
        }


class AttackError(RuntimeError):
    """An attack returned what it must not: outside [0, 1], outside its budget, or not finite."""


def attack(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    how: str | Attack,
    *,
    members: Sequence[int] | None = None,
    targets: Tensor | None = None,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
) -> Outcome:
    """Attack ``ens``, or some of its ``members``, at inputs ``x`` in [0, 1] with labels ``y``.

    ``how`` is an attack or a string such as ``"pgd:eps=0.1,steps=100"``. A targeted one aims at
    ``targets`` ``[batch]``, or at classes drawn by ``seed``. The ensemble runs in evaluation mode
    and its parameters get no gradients; modes and ``requires_grad`` are restored, after errors too.
    Examples that are broken leave the batch. Every result is evaluated again: its range, ε and
    finiteness are checked, and what counts is the ensemble's prediction for it.

    An example's random numbers depend on the seed and on its place in ``x`` alone. So results do
    not depend on the batch size or on other examples, except for rounding: matrix products of
    another size may differ in their last bits, and the sign of a gradient near 0 with them.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
    >>> x = torch.full((8, 4), 0.5)
    >>> outcome = attack(ens, x, ens.predict(x).argmax(1), "pgd:eps=0.5,steps=10", progress=False)
    >>> outcome.accuracy < outcome.clean_accuracy, float(outcome.distances["linf"].max()) < 0.51
    (True, True)
    """
    chosen = parse(how)
    with ProgressBar("attacks", 1, show=progress, delay=2.0) as bar:
        tick = bar.begin(chosen.spec())
        return run(ens, x, y, chosen, batch_size, seed, tick, members=members, targets=targets)


def run(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    chosen: Attack,
    batch_size: int,
    seed: int,
    tick: Callable[[float], None] | None = None,
    *,
    members: Sequence[int] | None = None,
    targets: Tensor | None = None,
) -> Outcome:
    """:func:`attack` without a progress bar; ``tick`` gets the share that is done."""
    victim = Victim(ens, members)
    check_integer("batch_size", batch_size)
    check_inputs(x)
    if not isinstance(y, Tensor) or y.is_floating_point():
        raise ValueError(f"y must be integer class labels [batch], got {describe(y)}")
    started, home = time.perf_counter(), x.device
    with frozen(ens):
        x, y = x.detach().to(ens.device, victim.dtype).clone(), y.to(ens.device).clone()
        log_probs = _predict(victim, x, batch_size)
        check_labels(y, len(x), log_probs.shape[-1])
        goal = Goal(y.long(), _targets(chosen, targets, y, log_probs.shape[-1], seed))
        journal = Journal(len(x), x.device, tick)
        open_rows = (~goal.reached(log_probs)).nonzero().squeeze(1)
        adversarial = x.clone()
        for start in range(0, len(open_rows), batch_size):
            rows = open_rows[start : start + batch_size]
            journal.span = (start / len(open_rows), len(rows) / len(open_rows))
            case = Case(x[rows], goal.take(rows), rows, seed)
            points = chosen.perturb(victim, case, journal).detach()
            _check_result(chosen, case.x, points)
            adversarial[rows] = points
        after = log_probs.clone()
        after[open_rows] = _predict(victim, adversarial[open_rows], batch_size).to(after.dtype)
        bad = int(after.isnan().any(-1).sum())
        if bad:
            raise AttackError(f"the ensemble predicts NaN for {bad} of {len(x)} changed inputs")
        moved = distances(x, adversarial)
    return Outcome(
        chosen,
        adversarial=adversarial.to(home),
        labels=y.cpu(),
        targets=None if goal.targets is None else goal.targets.cpu(),
        clean_predictions=log_probs.argmax(-1).cpu(),
        predictions=after.argmax(-1).cpu(),
        success=goal.reached(after).cpu(),
        distances={name: values.cpu() for name, values in moved.items()},
        gradients=journal.gradients.cpu(),
        zero_gradients=journal.zero_gradients.cpu(),
        nan_gradients=journal.nan_gradients.cpu(),
        queries=journal.queries.cpu(),
        step=journal.step.cpu(),
        restart=journal.restart.cpu(),
        seconds=time.perf_counter() - started,
    )


def _predict(victim: Victim, x: Tensor, batch_size: int) -> Tensor:
    """Combined log-probabilities without gradients, batch by batch."""
    if not len(x):
        return x.new_zeros(0, 1)
    with torch.no_grad():
        return torch.cat([victim.log_probs(part) for part in x.split(batch_size)])


def member_logits(ens: Ensemble, x: Tensor, batch_size: int) -> Tensor:
    """The members' outputs ``[members, batch, classes]`` in evaluation mode, batch by batch."""
    victim = Victim(ens)
    with frozen(ens), torch.no_grad():
        parts = [victim.logits(part.to(ens.device, victim.dtype)) for part in x.split(batch_size)]
    return torch.cat(parts, 1)


def draw_targets(y: Tensor, classes: int, seed: int) -> Tensor:
    """A wrong class for each example, each equally likely."""
    rows = torch.arange(len(y), device=y.device)
    shares = uniform(seed, rows, (1 << 20,), (1,), torch.float64).squeeze(1)
    return (y + 1 + (shares * (classes - 1)).long()) % classes


def check_inputs(x: Tensor) -> None:
    """Raise unless ``x`` are finite inputs ``[batch, …]`` in [0, 1]."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not len(x) or not x.is_floating_point():
        raise ValueError(f"x must be floating point [batch, …] in [0, 1], got {describe(x)}")
    check_finite(x, name="x")
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"attacks live in [0, 1], got inputs from {low:.4g} to {high:.4g}; scale them, and "
            "normalise inside the model (--normalize)"
        )


def _targets(
    chosen: Attack, targets: Tensor | None, y: Tensor, classes: int, seed: int
) -> Tensor | None:
    if not chosen.wants_targets:
        if targets is not None:
            raise ValueError(f"{chosen.spec()} is untargeted; for targets add targeted=true")
        return None
    if targets is None:
        return draw_targets(y.long(), classes, seed)
    targets = targets.to(y.device)
    check_labels(targets, len(y), classes)
    same = int((targets == y).sum())
    if same:
        raise ValueError(f"a target must differ from the label, got {same} that are the same")
    return targets.long()


def _check_result(chosen: Attack, x: Tensor, points: Tensor) -> None:
    """Raise unless the results are finite, in [0, 1] and within the budget."""
    name = chosen.spec()
    if points.shape != x.shape:
        raise AttackError(f"{name} returned {tuple(points.shape)} for {tuple(x.shape)}")
    low, high = float(points.min()), float(points.max())  # NaN if an entry is
    if not -1e-6 <= low <= high <= 1 + 1e-6:
        raise AttackError(f"{name} left [0, 1]: its results go from {low:.6g} to {high:.6g}")
    norm, eps = chosen.budget() or ("linf", 1.0)
    far = float(distances(x, points)[norm].max())
    if far > eps * (1 + 1e-5) + 1e-6:
        raise AttackError(f"{name} moved an example by {far:.6g} in {norm}, its ε is {eps:g}")

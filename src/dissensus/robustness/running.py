"""Running an attack: hold the ensemble still, go through batches, look at the result oneself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.outputs import check_labels
from dissensus.progress import ProgressBar
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, Case, Journal, distances
from dissensus.robustness.chance import uniform
from dissensus.robustness.goals import Goal
from dissensus.robustness.outcome import Outcome
from dissensus.robustness.victim import Victim, frozen

__all__ = ["AttackError", "attack", "check_inputs", "draw_targets", "predicted", "run"]

Tick = Callable[[float], None]


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
    and its parameters get no gradients; modes and ``requires_grad`` come back as they were, after
    errors too. Examples that are broken leave the batch. Every result is evaluated anew: range, ε
    and finiteness are checked, and what counts is the prediction for it.

    An example's random numbers follow from the seed and its place in ``x`` alone. So results do not
    depend on the batch size or on other examples, but for rounding: matrix products of another
    size may differ in their last bits, and the sign of a gradient near 0 with them.

    >>> from torch import nn
    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=2)
    >>> found = attack(ens, torch.full((8, 4), 0.5), ens.predict(torch.full((8, 4), 0.5)).argmax(1),
    ...                "pgd:eps=0.5,steps=10", progress=False)
    >>> found.accuracy < found.clean_accuracy, float(found.distances["linf"].max()) <= 0.5 + 1e-6
    (True, True)
    """
    chosen = parse(how)
    with ProgressBar("attacks", 1, show=progress, delay=2.0) as bar:
        tick = bar.begin(chosen.spec())
        return run(ens, x, y, chosen, members, targets, batch_size, seed, tick)


def run(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    chosen: Attack,
    members: Sequence[int] | None = None,
    targets: Tensor | None = None,
    batch_size: int = 256,
    seed: int = 0,
    tick: Tick | None = None,
) -> Outcome:
    """:func:`attack` without a bar; ``tick`` is told how much is done."""
    victim = Victim(ens, members)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number above 0, got {batch_size!r}")
    check_inputs(x)
    if not isinstance(y, Tensor) or y.is_floating_point():
        got = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"y must be integer class labels [batch], got {got}")
    started, home = time.perf_counter(), x.device
    with frozen(ens):
        x, y = x.detach().to(ens.device, victim.dtype).clone(), y.to(ens.device).clone()
        log_probs = predicted(victim, x, batch_size)
        check_labels(y, len(x), log_probs.shape[-1])
        goal = Goal(y.long(), _targets(chosen, targets, y, log_probs.shape[-1], seed))
        journal = Journal(len(x), x.device)
        open_rows = (~goal.reached(log_probs)).nonzero().squeeze(1)
        found = x.clone()
        for start in range(0, len(open_rows), batch_size):
            rows = open_rows[start : start + batch_size]
            journal = _ticking(journal, tick, start, len(rows), len(open_rows))
            case = Case(x[rows], goal.take(rows), rows, seed)
            points = chosen.perturb(victim, case, journal).detach()
            _check_result(chosen, case.x, points)
            found[rows] = points
        after = log_probs.clone()
        after[open_rows] = predicted(victim, found[open_rows], batch_size).to(after.dtype)
        _check_finite_outputs(after)
        reached = goal.reached(after)
        moved = distances(x, found)
    return Outcome(
        chosen,
        found.to(home),
        y.cpu(),
        None if goal.targets is None else goal.targets.cpu(),
        log_probs.argmax(-1).cpu(),
        after.argmax(-1).cpu(),
        reached.cpu(),
        {name: values.cpu() for name, values in moved.items()},
        journal.gradients.cpu(),
        journal.zero.cpu(),
        journal.nan.cpu(),
        journal.queries.cpu(),
        journal.step.cpu(),
        journal.restart.cpu(),
        time.perf_counter() - started,
    )


def predicted(victim: Victim, x: Tensor, batch_size: int) -> Tensor:
    """Combined log-probabilities without gradients, batch by batch."""
    if not len(x):
        return x.new_zeros(0, 1)
    with torch.no_grad():
        return torch.cat([victim.log_probs(part) for part in x.split(batch_size)])


def draw_targets(y: Tensor, classes: int, seed: int) -> Tensor:
    """A wrong class for each example, each equally likely."""
    rows = torch.arange(len(y), device=y.device)
    drawn = uniform(seed, rows, (1 << 20,), (1,), torch.float64).squeeze(1)
    return (y + 1 + (drawn * (classes - 1)).long()) % classes


def check_inputs(x: Tensor) -> None:
    """Raise unless ``x`` are finite inputs ``[batch, …]`` in [0, 1]."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not len(x):
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor [batch, …] of at least one example, got {got}")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point in [0, 1], got {x.dtype}; pass x.float() / 255")
    if not bool(x.isfinite().all()):
        bad = int((~x.isfinite()).sum())
        raise ValueError(f"x must be finite, got {bad} NaN or infinite of {x.numel()} values")
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"attacks live in [0, 1], got inputs from {low:.4g} to {high:.4g}; scale them "
            "to it and normalise inside the model (`normalize=(mean, std)` of models.make_factory, "
            "`--normalize` on the command line)"
        )


def _targets(
    chosen: Attack, targets: Tensor | None, y: Tensor, classes: int, seed: int
) -> Tensor | None:
    if not chosen.wants_targets:
        if targets is not None:
            raise ValueError(
                f"{chosen.spec()} is untargeted, but targets were given; add targeted=true to it"
            )
        return None
    if targets is None:
        return draw_targets(y.long(), classes, seed)
    targets = targets.to(y.device)
    check_labels(targets, len(y), classes)
    same = int((targets == y).sum())
    if same:
        raise ValueError(f"a target must differ from the label, got {same} that are the same")
    return targets.long()


def _ticking(journal: Journal, tick: Tick | None, start: int, size: int, total: int) -> Journal:
    """``journal``, telling ``tick`` how much of all batches is done."""
    if tick is not None:
        told = tick
        journal.report(lambda share: told((start + share * size) / total))
    return journal


def _check_result(chosen: Attack, x: Tensor, points: Tensor) -> None:
    """Raise unless the attack kept its word."""
    name = chosen.spec()
    if points.shape != x.shape:
        raise AttackError(f"{name} returned {tuple(points.shape)} for {tuple(x.shape)}")
    if not bool(points.isfinite().all()):
        bad = int((~points.isfinite()).flatten(1).any(1).sum())
        raise AttackError(f"{name} returned NaN or infinite values for {bad} of {len(x)} examples")
    low, high = float(points.min()), float(points.max())
    if low < -1e-6 or high > 1 + 1e-6:
        raise AttackError(f"{name} left [0, 1]: its results go from {low:.6g} to {high:.6g}")
    budget = chosen.budget()
    if budget is None:
        return
    norm, eps = budget
    far = float(distances(x, points)[norm].max())
    if far > eps * (1 + 1e-5) + 1e-6:
        raise AttackError(f"{name} moved an example by {far:.6g} in {norm}, its ε is {eps:g}")


def _check_finite_outputs(log_probs: Tensor) -> None:
    bad = int(log_probs.isnan().any(-1).sum())
    if bad:
        raise AttackError(
            f"the ensemble predicts NaN for {bad} of {len(log_probs)} changed inputs; a prediction "
            "that is not a number is neither right nor wrong. Find the layer that overflows"
        )

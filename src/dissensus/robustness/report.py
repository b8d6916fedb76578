"""Evaluations to read and to keep: the table with its headline, and the examples on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dissensus.detection import Estimate
from dissensus.files import write_npz, write_safetensors

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.robustness.checks import Row
    from dissensus.robustness.evaluation import Robustness

__all__ = ["report", "save_examples"]

_HEADINGS = ("attack", "accuracy", "95% interval", "L∞", "L2", "L1", "L0", "∇ = 0")


def report(result: Robustness) -> str:
    """Lines to print, as they are."""
    lines = [
        f"{result.examples} examples, white-box on the whole ensemble, inputs in [0, 1]",
        f"Attacks: {result.label}",
        "",
        *_table(result),
        "",
        *_headline(result),
    ]
    if result.flags:
        lines += ["", "Do not trust these numbers yet:"]
        lines += [f"- {flag.name}: {flag.text}" for flag in result.flags]
    else:
        lines += ["", "No sign of masked gradients was found. That is no proof of their absence."]
    return "\n".join([*lines, *result.notes])


def _table(result: Robustness) -> list[str]:
    clean = ("none", *_accuracy(result.clean_accuracy), "", "", "", "", "")
    rows = [_HEADINGS, clean, *(_cells(row) for row in result.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.append(
        "Distances are means over the examples that the attack broke; ∇ = 0 is the share of "
        "gradients that were exactly 0."
    )
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    distortions = [row.outcome.distortion(norm) for norm in ("linf", "l2", "l1", "l0")]
    written = ["–" if value is None else f"{value:.3g}" for value in distortions]
    zeros = f"{row.outcome.zero_share:.0%}" if int(row.outcome.gradients.sum()) else "–"
    return (row.label, *_accuracy(row.outcome.accuracy), *written, zeros)


def _accuracy(value: Estimate) -> tuple[str, str]:
    return f"{value.value:.1%}", f"{value.low:.1%} to {value.high:.1%}"


def _headline(result: Robustness) -> list[str]:
    worst = result.worst
    lines = [
        f"Worst case for each example, {entry.norm} ε = {entry.eps:g}: "
        f"{entry.accuracy.value:.1%} (95% interval {entry.accuracy.low:.1%} to "
        f"{entry.accuracy.high:.1%})"
        for entry in worst
    ]
    if len(worst) != 1 or any(row.outcome.attack.budget() is None for row in result.rows):
        value = result.accuracy
        lines.append(
            f"Worst case over all attacks, whatever their size: {value.value:.1%} "
            f"({value.low:.1%} to {value.high:.1%})"
        )
    return lines


def save_examples(result: Robustness, path: str | Path) -> None:
    """Write the changed inputs of every attack to ``path``, ``.npz`` or ``.safetensors``.

    ``x`` and ``y`` are inputs and labels as ``dissensus predict`` reads them: each example as the
    first attack that broke it made it, and as it was where none did; ``broken_by`` ``[batch]`` is
    that attack, or −1. ``original`` are the inputs before, ``adversarial`` ``[attacks, batch, …]``
    all results and ``predictions`` ``[attacks, batch]`` what the ensemble makes of them.
    ``attacks`` names the attacks: an array of text in ``.npz``, a JSON list in the metadata of
    ``.safetensors``.
    """
    path = Path(path)
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"adversarial examples go to .npz or .safetensors, got {path.name}")
    tensors, names = _tensors(result), [row.label for row in result.rows]
    if path.suffix == ".npz":
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        write_npz(path, {**arrays, "attacks": np.array(names)})
    else:
        write_safetensors(path, tensors, {"attacks": json.dumps(names)})


def _tensors(result: Robustness) -> dict[str, Tensor]:
    original, by = result.inputs.detach().cpu(), result.breaker
    adversarial = torch.stack([row.outcome.adversarial.cpu() for row in result.rows])
    place = torch.arange(len(by))
    worst = torch.where(
        (by >= 0).reshape(-1, *[1] * (original.ndim - 1)),
        adversarial[by.clamp_min(0), place].to(original.dtype),
        original,
    )
    return {
        "x": worst,
        "y": result.rows[0].outcome.labels,
        "broken_by": by,
        "original": original,
        "adversarial": adversarial,
        "predictions": torch.stack([row.outcome.predictions for row in result.rows]),
    }

"""An evaluation in words: the table, the headline, and what to doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dissensus.detection import Estimate

if TYPE_CHECKING:
    from dissensus.robustness.evaluation import Robustness
    from dissensus.robustness.masking import Row

__all__ = ["report"]

_HEADINGS = ("attack", "accuracy", "95% interval", "L∞", "L2", "L1", "L0", "∇ = 0")


def report(found: Robustness) -> str:
    """Lines to print, as they are."""
    lines = [
        f"{found.examples} examples, white-box on the whole ensemble, inputs in [0, 1]",
        f"Attacks: {found.label}",
        "",
        *_table(found),
        "",
        *_headline(found),
    ]
    if found.flags:
        lines += ["", "Do not trust these numbers yet:"]
        lines += [f"- {flag.name}: {flag.text}" for flag in found.flags]
    else:
        lines += ["", "No sign of masked gradients was found. That is no proof of their absence."]
    return "\n".join([*lines, *found.notes])


def _table(found: Robustness) -> list[str]:
    clean = ("none", *_accuracy(found.clean_accuracy), "", "", "", "", "")
    rows = [_HEADINGS, clean, *(_cells(row) for row in found.rows)]
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


def _headline(found: Robustness) -> list[str]:
    worst = found.worst
    lines = [
        f"Worst case for each example, {entry.norm} ε = {entry.eps:g}: "
        f"{entry.accuracy.value:.1%} (95% interval {entry.accuracy.low:.1%} to "
        f"{entry.accuracy.high:.1%})"
        for entry in worst
    ]
    if len(worst) != 1 or any(row.outcome.attack.budget() is None for row in found.rows):
        value = found.accuracy
        lines.append(
            f"Worst case over all attacks, whatever their size: {value.value:.1%} "
            f"({value.low:.1%} to {value.high:.1%})"
        )
    return lines

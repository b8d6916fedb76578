"""Accuracies under attacks, as they are shown: in short, as a figure, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.judging import (
    GRADIENT,
    attack_title,
    family,
    of_families,
    parameter,
    standard_eps,
)
from dissensus.papers.adp.published import published_row
from dissensus.papers.adp.reading import (
    accuracy_text,
    attack_names,
    by_seed,
    contenders_in,
    data_in,
    kept_by,
    pooled,
    rows_of,
    standard_bits,
    title,
)
from dissensus.papers.base import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["brief", "clean_text", "draw", "table"]


def brief(records: list[Record]) -> list[str]:
    """What the paper's attacks say, what the worst case says, and what follows."""
    found = []
    for data in data_in(records):
        pair = [rows_of(records, data, name) for name in ("plain", "adp")]
        parts = []
        for eps in standard_eps(pair[1]):
            specs = [s for s in of_families(pair[1], ("pgd",), "weak") if parameter(s) == eps]
            weak = [pooled(rows, kept_by(specs)) for rows in pair]
            worst = [pooled(rows, standard_bits(eps)) for rows in pair]
            told = [
                f"{100 * before.mean:.0f} → {100 * after.mean:.0f} {words}"
                for (before, after), words in (
                    (weak, "under the paper's PGD"),
                    (worst, "in the worst case"),
                )
                if before is not None and after is not None
            ]
            parts += [f"at ε = {eps:g} " + ", ".join(told)] if told else []
        if parts:
            found.append(f"Accuracy in %, baseline → ADP₂,₀.₅, {title(data)}: {'; '.join(parts)}.")
    if found:
        found.append(
            "Accuracy in %, mean of the paper's FGSM, BIM, PGD and MIM, baseline, label smoothing, "
            f"ADP₂,₀.₅: {'; '.join(_three(records, data) for data in data_in(records))}."
        )
    fallen = [title(data) for data in data_in(records) if _share_left(records, data) < 0.5]
    if fallen:
        found.append(
            "**ADP is not a white-box defence**: in the worst case at the larger ε it keeps less "
            f"than half of its accuracy on {', '.join(fallen)}."
        )
    return found


def _three(records: list[Record], data: str) -> str:
    """``"MNIST 52, 37, 46"``: what label smoothing alone would have done, between the two."""
    values = []
    for name in ("plain", "smoothed", "adp"):
        rows = rows_of(records, data, name)
        estimate = pooled(rows, kept_by(of_families(rows, GRADIENT, "weak")))
        values.append("–" if estimate is None else f"{100 * estimate.mean:.0f}")
    return f"{title(data)} {', '.join(values)}"


def _share_left(records: list[Record], data: str) -> float:
    """ADP's accuracy in the worst case at the largest ε, as a share of that on clean images."""
    rows = rows_of(records, data, "adp")
    sizes = standard_eps(rows)
    if not sizes:
        return 1.0
    worst = pooled(rows, standard_bits(sizes[-1]))
    clean = float(np.mean([1 - row["result"]["clean"]["error"] for row in rows]))
    return 1.0 if worst is None or not clean else worst.mean / clean


def draw(records: list[Record]) -> Figure:
    """Accuracy against ε: the paper's PGD beside one that crosses the ball, and the worst case."""
    from dissensus.papers.statistics import curve_interval
    from dissensus.plots.style import COLORS, MARKERS, add_line, label, new_figure

    drawn = [record for record in records if "curve" in record["result"]]
    sets = data_in(drawn)
    figure, axes = new_figure(1, max(1, len(sets)), width=4.4, height=3.4)
    for panel, data in zip(axes[0], sets, strict=True):
        for number, contender in enumerate(("plain", "adp")):
            rows = rows_of(drawn, data, contender)
            if not rows:
                continue
            eps = rows[0]["cell"]["curve"]["eps"]
            name = CONTENDERS[contender].title
            for kind, style, words in (("weak", "--", "paper's PGD"), ("strong", "-", "PGD-40")):
                curves = np.array([row["result"]["curve"][kind] for row in rows])
                mean, low, high = curve_interval(curves)
                add_line(
                    panel,
                    eps,
                    mean,
                    number,
                    band=(low.clip(0), high.clip(max=1)) if kind == "strong" else None,
                    name=f"{name}, {words}",
                    markers=False,
                    linestyle=style,
                )
            for size in standard_eps(rows):
                bits = by_seed(rows, standard_bits(size)).values()
                worst = float(np.mean([float(one.mean()) for one in bits]))
                mark = MARKERS[number]
                told = f"{name}, worst case" if size == standard_eps(rows)[0] else None
                panel.plot([size], [worst], mark, color=COLORS[number], markersize=7.0, label=told)
        label(panel, "ε (L∞)", "accuracy", title(data))
        panel.set_ylim(-0.03, 1.03)
    if sets:
        axes[0, 0].legend(loc="lower left", fontsize=7.5, frameon=False)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Accuracies in %, ours and in round brackets the published ones."""
    everybody = contenders_in(records)
    header = ["data", "attack", *(CONTENDERS[name].title for name in everybody)]
    rows = []
    for data in data_in(records):
        mine = [record for record in records if record["cell"]["data"] == data]
        clean = [clean_text(rows_of(mine, data, name)) for name in everybody]
        rows.append([title(data), "none", *clean])
        for part in ("weak", "slow"):
            for spec in attack_names(mine, part):
                cells = []
                for name in everybody:
                    text = accuracy_text(rows_of(mine, data, name), kept_by([spec], part))
                    printed = published_row(data, family(spec), parameter(spec), name)
                    if "direction" not in spec and printed is not None:
                        text += f" ({printed})"
                    cells.append(text)
                rows.append([title(data), attack_title(spec), *cells])
        for eps in standard_eps(mine):
            for key, words in (("autoattack", "AutoAttack"), ("right", "**worst case, standard**")):
                read = standard_bits(eps, key)
                cells = [accuracy_text(rows_of(mine, data, name), read) for name in everybody]
                rows.append([title(data), f"{words}, ε = {eps:g}", *cells])
    return header, rows


def clean_text(rows: Sequence[Record]) -> str:
    values = [1 - record["result"]["clean"]["error"] for record in rows]
    return f"{100 * np.mean(values):.1f}" if values else "–"

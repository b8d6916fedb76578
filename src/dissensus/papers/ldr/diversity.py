"""How diverse the ensembles are (Table 1), and what their number of unique predictions says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.ldr.contenders import METHOD_NAMES, SETTING, STUDY
from dissensus.papers.ldr.reading import (
    DATA_NAMES,
    chosen,
    compare_sets,
    data_in,
    part,
    sets_in,
    shown,
)
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT"]

_ROWS = ("deep-ensemble", "diverse-hyperparameters", "divdis", "a2d", "ldr", "ldr-divdis")


def _more_than(other: str, published: str) -> Claim:
    def check(records: list[Record]) -> Finding:
        pairs = {}
        for data in _with_both(records, other):
            ldr, rival = chosen(records, data, "ldr"), chosen(records, data, other)
            for name in sets_in(ldr):
                unique = part(name, "unique")
                pairs[f"{DATA_NAMES[data]} {name}"] = (ldr, unique, rival, unique)
        names = ("LDR", METHOD_NAMES[other])
        return compare_sets(pairs, names, "#unique", form="{:.2f}", published=published)

    return Claim(
        f"LDR has more unique predictions on unknown inputs than {METHOD_NAMES[other]}",
        "Section 4.2, Table 1",
        check,
    )


def _with_both(records: list[Record], other: str) -> list[str]:
    """Data sets on which both were run, apart from those of a linear head alone."""
    return [
        data
        for data in data_in(records)
        if chosen(records, data, "ldr") and chosen(records, data, other)
    ]


def _more_on_unknown(records: list[Record]) -> Finding:
    """LDR's gain in #unique over a deep ensemble, on unknown inputs against on test inputs."""
    pairs = {}
    for data in _with_both(records, "deep-ensemble"):
        ldr, plain = chosen(records, data, "ldr"), chosen(records, data, "deep-ensemble")

        def gain(name: str, plain: dict[int, Record] = plain) -> object:
            value = part(name, "unique")
            return lambda record: value(record) - value(plain[record["cell"]["seed"]])

        for name in sets_in(ldr):
            pairs[f"{DATA_NAMES[data]} {name}"] = (ldr, gain(name), ldr, gain("test"))
    return compare_sets(
        pairs,  # type: ignore[arg-type]
        ("unknown", "test"),
        "gain in #unique over a deep ensemble",
        form="{:.2f}",
        published="IN-Val 1.05 → 1.36, C-1 1.09 → 1.82, iNat 1.31 → 4.68, OI 1.23 → 4.11",
    )


def _plain_is_alike(records: list[Record]) -> Finding:
    """A deep ensemble's #unique on test inputs stays below 1.2."""
    found, holds = [], True
    for data in _with_both(records, "ldr"):
        runs = chosen(records, data, "deep-ensemble")
        estimate = mean_interval([part("test", "unique")(record) for record in runs.values()])
        holds &= estimate.high < 1.2
        found.append(f"{DATA_NAMES[data]} {estimate.shown('{:.2f}')}")
    return Finding(
        "holds" if holds else "does not hold",
        f"#unique of a deep ensemble on test inputs (of at most 5): {'; '.join(found)}",
        "1.05 on IN-Val",
    )


def draw(records: list[Record]) -> Figure:
    """#unique on test inputs and on each unknown set, for each method."""
    from dissensus.plots.style import add_line, label, new_figure

    sets = [data for data in data_in(records) if chosen(records, data, "ldr")]
    figure, axes = new_figure(1, len(sets), width=3.6, height=3.0, sharey=True)
    for panel, data in zip(axes[0], sets, strict=True):
        parts = ["test", *sets_in(chosen(records, data, "ldr"))]
        for number, name in enumerate(_ROWS):
            runs = chosen(records, data, name)
            if runs:
                means = [
                    mean_interval([part(at, "unique")(record) for record in runs.values()])
                    for at in parts
                ]
                band = None
                if len(runs) > 1:
                    band = [found.low for found in means], [found.high for found in means]
                x = range(len(parts))
                add_line(
                    panel, x, [m.mean for m in means], number, band=band, name=METHOD_NAMES[name]
                )
        panel.set_xticks(range(len(parts)), parts, rotation=30, fontsize=8.0)
        label(panel, "", "unique predictions of 5" if panel is axes[0, 0] else "", DATA_NAMES[data])
    axes[0, 0].legend(fontsize=7.0, frameon=False)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """#unique as in Table 1, with the strength that validation chose."""
    rows = []
    for data in data_in(records):
        for name in _ROWS:
            runs = chosen(records, data, name)
            if not runs:
                continue
            parts = ["test", *sets_in(runs)]
            strengths = sorted({record["cell"]["strength"] for record in runs.values()})
            cells = [f"{at} {shown(runs, part(at, 'unique'), '{:.2f}')}" for at in parts]
            chosen_at = "/".join(f"{strength:g}" for strength in strengths)
            rows.append([DATA_NAMES[data], METHOD_NAMES[name], chosen_at, *cells])
    return [
        "data",
        "method",
        "λ chosen",
        "test",
        "shift, mild",
        "shift, strong",
        "far 1",
        "far 2",
    ], rows


EXPERIMENT = Experiment(
    "diversity",
    "ldr",
    "Table 1",
    "How many different classes five members predict, on test and on unknown inputs",
    STUDY,
    (
        _more_than("deep-ensemble", "DE 1.09 to 1.31, LDR 1.82 to 4.68 on OOD data"),
        _more_than("a2d", "A2D 1.04 to 1.91, LDR 1.82 to 4.68"),
        Claim(
            "LDR adds more unique predictions on unknown inputs than on test inputs",
            "Section 4.2, Table 1",
            _more_on_unknown,
        ),
        Claim(
            "A deep ensemble has next to no diversity on test inputs (#unique below 1.2)",
            "Section 4.2, Table 1",
            _plain_is_alike,
        ),
    ),
    draw,
    table,
    SETTING,
)

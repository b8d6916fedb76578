"""Diversity of the ensembles: their numbers of unique predictions (Table 1)."""

from __future__ import annotations

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparisons import LargerInAll, Pairs, Values, data_title, decide
from dissensus.papers.ldr.contenders import SETTING, STUDY, contender_title
from dissensus.papers.ldr.records import (
    choose_runs,
    data_in,
    data_with,
    on_all_parts,
    quantity_on,
    unique,
    unknown_sets,
)
from dissensus.plots import Panel, Plot, estimates

__all__ = ["EXPERIMENT"]

_ROWS = ("deep-ensemble", "diverse-hyperparameters", "divdis", "a2d", "ldr", "ldr-divdis")


def _more_unique_than(other: str, published: str) -> Claim:
    title = contender_title(other)
    cases = on_all_parts("ldr", other, unique)
    return Claim(
        f"LDR has more unique predictions on unknown inputs than {title}",
        "Section 4.2, Table 1",
        LargerInAll(cases, ("LDR", title), "#unique", "{:.2f}", published=published),
    )


def _gains(records: list[Record]) -> Pairs:
    """LDR's gain in #unique over a deep ensemble, on unknown inputs and on test inputs."""
    cases = {}
    for data in data_with(records, "ldr", "deep-ensemble"):
        ldr, rival = (choose_runs(records, data, name) for name in ("ldr", "deep-ensemble"))

        def gain(part: str, ldr: list[Record] = ldr, rival: list[Record] = rival) -> Values:
            after, before = unique(part).values(ldr), unique(part).values(rival)
            return {seed: value - before[seed] for seed, value in after.items()}

        for part in unknown_sets(ldr):
            cases[f"{data_title(data)} {part}"] = (gain(part), gain("test"))
    return cases


def _hardly_diverse(records: list[Record]) -> Finding:
    """A deep ensemble's #unique on test inputs stays below 1.2."""
    estimates = {
        data_title(data): unique("test").estimate(choose_runs(records, data, "deep-ensemble"))
        for data in data_with(records, "ldr", "deep-ensemble")
    }
    shown = "; ".join(f"{data} {one.text('{:.2f}')}" for data, one in estimates.items())
    return decide(
        all(one.high < 1.2 for one in estimates.values()),
        f"#unique of a deep ensemble on test inputs (of at most 5): {shown}",
        "1.05 on IN-Val",
    )


def plot(records: list[Record]) -> Plot:
    """#unique on test inputs and on each unknown set, for each method."""
    panels = []
    for data in data_with(records, "ldr"):
        parts = ["test", *unknown_sets(choose_runs(records, data, "ldr"))]
        series = []
        for number, name in enumerate(_ROWS):
            runs = choose_runs(records, data, name)
            if runs:
                values = [unique(part).estimate(runs) for part in parts]
                series.append(estimates(contender_title(name), parts, values, number))
        panels.append(Panel("", "unique predictions of 5", series, data_title(data)))
    return Plot(panels, "Unique predictions of each method", size=(3.6, 3.0), share_y="all")


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """#unique as in Table 1, with the strength that validation chose."""
    rows = []
    for data in data_in(records):
        for name in _ROWS:
            runs = choose_runs(records, data, name)
            if runs:
                strengths = sorted({run["cell"]["strength"] for run in runs})
                chosen_at = "/".join(f"{strength:g}" for strength in strengths)
                cells = quantity_on(["test", *unknown_sets(runs)], unique, runs)
                rows.append([data_title(data), contender_title(name), chosen_at, *cells])
    header = ["data", "method", "λ chosen", "test", "shift, mild", "shift, strong"]
    return [*header, "far 1", "far 2"], rows


EXPERIMENT = Experiment(
    "diversity",
    "ldr",
    "Table 1",
    "How many different classes five members predict, on test and on unknown inputs",
    STUDY,
    (
        _more_unique_than("deep-ensemble", "DE 1.09 to 1.31, LDR 1.82 to 4.68 on OOD data"),
        _more_unique_than("a2d", "A2D 1.04 to 1.91, LDR 1.82 to 4.68"),
        Claim(
            "LDR adds more unique predictions on unknown inputs than on test inputs",
            "Section 4.2, Table 1",
            LargerInAll(
                _gains,
                ("unknown", "test"),
                "gain in #unique over a deep ensemble",
                "{:.2f}",
                published="IN-Val 1.05 → 1.36, C-1 1.09 → 1.82, iNat 1.31 → 4.68, OI 1.23 → 4.11",
            ),
        ),
        Claim(
            "A deep ensemble has next to no diversity on test inputs (#unique below 1.2)",
            "Section 4.2, Table 1",
            _hardly_diverse,
        ),
    ),
    plot,
    table,
    SETTING,
)

"""Strength λ of LDR: diversity, accuracy and detection (Figure 5, left)."""

from __future__ import annotations

from collections.abc import Iterable

from dissensus.papers.base import Claim, Experiment, Record
from dissensus.papers.comparisons import LargerInAll, Quantity, at, data_title
from dissensus.papers.ldr.contenders import SETTING, STUDY
from dissensus.papers.ldr.records import (
    Select,
    accuracy,
    auroc_by,
    data_with,
    on_all_parts,
    quantity_on,
    unique,
    unknown_sets,
    with_strength,
)
from dissensus.plots import Panel, Plot

__all__ = ["EXPERIMENT"]

_pds = auroc_by("pds")


def _strengths(records: Iterable[Record], data: str) -> list[float]:
    return sorted({record["cell"]["strength"] for record in with_strength(records, data, "ldr")})


def _at_end(place: int) -> Select:
    """LDR at the greatest strength (−1), or at the smallest above 0 (0)."""

    def select(records: Iterable[Record], data: str) -> list[Record]:
        above = [strength for strength in _strengths(records, data) if strength > 0]
        return with_strength(records, data, "ldr", above[place]) if above else []

    return select


_GREATEST, _SMALLEST = _at_end(-1), _at_end(0)
_ENDS = ("greatest λ", "smallest λ")


def plot(records: list[Record]) -> Plot:
    """#unique, accuracy and AUROC of PDS against λ."""
    panels = []
    for data in data_with(records, "ldr"):
        strengths = _strengths(records, data)
        runs = [with_strength(records, data, "ldr", strength) for strength in strengths]
        x = [max(strength, 0.03) for strength in strengths]  # 0 stands at the left end

        sets = list(enumerate(unknown_sets(runs[0])))
        members = Quantity("accuracy", at("parts", "test", "member_accuracies"))
        lines = {
            "unique predictions of 5": [
                unique("test").series("test", x, runs, 7),
                *(unique(part).series(part, x, runs, number) for number, part in sets),
            ],
            "test accuracy": [
                accuracy("test").series("ensemble", x, runs, 7),
                members.series("a member", x, runs, 3),
            ],
            "AUROC of PDS": [_pds(part).series(part, x, runs, number) for number, part in sets],
        }
        titles = (data_title(data), "", "")
        panels += [
            Panel("λ (0 at the left end)", y, series, title, x_log=True, legend="best")
            for (y, series), title in zip(lines.items(), titles, strict=True)
        ]
    alt = "Unique predictions, accuracy and AUROC of PDS against the strength λ"
    return Plot(panels, alt, columns=3)


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Diversity, accuracy and detection for every λ."""
    rows = []
    for data in data_with(records, "ldr"):
        for strength in _strengths(records, data):
            runs = with_strength(records, data, "ldr", strength)
            cells = [quantity("test").text(runs) for quantity in (accuracy, unique)]
            aurocs = quantity_on(unknown_sets(runs), _pds, runs)
            rows.append([data_title(data), f"{strength:g}", *cells, *aurocs])
    return ["data", "λ", "test accuracy", "#unique", "AUROC of PDS", "", "", ""], rows


EXPERIMENT = Experiment(
    "strength",
    "ldr",
    "Figure 5 (left)",
    "What the strength λ does to diversity, accuracy and detection",
    STUDY,
    (
        Claim(
            "A greater λ makes the ensemble more diverse",
            "Section 4.3, Figure 5",
            LargerInAll(
                on_all_parts(
                    _GREATEST,
                    _SMALLEST,
                    unique,
                    parts=lambda runs: ["test", *unknown_sets(runs)],
                ),
                _ENDS,
                "#unique",
                "{:.2f}",
                published="PDS jumps for λ between 0.1 and 10 (Figure 5)",
            ),
        ),
        Claim(
            "The AUROC of PDS rises with λ over the same range",
            "Section 4.3, Figure 5",
            LargerInAll(
                on_all_parts(_GREATEST, _SMALLEST, _pds),
                _ENDS,
                "AUROC of PDS",
                published="AUROC jumps for λ between 0.1 and 10 (Figure 5)",
            ),
        ),
    ),
    plot,
    table,
    SETTING,
)

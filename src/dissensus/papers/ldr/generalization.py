"""Generalisation under shift: averaged predictions, averaged weights, the best member (Table 3)."""

from __future__ import annotations

from collections.abc import Iterable

from dissensus.papers.base import Claim, Experiment, Record
from dissensus.papers.comparisons import LargerInAll, data_title
from dissensus.papers.ldr.contenders import SETTING, STUDY, contender_title
from dissensus.papers.ldr.records import (
    QuantityOn,
    Select,
    accuracy,
    choose_runs,
    data_with,
    on_all_parts,
    soup,
    with_strength,
)

__all__ = ["EXPERIMENT"]

_METHODS = ("single", "deep-ensemble", "diverse-hyperparameters", "divdis", "a2d", "ldr")
_SHIFTS = ("corrupt1", "corrupt5")

#: How members become one prediction: by name, the accuracy on a part.
_WAYS: dict[str, QuantityOn] = {
    "prediction ensemble": accuracy,
    "uniform soup": lambda part: soup(part, "uniform"),
    "greedy soup": lambda part: soup(part, "greedy"),
    "oracle selection": lambda part: soup(part, "oracle"),
    "mean member": lambda part: soup(part, "mean_member"),
}


def _stochastic_sum(records: Iterable[Record], data: str) -> list[Record]:
    """LDR with λ = 0: what the drawing of members does alone."""
    return with_strength(records, data, "ldr", 0.0)


def _more_accurate(
    first: str | Select, second: str | Select, names: tuple[str, str], way: str, published: str
) -> LargerInAll:
    cases = on_all_parts(first, second, _WAYS[way], parts=lambda runs: _SHIFTS)
    return LargerInAll(cases, names, f"accuracy, {way}", published=published)


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 3 for the labelled shifts at hand."""
    rows = []
    for data in data_with(records, "ldr"):
        contenders = {contender_title(name): choose_runs(records, data, name) for name in _METHODS}
        contenders["LDR, λ = 0"] = _stochastic_sum(records, data)
        for name, runs in contenders.items():
            for way, quantity in _WAYS.items():
                single = name == contender_title("single")
                if runs and not (single and way != "prediction ensemble"):
                    cells = [quantity(part).text(runs) for part in ("test", *_SHIFTS)]
                    rows.append([data_title(data), name, way, *cells])
    return ["data", "method", "combination", "test", "corruption 1", "corruption 5"], rows


_LDR_AND_PLAIN = ("LDR", "deep ensemble")

EXPERIMENT = Experiment(
    "generalization",
    "ldr",
    "Table 3",
    "Accuracy under shift of averaged predictions, averaged weights and the best member",
    STUDY,
    (
        Claim(
            "Under shift, LDR's averaged predictions are more accurate than a deep ensemble's",
            "Section A.2, Table 3",
            _more_accurate(
                "ldr",
                "deep-ensemble",
                _LDR_AND_PLAIN,
                "prediction ensemble",
                "C-1 77.3 and 75.7, C-5 40.7 and 38.6",
            ),
        ),
        Claim(
            "Under shift, LDR's averaged weights are more accurate than a deep ensemble's",
            "Section A.2, Table 3",
            _more_accurate(
                "ldr",
                "deep-ensemble",
                _LDR_AND_PLAIN,
                "uniform soup",
                "C-1 77.3 and 75.5, C-5 40.6 and 38.3",
            ),
        ),
        Claim(
            "The stochastic sum alone (λ = 0) is more accurate under shift than LDR with λ > 0",
            "Section A.2: “the best results are achieved … keeping λ = 0”",
            _more_accurate(
                _stochastic_sum, "ldr", ("λ = 0", "LDR"), "prediction ensemble", "no numbers"
            ),
        ),
        Claim(
            "The stochastic sum alone (λ = 0) is more accurate under shift than a deep ensemble",
            "Section A.2",
            _more_accurate(
                _stochastic_sum,
                "deep-ensemble",
                ("λ = 0", "deep ensemble"),
                "prediction ensemble",
                "C-1 77.3 and 75.7, C-5 40.7 and 38.6",
            ),
        ),
    ),
    None,
    table,
    SETTING,
)

"""Accuracy under shift (Table 3): averaged predictions, averaged weights, and the best member."""

from __future__ import annotations

from collections.abc import Callable

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.ldr.contenders import METHOD_NAMES, SETTING, STUDY
from dissensus.papers.ldr.reading import (
    DATA_NAMES,
    Runs,
    Value,
    accuracy,
    chosen,
    compare_sets,
    data_in,
    shown,
    soup,
    with_strength,
)

__all__ = ["EXPERIMENT"]

_METHODS = ("single", "deep-ensemble", "diverse-hyperparameters", "divdis", "a2d", "ldr")
_SHIFTS = ("corrupt1", "corrupt5")

#: How members become one prediction: by name, the value of a run on a part.
_WAYS: dict[str, Callable[[str], Value]] = {
    "prediction ensemble": accuracy,
    "uniform soup": lambda name: soup(name, "uniform"),
    "greedy soup": lambda name: soup(name, "greedy"),
    "oracle selection": lambda name: soup(name, "oracle"),
    "mean member": lambda name: soup(name, "mean_member"),
}


def _data(records: list[Record]) -> list[str]:
    return [data for data in data_in(records) if chosen(records, data, "ldr")]


def _stochastic_sum(records: list[Record], data: str) -> Runs:
    """LDR with λ = 0: what the drawing of members does alone."""
    found = with_strength(records, data, "ldr", 0.0)
    return {record["cell"]["seed"]: record for record in found}


def _beats(
    left: Callable[[list[Record], str], Runs],
    right: Callable[[list[Record], str], Runs],
    names: tuple[str, str],
    way: str,
    published: str,
) -> Callable[[list[Record]], Finding]:
    def check(records: list[Record]) -> Finding:
        pairs = {
            f"{DATA_NAMES[data]} {shift}": (
                left(records, data),
                _WAYS[way](shift),
                right(records, data),
                _WAYS[way](shift),
            )
            for data in _data(records)
            if left(records, data) and right(records, data)
            for shift in _SHIFTS
        }
        return compare_sets(pairs, names, f"accuracy, {way}", form="{:.3f}", published=published)

    return check


def _ldr(records: list[Record], data: str) -> Runs:
    return chosen(records, data, "ldr")


def _plain(records: list[Record], data: str) -> Runs:
    return chosen(records, data, "deep-ensemble")


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 3 for the labelled shifts at hand."""
    rows = []
    for data in _data(records):
        contenders = {METHOD_NAMES[name]: chosen(records, data, name) for name in _METHODS}
        contenders["LDR, λ = 0"] = _stochastic_sum(records, data)
        for name, runs in contenders.items():
            for way, value in _WAYS.items():
                if not runs or (name == METHOD_NAMES["single"] and way != "prediction ensemble"):
                    continue
                cells = [shown(runs, value(at), "{:.1%}") for at in ("test", *_SHIFTS)]
                rows.append([DATA_NAMES[data], name, way, *cells])
    return ["data", "method", "combination", "test", "corruption 1", "corruption 5"], rows


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
            _beats(
                _ldr,
                _plain,
                ("LDR", "deep ensemble"),
                "prediction ensemble",
                "C-1 77.3 and 75.7, C-5 40.7 and 38.6",
            ),
        ),
        Claim(
            "Under shift, LDR's averaged weights are more accurate than a deep ensemble's",
            "Section A.2, Table 3",
            _beats(
                _ldr,
                _plain,
                ("LDR", "deep ensemble"),
                "uniform soup",
                "C-1 77.3 and 75.5, C-5 40.6 and 38.3",
            ),
        ),
        Claim(
            "The stochastic sum alone (λ = 0) is more accurate under shift than LDR with λ > 0",
            "Section A.2: “the best results are achieved … keeping λ = 0”",
            _beats(_stochastic_sum, _ldr, ("λ = 0", "LDR"), "prediction ensemble", "no numbers"),
        ),
        Claim(
            "The stochastic sum alone (λ = 0) is more accurate under shift than a deep ensemble",
            "Section A.2",
            _beats(
                _stochastic_sum,
                _plain,
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

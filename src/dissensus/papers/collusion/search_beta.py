"""How much it matters at which β hyperparameters are searched, which Appendix B does not say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.collusion.diagnosing import (
    JOINT,
    SETTING,
    by_table,
    diversity_of,
    error_of,
    mean_sd,
    on_every_table,
    share_of,
    without,
)
from dissensus.papers.collusion.tables import SEARCHES
from dissensus.papers.statistics import paired_difference

__all__ = ["EXPERIMENT"]


def _by_search(records: Sequence[Record]) -> dict[float, list[Record]]:
    found: dict[float, list[Record]] = {}
    for record in records:
        found.setdefault(record["cell"]["search_beta"], []).append(record)
    return found


def _always_explodes(records: list[Record]) -> Finding:
    found = {}
    for beta, some in _by_search(records).items():
        for table, d in by_table(some, diversity_of).items():
            difference = paired_difference(np.log(d[:, JOINT]), np.log(d[:, 0]))
            found[f"{table} searched at {beta:g}"] = difference
    return on_every_table(found, "{:.2f}", "log of DIV at β = 1 minus log of DIV at β = 0")


def _searched_table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    header = ["table", "searched at", "ERR, β = 0", "ERR, β = 1", "DIV, β = 0", "DIV, β = 1"]
    header += ["% by offsets, β = 1", "% ERR without 40%, β = 1"]
    rows = []
    for beta, some in _by_search(records).items():
        for table, error in by_table(some, error_of).items():
            diversity = by_table(some, diversity_of)[table]
            share = 100 * by_table(some, share_of)[table][:, JOINT]
            dropped = 100 * by_table(some, without(0.4))[table][:, JOINT]
            columns = [error[:, 0], error[:, JOINT], diversity[:, 0], diversity[:, JOINT]]
            cells = [mean_sd(column) for column in (*columns, share, dropped)]
            rows.append([table, f"β = {beta:g}", *cells])
    return header, sorted(rows, key=lambda row: row[0])


EXPERIMENT = Experiment(
    "search-beta",
    "collusion",
    "Appendix B, left open",
    "How much it matters at which β hyperparameters are searched",
    SEARCHES,
    (
        Claim(
            "Diversity explodes wherever the search runs (our question, not the paper's)",
            "Appendix B",
            _always_explodes,
        ),
    ),
    None,
    _searched_table,
    {
        "smoke": SETTING["smoke"],
        "cpu": "As collusion/explosion, three runs, the search at β = 0, 0.5 and 1",
        "paper": "As collusion/explosion, three runs, the search at β = 0, 0.5 and 1",
    },
)

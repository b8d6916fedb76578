"""Table 1: error rates on clean test images, of the ensemble and of its members."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.ensembles import ENSEMBLES
from dissensus.papers.adp.published import TABLE1
from dissensus.papers.adp.reading import contenders_in, data_in, rows_of, title
from dissensus.papers.adp.settings import ENSEMBLE_SETTING
from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparing import (
    all_of,
    compare_values,
    paired,
)
from dissensus.papers.statistics import mean_interval

__all__ = ["ERRORS"]


def _values(records: list[Record], data: str, contender: str, key: str) -> dict[int, float]:
    """The error of the ensemble, or the mean error of its members, by seed."""
    return {
        record["cell"]["seed"]: float(np.mean(record["result"]["clean"][key]))
        for record in rows_of(records, data, contender)
    }


def _larger(
    larger: str, smaller: str, key: str, quantity: str, published: str
) -> Callable[[list[Record]], Finding]:
    names = (CONTENDERS[larger].title, CONTENDERS[smaller].title)

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records):
            values = [_values(records, data, name, key) for name in (larger, smaller)]
            if all(values):
                pair = paired(*values)
                findings[title(data)] = compare_values(*pair, names, quantity, "{:.2%}")
        return all_of(findings, published)

    return check


def _published(key: str) -> str:
    """The baseline's and ADP's printed errors, of the ensemble or of the mean member."""
    parts = []
    for data, rows in TABLE1.items():
        pair = [
            rows[name][-1] if key == "error" else float(np.mean(rows[name][:-1]))
            for name in ("plain", "adp")
        ]
        parts.append(f"{title(data)} {pair[0]:.2f} → {pair[1]:.2f}")
    return "; ".join(parts)


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Errors in %, measured and published."""
    header = ["data", "contender", "members, mean", "ensemble", "published: members, ensemble"]
    rows = []
    for data in data_in(records):
        for contender in contenders_in(records):
            if not rows_of(records, data, contender):
                continue
            shown = [
                mean_interval([100 * v for v in _values(records, data, contender, key).values()])
                for key in ("member_errors", "error")
            ]
            printed = TABLE1.get(data, {}).get(contender)
            beside = "–"
            if printed is not None:
                beside = f"{np.mean(printed[:-1]):.2f}, {printed[-1]:.2f}"
            cells = [estimate.shown("{:.2f}") for estimate in shown]
            rows.append([title(data), CONTENDERS[contender].title, *cells, beside])
    return header, rows


ERRORS = Experiment(
    "errors",
    "adp",
    "Table 1",
    "Error rates on clean test images",
    ENSEMBLES,
    (
        Claim(
            "ADP₂,₀.₅ raises the error of individual members",
            "Section 4.2, Table 1",
            _larger(
                "adp", "plain", "member_errors", "mean error of members", _published("members")
            ),
        ),
        Claim(
            "ADP₂,₀.₅ lowers the error of the ensemble",
            "Section 4.2, Table 1",
            _larger("plain", "adp", "error", "error of the ensemble", _published("error")),
        ),
    ),
    None,
    table,
    ENSEMBLE_SETTING,
)

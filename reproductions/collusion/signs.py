"""Signs of learner collusion on four tables: Figures 2, 3 and 4 (Section 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproductions.collusion.tables import BETAS, FRACTIONS, SEARCHES, TABLES
from reproductions.comparisons import Effect, Finding, Numbers, Within, group_records
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Series
from reproductions.statistics import (
    CANNOT,
    Estimate,
    Verdict,
    bootstrap_interval,
    judge_within,
    mean_interval,
)
from reproductions.study import Record

Matrix = NDArray[np.float64]

_JOINT = BETAS.index(1.0)  # the place of β = 1
_UP_TO_HALF = [place for place, beta in enumerate(BETAS) if beta <= 0.5]


# ---- numbers of a table -------------------------------------------------------------------------


@dataclass(frozen=True)
class TableRuns:
    """The runs on one table; each quantity is ``[runs, 11]``, a column for each β."""

    records: Sequence[Record]

    def _matrix(self, read: Callable[[dict[str, Any]], float]) -> Matrix:
        return np.array([[read(at) for at in one["result"]["betas"]] for one in self.records])

    @property
    def error(self) -> Matrix:
        """ERR on test rows."""
        return self._matrix(lambda at: at["test"]["ensemble_error"])

    @property
    def diversity(self) -> Matrix:
        """DIV on test rows."""
        return self._matrix(lambda at: at["test"]["diversity"])

    @property
    def share(self) -> Matrix:
        """The share of DIV that constant offsets explain."""
        return self._matrix(lambda at: at["debiased_share"])

    def without(self, fraction: float) -> Matrix:
        """The relative increase of ERR with that fraction of the members left out."""
        place = FRACTIONS.index(fraction)
        return self._matrix(lambda at: at["without"][place][3])


def _tables(records: Sequence[Record]) -> dict[str, TableRuns]:
    """The runs of each table, in the order of the records."""
    groups = group_records(records, lambda record: str(record["cell"]["table"]))
    return {table: TableRuns(runs) for table, runs in groups.items()}


def _on_every_table(value: Callable[[TableRuns], Matrix]) -> Numbers:
    """A number of each run, by table."""
    return lambda records: {table: value(runs) for table, runs in _tables(records).items()}


def _positive(quantity: str, value: Callable[[TableRuns], Matrix], form: str = "{:.3g}") -> Within:
    """A check that a difference is above 0 on every table."""
    return Within(quantity, _on_every_table(value), low=0.0, form=form)


def _mean_sd(values: Matrix, form: str = "{:.3g}") -> str:
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return f"{form.format(values.mean())} ± {form.format(deviation)}"


def _beta_table(
    records: list[Record], values: Mapping[str, Callable[[TableRuns], Matrix]], form: str
) -> Table:
    """A row for each table and value, and a column for each β."""
    rows = [
        [table, name, *(_mean_sd(column, form) for column in value(runs).T)]
        for table, runs in _tables(records).items()
        for name, value in values.items()
    ]
    return Table(["table", "value", *(f"β = {beta:g}" for beta in BETAS)], rows, labels=2)


def _plot(
    records: list[Record],
    lines: Mapping[str, Callable[[TableRuns], Matrix]],
    label: str,
    **axes: Any,
) -> Plot:
    """A panel for each table: means over runs with one standard deviation, as the paper draws."""
    panels = []
    for table, runs in _tables(records).items():
        series = []
        for number, (name, value) in enumerate(lines.items()):
            values = value(runs)
            mean = values.mean(0)
            spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
            series.append(Series(name, BETAS, mean, number, low=mean - spread, high=mean + spread))
        panels.append(Panel("β", label, series, table, **axes))
    return Plot(panels, f"{label} against β on each table", len(panels), (2.6, 2.5))


# ---- Figure 2: explosion ------------------------------------------------------------------------


def _diversity_beyond_error(records: list[Record]) -> Finding:
    """ "Often": on at least half of the tables."""
    effects = {}
    for table, runs in _tables(records).items():
        ratio = mean_interval(runs.diversity[:, _JOINT] / runs.error[:, _JOINT])
        judged = judge_within(ratio, low=1)
        effects[table] = Effect("DIV / ERR at β = 1", ratio, "{:.3g}", judged)
    verdicts = [effect.judgement.verdict for effect in effects.values()]
    verdict: Verdict = "undecided"
    if verdicts.count("holds") >= len(verdicts) / 2:
        verdict = "holds"
    elif verdicts.count("contradicted") > len(verdicts) / 2:
        verdict = "contradicted"
    return Finding(verdict, "", effects)


def _facebook_unharmed(records: list[Record]) -> Finding:
    """Hardly: the mean of ERR over runs changes by a tenth at most (bootstrap over runs)."""
    effects = {}
    for table, runs in _tables(records).items():
        change = _change_of_mean(runs.error)
        judged = judge_within(change, -0.1, 0.1)
        effects[table] = Effect("change of mean ERR from β = 0 to 1", change, "{:+.1%}", judged)
    if "facebook" not in effects:
        return Finding(CANNOT, "the Facebook table is not among the data")
    return Finding(effects["facebook"].judgement.verdict, "", effects)


def _change_of_mean(error: Matrix) -> Estimate:
    """Of the mean over runs, because the ratio of a run with hardly any error says little."""

    def change(runs: Matrix) -> Matrix:
        rows = runs.astype(int)
        changes: Matrix = error[rows, _JOINT].mean(-1) / error[rows, 0].mean(-1) - 1
        return changes

    return bootstrap_interval(np.arange(len(error)), change)


def _half_minus_low(runs: TableRuns) -> Matrix:
    low = [place for place, beta in enumerate(BETAS) if beta <= 0.7]
    difference: Matrix = runs.diversity[:, _JOINT] / 2 - runs.diversity[:, low].mean(1)
    return difference


def _late_minus_early_growth(runs: TableRuns) -> Matrix:
    diversity, middle, near = runs.diversity, BETAS.index(0.5), BETAS.index(0.9)
    late = diversity[:, _JOINT] - diversity[:, near]
    growth: Matrix = late - (diversity[:, middle] - diversity[:, 0])
    return growth


def _explosion_table(records: list[Record]) -> Table:
    shown = (0.0, 0.5, 0.9, 1.0)
    places = [BETAS.index(beta) for beta in shown]
    rows = [
        [
            table,
            str(len(runs.records)),
            *(_mean_sd(values[:, p]) for values in (runs.error, runs.diversity) for p in places),
        ]
        for table, runs in _tables(records).items()
    ]
    columns = [f"{name}, β = {beta:g}" for name in ("ERR", "DIV") for beta in shown]
    return Table(["table", "runs", *columns], rows)


EXPLOSION = Experiment(
    "collusion/explosion",
    "Figure 2",
    "Diversity explodes as training becomes joint",
    TABLES,
    (
        Claim(
            "Test diversity is far larger at β = 1 than at β = 0",
            "Section 6.1",
            _positive(
                "DIV at β = 1 minus DIV at β = 0",
                lambda runs: runs.diversity[:, _JOINT] - runs.diversity[:, 0],
            ),
        ),
        Claim(
            "At β = 1, diversity is often larger than the ensemble's error",
            "Section 6.1",
            _diversity_beyond_error,
        ),
        Claim(
            "Diversity stays low for most values of β",
            "Section 6.1",
            _positive("half of DIV at β = 1 minus its mean over β ≤ 0.7", _half_minus_low),
        ),
        Claim(
            "Diversity grows far from linearly with β",
            "Figure 2",
            _positive(
                "growth of DIV from β = 0.9 to 1 minus growth from 0 to 0.5",
                _late_minus_early_growth,
            ),
        ),
        Claim(
            "On Facebook the excess diversity hardly changes the test error",
            "Figure 2, Appendix F",
            _facebook_unharmed,
        ),
    ),
    _explosion_table,
    lambda records: _plot(
        records,
        {"ERR (test MSE)": lambda runs: runs.error, "DIV": lambda runs: runs.diversity},
        "mean squared error",
    ),
)


# ---- Figure 3: removal of biases ----------------------------------------------------------------


_SHARES: Mapping[str, Callable[[TableRuns], Matrix]] = {
    "explained by offsets": lambda runs: 100 * runs.share
}

BIAS_REMOVAL = Experiment(
    "collusion/bias-removal",
    "Figure 3",
    "How much diversity is a constant shift of each member",
    TABLES,
    (
        Claim(
            "Debiasing removes around half of the diversity at β = 1",
            "Section 6.1",
            Within(  # around half: between a third and two thirds
                "share of DIV at β = 1 that offsets explain",
                _on_every_table(lambda runs: runs.share[:, _JOINT]),
                1 / 3,
                2 / 3,
                "{:.0%}",
            ),
            "around half",
        ),
        Claim(
            "Offsets explain more of it at β = 1 than for β ≤ 0.5",
            "Figure 3",
            _positive(
                "share explained at β = 1 minus its mean over β ≤ 0.5",
                lambda runs: runs.share[:, _JOINT] - runs.share[:, _UP_TO_HALF].mean(1),
                "{:.1%}",
            ),
        ),
    ),
    lambda records: _beta_table(records, _SHARES, "{:.0f}"),
    lambda records: _plot(records, _SHARES, "% of DIV", y_range=(0.0, 100.0)),
)


# ---- Figure 4: codependence ---------------------------------------------------------------------


def _excess_increases(records: list[Record]) -> dict[str, Matrix]:
    return {
        f"{table} without {fraction:.0%}": runs.without(fraction)[:, _JOINT]
        - runs.without(fraction)[:, 0]
        for fraction in FRACTIONS
        for table, runs in _tables(records).items()
    }


def _percent_without(fraction: float) -> Callable[[TableRuns], Matrix]:
    return lambda runs: 100 * runs.without(fraction)


_INCREASES = {f"{p:.0%} left out": _percent_without(p) for p in FRACTIONS}

CODEPENDENCE = Experiment(
    "collusion/codependence",
    "Figure 4",
    "The increase of the error when members are left out at test time",
    TABLES,
    (
        Claim(
            "Leaving out members hurts more at β = 1 than at β = 0",
            "Section 6.1",
            Within(
                "relative increase of ERR at β = 1 minus that at β = 0",
                _excess_increases,
                low=0.0,
                form="{:+.0%}",
            ),
        ),
        Claim(
            "It hardly matters elsewhere (β ≤ 0.5)",
            "Section 6.1",
            Within(  # hardly: less than a tenth
                "mean increase of ERR over β ≤ 0.5 with 60% of the members left out",
                _on_every_table(lambda runs: runs.without(0.6)[:, _UP_TO_HALF].mean(1)),
                high=0.1,
                form="{:.0%}",
            ),
        ),
    ),
    lambda records: _beta_table(records, _INCREASES, "{:.1f}"),
    lambda records: _plot(records, _INCREASES, "increase of ERR, %"),
)


# ---- where the search runs ----------------------------------------------------------------------


def _searches(records: Sequence[Record]) -> dict[tuple[str, float], TableRuns]:
    """The runs of each table and β of the search."""
    groups = group_records(records, lambda record: float(record["cell"]["search_beta"]))
    return {
        (table, beta): runs
        for beta, some in groups.items()
        for table, runs in _tables(some).items()
    }


def _log_growth(records: list[Record]) -> dict[str, Matrix]:
    return {
        f"{table} searched at {beta:g}": np.log(runs.diversity[:, _JOINT])
        - np.log(runs.diversity[:, 0])
        for (table, beta), runs in _searches(records).items()
    }


def _search_table(records: list[Record]) -> Table:
    rows = []
    for (table, beta), runs in _searches(records).items():
        columns = [
            *(values[:, place] for values in (runs.error, runs.diversity) for place in (0, _JOINT)),
            100 * runs.share[:, _JOINT],
            100 * runs.without(0.4)[:, _JOINT],
        ]
        rows.append([table, f"β = {beta:g}", *map(_mean_sd, columns)])
    header = ["table", "searched at", "ERR, β = 0", "ERR, β = 1", "DIV, β = 0", "DIV, β = 1"]
    header += ["% by offsets, β = 1", "% ERR without 40%, β = 1"]
    return Table(header, sorted(rows, key=lambda row: row[0]), labels=2)


SEARCH_BETA = Experiment(
    "collusion/search-beta",
    "Appendix B, left open",
    "Diversity by the β at which hyperparameters are searched",
    SEARCHES,
    (
        Claim(
            "Diversity explodes wherever the search runs",
            "Appendix B",
            Within(
                "log of DIV at β = 1 minus log of DIV at β = 0",
                _log_growth,
                low=0.0,
                form="{:.2f}",
            ),
            ours=True,
        ),
    ),
    _search_table,
)

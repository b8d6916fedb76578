"""Figures of members beside each other: matrices, and the histogram of ensemble diversity."""

from __future__ import annotations

import numpy as np

from dissensus.plots import Matrix, Panel, Plot, Series
from dissensus.report.figure import Cell, Figure, View, percent, short
from dissensus.report.found import Contents, Floats, Method, Source

__all__ = ["diversity", "matrices"]

_BINS = 40


def matrices(contents: Contents) -> Figure | None:
    """Member × member: disagreement, correlation of errors, and attack transfer (adp, Figure 3)."""
    views: list[View] = []
    sources: list[Source] = []
    rows: list[list[Cell]] = []
    for name, title, told in (
        ("disagreement", "disagreement", "two members disagree most in {} ({}), least in {} ({})"),
        (
            "error_correlation",
            "error correlation",
            "members' errors correlate most in {} ({}), least in {} ({})",
        ),
    ):
        found = _pairwise(contents, name)
        if not found:
            continue
        diverging = name == "error_correlation"
        top = 1.0 if diverging else _round_up(max(float(np.nanmax(m)) for _, m in found))
        low = -1.0 if diverging else 0.0
        panels = [
            Matrix(method.name, matrix, low, top, diverging, style=_number(contents, method))
            for method, matrix in found
        ]
        means = sorted((_off_diagonal(matrix), method.name) for method, matrix in found)
        ends = (means[-1][1], short(means[-1][0]), means[0][1], short(means[0][0]))
        views.append(View(Plot(panels, f"On average over pairs {told.format(*ends)}."), (title,)))
        rows += [[method.name, f"mean {title}", short(_off_diagonal(m))] for method, m in found]
        sources += [
            Source(method.diagnosis.file, f"pairwise.{name}")
            for method, _ in found
            if method.diagnosis is not None
        ]
    _add_transfer(contents, views, rows, sources)
    if not views:
        return None
    return Figure(
        "members",
        "Members two by two",
        "Disagreement is the share of test inputs on which two members predict different classes "
        "(squared distance in a regression). Error correlation is that of being wrong. Attack "
        "transfer is how often a member (column) still predicts rightly on inputs made to fool "
        "another (row): high off the diagonal means that attacks do not carry over.",
        views,
        views[0].plot.alt,
        ("method", "measure", "mean over pairs"),
        rows,
        sources,
        ("measure",) if len(views) > 1 else (),
    )


def _pairwise(contents: Contents, name: str) -> list[tuple[Method, Floats]]:
    found = []
    for method in contents.methods:
        values = None if method.diagnosis is None else method.diagnosis.at(f"pairwise.{name}")
        if not isinstance(values, list) or len(values) < 2:
            continue
        matrix = np.array(
            [[np.nan if v is None else float(v) for v in row] for row in values], dtype=float
        )
        if matrix.ndim == 2 and not np.isnan(matrix).all():
            found.append((method, matrix))
    return found


def _add_transfer(
    contents: Contents,
    views: list[View],
    rows: list[list[Cell]],
    sources: list[Source],
) -> None:
    found = [
        (method, method.attacked)
        for method in contents.methods
        if method.attacked is not None and method.attacked.transfer is not None
    ]
    if not found:
        return
    panels, means = [], []
    for method, attacked in found:
        assert attacked.transfer is not None
        panels.append(
            Matrix(
                method.name,
                attacked.transfer,
                0.0,
                1.0,
                x="evaluated",
                y="attacked",
                style=_number(contents, method),
            )
        )
        means.append((_off_diagonal(attacked.transfer), method.name))
        rows.append([method.name, "accuracy under transfer", percent(means[-1][0])])
        sources.append(Source(attacked.record.file, "transfer.accuracy"))
    best, worst = max(means), min(means)
    seen = (
        f"On average over pairs attacks carry over least in {best[1]} ({percent(best[0])} accuracy "
        f"left) and most in {worst[1]} ({percent(worst[0])})."
    )
    views.append(View(Plot(panels, seen), (f"attack transfer, {found[0][1].transfer_attack}",)))


def _number(contents: Contents, method: Method) -> int:
    return contents.methods.index(method)


def _off_diagonal(matrix: Floats) -> float:
    off = matrix[np.eye(*matrix.shape) == 0]
    return float(np.nanmean(off)) if off.size and not np.isnan(off).all() else 0.0


def _round_up(value: float) -> float:
    """The next nice end of a scale."""
    for end in (0.05, 0.1, 0.2, 0.5, 1.0):
        if value <= end:
            return end
    return float(f"{value * 1.05:.2g}")


def diversity(contents: Contents) -> Figure | None:
    """The log ensemble diversity on test inputs (adp, Eq. 3, Figure 5)."""
    found = [
        (number, method, method.log_diversity)
        for number, method in enumerate(contents.methods)
        if method.log_diversity is not None and len(method.log_diversity)
    ]
    if not found:
        return None
    every = np.concatenate([values for _, _, values in found])
    edges = np.linspace(np.floor(every.min()), max(np.ceil(every.max()), 0.0), _BINS + 1)
    series, rows, medians = [], [], []
    for number, method, values in found:
        counts, _ = np.histogram(values, edges)
        share = counts / len(values)
        fill = len(found) < 3
        series.append(Series(method.name, edges.tolist(), share, number, "steps", fill=fill))
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        medians.append((float(middle), method.name))
        rows.append([method.name, short(low), short(middle), short(high)])
    medians.sort()
    words = ("log ensemble diversity", "share of test inputs")
    panel = Panel(*words, series, y_percent=True, from_zero=True)
    return Figure(
        "ensemble-diversity",
        "Ensemble diversity",
        "The logarithm of the determinant that ADP raises: 0 where the members' predictions on the "
        "wrong classes are orthogonal, far below 0 where they are alike. Measured with the "
        "predicted class, as the true one is not known at test time.",
        [View(Plot([panel]))],
        f"The median is highest for {medians[-1][1]} ({short(medians[-1][0])}) and lowest for "
        f"{medians[0][1]} ({short(medians[0][0])}).",
        ("method", "lower quartile", "median", "upper quartile"),
        rows,
        [
            Source(method.path / "predictions" / "test.safetensors", "outputs")
            for _, method, _ in found
        ],
    )

"""Figures of members: over training, pair by pair, and their ensemble diversity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dissensus.show.contents import Contents, Floats, Method, Reference
from dissensus.show.figure import Figure, plot_view
from dissensus.show.plot import Matrix, Panel, Series, histogram

_TERMS = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}
_EPOCHS = 200  # points of a line at most
_BINS = 40

_Sourced = tuple[Matrix, Reference]


def training(contents: Contents) -> Figure | None:
    """ERR, mean ERR and DIV after each epoch (collusion, Section 6.2)."""
    views = []
    for part, word in (("val", "validation"), ("train", "training")):
        panels = []
        for key, name in _TERMS.items():
            lines = [_epoch_line(*item, f"{part}.{key}") for item in enumerate(contents.methods)]
            series = [line for line in lines if line is not None]
            if series:
                panels.append(Panel("epoch", name, series, name, from_zero=True))
        if panels:
            last = {line.name: line.y[-1] for line in panels[-1].series}
            what = f"{panels[-1].y} after the last epoch"
            views.append(plot_view(panels, what, last, (word,)))
    sources = [Reference(m.epochs[0].file, "epochs") for m in contents.methods if m.epochs]
    return Figure(views, sources) if views else None


def _epoch_line(style: int, method: Method, key: str) -> Series | None:
    numbers = [(record.at("epoch"), record.number(key)) for record in method.epochs]
    points = [(epoch, number.value) for epoch, number in numbers if number is not None]
    if not points:
        return None
    thin = np.linspace(0, len(points) - 1, min(len(points), _EPOCHS)).round().astype(int)
    x, y = zip(*(points[index] for index in thin), strict=True)
    return Series(method.name, x, y, style)


# ---- pairs of members ---------------------------------------------------------------------------


def pairs_of_members(contents: Contents) -> Figure | None:
    """Member × member: disagreement, correlation of errors, and attack transfer (adp, Figure 3)."""
    attacks = [record.text("transfer.attack") for _, _, record in contents.with_attacks()]
    measures = {
        "disagreement": _diagnosed(contents, "disagreement"),
        "error correlation": _diagnosed(contents, "error_correlation", signed=True),
        f"attack transfer, {next(filter(None, attacks), '')}": _transferred(contents),
    }
    views = []
    for title, matrices in measures.items():
        means = {matrix.title: _off_diagonal_mean(matrix.values) for matrix, _ in matrices}
        what, panels = f"The mean {title.partition(',')[0]} of pairs", [m for m, _ in matrices]
        views += [plot_view(panels, what, means, (title,))] if panels else []
    sources = [source for matrices in measures.values() for _, source in matrices]
    return Figure(views, sources) if views else None


def _diagnosed(contents: Contents, name: str, *, signed: bool = False) -> list[_Sourced]:
    """The matrices ``pairwise.NAME`` of the diagnoses, all on one scale."""
    matrices = []
    for style, method in enumerate(contents.methods):
        values = None if method.diagnosis is None else method.diagnosis.at(f"pairwise.{name}")
        if method.diagnosis is None or not isinstance(values, list) or len(values) < 2:
            continue
        array = np.array(values, dtype=np.float64)  # null, where a measure is undefined, is NaN
        if array.ndim == 2 and not np.isnan(array).all():
            matrix = Matrix(method.name, array, -1.0, 1.0, diverging=signed, style=style)
            matrices.append((matrix, method.diagnosis.reference(f"pairwise.{name}")))
    if signed or not matrices:
        return matrices
    end = _scale_end(max(float(np.nanmax(matrix.values)) for matrix, _ in matrices))
    return [(replace(matrix, low=0.0, high=end), source) for matrix, source in matrices]


def _transferred(contents: Contents) -> list[_Sourced]:
    """Accuracy of each member on inputs that were made to fool another one."""
    matrices = []
    for style, method, record in contents.with_attacks():
        if record.at("transfer"):
            values = record.array("transfer.accuracy", ndim=2)
            matrix = Matrix(method.name, values, x="evaluated", y="attacked", style=style)
            matrices.append((matrix, record.reference("transfer.accuracy")))
    return matrices


def _off_diagonal_mean(matrix: Floats) -> float:
    off = matrix[np.eye(*matrix.shape) == 0]
    return float(np.nanmean(off)) if off.size and not np.isnan(off).all() else 0.0


def _scale_end(value: float) -> float:
    """The next round number at which a scale can end."""
    ends = (0.05, 0.1, 0.2, 0.5, 1.0)
    return next((end for end in ends if value <= end), float(f"{value * 1.05:.2g}"))


# ---- ensemble diversity -------------------------------------------------------------------------


def ensemble_diversity(contents: Contents) -> Figure | None:
    """The log ensemble diversity on test inputs (adp, Eq. 3, Figure 5)."""
    runs = [
        (style, method, method.log_diversity)
        for style, method in enumerate(contents.methods)
        if method.log_diversity is not None and len(method.log_diversity)
    ]
    if not runs:
        return None
    pooled = np.concatenate([values for _, _, values in runs])
    edges = np.linspace(np.floor(pooled.min()), max(np.ceil(pooled.max()), 0.0), _BINS + 1)
    series = [histogram(m.name, v, edges, style, fill=len(runs) < 3) for style, m, v in runs]
    axes = ("log ensemble diversity", "share of test inputs", series)
    medians = {method.name: float(np.median(values)) for _, method, values in runs}
    sources = [method.held_out.source for _, method, _ in runs if method.held_out]
    panel = Panel(*axes, y_percent=True, from_zero=True)
    return Figure([plot_view([panel], "The median", medians)], sources)

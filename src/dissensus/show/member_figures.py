"""Figures of members: over training, pair by pair, and their ensemble diversity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dissensus.show import Matrix, Panel, Plot, Series, histogram
from dissensus.show.contents import Contents, Floats, Method, Reference
from dissensus.show.figure import Cell, Figure, View, cell, compare, percent, short

_TERMS = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}
_EPOCHS = 200  # points of a line at most
_BINS = 40

_Sourced = tuple[Matrix, Reference]


# ---- over training ------------------------------------------------------------------------------


def training(contents: Contents) -> Figure | None:
    """ERR, mean ERR and DIV after each epoch (collusion, Section 6.2)."""
    rows: list[list[Cell]] = []
    diversity: dict[str, float] = {}
    trained = [method for method in contents.methods if method.epochs]
    for method in trained:
        last = method.epochs[-1]
        part = "val" if last.number("val.ensemble_error") else "train"
        numbers = {key: last.number(f"{part}.{key}") for key in _TERMS}
        cells = (cell(number, "short") for number in numbers.values())
        rows.append([method.name, f"{last.at('epoch')}, {part}", *cells])
        if numbers["diversity"] is not None:
            diversity[method.name] = numbers["diversity"].value
    alt = compare(
        "After the last epoch DIV is largest for {high} and smallest for {low}.",
        diversity,
        single="DIV after the last epoch: {high}.",
    )
    views = []
    for part, word in (("val", "validation"), ("train", "training")):
        panels = []
        for key, name in _TERMS.items():
            lines = [_epoch_line(*item, f"{part}.{key}") for item in enumerate(contents.methods)]
            series = [line for line in lines if line is not None]
            if series:
                panels.append(Panel("epoch", name, series, name, from_zero=True))
        if panels:
            views.append(View(Plot(panels, alt), (word,)))
    if not views:
        return None
    return Figure(
        "training",
        "ERR and DIV over training",
        "DIV = mean ERR − ERR after each epoch. Where DIV grows while the members' own error "
        "grows with it, members trade their quality for disagreement.",
        views,
        ("method", "epoch", *_TERMS.values()),
        rows,
        [Reference(method.epochs[0].file, "epochs") for method in trained],
        ("measured on",),
    )


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
    measures: tuple[tuple[str, list[_Sourced], Callable[[float], str], str], ...] = (
        (
            "disagreement",
            _diagnosed(contents, "disagreement"),
            short,
            "two members disagree most in {high}, least in {low}",
        ),
        (
            "error correlation",
            _diagnosed(contents, "error_correlation", signed=True),
            short,
            "members' errors correlate most in {high}, least in {low}",
        ),
        (
            f"attack transfer, {next(filter(None, attacks), '')}",
            _transferred(contents),
            percent,
            "the accuracy left by attacks on another member is highest in {high}, lowest in {low}",
        ),
    )
    views: list[View] = []
    rows: list[list[Cell]] = []
    sources: list[Reference] = []
    for title, matrices, form, sentence in measures:
        if matrices:
            means = {matrix.title: _off_diagonal_mean(matrix.values) for matrix, _ in matrices}
            alt = compare(f"On average over pairs {sentence}.", means, form)
            views.append(View(Plot([matrix for matrix, _ in matrices], alt), (title,)))
            rows += [[method, f"mean {title}", form(mean)] for method, mean in means.items()]
            sources += [source for _, source in matrices]
    if not views:
        return None
    return Figure(
        "members",
        "Pairs of members",
        "Disagreement is the share of test inputs on which two members predict different classes "
        "(squared distance in a regression). Error correlation is that of their mistakes. Attack "
        "transfer is the accuracy of a member (column) on inputs made to fool another (row): high "
        "values off the diagonal mean that attacks do not transfer.",
        views,
        ("method", "measure", "mean over pairs"),
        rows,
        sources,
        ("measure",),
    )


def _diagnosed(contents: Contents, name: str, *, signed: bool = False) -> list[_Sourced]:
    """The matrices ``pairwise.NAME`` of the diagnoses, all on one scale."""
    matrices = []
    for number, method in enumerate(contents.methods):
        values = None if method.diagnosis is None else method.diagnosis.at(f"pairwise.{name}")
        if method.diagnosis is None or not isinstance(values, list) or len(values) < 2:
            continue
        array = np.array([[np.nan if v is None else float(v) for v in row] for row in values])
        if array.ndim == 2 and not np.isnan(array).all():
            matrix = Matrix(method.name, array, -1.0, 1.0, diverging=signed, style=number)
            matrices.append((matrix, method.diagnosis.reference(f"pairwise.{name}")))
    if signed or not matrices:
        return matrices
    end = _scale_end(max(float(np.nanmax(matrix.values)) for matrix, _ in matrices))
    return [(replace(matrix, low=0.0, high=end), source) for matrix, source in matrices]


def _transferred(contents: Contents) -> list[_Sourced]:
    """Accuracy of each member on inputs that were made to fool another one."""
    matrices = []
    for number, method, record in contents.with_attacks():
        if record.at("transfer"):
            values = record.array("transfer.accuracy")
            matrix = Matrix(method.name, values, x="evaluated", y="attacked", style=number)
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
        (number, method, method.log_diversity)
        for number, method in enumerate(contents.methods)
        if method.log_diversity is not None and len(method.log_diversity)
    ]
    if not runs:
        return None
    pooled = np.concatenate([values for _, _, values in runs])
    edges = np.linspace(np.floor(pooled.min()), max(np.ceil(pooled.max()), 0.0), _BINS + 1)
    series, rows, medians = [], [], {}
    for number, method, values in runs:
        series.append(histogram(method.name, values, edges, number, fill=len(runs) < 3))
        quartiles = np.quantile(values, [0.25, 0.5, 0.75])
        medians[method.name] = float(quartiles[1])
        rows.append([method.name, *map(short, quartiles)])
    labels = ("log ensemble diversity", "share of test inputs")
    panel = Panel(*labels, series, y_percent=True, from_zero=True)
    alt = compare("The median is highest for {high} and lowest for {low}.", medians)
    return Figure(
        "ensemble-diversity",
        "Ensemble diversity",
        "The logarithm of the determinant that ADP maximises: 0 if the members' predictions on the "
        "wrong classes are orthogonal, far below 0 if they are alike. Measured with the predicted "
        "class, as the true one is not known at test time.",
        [View(Plot([panel], alt))],
        ("method", "lower quartile", "median", "upper quartile"),
        rows,
        [Reference(m.path / "predictions" / "test.safetensors", "outputs") for _, m, _ in runs],
    )

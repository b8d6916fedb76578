"""Figures of members: over training, pair by pair, and their ensemble diversity."""

from __future__ import annotations

import numpy as np

from dissensus.plots import Matrix, Panel, Plot, Series, histogram
from dissensus.report.contents import Contents, Floats, Method, Reference
from dissensus.report.figure import Cell, Figure, View, compare, percent, short

__all__ = ["ensemble_diversity", "pairs_of_members", "training"]

_TERMS = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}
_EPOCHS = 200  # points of a line at most
_BINS = 40

#: Measures of pairs in a diagnosis: the sentence on them, and whether they can be negative.
_PAIRWISE = {
    "disagreement": ("two members disagree most in {high}, least in {low}", False),
    "error_correlation": ("members' errors correlate most in {high}, least in {low}", True),
}


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
        cells: list[Cell] = ["–" if n is None else (n, "short") for n in numbers.values()]
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
        ("measured on",) if len(views) > 1 else (),
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
    views: list[View] = []
    rows: list[list[Cell]] = []
    sources: list[Reference] = []
    for name, (sentence, signed) in _PAIRWISE.items():
        matrices = _pairwise(contents, name)
        if not matrices:
            continue
        largest = max(float(np.nanmax(values)) for _, values in matrices)
        ends = (-1.0, 1.0) if signed else (0.0, _scale_end(largest))
        title = name.replace("_", " ")
        panels = [
            Matrix(contents.methods[n].name, values, *ends, diverging=signed, style=n)
            for n, values in matrices
        ]
        means = {panel.title: _off_diagonal_mean(panel.values) for panel in panels}
        alt = compare(f"On average over pairs {sentence}.", means)
        views.append(View(Plot(panels, alt), (title,)))
        rows += [[method, f"mean {title}", short(mean)] for method, mean in means.items()]
        diagnoses = (contents.methods[n].diagnosis for n, _ in matrices)
        sources += [record.reference(f"pairwise.{name}") for record in diagnoses if record]
    transfers = [item for item in contents.with_attacks() if item[2].at("transfer")]
    if transfers:
        panels = [
            Matrix(
                *(method.name, record.array("transfer.accuracy")),
                x="evaluated",
                y="attacked",
                style=number,
            )
            for number, method, record in transfers
        ]
        means = {panel.title: _off_diagonal_mean(panel.values) for panel in panels}
        alt = compare(
            "On average over pairs attacks transfer least in {high} and most in {low}; the numbers "
            "are the accuracy left.",
            means,
            percent,
        )
        attack = transfers[0][2].text("transfer.attack")
        views.append(View(Plot(panels, alt), (f"attack transfer, {attack}",)))
        rows += [[name, "accuracy under transfer", percent(mean)] for name, mean in means.items()]
        sources += [record.reference("transfer.accuracy") for _, _, record in transfers]
    if not views:
        return None
    return Figure(
        "members",
        "Pairs of members",
        "Disagreement is the share of test inputs on which two members predict different classes "
        "(squared distance in a regression). Error correlation is that of their mistakes. Attack "
        "transfer is how often a member (column) is still right on inputs made to fool another "
        "(row): high values off the diagonal mean that attacks do not transfer.",
        views,
        ("method", "measure", "mean over pairs"),
        rows,
        sources,
        ("measure",) if len(views) > 1 else (),
    )


def _pairwise(contents: Contents, name: str) -> list[tuple[int, Floats]]:
    """The matrices of the diagnoses, with the numbers of their methods."""
    matrices = []
    for number, method in enumerate(contents.methods):
        values = None if method.diagnosis is None else method.diagnosis.at(f"pairwise.{name}")
        if not isinstance(values, list) or len(values) < 2:
            continue
        matrix = np.array([[np.nan if v is None else float(v) for v in row] for row in values])
        if matrix.ndim == 2 and not np.isnan(matrix).all():
            matrices.append((number, matrix))
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
    every = np.concatenate([values for _, _, values in runs])
    edges = np.linspace(np.floor(every.min()), max(np.ceil(every.max()), 0.0), _BINS + 1)
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

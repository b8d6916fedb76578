"""Plots of results: what ``result.plot()`` draws, by the type of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dissensus.runs.detections import file_name
from dissensus.show.detection import (
    divergent_plot,
    histogram_plot,
    roc_line,
    roc_panel,
    roc_plot,
)
from dissensus.show.plot import AnyPanel, Image, Panel, Plot, Rule, Series
from dissensus.show.renderer import draw, save

if TYPE_CHECKING:  # a result brings its own room with it; to draw it needs no other
    from matplotlib.figure import Figure

    from dissensus.calibration import Reliability
    from dissensus.decomposition import Decomposition
    from dissensus.detection import Detection, RocCurve
    from dissensus.diagnostics import Diagnosis
    from dissensus.robustness import Curve, Outcome, Robustness
    from dissensus.robustness.detection import AdversarialDetection
    from dissensus.runs import Detections, RunEvaluation, RunRobustness
    from dissensus.training import History

_TERMS = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}


def plot_result(result: object) -> Figure:
    """Draw ``result`` as :data:`PLOTS` says."""
    name = type(result).__name__
    if name not in PLOTS:
        raise TypeError(f"{name} has no plot; use its to_frame(). {', '.join(PLOTS)} have one")
    return draw(PLOTS[name](result))


def draw_files(result: Any, path: str | Path | None = None) -> list[Path]:
    """Draw every figure of ``result`` into the folder ``path``, by default its own."""
    kind = type(result).__name__
    if kind not in FILES:
        raise TypeError(f"{kind} has no files of figures; use its plot()")
    make, endings = FILES[kind]
    folder = result.folder if path is None else Path(path)
    return [
        save(plot, folder / f"{name}.{ending}")
        for name, plot in make(result).items()
        for ending in endings
    ]


# ---- results of functions -----------------------------------------------------------------------


def _history(history: History) -> Plot:
    """Each metric after each epoch, on training and validation data; a line at the best epoch."""
    panels = []
    epochs = [record["epoch"] for record in history.epochs]
    best = [Rule("x", history.best_epoch)] if history.best_epoch else []
    for key, name in {**_TERMS, "accuracy": "accuracy"}.items():
        lines = [
            Series(part, epochs, history.column(f"{part}/{key}"), style)
            for style, part in enumerate(("train", "val"))
            if all(key in record.get(part, {}) for record in history.epochs)
        ]
        if lines:
            panels.append(Panel("epoch", name, lines, rules=best))
    return Plot(panels, "Metrics after each epoch")


def _decomposition(result: Decomposition) -> Plot:
    """ERR, mean ERR and DIV beside the error of each member."""
    values = [float(getattr(result, key)) for key in _TERMS]
    terms = Series("", list(_TERMS.values()), values, 0, "bars")
    names = [str(member) for member in range(len(result.per_member))]
    members = Series("", names, result.per_member.tolist(), 1, "bars")
    return Plot([Panel("", result.loss, [terms]), Panel("member", result.loss, [members])])


def _diagnosis(diagnosis: Diagnosis) -> Plot:
    """ERR, mean ERR and DIV of each split, and how ERR rises as members are left out."""
    bars = [
        Series(split, list(_TERMS.values()), [getattr(terms, key) for key in _TERMS], style, "bars")
        for style, (split, terms) in enumerate(diagnosis.explosion.items())
    ]
    panels = [Panel("", diagnosis.loss, bars, diagnosis.verdict.word)]
    drops = [drop for drop in diagnosis.codependence.drops if np.isfinite(drop.relative)]
    if drops:
        dropped = [float(drop.dropped) for drop in drops]
        rises = Series(diagnosis.judged_on, dropped, [drop.relative for drop in drops], "ink")
        panels.append(Panel("members left out", "rise of ERR", [rises], y_percent=True))
    return Plot(panels)


def _detection(detection: Detection) -> Plot:
    """Each measure with its interval."""
    rows = detection.to_rows()
    names, values = [row["measure"] for row in rows], [row["value"] for row in rows]
    intervals = _intervals([row["low"] for row in rows], [row["high"] for row in rows])
    points = Series("", names, values, 0, "points", **intervals)
    title = f"{detection.id_count} ID, {detection.ood_count} OOD"
    return Plot([Panel("", "", [points], title, horizontal=True)])


def _intervals(low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    return {"low": low, "high": high} if np.isfinite([*low, *high]).all() else {}


def _roc(curves: Mapping[str, RocCurve], title: str = "") -> Panel:
    lines = [
        roc_line(name, curve.false_positive_rate.numpy(), curve.true_positive_rate.numpy(), style)
        for style, (name, curve) in enumerate(curves.items())
    ]
    return roc_panel(lines, title, legend="lower right")


def _adversarial(detection: AdversarialDetection) -> Plot:
    """ROC curves of the best scores, and of those whose attack hides from them."""
    best = sorted(detection.curves, key=lambda name: -detection.plain[name].auroc)[:6]
    hidden = (list(detection.adaptive), detection.adaptive, detection.adaptive_curves)
    parts = {
        "plain attack": (best, detection.plain, detection.curves),
        "attack that hides": hidden,
    }
    panels = [
        _roc({f"{name} {measures[name].auroc:.3f}": curves[name] for name in names}, title)
        for title, (names, measures, curves) in parts.items()
        if names
    ]
    return Plot(panels, columns=len(panels), size=(3.2, 3.0), share_y="all")


def _reliability(tables: Mapping[str, Reliability]) -> Plot:
    """Accuracy against confidence, bin by bin; on the diagonal they are equal."""
    lines = []
    for style, (name, table) in enumerate(tables.items()):
        filled = table.count > 0
        points = (table.confidence[filled].tolist(), table.accuracy[filled].tolist())
        lines.append(Series(f"{name}, ECE {table.ece:.3f}", *points, style))
    even = Series("calibrated", [0.0, 1.0], [0.0, 1.0], "muted", dash="dashed", markers=False)
    ends = (0.0, 1.02)
    labels = ("confidence", "accuracy", [*lines, even])
    return Plot([Panel(*labels, square=True, y_range=ends, legend="upper left")], size=(3.2, 3.0))


def _robustness(robustness: Robustness) -> Plot:
    """Accuracy under each attack; against ε, steps and restarts where that was measured."""
    panels = [_attacks(robustness), *_accuracy_panels(robustness)]
    return Plot(panels, columns=len(panels), size=(4.2, 3.4))


def _accuracy_panels(robustness: Robustness) -> list[AnyPanel]:
    """The panels of the report's figures of accuracy."""
    from dissensus.show.contents import Contents, Method, Record
    from dissensus.show.safety_figures import accuracy_epsilon, accuracy_steps

    record = Record(Path(), robustness.to_dict())
    contents = Contents([Method("attacks", Path(), attacks=record)])
    figures = (accuracy_epsilon(contents), accuracy_steps(contents))
    return [p for figure in figures if figure for view in figure.views for p in view.plot.panels]


def _attacks(robustness: Robustness) -> Panel:
    accuracies = {"none": robustness.clean_accuracy}
    accuracies |= {row.label: row.outcome.accuracy for row in robustness.rows}
    accuracies["worst case"] = robustness.accuracy
    values = list(accuracies.values())
    ends = _intervals([value.low for value in values], [value.high for value in values])
    points = Series("", list(accuracies), [float(value) for value in values], 0, "points", **ends)
    return Panel("", "accuracy", [points], horizontal=True, y_range=(0.0, 1.02))


def _curve(curve: Curve) -> Plot:
    line = Series(curve.attack, curve.values, curve.accuracy)
    return Plot([Panel(curve.over, "accuracy", [line], curve.attack, y_range=(0.0, 1.02))])


def _outcome(outcome: Outcome) -> Plot:
    """The share of examples that no change of at most this size broke."""
    norm = (outcome.attack.budget() or ("l2", 0.0))[0]
    sizes = outcome.distances[norm][outcome.broken].sort().values.tolist()
    x = [0.0, *sizes]
    y = [1.0, *(1 - (place + 1) / len(outcome) for place in range(len(sizes)))]
    line = Series(outcome.attack.spec(), x, y, markers=False)
    labels = (f"size of the change ({norm})", "accuracy", [line], outcome.attack.spec())
    return Plot([Panel(*labels, y_range=(0.0, 1.02))])


# ---- results of verbs on runs -------------------------------------------------------------------


def _evaluation(evaluation: RunEvaluation) -> Plot:
    """The error of each member, and of the ensemble as a line."""
    ensemble, *members = evaluation.to_rows()
    names = [str(row["member"]) for row in members]
    bars = Series("", names, [row["error"] for row in members], 0, "bars")
    line = Rule("y", ensemble["error"], "ensemble")
    return Plot([Panel("member", "error", [bars], evaluation.evaluated_on, rules=[line])])


def _detections(detections: Detections) -> Plot:
    """ROC curves of the best scores: one row for each method, one panel for each set."""
    methods = detections.methods
    rows = [roc_plot(m.study, name if len(methods) > 1 else "") for name, m in methods.items()]
    return replace(rows[0], panels=[panel for row in rows for panel in row.panels])


def _detection_files(detections: Detections) -> dict[str, Plot]:
    """ROC curves, histograms of scores, and images that divide the members."""
    plots = {}
    for name, method in detections.methods.items():
        stem = file_name(name)
        plots[f"roc-{stem}"] = roc_plot(method.study)
        plots[f"histograms-{stem}"] = histogram_plot(method.study)
        for part, divergent in method.divergent.items():
            plots[f"examples-{stem}-{file_name(part)}"] = divergent_plot(divergent, part)
    return plots


def _attack_files(attacked: RunRobustness) -> dict[str, Plot]:
    """Accuracy and, of images, examples before and after the attacks."""
    panels, plots = _accuracy_panels(attacked.robustness), {}
    if panels:
        plots["accuracy"] = Plot(panels, columns=len(panels), size=(4.2, 3.4), share_y="all")
    if images := attacked.examples:
        attacks = [row.label for row in attacked.robustness.rows[: len(images["adversarial"])]]
        plots["examples"] = _attacked_images(images, attacks, attacked.classes)
    return plots


def _attacked_images(
    examples: Mapping[str, NDArray[Any]], attacks: Sequence[str], classes: Sequence[str]
) -> Plot:
    """Images before and after each attack, as bytes; predictions stand above them."""
    labels, panels = examples["labels"].tolist(), []
    names, images = ["original", *attacks], [examples["original"], *examples["adversarial"]]
    predictions = [labels, *examples["predictions"].tolist()]
    for name, row, predicted in zip(names, images, predictions, strict=True):
        side = fill(name.replace(",", ", ").replace(":", ": "), 16)
        panels += [
            Image(
                image,
                shorten(classes[word], 9, placeholder="…") if classes else "",
                side="" if place else side,
                alert=word != labels[place],
            )
            for place, (image, word) in enumerate(zip(row, predicted, strict=True))
        ]
    return Plot(panels, columns=len(labels), size=(1.0, 1.15))


#: What is drawn of each type of result, by its name.
PLOTS: dict[str, Callable[[Any], Plot]] = {
    "History": _history,
    "Decomposition": _decomposition,
    "Diagnosis": _diagnosis,
    "Detection": _detection,
    "RocCurve": lambda curve: Plot([_roc({curve.headline(): curve})], size=(3.2, 3.0)),
    "Study": roc_plot,
    "Calibration": lambda result: _reliability({"width": result.width, "mass": result.mass}),
    "Reliability": lambda table: _reliability({"bins": table}),
    "Robustness": _robustness,
    "Curve": _curve,
    "Outcome": _outcome,
    "AdversarialDetection": _adversarial,
    "RunEvaluation": _evaluation,
    "RunDiagnosis": lambda result: _diagnosis(result.diagnosis),
    "RunRobustness": lambda result: _robustness(result.robustness),
    "TrainedRun": lambda run: _history(run.history),
    "Detections": _detections,
}

#: The figures, by name, that commands leave beside the record of a result, and their formats.
FILES: dict[str, tuple[Callable[[Any], dict[str, Plot]], tuple[str, ...]]] = {
    "Detections": (_detection_files, ("png",)),
    "RunRobustness": (_attack_files, ("svg", "png")),
}

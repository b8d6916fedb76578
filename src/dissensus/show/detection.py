"""Plots of detection: ROC curves, histograms of scores, and the examples that divide members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dissensus.detection import Divergent, Example, Study, curve_rows, histogram_rows
from dissensus.show.plot import AnyPanel, Image, Panel, Plot, Rule, Series, Text, Values

#: The most curves of a panel, which can still be distinguished.
_CURVES = 8

#: Scores with histograms: the first ones; more would not fit on a page.
_HISTOGRAMS = 4


def roc_plot(study: Study, method: str = "") -> Plot:
    """One panel for each unknown set: the ROC curves of the best scores, with their AUROC.

    ``method`` stands in the titles, before the name of the set.
    """
    means = {
        score: sum(measures.auroc for measures in sets.values()) / len(sets)
        for score, sets in study.detection.items()
    }
    best = sorted(means, key=lambda score: -means[score])[:_CURVES]
    curves = {(row["score"], row["set"]): row for row in curve_rows(study)}
    panels = []
    for name, title in [(n, f"{method}: {n}" if method else n) for n in study.detection[best[0]]]:
        lines = [
            roc_line(
                f"{score} {study.detection[score][name].auroc:.3f}",
                curves[score, name]["fpr"],
                curves[score, name]["tpr"],
                style,
            )
            for style, score in enumerate(best)
        ]
        panels.append(roc_panel(lines, title, legend="lower right"))
    return Plot(panels, columns=len(panels), size=(3.2, 3.0), share_y="all")


def roc_line(name: str, fpr: Values, tpr: Values, style: int) -> Series:
    """A ROC curve; OOD inputs are the positive ones."""
    return Series(name, fpr, tpr, style, markers=False)


def roc_panel(lines: Sequence[Series], title: str = "", *, legend: str = "") -> Panel:
    """ROC curves and the line of chance."""
    chance = Series("chance", [0.0, 1.0], [0.0, 1.0], "muted", dash="dashed", markers=False)
    labels = ("known inputs flagged", "unknown inputs flagged", [*lines, chance], title)
    ends = (0.0, 1.0)
    return Panel(*labels, x_percent=True, y_percent=True, square=True, y_range=ends, legend=legend)


def histogram_plot(study: Study) -> Plot:
    """One panel for each of the first scores and each unknown set, against the known set."""
    unknown = [name for name in study.scores if name != study.known]
    panels = [
        histogram_panel(row, {study.known: study.known, name: name}, legend="best")
        for row in histogram_rows(study)[:_HISTOGRAMS]
        for name in unknown
    ]
    return Plot(panels, columns=len(unknown), size=(2.8, 1.9))


def histogram_panel(
    row: Mapping[str, Any], names: Mapping[str, str], title: str = "", **options: Any
) -> Panel:
    """The histograms of a score on a known and an unknown set, and the threshold between them.

    ``names`` are what to call the known and the unknown set.
    """
    series = [
        Series(label, row["edges"], row["share"][name], style, "steps", fill=True)
        for (name, label), style in zip(names.items(), ("muted", "accent"), strict=True)
    ]
    limit = row.get("threshold")
    rules = () if limit is None else (Rule("x", limit),)
    labels = (row["score"], "share of inputs", series, title)
    return Panel(*labels, y_percent=True, from_zero=True, rules=rules, **options)


def divergent_plot(divergent: Divergent, name: str) -> Plot:
    """The most divergent examples of a set above, the least divergent below (ldr, Fig. 3).

    Ensemble predictions are bold; predictions of members that differ from it stand below it.
    """
    columns = max(len(divergent.most), len(divergent.least))
    panels: list[AnyPanel] = []
    for kind, examples in (("most", divergent.most), ("least", divergent.least)):
        side = f"{kind}\ndivergent\nby {divergent.score} ({name})"
        panels += [_image(example, "" if i else side) for i, example in enumerate(examples)]
        panels += [Text()] * (columns - len(examples))
    return Plot(panels, columns=columns, size=(1.7, 2.2))


def _image(example: Example, side: str) -> Image:
    truth = "" if example.truth is None else f"GT: {_short(example.truth)}, "
    others = ", ".join(_short(name) for name in example.others[:3])
    title = f"{truth}{example.score:.3g}"
    return Image(example.image, title, _short(example.predicted), others, side)


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"

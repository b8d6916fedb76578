"""Figures of ``dissensus ood``: what is drawn of which study, and where it goes."""

from __future__ import annotations

from pathlib import Path

import torch

from dissensus.detection import roc_curve
from dissensus.experiments.detection_figures import (
    Curve,
    Example,
    examples_figure,
    histogram_figure,
    roc_figure,
)
from dissensus.experiments.drawing import COLORS, save_figure
from dissensus.outputs import combine
from dissensus.shift import Prepared, Source, Study

__all__ = ["draw_examples", "draw_study"]

#: Scores with histograms: the first ones; more would not fit on a page.
_HISTOGRAMS = 4

#: The examples shown of each kind (ldr, Fig. 3).
_EXAMPLES = 5


def draw_study(folder: Path, method: str, found: Study) -> list[Path]:
    """``roc-METHOD.png`` (with AUROC, of the best scores) and ``histograms-METHOD.png``."""
    known = found.scores[found.id_name]
    curves: dict[str, dict[str, Curve]] = {}
    for name in found.scores:
        if name == found.id_name:
            continue
        curves[name] = {}
        for score in _best(found):
            false, true, _ = roc_curve(known[score], found.scores[name][score])
            line = f"{score} {found.detection[score][name].auroc:.3f}"
            curves[name][line] = false.numpy(), true.numpy()
    shown = list(known)[:_HISTOGRAMS]
    values = {
        score: {name: scores[score].numpy() for name, scores in found.scores.items()}
        for score in shown
    }
    figures = {
        "roc": roc_figure(curves),
        "histograms": histogram_figure(values, found.id_name, found.thresholds),
    }
    return [
        path
        for kind, figure in figures.items()
        for path in save_figure(figure, folder, f"{kind}-{_plain(method)}", ("png",))
    ]


def _best(found: Study) -> list[str]:
    """The scores with the highest mean AUROC over all sets, as many as can be told apart."""
    means = {
        score: sum(measured.auroc for measured in sets.values()) / len(sets)
        for score, sets in found.detection.items()
    }
    return sorted(means, key=lambda score: -means[score])[: len(COLORS)]


def draw_examples(folder: Path, method: str, made: Prepared, found: Study) -> list[Path]:
    """``examples-METHOD-SET.png``: most and least divergent images of each set, by PDS (Fig. 3).

    By the first score where PDS is not among them; nothing for inputs that are no images.
    """
    if len(made.origin.data.input_shape) != 3 or made.origin.data.task != "classification":
        return []
    score = "pds" if "pds" in made.scorer.names else made.scorer.names[0]
    paths = []
    for source in (made.known, *made.unknown.values()):
        order = found.scores[source.name][score].argsort(descending=True)
        count = min(_EXAMPLES, max(1, len(order) // 2))
        most = _examples(made, source, order[:count], found, score)
        least = _examples(made, source, order[-count:].flip(0), found, score)
        name = f"examples-{_plain(method)}-{_plain(source.name)}"
        figure = examples_figure(most, least, f"{score} ({source.name})")
        paths += save_figure(figure, folder, name, ("png",))
    return paths


def _examples(
    made: Prepared, source: Source, rows: torch.Tensor, found: Study, score: str
) -> list[Example]:
    ens, classes = made.scorer.ens, made.origin.data.classes
    images = source.x[rows]
    with ens.evaluating():
        logits = ens(images.to(ens.device))
    predicted = combine(logits, ens.combine, ens.weights).argmax(-1).tolist()
    votes = logits.argmax(-1).T.tolist()
    examples = []
    for place, row in enumerate(rows.tolist()):
        others = [classes[vote] for vote in dict.fromkeys(votes[place]) if vote != predicted[place]]
        examples.append(
            Example(
                images[place].clamp(0, 1).numpy(),
                float(found.scores[source.name][score][row]),
                classes[predicted[place]],
                others,
                None if source.y is None else classes[int(source.y[row])],
            )
        )
    return examples


def _plain(name: str) -> str:
    """A name that can be part of a file's."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "run"

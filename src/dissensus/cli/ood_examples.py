"""The images on which the members of a run agree least and most."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dissensus.data import Inputs
from dissensus.outputs import combine
from dissensus.plots.detection import Example
from dissensus.shift import Prepared, Study

__all__ = ["Divergent", "divergent", "plain_name"]

#: The examples of each kind (ldr, Fig. 3).
_EXAMPLES = 5


class Divergent(NamedTuple):
    """The most and least divergent images of one set, by ``score``."""

    score: str
    most: list[Example]
    least: list[Example]


def divergent(made: Prepared, found: Study) -> dict[str, Divergent]:
    """The images of each set with the highest and lowest PDS (ldr, Fig. 3), by the set's name.

    By the first score where PDS is not among them; nothing for inputs that are no images.
    """
    if len(made.data.input_shape) != 3 or made.data.task != "classification":
        return {}
    score = "pds" if "pds" in made.scorer.names else made.scorer.names[0]
    chosen = {}
    for source in (made.known, *made.unknown.values()):
        order = found.scores[source.name][score].argsort(descending=True)
        count = min(_EXAMPLES, max(1, len(order) // 2))
        chosen[source.name] = Divergent(
            score,
            _examples(made, source, order[:count], found, score),
            _examples(made, source, order[-count:].flip(0), found, score),
        )
    return chosen


def _examples(
    made: Prepared, source: Inputs, rows: torch.Tensor, found: Study, score: str
) -> list[Example]:
    ens, classes = made.scorer.ens, made.data.classes
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


def plain_name(name: str) -> str:
    """A name that can be part of a file's."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.") or "run"

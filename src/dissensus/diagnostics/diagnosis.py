"""Diagnosis of an ensemble: all diagnostics in one call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dissensus.diagnostics.collusion import (
    DebiasedShare,
    Explosion,
    GeneralizationGap,
    LeftoverOffset,
    debiased_share,
    explosion,
    generalization_gap,
    leftover_offset,
)
from dissensus.diagnostics.members import (
    Codependence,
    Dominance,
    Pairwise,
    codependence,
    dominance,
    pairwise,
)
from dissensus.diagnostics.split import PredictionsLike, Split, looks_like_probs, plain
from dissensus.diagnostics.verdict import Verdict, judge
from dissensus.losses import LossLike
from dissensus.tools.guards import guarded
from dissensus.tools.tabular import Tabular


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Tabular):
    """The result of :func:`diagnose`. Dicts have the keys ``"train"`` and ``"test"`` as given.

    ``shares`` are by split, then by space. ``codependence``, ``dominance`` and ``pairwise`` are of
    the split called ``judged_on``. ``gap`` is None unless both splits are there. ``notes`` say what
    could not be judged.
    """

    verdict: Verdict
    judged_on: str
    members: int
    examples: dict[str, int]
    loss: str
    combine: str
    explosion: dict[str, Explosion]
    shares: dict[str, dict[str, DebiasedShare]]
    leftover: dict[str, LeftoverOffset]
    codependence: Codependence
    gap: GeneralizationGap | None
    dominance: Dominance
    pairwise: Pairwise
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return self.report()

    def headline(self) -> str:
        """The verdict and its subject."""
        sizes = ", ".join(f"{count} {name}" for name, count in self.examples.items())
        head = f"{self.members} members, {self.loss} of their {self.combine}, examples: {sizes}"
        return f"{self.verdict.word.upper()}  ({head})"

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each split: ERR, mean ERR, DIV and the shares that offsets explain."""
        rows = []
        for split, terms in plain(self.explosion).items():
            shares = self.shares[split].items()
            explained = {f"offsets_explain_{space}": share.share for space, share in shares}
            keys = ("ensemble_error", "member_error", "diversity", "ratio")
            rows.append({"split": split, **{key: terms[key] for key in keys}, **explained})
        return rows

    def report(self) -> str:
        """A short table and one sentence for each finding, to be printed."""
        return "\n".join([self.headline(), "", *self._table(), "", *self._sentences()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a record; None where a number is not defined or infinite."""
        keys = ("judged_on", "members", "examples", "loss", "combine", "notes", "explosion")
        shares = {
            split: {
                space: {key: getattr(part, key) for key in ("share", "spread", "debiased")}
                for space, part in parts.items()
            }
            for split, parts in self.shares.items()
        }
        record: dict[str, Any] = plain(
            {
                "verdict": self.verdict.word,
                "reasons": self.verdict.reasons,
                "advice": self.verdict.advice,
                "sentences": self._sentences(),
                **{key: getattr(self, key) for key in keys},
                "debiased_share": shares,
                "leftover_offset": self.leftover,
                "codependence": self.codependence,
                "generalization_gap": self.gap,
                "dominance": self.dominance,
                "pairwise": self.pairwise,
            }
        )
        return record

    def _table(self) -> list[str]:
        rows = [("", *self.explosion)]
        names = {"ensemble_error": "ERR", "member_error": "mean ERR", "diversity": "DIV"}
        for key, name in [*names.items(), ("ratio", "DIV / ERR")]:
            values = (getattr(part, key) for part in self.explosion.values())
            rows.append((name, *(f"{value:.4g}" for value in values)))
        for space in next(iter(self.shares.values())):
            shares = (f"{parts[space].share:.1%}" for parts in self.shares.values())
            rows.append((f"offsets explain ({space})", *shares))
        leftover = (f"{part.leftover:.3g}" for part in self.leftover.values())
        rows.append(("offsets left, 1 by chance", *leftover))
        for drop in self.codependence.drops:
            rise = (f"{drop.relative:+.1%}" if s == self.judged_on else "" for s in self.explosion)
            rows.append((f"ERR without {drop.dropped} of {self.members}", *rise))
        width = max(len(row[0]) for row in rows)
        return [
            f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells) for name, *cells in rows
        ]

    def _sentences(self) -> list[str]:
        split = self.judged_on
        parts: list[Any] = [self.explosion[split], *self.shares[split].values()]
        parts += [next(iter(self.leftover.values())), self.codependence]
        parts += [self.gap, self.dominance, self.pairwise]
        sentences = [str(part.sentence) for part in parts if part is not None]
        return [*sentences, *self.notes, self.verdict.sentence, self.verdict.advice]


@guarded
def diagnose(
    *predictions: PredictionsLike | None,
    loss: LossLike | None = None,
    combine: str | None = None,
    weights: Tensor | None = None,
    seed: int = 0,
    space: str | None = None,
) -> Diagnosis:
    """Say whether an ensemble's diversity is real or its members collude.

    ``diagnose(pred_train, pred_test)`` judges by data that trained the members and data that did
    not, ``diagnose(pred_test)`` by held-out data alone. The predictions are ``ds.Predictions`` or
    pairs ``(outputs, targets)`` of tensors, with outputs ``[members, batch, outputs]``: logits, or
    predicted values in a regression. Either of two may be None; ``notes`` then say what cannot be
    judged. Where no ``loss`` is given, integer targets mean cross-entropy, floating ones squared
    error (soft labels: ``loss="cross_entropy"``). ``combine`` is how the members are averaged,
    ``weights`` ``[members]`` with what weight. The draws of :func:`codependence` come from
    ``seed``. ``space="probs"`` says that outputs are probabilities; without it such are refused.

    >>> import torch
    >>> truth = torch.linspace(-1, 1, 40)[:, None]
    >>> shifted = 0.9 * truth + torch.tensor([-2.0, -1.0, 3.0])[:, None, None]
    >>> print(diagnose((shifted, truth)).verdict.sentence)
    Verdict: colluding. Members' errors cancel: ...
    """
    names = ("test",) if len(predictions) == 1 else ("train", "test")
    if len(predictions) > 2 or all(part is None for part in predictions):
        raise ValueError("pass diagnose(pred_test) or diagnose(pred_train, pred_test)")
    splits = {
        name: Split.of(part, loss=loss, combine=combine, weights=weights, space=space)
        for name, part in zip(names, predictions, strict=True)
        if part is not None
    }
    _check_alike(splits)
    judged_on = "test" if "test" in splits else "train"
    judged = splits[judged_on]
    name = getattr(judged.loss, "__name__", "loss") if callable(judged.loss) else judged.loss
    spaces = ["outputs"] if judged.regression else ["score", "probability"]
    return Diagnosis(
        verdict=judge(judged, splits.get("train")),
        judged_on=judged_on,
        members=judged.members,
        examples={key: split.examples for key, split in splits.items()},
        loss=name,
        combine=judged.combine,
        explosion={key: explosion(split) for key, split in splits.items()},
        shares={
            key: {space: debiased_share(split, space) for space in spaces}
            for key, split in splits.items()
        },
        leftover={key: leftover_offset(split) for key, split in splits.items()},
        codependence=codependence(judged, seed=seed),
        gap=generalization_gap(splits["train"], judged) if len(splits) == 2 else None,
        dominance=dominance(judged),
        pairwise=pairwise(judged),
        notes=tuple(_notes(splits, weights)),
    )


def _check_alike(splits: dict[str, Split]) -> None:
    shapes = {name: (s.members, s.outputs.shape[2]) for name, s in splits.items()}
    if len(set(shapes.values())) > 1:
        sizes = " and ".join(f"{m} members with {o} outputs in {n}" for n, (m, o) in shapes.items())
        raise ValueError(f"train and test must come from the same ensemble, got {sizes}")
    if len({(str(s.loss), s.combine) for s in splits.values()}) > 1:
        tasks = " and ".join(f"{s.loss} by {s.combine} in {n}" for n, s in splits.items())
        raise ValueError(f"train and test must be of one task, got {tasks}; pass loss and combine")


def _notes(splits: dict[str, Split], weights: Tensor | None) -> list[str]:
    notes = []
    if "test" not in splits:
        notes.append(
            "Without test predictions neither the generalisation gap nor codependence on unseen "
            "data can be judged; the verdict is on training data."
        )
    if "train" not in splits:
        notes.append(
            "Without training predictions the generalisation gap cannot be judged, and the test "
            "for offsets that cancel is weaker."
        )
    first = next(iter(splits.values()))
    if weights is not None and len(weights) > first.members:
        notes.append(f"Members of weight 0 are left out: {len(weights) - first.members}.")
    if first.regression and all(looks_like_probs(s.targets) for s in splits.values()):
        notes.append("The targets look like soft labels; pass loss='cross_entropy' if they are.")
    if any(math.isinf(explosion(split).ratio) for split in splits.values()):
        notes.append("ERR is 0, so ratios to it are infinite.")
    return notes

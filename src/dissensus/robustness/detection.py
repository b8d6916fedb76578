"""Detection of adversarial inputs by what the members say (adp, Section 4.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dissensus.detection import Detection, RocCurve, roc_curve
from dissensus.detection import evaluate as evaluate_detection
from dissensus.ensemble import Ensemble
from dissensus.progress import ProgressBar
from dissensus.robustness.adaptive import SMOOTH, Disguised
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, all_steps
from dissensus.robustness.outcome import Outcome, member_logits, run
from dissensus.scores import score_all
from dissensus.tabular import Tabular


@dataclass(frozen=True, repr=False)
class AdversarialDetection(Tabular):
    """How well each score separates adversarial inputs from clean ones; adversarial is positive.

    ``plain`` has each score's figures under the attack that does not know of a detector,
    ``adaptive`` those under an attack that hides from this very score. **The adaptive one is the
    honest number.** ``curves`` and ``adaptive_curves`` are the ROC curves to both.
    """

    attack: str
    plain: Mapping[str, Detection]
    curves: Mapping[str, RocCurve]
    adaptive: Mapping[str, Detection]
    adaptive_curves: Mapping[str, RocCurve]
    clean: int
    adversarial: int
    adaptive_adversarial: Mapping[str, int]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each score: AUROC with its interval, under the plain attack and adaptive."""
        rows = []
        for name, plain in self.plain.items():
            row: dict[str, Any] = {"score": name}
            for kind, found in (("plain", plain), ("adaptive", self.adaptive.get(name))):
                for end in ("value", "low", "high"):
                    column = f"{kind}_auroc" if end == "value" else f"{kind}_auroc_{end}"
                    row[column] = None if found is None else getattr(found.auroc, end)
            rows.append(row)
        return rows

    def headline(self) -> str:
        """The attack, and how many inputs there are of each kind."""
        kinds = f"{self.adversarial} adversarial and {self.clean} clean inputs"
        return f"{len(self.plain)} scores, {kinds}, {self.attack}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON record: AUROC with its interval, counts."""

        def numbers(detections: Mapping[str, Detection]) -> dict[str, Any]:
            return {
                name: {"auroc": d.auroc.value, "low": d.auroc.low, "high": d.auroc.high}
                for name, d in detections.items()
            }

        return {
            "attack": self.attack,
            "clean": self.clean,
            "adversarial": self.adversarial,
            "plain": numbers(self.plain),
            "adaptive": numbers(self.adaptive),
            "adaptive_adversarial": dict(self.adaptive_adversarial),
        }


def detect(
    ens: Ensemble,
    x: Tensor,
    y: Tensor,
    attack: str | Attack = "pgd:eps=0.2",
    *,
    scores: Iterable[str] | None = None,
    adaptive: Iterable[str] | str = ("ensemble_diversity",),
    bootstrap: int = 1000,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
) -> AdversarialDetection:
    """ROC figures of every score (or of ``scores``) against ``attack``, and under adaptive attacks.

    Clean inputs ``x`` are compared with those adversarial ones that are misclassified; a change
    that fools nobody need not be found. Ensemble diversity is taken with the *predicted* label.
    ``adaptive`` names the scores, or is ``"all"``, against which ``Disguised`` is run with the same
    budget; scores that have no gradient, and those that do not suit the ensemble, are left out of
    ``"all"``.
    """
    chosen = all_steps(parse(attack))  # a detector meets attacks that mean it
    budget = chosen.budget()
    clean = score_all(member_logits(ens, x, batch_size).cpu(), scores)
    if adaptive == "all":
        hidden = [name for name in clean if name in SMOOTH]
    else:
        # The default asks for ensemble diversity, which small sets of classes do not have.
        hidden = [name for name in adaptive if name in clean or name != "ensemble_diversity"]
    missing = [name for name in hidden if name not in clean]
    if missing:
        raise ValueError(f"adaptive names {missing[0]!r}, which is not among the scores")
    if hidden and budget is None:
        raise ValueError(f"{chosen.spec()} has no ε that an adaptive attack could share")
    with ProgressBar("attacks", 1 + len(hidden), show=progress, delay=2.0) as bar:
        tick = bar.begin(chosen.spec())
        outcome = run(ens, x, y, chosen, batch_size, seed, tick)
        plain, curves = _measure(ens, outcome, clean, bootstrap, batch_size)
        adapted: dict[str, Detection] = {}
        adapted_curves: dict[str, RocCurve] = {}
        counts: dict[str, int] = {}
        for name in hidden:
            assert budget is not None
            disguise = Disguised(norm=budget[0], eps=budget[1], score=name)
            tick = bar.begin(disguise.spec())
            disguised = run(ens, x, y, disguise, batch_size, seed, tick)
            measured, roc = _measure(ens, disguised, {name: clean[name]}, bootstrap, batch_size)
            adapted |= measured
            adapted_curves |= roc
            counts[name] = int(disguised.moved.sum())
    return AdversarialDetection(
        chosen.spec(),
        plain,
        curves,
        adapted,
        adapted_curves,
        clean=len(x),
        adversarial=int(outcome.moved.sum()),
        adaptive_adversarial=counts,
    )


def _measure(
    ens: Ensemble,
    outcome: Outcome,
    clean: Mapping[str, Tensor],
    bootstrap: int,
    batch_size: int,
) -> tuple[dict[str, Detection], dict[str, RocCurve]]:
    fooled = outcome.moved
    if not bool(fooled.any()):
        raise ValueError(
            f"{outcome.attack.spec()} broke none of {len(outcome)} examples, so that there is "
            "nothing to detect; raise its ε"
        )
    after = member_logits(ens, outcome.adversarial[fooled], batch_size).cpu()
    changed = score_all(after, list(clean))
    measured = {
        name: evaluate_detection(clean[name], changed[name], bootstrap=bootstrap) for name in clean
    }
    return measured, {name: roc_curve(clean[name], changed[name]) for name in clean}

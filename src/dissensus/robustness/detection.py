"""Detection of adversarial inputs by what the members say (adp, Section 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.measures import Detection, RocCurve, roc_curve
from dissensus.measures import evaluate as evaluate_detection
from dissensus.robustness.adaptive import SMOOTH, Disguised
from dissensus.robustness.attacks import parse
from dissensus.robustness.base import Attack, all_steps
from dissensus.robustness.outcome import member_logits, run
from dissensus.scores import score_all
from dissensus.tools.progress import ProgressBar
from dissensus.tools.tabular import Tabular


@dataclass(frozen=True, repr=False)
class AdversarialDetection(Tabular):
    """How well each score separates adversarial inputs from clean ones; adversarial is positive.

    ``plain`` has the measures of each score under an attack that does not know of a detector,
    ``adaptive`` those under an attack that evades this very score. **The adaptive one is the honest
    number.** ``curves`` and ``adaptive_curves`` are the ROC curves of both.
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
        return [
            {"score": name, **_columns("plain", plain)}
            | _columns("adaptive", self.adaptive.get(name))
            for name, plain in self.plain.items()
        ]

    def headline(self) -> str:
        """The attack, and how many inputs there are of each kind."""
        kinds = f"{self.adversarial} adversarial and {self.clean} clean inputs"
        return f"{len(self.plain)} scores, {kinds}, {self.attack}"


def _columns(kind: str, detection: Detection | None) -> dict[str, float | None]:
    auroc = None if detection is None else detection.auroc
    names = {"": "value", "_low": "low", "_high": "high"}
    return {f"{kind}_auroc{end}": getattr(auroc, name, None) for end, name in names.items()}


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
    """Measure how well every score, or ``scores``, detects ``attack`` and adaptive attacks.

    Clean inputs ``x`` are compared with the adversarial ones that are misclassified; a change that
    fools nobody need not be detected. Ensemble diversity is taken with the *predicted* label.
    ``adaptive`` names the scores, or is ``"all"``, against which ``Disguised`` is run with the same
    budget; scores that have no gradient, and those that do not suit the ensemble, are left out of
    ``"all"``.
    """
    chosen = all_steps(parse(attack))  # a detector meets attacks that mean it
    budget = chosen.budget()
    clean = score_all(member_logits(ens, x, batch_size).cpu(), scores)
    if adaptive == "all":
        evaded = [name for name in clean if name in SMOOTH]
    else:
        # The default asks for ensemble diversity, which small sets of classes do not have.
        evaded = [name for name in adaptive if name in clean or name != "ensemble_diversity"]
    missing = [name for name in evaded if name not in clean]
    if missing:
        raise ValueError(f"adaptive names {missing[0]!r}, which is not among the scores")
    if evaded and budget is None:
        raise ValueError(f"{chosen.spec()} has no ε that an adaptive attack could share")

    def measure(
        attack: Attack, names: Iterable[str], tick: Callable[[float], None]
    ) -> tuple[int, dict[str, Detection], dict[str, RocCurve]]:
        """The number of adversarial inputs, and how well the scores separate them."""
        outcome = run(ens, x, y, attack, batch_size, seed, tick)
        fooled = outcome.moved
        if not bool(fooled.any()):
            raise ValueError(f"{attack.spec()} broke none of {len(outcome)} examples; raise its ε")
        after = member_logits(ens, outcome.adversarial[fooled], batch_size).cpu()
        pairs = {
            name: (clean[name], values) for name, values in score_all(after, list(names)).items()
        }
        return (
            int(fooled.sum()),
            {n: evaluate_detection(*pair, bootstrap=bootstrap) for n, pair in pairs.items()},
            {name: roc_curve(*pair) for name, pair in pairs.items()},
        )

    with ProgressBar("attacks", 1 + len(evaded), show=progress, delay=2.0) as bar:
        adversarial, plain, curves = measure(chosen, clean, bar.begin(chosen.spec()))
        counts: dict[str, int] = {}
        detections: dict[str, Detection] = {}
        adaptive_curves: dict[str, RocCurve] = {}
        for name in evaded:
            assert budget is not None
            disguise = Disguised(norm=budget[0], eps=budget[1], score=name)
            counts[name], own, roc = measure(disguise, [name], bar.begin(disguise.spec()))
            detections |= own
            adaptive_curves |= roc
    return AdversarialDetection(
        chosen.spec(),
        plain,
        curves,
        detections,
        adaptive_curves,
        clean=len(x),
        adversarial=adversarial,
        adaptive_adversarial=counts,
    )

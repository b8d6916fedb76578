"""Choice of the combination: which distances take part in ``combined``, and by what rule.

Settled on Fashion-MNIST against KMNIST and SVHN and on five tables (the settings with
``confirms=False``), seeds 100 to 102, before any other setting was scored with it. Each seed trains
a deep ensemble and a tuned copy; every rule combines mutual information of either with distances of
the deep ensemble. A rule's shortfall on a set is its AUROC minus that of the best single score
there, means over seeds. The goal is about the worst set, so rules are ranked by the shortfall
there, in the mean over images and tables and over both ensembles. Rules within 0.002 of the best
count as equal, and of these the harmonic mean is taken, which ``combined`` has had before.

``python -m reproductions.strangers.combination`` trains and writes
``results/strangers/settling/combination.jsonl``.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.records import Record, put_record, read_lines
from dissensus.data import Inputs
from dissensus.detection import (
    Detector,
    TailScale,
    evaluate,
    fit_together,
    score_together,
)
from reproductions.strangers import RESULTS
from reproductions.strangers.contenders import CONTENDERS, RECIPE, Trainings
from reproductions.strangers.settings import SETTINGS, is_there

FILE = Path("strangers", "settling", "combination.jsonl")
SEEDS = (100, 101, 102)
SINGLE = ("energy", "mahalanobis", "relative_mahalanobis", "knn", "vim", "react")
ENSEMBLES = {"deep ensemble": RECIPE.score, "tuned copy": f"tuned/{RECIPE.score}"}

#: Scores by set, then by name.
Scores = Mapping[str, Mapping[str, Tensor]]


class Rule(NamedTuple):
    """Distances that are combined with a score, how, and whether the first one weighs a half."""

    distances: tuple[str, ...]
    how: str = "harmonic mean"
    half: bool = True

    @property
    def title(self) -> str:
        """As the page has it."""
        weights = ", equal weights" if not self.half else ""
        return f"{' + '.join(self.distances)}, {self.how}{weights}".replace("_", " ")


#: Ways to combine the tails ``t = −log p`` of the parts ``[parts, rows]``, weighted by w.
HOW: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "harmonic mean": lambda t, w: (t + w.log()).logsumexp(0),  # log Σ w / p
    "smallest p": lambda t, w: (t + w.log()).amax(0),  # Tippett: −log min p / w
    "product of p": lambda t, w: (w * t).sum(0),  # Fisher: −Σ w log p
    "standardised sum": lambda z, w: (w * z).sum(0),  # of (s − mean) / deviation instead of t
}
_DISTANCES = (
    ("relative_mahalanobis",),
    ("mahalanobis",),
    ("knn",),
    ("vim",),
    ("mahalanobis", "knn"),
    ("mahalanobis", "vim"),
    ("mahalanobis", "relative_mahalanobis"),
    ("knn", "vim"),
)
RULES = [
    Rule(distances, how, half)
    for distances in _DISTANCES
    for how in HOW
    for half in (True, False)
    if half or (len(distances) > 1 and how == "harmonic mean")
]

CHOSEN = Rule(("mahalanobis", "knn"))


def score_setting(name: str, seed: int) -> dict[str, dict[str, Tensor]]:
    """Train a seed of a setting; every single score of ``val``, ``test`` and the unknown sets."""
    setting = SETTINGS[name]
    rows = setting.load(setting, seed)
    trainings = Trainings(setting, rows, seed)
    tuned = CONTENDERS["tuned"].make(trainings)
    detectors = {name: Detector(trainings.plain, name) for name in (*SINGLE, RECIPE.score)}
    copied = Detector(trainings.plain, RECIPE.score).use_tuned(tuned, {})
    detectors[ENSEMBLES["tuned copy"]] = copied
    train = Inputs("train", *rows.train).limited(4000, seed).batches(512)
    fit_together(list(detectors.values()), None, train=train)
    sets = {"val": rows.val[0], "test": rows.test[0], **rows.unknown}
    return {
        key: dict(zip(detectors, score_together(list(detectors.values()), x), strict=True))
        for key, x in sets.items()
    }


def measure(name: str, seed: int, scores: Scores) -> Record:
    """AUROC of each single score and of each rule on each unknown set."""
    sets = [key for key in scores if key not in ("val", "test")]

    def aurocs(score: Callable[[Mapping[str, Tensor]], Tensor]) -> dict[str, float]:
        known = score(scores["test"])
        return {
            key: round(evaluate(known, score(scores[key]), bootstrap=0).auroc.value, 4)
            for key in sets
        }

    record: Record = {"setting": name, "seed": seed, "single": {}, "rules": {}}
    for single in (*SINGLE, *ENSEMBLES.values()):
        record["single"][single] = aurocs(itemgetter(single))
    for title, score in ENSEMBLES.items():
        record["rules"][title] = {
            rule.title: aurocs(fit_rule(rule, score, scores["val"])) for rule in RULES
        }
    return record


def fit_rule(
    rule: Rule, score: str, val: Mapping[str, Tensor]
) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """The rule with the scales of validation scores."""
    names = [score, *rule.distances]
    weights = torch.full((len(names), 1), 1 / len(names), dtype=torch.float64)
    if rule.half:
        weights = torch.full((len(names), 1), 0.5 / (len(names) - 1), dtype=torch.float64)
        weights[1] = 0.5
    scales: list[Callable[[Tensor], Tensor]] = [
        _standard(val[name]) if rule.how == "standardised sum" else TailScale.fit(val[name])
        for name in names
    ]

    def combined(scores: Mapping[str, Tensor]) -> Tensor:
        parts = [scale(scores[name]) for scale, name in zip(scales, names, strict=True)]
        return HOW[rule.how](torch.stack(parts), weights)

    return combined


def _standard(known: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda scores: (scores - known.mean()) / known.std()


# ---- the comparison of rules --------------------------------------------------------------------


class Shortfalls(NamedTuple):
    """The worst and the mean shortfall of a rule on one kind of input by one ensemble."""

    worst: float
    mean: float


def shortfalls(records: Iterable[Record], rule: str) -> dict[tuple[str, str], Shortfalls]:
    """The shortfalls of a rule by kind of input and ensemble, over all settings and sets."""
    found: dict[tuple[str, str], list[float]] = {}
    own: dict[str, list[Record]] = {}
    for record in records:
        own.setdefault(record["setting"], []).append(record)
    for name, seeds in own.items():
        kind = SETTINGS[name].kind
        for title, score in ENSEMBLES.items():
            for key in seeds[0]["single"][score]:
                best = max(
                    float(np.mean([record["single"][single][key] for record in seeds]))
                    for single in (*SINGLE, score)
                )
                value = np.mean([record["rules"][title][rule][key] for record in seeds])
                found.setdefault((kind, title), []).append(float(value) - best)
    return {key: Shortfalls(min(each), float(np.mean(each))) for key, each in found.items()}


def mean_worst(records: Iterable[Record], rule: str) -> float:
    """What the choice goes by: the shortfall on the worst set, mean over kinds and ensembles."""
    return float(np.mean([each.worst for each in shortfalls(records, rule).values()]))


def read_choice(results: Path) -> list[Record]:
    """The records of the choice; none where there is no file."""
    return read_lines((results / FILE).parent)


def _cell(record: Record) -> tuple[str, int]:
    return record["setting"], record["seed"]


def main() -> None:
    """Run every seed of every settling setting that is not recorded yet."""
    torch.set_num_threads(1)
    done = {_cell(record) for record in read_choice(RESULTS)}
    for name, setting in SETTINGS.items():
        for seed in SEEDS:
            if not setting.confirms and is_there(name) and (name, seed) not in done:
                record = measure(name, seed, score_setting(name, seed))
                put_record(RESULTS / FILE, record, _cell)
                print(name, seed, flush=True)


if __name__ == "__main__":
    main()

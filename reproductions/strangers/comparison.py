"""Comparisons within seeds of one setting, and the choice without foreign data."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reproductions.statistics import Estimate, over_runs
from reproductions.strangers.contenders import CONTENDERS, RECIPE
from reproductions.strangers.ensembles import COMBINED, DISTANCES, OUTPUT_SCORES, SETTLING
from reproductions.strangers.settings import SETTINGS
from reproductions.study import Record

BASE = next(iter(CONTENDERS))


class Scored(NamedTuple):
    """A contender and the score that it detects with."""

    contender: str
    score: str


#: A deep ensemble with its usual score, and with what practitioners would pick.
USUAL = Scored(BASE, RECIPE.score)
DETECTORS = [Scored(BASE, score) for score in ("energy", *DISTANCES)]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of one setting, by contender and seed."""

    setting: str
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]

    @property
    def title(self) -> str:
        """As the page calls the setting."""
        return SETTINGS[self.setting].title

    def sets(self, part: str = "all") -> list[str]:
        """The unknown sets without those of settling: ``all``, ``near`` or ``far``."""
        setting = SETTINGS[self.setting]
        every = next(iter(self.results[BASE].values()))["auroc"]
        counted = [name for name in every if name not in setting.settled]
        return [n for n in counted if part == "all" or (n in setting.near) == (part == "near")]

    def has(self, one: Scored) -> bool:
        """Whether any seed has this score of this contender."""
        return bool(self.aurocs(one, self.sets()))

    def aurocs(self, one: Scored, sets: Sequence[str]) -> dict[int, float]:
        """The mean AUROC of each seed over those of the sets that the contender is tested on."""
        found = {}
        for seed, result in self.results.get(one.contender, {}).items():
            own = [result["auroc"][name].get(one.score) for name in sets if name in result["auroc"]]
            if own and None not in own:
                found[seed] = float(np.mean(own))
        return found

    def pair(
        self, first: Scored, second: Scored, sets: Sequence[str]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Both by seed, in seeds and on sets that both have."""
        both = [self.results[one.contender].values() for one in (first, second)]
        there = [name for name in sets if all(name in r["auroc"] for some in both for r in some)]
        return paired(self.aurocs(first, there), self.aurocs(second, there))

    def gain(self, first: Scored, second: Scored, sets: Sequence[str]) -> Estimate:
        """The paired difference of mean AUROC, over seeds."""
        left, right = self.pair(first, second, sets)
        return over_runs(list(left.values()), list(right.values()))

    def accuracies(self, contender: str) -> dict[int, float]:
        """The accuracy of each seed."""
        return {seed: result["accuracy"] for seed, result in self.results[contender].items()}

    def best(self, options: Iterable[Scored], sets: Sequence[str]) -> Scored:
        """Which of the options gains most over the usual score: known in hindsight."""
        there = [one for one in options if self.has(one)]
        return max(there, key=lambda one: self.gain(one, USUAL, sets).mean)


def paired(
    left: Mapping[int, float], right: Mapping[int, float]
) -> tuple[dict[int, float], dict[int, float]]:
    """The values of seeds that both sides have."""
    seeds = sorted(set(left) & set(right))
    return {seed: left[seed] for seed in seeds}, {seed: right[seed] for seed in seeds}


def compare_settings(records: Iterable[Record], *, settling: bool = False) -> list[Comparison]:
    """The settings that have a deep ensemble; that of settling apart."""
    found: dict[str, dict[str, dict[int, Any]]] = {name: {} for name in SETTINGS}
    for record in records:
        cell = record["cell"]
        own = found[cell["setting"]].setdefault(cell["contender"], {})
        own[cell["seed"]] = record["result"]
    return [
        Comparison(name, results)
        for name, results in found.items()
        if BASE in results and (name == SETTLING) == settling
    ]


# ---- the choice without foreign data ------------------------------------------------------------

#: The family of validation: none of the contenders that are chosen from was trained on it.
JUDGE = {"images": "permute", "features": "extrapolation", "table": "extrapolation"}
_OF_BASE = [Scored(BASE, score) for score in (*OUTPUT_SCORES, *DISTANCES, *COMBINED)]
_OF_TUNED = [Scored("tuned", score) for score in (*OUTPUT_SCORES, *COMBINED)]
_MIXES = ("tuned_mosaic", "tuned_phase")
#: What is chosen, and among which options.
OPTIONS = {
    "score of the tuned copy": _OF_TUNED,
    "score of the deep ensemble": _OF_BASE,
    "strength": [Scored(name, RECIPE.score) for name in ("tuned", "tuned_weak")],
    "mix": [Scored(name, RECIPE.score) for name in ("tuned", *_MIXES)],
    "contender and score": [
        *_OF_BASE,
        *_OF_TUNED,
        *(Scored(name, score) for name in ("tuned_weak", *_MIXES) for score in OUTPUT_SCORES),
    ],
}


class Choice(NamedTuple):
    """What validation chooses, against the best in hindsight: mean AUROC of test, over seeds."""

    chosen: Counter[Scored]
    value: float
    default: float
    best: float


def choose(found: Comparison, what: str, judge: str | None = None) -> Choice | None:
    """The choice in each seed by AUROC against strangers; None without anything to choose from."""
    judge = judge or JUDGE[SETTINGS[found.setting].kind]
    there = [one for one in OPTIONS[what] if one.contender in found.results]
    if len({*there}) < 2 or (what == "mix" and SETTINGS[found.setting].kind != "images"):
        return None
    usual = Scored("tuned", RECIPE.score)
    default = usual if usual in there else USUAL
    tested = {one: found.aurocs(one, found.sets()) for one in there}
    seeds = set.intersection(*({*found.results[one.contender]} for one in there))
    chosen: Counter[Scored] = Counter()
    rows = []
    for seed in sorted(seeds):
        known = [one for one in there if seed in tested[one]]
        results = found.results
        pick = max(
            known, key=lambda one: results[one.contender][seed]["val_auroc"][judge][one.score]
        )
        chosen[pick] += 1
        values = [tested[one][seed] for one in known]
        rows.append([tested[pick][seed], tested[default][seed], max(values)])
    value, usually, best = np.mean(rows, axis=0).tolist()
    return Choice(chosen, value, usually, best)

"""Comparisons within seeds, the goals, and the choice without foreign data, from the records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.records import Record
from benchmarks.timing import Check, Measurement, Result, Spread
from reproductions.statistics import Estimate, paired_difference
from reproductions.strangers.cells import COMBINED, DISTANCES, OUTPUT_SCORES, Cell, cell_of
from reproductions.strangers.contenders import CONTENDERS, RECIPE
from reproductions.strangers.settings import SETTINGS

BASE = next(iter(CONTENDERS))
#: What practitioners would pick on a deep ensemble; the combination is apart.
DETECTORS = ("energy", *DISTANCES)
#: How much the mean AUROC must gain over a deep ensemble, by the kind of inputs.
GAINS = {"images": 0.05, "features": 0.04}
ACCURACY_LOSS = 0.005
SHORTFALL = 0.01


@dataclass(frozen=True, eq=False)
class Comparison:
    """The records of one setting."""

    setting: str
    records: dict[Cell, Record]

    def seeds(self, contender: str, score: str | None = None) -> list[int]:
        """The seeds that a contender has, or has a score in."""
        return sorted(
            cell.seed
            for cell, record in self.records.items()
            if cell.contender == contender and (score is None or score in _scores(record))
        )

    def common(self, *pairs: tuple[str, str | None]) -> list[int]:
        """The seeds that all contenders, each with its score, have."""
        return sorted(set.intersection(*(set(self.seeds(*pair)) for pair in pairs)))

    def record(self, contender: str, seed: int) -> Record:
        """One record."""
        return self.records[Cell(self.setting, contender, seed)]

    @property
    def contenders(self) -> list[str]:
        """Those with records, in the order of the page."""
        there = {cell.contender for cell in self.records}
        return [name for name in CONTENDERS if name in there]

    def sets(self, part: str = "all") -> list[str]:
        """The unknown sets: ``all``, ``near`` or ``far`` without those of settling; ``every``."""
        setting = SETTINGS[self.setting]
        every = list(next(iter(self.records.values()))["auroc"])
        if part == "every":
            return every
        counted = [name for name in every if name not in setting.settled]
        if part == "all":
            return counted
        return [name for name in counted if (name in setting.near) == (part == "near")]

    def scores(self, contender: str) -> list[str]:
        """The scores that a contender has in any seed."""
        own = [self.record(contender, seed) for seed in self.seeds(contender)]
        return list(dict.fromkeys(score for record in own for score in _scores(record)))

    def auroc(self, contender: str, seed: int, score: str, sets: Iterable[str]) -> float:
        """The mean AUROC of a score over those of the sets that the contender is tested on."""
        own = self.record(contender, seed)["auroc"]
        found = [own[name][score] for name in sets if name in own]
        return float(np.mean(found)) if found else np.nan

    def values(self, contender: str, score: str, sets: Sequence[str]) -> list[float]:
        """The mean AUROC of each seed."""
        return [self.auroc(contender, seed, score, sets) for seed in self.seeds(contender, score)]

    def gain(
        self,
        contender: str,
        score: str,
        sets: Sequence[str],
        base: str = BASE,
        base_score: str | None = None,
    ) -> Estimate:
        """The paired difference of mean AUROC from ``base``, on the sets that both have."""
        pairs = []
        for seed in self.common((contender, score), (base, base_score or score)):
            own = self.record(contender, seed)["auroc"]
            common = [name for name in sets if name in own]
            pairs.append(
                (
                    self.auroc(contender, seed, score, common),
                    self.auroc(base, seed, base_score or score, common),
                )
            )
        first, second = zip(*pairs, strict=True)
        return paired_difference(first, second)

    def accuracy_gain(self, contender: str) -> Estimate:
        """The paired difference of accuracy from the deep ensemble."""
        seeds = self.common((contender, None), (BASE, None))
        first, second = (
            [self.record(name, seed)["accuracy"] for seed in seeds] for name in (contender, BASE)
        )
        return paired_difference(first, second)

    def best_detector(self, sets: Sequence[str]) -> str:
        """The detector on the deep ensemble with the highest mean AUROC: known in hindsight."""
        return self.best([(BASE, score) for score in DETECTORS], sets)[1]

    def best(self, pairs: Sequence[tuple[str, str]], sets: Sequence[str]) -> tuple[str, str]:
        """The contender and score that gain most over the deep ensemble's usual score."""

        def gained(pair: tuple[str, str]) -> float:
            return self.gain(pair[0], pair[1], sets, base_score=RECIPE.score).mean

        return max(pairs, key=gained)


def _scores(record: Record) -> dict[str, float]:
    found: dict[str, float] = next(iter(record["auroc"].values()))
    return found


def compare_settings(records: Iterable[Record], confirms: bool = True) -> list[Comparison]:
    """The settings that have a deep ensemble, those of settling apart."""
    own: dict[str, dict[Cell, Record]] = {name: {} for name in SETTINGS}
    for record in records:
        own[record["setting"]][cell_of(record)] = record
    return [
        Comparison(name, found)
        for name, found in own.items()
        if SETTINGS[name].confirms == confirms and any(c.contender == BASE for c in found)
    ]


# ---- goals --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """A goal in words, what was measured, the least value that meets it, and whether it does."""

    name: str
    setting: str
    measured: Estimate
    least: float
    remark: str = ""

    @property
    def met(self) -> bool:
        """By the mean over seeds."""
        return self.measured.mean >= self.least

    @property
    def sure(self) -> bool:
        """Whether the whole interval lies on one side of the limit."""
        return bool((self.measured.low >= self.least) == (self.measured.high >= self.least))


def check_goals(records: Iterable[Record]) -> list[Goal]:
    """Every goal in every setting that has the records for it."""
    goals: list[Goal] = []
    everything = compare_settings(records)
    for found in everything:
        sets, kind, name = found.sets(), SETTINGS[found.setting].kind, found.setting
        for contender in ("tuned", "scratch"):
            if contender in found.contenders and kind in GAINS:
                gain = found.gain(contender, RECIPE.score, sets)
                title = f"gain in mean AUROC over a deep ensemble, {_words(contender)}"
                goals.append(Goal(title, name, gain, GAINS[kind]))
    for found in everything:
        if "tuned" in found.contenders:
            best = found.best_detector(found.sets())
            gain = found.gain("tuned", RECIPE.score, found.sets(), base_score=best)
            title = "mean AUROC of the tuned copy minus that of the best detector"
            goals.append(Goal(title, found.setting, gain, 0.0, best))
    for found in everything:
        if "scratch" in found.contenders:
            title = "accuracy gained by one ensemble for both"
            gain = found.accuracy_gain("scratch")
            goals.append(Goal(title, found.setting, gain, -ACCURACY_LOSS))
    for found in everything:
        if "tuned" in found.contenders and "combined" in found.scores("tuned"):
            goals.append(_combination(found))
    return goals


def _words(contender: str) -> str:
    return {"tuned": "tuned copy", "scratch": "from scratch"}[contender]


def _combination(found: Comparison) -> Goal:
    """The set on which the combination on the tuned copy is furthest behind a single score."""
    singles = [(BASE, score) for score in DETECTORS] + [("tuned", RECIPE.score)]
    worst: Goal | None = None
    for name in found.sets():
        base, score = found.best(singles, [name])
        gain = found.gain("tuned", "combined", [name], base, score)
        title = "combination minus the best single score, on the worst set"
        goal = Goal(title, found.setting, gain, -SHORTFALL, f"{name}: {score}")
        if worst is None or goal.measured.mean < worst.measured.mean:
            worst = goal
    assert worst is not None
    return worst


# ---- the choice without foreign data ------------------------------------------------------------

#: The family of validation: none of the contenders that are chosen from was trained on it.
JUDGE = {"images": "permute", "features": "extrapolation", "table": "extrapolation"}
_VARIANTS = ("tuned", "tuned_weak", "tuned_mosaic", "tuned_phase")
_OF_TUNED = (*OUTPUT_SCORES, *COMBINED)
_OF_BASE = (*OUTPUT_SCORES, *DISTANCES, *COMBINED)


@dataclass(frozen=True)
class Choice:
    """What validation chooses, against the best in hindsight: mean AUROC of test, over seeds."""

    setting: str
    what: str
    chosen: list[str]
    value: float
    default: float
    best: float

    @property
    def regret(self) -> float:
        """How much the choice is below the best."""
        return self.best - self.value


def choices(found: Comparison, judge: str | None = None) -> list[Choice]:
    """The choice of score, strength and mix, and of all at once, by AUROC against strangers."""
    kind = SETTINGS[found.setting].kind
    judge = judge or JUDGE[kind]
    candidates = {
        "score of the tuned copy": [("tuned", score) for score in _OF_TUNED],
        "score of the deep ensemble": [(BASE, score) for score in _OF_BASE],
        "strength": [(name, RECIPE.score) for name in ("tuned", "tuned_weak")],
        "mix": [(name, RECIPE.score) for name in ("tuned", "tuned_mosaic", "tuned_phase")],
        "contender and score": [
            *((BASE, score) for score in _OF_BASE),
            *(("tuned", score) for score in _OF_TUNED),
            *((name, score) for name in _VARIANTS[1:] for score in OUTPUT_SCORES),
        ],
    }
    there = found.contenders
    made = []
    for what, options in candidates.items():
        known = [(name, score) for name, score in options if name in there]
        if len(known) > 1 and (what != "mix" or kind == "images"):
            made.append(_choose(found, what, known, judge))
    return made


def _choose(found: Comparison, what: str, options: list[tuple[str, str]], judge: str) -> Choice:
    chosen, values, defaults, bests = [], [], [], []
    default = next(option for option in options if option[1] == RECIPE.score)
    if ("tuned", RECIPE.score) in options:
        default = ("tuned", RECIPE.score)
    for seed in found.common(*((name, None) for name, _ in options)):
        known = [(name, score) for name, score in options if seed in found.seeds(name, score)]
        tested = [found.auroc(name, seed, score, found.sets()) for name, score in known]
        judged = [found.record(name, seed)["val_auroc"][judge][score] for name, score in known]
        place = int(np.argmax(judged))
        chosen.append(" ".join(known[place]))
        values.append(tested[place])
        defaults.append(tested[known.index(default)])
        bests.append(max(tested))
    value, usual, best = (float(np.mean(each)) for each in (values, defaults, bests))
    return Choice(found.setting, what, chosen, value, usual, best)


# ---- the benchmark's own table ------------------------------------------------------------------


def summarize(records: list[Record]) -> Result:
    """Training times relative to the deep ensemble, and the goals as checks."""
    ratios: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    for found in compare_settings(records):
        for name in found.contenders:
            for seed in found.common((name, None), (BASE, None)):
                own, base = (found.record(n, seed)["train_cpu"] for n in (name, BASE))
                times.setdefault(name, []).append(own)
                ratios.setdefault(name, []).append(own / base)
    measurements = tuple(
        Measurement(name, 1, Spread.of(times[name]), Spread.of(times[name]), Spread.of(own), None)
        for name, own in ratios.items()
    )
    checks = tuple(
        Check(f"{goal.setting}: {goal.name}, missing", goal.least - goal.measured.mean, 0.0)
        for goal in check_goals(records)
    )
    title = "unknown inputs: training time, ratio to a deep ensemble"
    return Result(title, "cpu", len(ratios.get(BASE, [])), measurements, checks)

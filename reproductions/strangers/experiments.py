"""Experiments on the ensembles: goals, means by setting, detectors, and the choice of a score."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from reproductions.comparisons import BySeed, Larger, Sides
from reproductions.experiment import Claim, Experiment, Labels, Table
from reproductions.figures import Panel, Plot, estimates
from reproductions.statistics import judge_larger, over_runs
from reproductions.strangers import combination, estimators, regression
from reproductions.strangers.comparison import (
    BASE,
    DETECTORS,
    OPTIONS,
    USUAL,
    Comparison,
    Scored,
    choose,
    compare_settings,
    paired,
)
from reproductions.strangers.contenders import CONTENDERS, RECIPE
from reproductions.strangers.ensembles import COMBINED, DISTANCES, ENSEMBLES, OUTPUT_SCORES
from reproductions.strangers.settings import SETTINGS
from reproductions.study import Record

TUNED, SCRATCH = (Scored(name, RECIPE.score) for name in ("tuned", "scratch"))
#: What the figure has, and its short names there.
_DRAWN = {
    "twice": "twice the members",
    "longer": "two more epochs",
    "ldr": "LDR",
    "exposure": "exposure, strangers",
    "exposure_tuned": "exposure, tuned copy",
    "foreign": "a2d, foreign data",
    "scratch": "a2d, strangers",
    "tuned": "a2d, tuned copy",
}


def _words(name: str) -> str:
    return name.replace("_", " ").replace("combined:distance=", "combined with ")


def _judged(contender: str) -> Scored:
    """A contender with the score that was settled for it."""
    return Scored(contender, CONTENDERS[contender].score)


# ---- goals --------------------------------------------------------------------------------------

#: A remark on a setting and both sides by seed; None where there is nothing to judge.
Case = tuple[str, tuple[BySeed, BySeed]] | None


@dataclass(frozen=True)
class Goal:
    """A goal in every setting: a paired difference of at least ``least``."""

    text: str
    case: Callable[[Comparison], Case]
    least: float
    quantity: str = "mean AUROC"

    @property
    def claim(self) -> Claim:
        """The goal as a claim, which holds if it does in every setting."""

        def pairs(records: list[Record]) -> Sides:
            made = {found.title: self.case(found) for found in compare_settings(records)}
            return {
                f"{title} ({case[0]})" if case[0] else title: case[1]
                for title, case in made.items()
                if case is not None
            }

        check = Larger(self.quantity, ("ours", "the other"), pairs, margin=self.least)
        return Claim(self.text, f"at least {self.least:+g}", check, ours=True)

    def cell(self, found: Comparison) -> str:
        """What was measured in a setting; *met* is said where the mean is enough and not sure."""
        case = self.case(found)
        if case is None:
            return ""
        remark, (left, right) = case
        gain = over_runs(list(left.values()), list(right.values()))
        verdict = judge_larger(gain.minus(self.least)).verdict
        met = ", met" if verdict == "undecided" and gain.mean >= self.least else ""
        return f"{gain.text('{:+.3f}')} {verdict}{met}" + (f" ({remark})" if remark else "")


def _gain(one: Scored, *kinds: str) -> Callable[[Comparison], Case]:
    """The gain over a deep ensemble by the same score."""

    def case(found: Comparison) -> Case:
        if SETTINGS[found.setting].kind in kinds and found.has(one):
            return "", found.pair(one, Scored(BASE, one.score), found.sets())
        return None

    return case


def _against_best(found: Comparison) -> Case:
    """The tuned copy against the detector that is best in hindsight."""
    if not found.has(TUNED):
        return None
    best = found.best(DETECTORS, found.sets())
    return _words(best.score), found.pair(TUNED, best, found.sets())


def _accuracy(found: Comparison) -> Case:
    """One ensemble for both against a deep ensemble."""
    if not found.has(SCRATCH):
        return None
    return "", paired(found.accuracies("scratch"), found.accuracies(BASE))


def _worst_set(found: Comparison) -> Case:
    """The set on which the combination on the tuned copy is furthest behind a single score."""
    combined = Scored("tuned", "combined")
    if not found.has(combined):
        return None
    best = {name: found.best([*DETECTORS, TUNED], [name]) for name in found.sets()}
    worst = min(best, key=lambda name: found.gain(combined, best[name], [name]).mean)
    remark = _words(f"{worst}: {best[worst].score}")
    return remark, found.pair(combined, best[worst], [worst])


GOALS = (
    Goal("On images, the tuned copy gains 0.05 over a deep ensemble", _gain(TUNED, "images"), 0.05),
    Goal("On images, one ensemble for both gains 0.05", _gain(SCRATCH, "images"), 0.05),
    Goal("On frozen features, the tuned copy gains 0.04", _gain(TUNED, "features"), 0.04),
    Goal("On frozen features, one ensemble for both gains 0.04", _gain(SCRATCH, "features"), 0.04),
    Goal("The tuned copy is as good as the best detector", _against_best, 0.0),
    Goal("One ensemble for both loses at most 0.5% of accuracy", _accuracy, -0.005, "accuracy"),
    Goal("Combined stays within 0.01 of the best single score on the worst set", _worst_set, -0.01),
)


def goals_table(records: list[Record]) -> Table:
    """Every goal in every setting."""
    return by_setting(records, ["goal"], {(goal.text,): goal.cell for goal in GOALS})


# ---- tables by setting --------------------------------------------------------------------------


def by_setting(
    records: list[Record],
    labels: list[str],
    rows: Mapping[Labels, Callable[[Comparison], str]],
) -> Table:
    """A column for each setting; a dash where it has nothing."""
    settings = compare_settings(records)
    cells = [[*names, *(cell(found) or "–" for found in settings)] for names, cell in rows.items()]
    cells = [row for row in cells if any(text != "–" for text in row[len(labels) :])]
    return Table([*labels, *(found.title for found in settings)], cells, len(labels))


def means_table(part: str) -> Callable[[list[Record]], Table]:
    """Mean AUROC of each contender, and its gain over a deep ensemble by the same score."""

    def cell(name: str, found: Comparison) -> str:
        one, sets = _judged(name), found.sets(part)
        if not found.has(one):
            return ""
        mean = f"{np.mean(list(found.aurocs(one, sets).values())):.3f}"
        if name == BASE:
            return mean
        gain = found.gain(one, Scored(BASE, one.score), sets).text("{:+.3f}")
        return f"{mean}, {gain}" if part == "all" else gain

    def table(records: list[Record]) -> Table:
        rows = {
            (contender.title, _words(contender.score)): partial(cell, name)
            for name, contender in CONTENDERS.items()
            if part == "all" or not contender.images
        }
        if part == "all":
            return by_setting(records, ["trained as", "score"], rows)
        return by_setting(records, ["trained as"], {names[:1]: one for names, one in rows.items()})

    return table


def _mean_auroc(one: Scored) -> Callable[[Comparison], str]:
    def cell(found: Comparison) -> str:
        values = list(found.aurocs(one, found.sets()).values())
        return f"{np.mean(values):.3f}" if values else ""

    return cell


def detectors_table(records: list[Record]) -> Table:
    """Mean AUROC of every score of the deep ensemble and of the tuned copy."""
    rows = {
        (title, _words(score)): _mean_auroc(Scored(name, score))
        for name, title in {BASE: "deep ensemble", "tuned": "tuned copy"}.items()
        for score in (*OUTPUT_SCORES, *DISTANCES, *COMBINED)
    }
    return by_setting(records, ["trained as", "score"], rows)


def accuracy_table(records: list[Record]) -> Table:
    """Accuracy in %; of tuned copies, what it would be to predict with the copy as well."""

    def cell(name: str, found: Comparison) -> str:
        there = name in found.results
        return f"{100 * np.mean(list(found.accuracies(name).values())):.1f}" if there else ""

    rows = {(contender.title,): partial(cell, name) for name, contender in CONTENDERS.items()}
    return by_setting(records, ["trained as"], rows)


def gains_plot(records: list[Record]) -> Plot:
    """Mean AUROC minus that of the deep ensemble by its usual score, in each setting."""
    drawn = {title: _judged(name) for name, title in _DRAWN.items()}
    drawn["tuned copy, combined"] = Scored("tuned", "combined")
    drawn |= {_words(one.score): one for one in DETECTORS}
    panels = []
    for found in compare_settings(records):
        gains = {
            title: found.gain(one, USUAL, found.sets())
            for title, one in drawn.items()
            if found.has(one)
        }
        series = estimates("", list(gains), list(gains.values()), "ink", "points", legend=False)
        panels.append(Panel("", "gain in mean AUROC", [series], found.title, horizontal=True))
    return Plot(panels, columns=2, size=(5.5, 3.4))


# ---- choosing -----------------------------------------------------------------------------------


def choices_table(records: list[Record]) -> Table:
    """Mean AUROC of what validation chooses, of the default, and of the best in hindsight."""

    def cell(what: str, found: Comparison) -> str:
        made = choose(found, what)
        return f"{made.value:.3f}, {made.default:.3f}, {made.best:.3f}" if made else ""

    rows = {(what,): partial(cell, what) for what in OPTIONS}
    return by_setting(records, ["what is chosen"], rows)


def regrets_table(records: list[Record]) -> Table:
    """How far the choice and the default are below the best in hindsight, over settings."""
    rows = []
    for what, judge in [*((what, None) for what in OPTIONS), ("contender and score", "mixup")]:
        made = [choose(found, what, judge) for found in compare_settings(records)]
        lost = np.array([[m.best - m.value, m.best - m.default] for m in made if m is not None])
        if len(lost):
            cells = [f"{lost[:, n].mean():.3f}, {lost[:, n].max():.3f}" for n in (0, 1)]
            rows.append([f"{what}, by mixups" if judge else what, str(len(lost)), *cells])
    return Table(["what is chosen", "settings", "choice: mean, most", "default: mean, most"], rows)


def settling_table(records: list[Record]) -> Table:
    """On what the recipe was settled: AUROC on both unknown sets by the scores that came of it."""
    names = dict.fromkeys(contender.score for contender in CONTENDERS.values())
    rows = []
    for found in compare_settings(records, settling=True):
        for name, results in found.results.items():
            (result,) = results.values()
            cells = [
                ", ".join(f"{scores[score]:.3f}" for scores in result["auroc"].values())
                for score in names
            ]
            rows.append([CONTENDERS[name].title, f"{100 * result['accuracy']:.1f}", *cells])
    return Table(["trained as", "accuracy", *map(_words, names)], rows)


# ---- experiments --------------------------------------------------------------------------------


def _experiment(
    name: str,
    title: str,
    table: Callable[[list[Record]], Table] | None,
    claims: Iterable[Claim] = (),
    **options: Any,
) -> Experiment:
    full_name = f"strangers/{name}"
    return Experiment(full_name, "7 settings", title, ENSEMBLES, tuple(claims), table, **options)


EXPERIMENTS = [
    _experiment(
        "gains",
        "Gains over a deep ensemble",
        goals_table,
        [goal.claim for goal in GOALS],
        draw=gains_plot,
    ),
    _experiment("mean", "Mean AUROC, all unknown sets", means_table("all")),
    _experiment("near", "Mean AUROC, near unknown sets", means_table("near")),
    _experiment("far", "Mean AUROC, far unknown sets", means_table("far")),
    _experiment("detectors", "Mean AUROC of every score", detectors_table),
    _experiment("accuracy", "Accuracy", accuracy_table),
    regression.EXPERIMENT,
    estimators.EXPERIMENT,
    _experiment("choices", "Choosing without foreign data", choices_table),
    _experiment("regrets", "What choosing costs", regrets_table),
    _experiment("settling", "How the recipe was settled", settling_table),
    combination.EXPERIMENT,
]

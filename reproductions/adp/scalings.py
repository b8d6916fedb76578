"""Scalings of the input: which of them the paper's claim on MNIST needs, and raw digits again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dissensus.show import Panel, Plot, Rule
from reproductions.adp.accuracy import (
    GRADIENT,
    MoreRight,
    accuracy_estimate,
    accuracy_table,
    compare_images,
    weak,
    worst_case,
)
from reproductions.adp.comparable import Comparable
from reproductions.adp.ensembles import ADP_RUNS, BASELINE, contenders_in, runs_of, style_of
from reproductions.adp.mnist import STUDY
from reproductions.adp.published import (
    TABLE1,
    effects,
    mean_accuracy,
    mean_gain,
    published_row,
)
from reproductions.adp.settings import WEAK_PROTOCOL
from reproductions.adp.white_box import mean_accuracies
from reproductions.figures import estimates
from reproductions.old.base import CANNOT, Claim, Experiment, Finding, Record, Table
from reproductions.old.comparisons import (
    LargerInAll,
    Pairs,
    Quantity,
    Runs,
    at,
    data_title,
    filter_records,
    group_by_data,
    group_records,
    interval_text,
)
from reproductions.old.per_image import ImageValues, PerImage
from reproductions.old.statistics import Estimate

#: The scalings as pages call them.
TITLES = {
    "mean": "mean image subtracted",
    "raw": "raw pixels",
    "standardised": "standardised pixels",
}
#: The accuracy that the question needs.
_NEEDED = 0.994


# ---- checks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WithScaling:
    """A check on the runs with one scaling of the input."""

    scaling: str
    check: Callable[[list[Record]], Finding]

    def __call__(self, records: list[Record]) -> Finding:
        return self.check(filter_records(records, scaling=self.scaling))


@dataclass(frozen=True)
class LargerGain:
    """Checks that ADP gains more on MNIST with the ``first`` scaling than with the ``second``.

    Gains are over the baseline of the same scaling; a seed's images are the same for all.
    """

    first: str
    second: str
    attacks: PerImage

    def __call__(self, records: list[Record]) -> Finding:
        first, second = (
            self._gains(filter_records(records, data="mnist", scaling=scaling))
            for scaling in (self.first, self.second)
        )
        quantity = f"gain of ADP₂,₀.₅ over the baseline, {self.attacks.quantity}"
        return compare_images(first, second, (TITLES[self.first], TITLES[self.second]), quantity)

    def _gains(self, records: list[Record]) -> dict[int, ImageValues]:
        sides = self.attacks.sides(ADP_RUNS.of(records), BASELINE.of(records))
        return {seed: sides[0][seed] - sides[1][seed] for seed in sides[0]} if sides else {}


_ERROR = Quantity("error", at("clean", "error"))


def _accuracies(records: list[Record]) -> Pairs:
    """The baseline's accuracy on MNIST and the one that is needed, by scaling and seed."""
    baseline = filter_records(BASELINE.of(records), data="mnist")
    return {
        TITLES[scaling]: (
            {seed: 1 - error for seed, error in _ERROR.values(some).items()},
            dict.fromkeys(_ERROR.values(some), _NEEDED),
        )
        for scaling, some in group_records(baseline, _scaling).items()
    }


def _scaling(record: Record) -> str:
    return str(record["cell"]["scaling"])


_SMOOTHED = runs_of("smoothed")
_PGD = weak(("pgd",))
_WEAK, _STRONG = f"our question; {WEAK_PROTOCOL}", "our question; standard protocol"
_FOUR = "under FGSM, BIM, PGD and MIM"

#: What is asked of each scaling: the words, where the question stands, and the check.
_ASKED: tuple[tuple[str, str, Callable[[list[Record]], Finding]], ...] = (
    (
        f"{_FOUR}, ADP₂,₀.₅ is more accurate than the baseline",
        f"Section 4.3, Table 2; {WEAK_PROTOCOL}",
        Comparable(
            MoreRight(
                ADP_RUNS,
                BASELINE,
                weak(GRADIENT),
                mean_gain("mnist", GRADIENT),
                "mnist",
                effects(GRADIENT),
            )
        ),
    ),
    *(
        (
            f"ADP₂,₀.₅ is more accurate than {other} {words}",
            where,
            MoreRight(ADP_RUNS, runs, attacks, data="mnist"),
        )
        for runs, attacks, other, words, where in (
            (BASELINE, worst_case(0), "the baseline", "in the worst case", _STRONG),
            (_SMOOTHED, weak(GRADIENT), "label smoothing with the F_y of Eq. 7", _FOUR, _WEAK),
            (
                _SMOOTHED,
                worst_case(0),
                "label smoothing with the F_y of Eq. 7",
                "in the worst case",
                _STRONG,
            ),
        )
    ),
)


# ---- in short, as a figure and as a table -------------------------------------------------------


def _groups(records: list[Record]) -> dict[tuple[str, str], list[Record]]:
    return group_records(records, lambda record: (record["cell"]["data"], _scaling(record)))


def brief(records: list[Record]) -> list[str]:
    """The three accuracies for each scaling, and with which of them a claim holds."""
    means = [
        f"{data_title(data)}, {TITLES[scaling]} {mean_accuracies(group)}"
        for (data, scaling), group in _groups(records).items()
    ]
    if not means:
        return []
    sentences = [
        "With each scaling of the input, accuracy in %, mean of the paper's FGSM, BIM, PGD and "
        f"MIM, baseline, label smoothing, ADP₂,₀.₅: {'; '.join(means)}."
    ]
    for words, _, check in _ASKED:
        verdicts = [
            f"**{finding.verdict}** with {title}"
            for scaling, title in TITLES.items()
            if (finding := WithScaling(scaling, check)(records)).verdict != CANNOT
        ]
        if verdicts:
            sentences.append(f"All of MNIST, {words}: {', '.join(verdicts)}.")
    return sentences


def plot(records: list[Record]) -> Plot:
    """Accuracy by scaling, for each contender: the paper's attacks and the worst case."""
    kinds: dict[str, tuple[PerImage, tuple[str, ...]]] = {
        "the paper's attacks": (weak(GRADIENT), GRADIENT),
        "the paper's PGD": (weak(("pgd",)), ("pgd",)),
        "worst case, ε = 0.1": (worst_case(0), ()),
    }
    panels = []
    for title, group in group_by_data(records).items():
        for words, (attacks, families) in kinds.items():
            series = []
            for runs in contenders_in(group):
                points = {
                    TITLES[scaling]: estimate
                    for scaling, some in group_records(runs.of(group), _scaling).items()
                    if (estimate := _estimate(some, attacks)) is not None
                }
                x, y = list(points), list(points.values())
                style = style_of(runs)
                series.append(estimates(runs.name, x, y, style, "points", limits=(0.0, 1.0)))
            rules = _published(group[0]["cell"]["data"], families)
            panels.append(
                Panel("", "accuracy", series, f"{title}, {words}", None, (-0.03, 1.03), rules=rules)
            )
    return Plot(panels, "Accuracy under attacks by scaling of the input", len(kinds), (4.4, 3.2))


def _estimate(records: list[Record], attacks: PerImage) -> Estimate | None:
    read = attacks.reader(records)
    return None if read is None else accuracy_estimate(records, read)


def _published(data: str, families: tuple[str, ...]) -> list[Rule]:
    """The printed accuracies of the baseline and of ADP as lines across a panel."""
    rules = []
    for runs, name in ((BASELINE, "plain"), (ADP_RUNS, "adp")):
        printed = mean_accuracy(data, families, name)
        if printed is not None:
            rules.append(Rule("y", printed / 100, f"{runs.name}, published"))
    return rules


def table(records: list[Record]) -> Table:
    """Errors on clean images and accuracies in %, in round brackets the published ones."""
    names = [runs.settings["contender"] for runs in contenders_in(records)]
    rows = []
    for (data, scaling), group in _groups(records).items():
        rows.append([data_title(data), TITLES[scaling], "none: error"])
        for name in names:
            errors = [100 * error for error in _ERROR.values(runs_of(name).of(group)).values()]
            printed = TABLE1.get(data, {}).get(name)
            text = interval_text(errors, "{:.2f}")
            rows[-1].append(text if printed is None else f"{text} ({printed[-1]:.2f})")
        header, (_, *attacked) = accuracy_table(group, names, published=published_row)
        rows += [[title, TITLES[scaling], *rest] for title, *rest in attacked]
    return [header[0], "input", *header[1:]], rows


# ---- the experiment -----------------------------------------------------------------------------

_SEARCH = "an earlier search on digits"


def _plain(scaling: str) -> Runs:
    return Runs(TITLES[scaling], {"contender": "plain", "scaling": scaling})


MNIST = Experiment(
    "adp/mnist",
    "Tables 1 and 2, MNIST",
    "All of MNIST with three scalings of the input, and raw digits on fresh seeds",
    STUDY,
    (
        Claim(
            "MNIST: the baseline is more than 99.4 % accurate on clean images with each scaling",
            "our check",
            LargerInAll(
                _accuracies,
                ("baseline", "needed"),
                "test accuracy",
                "{:.2%}",
                published=f"{1 - TABLE1['mnist']['plain'][-1] / 100:.2%}",
            ),
        ),
        *(
            Claim(f"MNIST, {title}: {words}", where, WithScaling(scaling, check))
            for words, where, check in _ASKED
            for scaling, title in TITLES.items()
        ),
        *(
            Claim(
                f"MNIST: with {TITLES['standardised']} the baseline is more accurate under the "
                f"paper's PGD than with {TITLES[other]}",
                _WEAK,
                MoreRight(_plain("standardised"), _plain(other), _PGD, data="mnist"),
            )
            for other in ("raw", "mean")
        ),
        *(
            Claim(
                f"MNIST: with {TITLES[other]} ADP₂,₀.₅ gains more under the paper's PGD than with "
                f"{TITLES['standardised']}",
                _WEAK,
                LargerGain(other, "standardised", _PGD),
            )
            for other in ("raw", "mean")
        ),
        *(
            Claim(
                f"digits, raw pixels: {first.name} is more accurate than {second.name} {words}",
                f"{where}; {_SEARCH}: {known}",
                WithScaling("raw", MoreRight(first, second, attacks, data="digits")),
            )
            for first, second, attacks, words, where, known in (
                (ADP_RUNS, BASELINE, _PGD, "under the paper's PGD", _WEAK, "39 → 55 %"),
                (_SMOOTHED, ADP_RUNS, _PGD, "under the paper's PGD", _WEAK, "55 → 62 to 66 %"),
                (ADP_RUNS, BASELINE, worst_case(0), "in the worst case", _STRONG, "+3 points"),
                (_SMOOTHED, ADP_RUNS, worst_case(0), "in the worst case", _STRONG, "35 %"),
            )
        ),
    ),
    plot,
    table,
    brief,
)

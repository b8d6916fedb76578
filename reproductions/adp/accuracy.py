"""Accuracy under attacks: which images stay right, contenders compared on them, and tables of it.

Contenders are compared in pairs of runs that share seed, data and attacked images, by the rule of
:mod:`reproductions.statistics`: the interval over seeds decides. Seeds are few, so each sentence
also has the interval over the attacked images of all seeds together, which says how sure the number
is for *these* networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dissensus.robustness import parse
from reproductions.adp.ensembles import CONTENDERS
from reproductions.old.base import CANNOT, Finding, Record, Table
from reproductions.old.comparisons import Runs, all_of, group_by_data
from reproductions.old.per_image import (
    BySeed,
    ImageValues,
    PerImage,
    Reader,
    images_interval,
    values_by_seed,
)
from reproductions.old.statistics import (
    Effect,
    Estimate,
    difference_of,
    judge_larger,
    mean_interval,
)

#: The attacks that follow the gradient inside a ball.
GRADIENT = ("fgsm", "bim", "pgd", "mim")
#: The ends of the standard protocol's ε: the place of each, and its name in claims.
PLACES = ((0, "smaller"), (-1, "larger"))
FAMILIES = {
    **{name: name.upper() for name in GRADIENT},
    "jsma": "JSMA",
    "cw": "C&W",
    "ead": "EAD",
}

# ---- attacks ------------------------------------------------------------------------------------


def attack_family(spec: str) -> str:
    """``"pgd"`` of ``"pgd:eps=0.1,…"``."""
    return spec.partition(":")[0]


def attack_parameter(spec: str) -> float:
    """The number that Table 2 names a row by: ε, γ of JSMA, c of C&W and EAD."""
    key = {"jsma": "gamma", "cw": "c", "ead": "c"}.get(attack_family(spec), "eps")
    return float(getattr(parse(spec), key))


def attack_title(spec: str) -> str:
    """``"PGD, ε = 0.1"``, and which JSMA it is."""
    family = attack_family(spec)
    letter = {"jsma": "γ", "cw": "c", "ead": "c"}.get(family, "ε")
    kind = "JSMA that cannot stick, both ways" if "direction" in spec else FAMILIES[family]
    return f"{kind}, {letter} = {attack_parameter(spec):g}"


def attack_names(records: Iterable[Record], part: str = "weak") -> list[str]:
    """The attacks of a part (``weak``, ``slow``, ``transfer``), in the order they were run."""
    return list(
        dict.fromkeys(spec for record in records for spec in record["result"].get(part, ()))
    )


def specs_of(records: Sequence[Record], families: Sequence[str], part: str = "weak") -> list[str]:
    """The attacks of these families; JSMA as the authors had it."""
    return [
        spec
        for spec in attack_names(records, part)
        if attack_family(spec) in families and "direction" not in spec
    ]


def standard_eps(records: Sequence[Record]) -> list[float]:
    """The ε of the standard protocol on the first of these records that has it, smallest first."""
    for record in records:
        if record["result"].get("standard"):
            return sorted(entry["eps"] for entry in record["result"]["standard"])
    return []


# ---- which images stayed right ------------------------------------------------------------------


def read_bits(bits: str) -> ImageValues:
    """``"101"`` as numbers, one for each image: 1 where it stayed right."""
    return np.array([character == "1" for character in bits], dtype=np.float64)


def right_after(specs: Sequence[str], part: str = "weak") -> Reader:
    """Reads the mean over some attacks of whether an image stayed right."""

    def read(record: Record) -> ImageValues | None:
        measured = record["result"].get(part, {})
        if not specs or any(spec not in measured for spec in specs):
            return None
        bits: ImageValues = np.mean([read_bits(measured[spec]["right"]) for spec in specs], axis=0)
        return bits

    return read


def right_in_worst_case(eps: float, key: str = "right") -> Reader:
    """Reads what the strong attacks leave at ``eps``; ``key="autoattack"``: AutoAttack alone."""

    def read(record: Record) -> ImageValues | None:
        for entry in record["result"].get("standard", ()):
            if math.isclose(entry["eps"], eps):
                return read_bits(entry[key])
        return None

    return read


def weak(families: Sequence[str], part: str = "weak") -> PerImage:
    """The paper's attacks of these families, their mean."""

    def reader(records: Sequence[Record]) -> Reader | None:
        specs = specs_of(records, families, part)
        return right_after(specs, part) if specs else None

    *names, last = (FAMILIES[family] for family in families)
    if not names:
        return PerImage(f"accuracy under {last}", reader)
    return PerImage(f"accuracy, mean of {', '.join(names)} and {last}", reader)


def worst_case(place: int) -> PerImage:
    """The standard protocol at the ε of that place: 0 is the smallest, −1 the largest."""

    def reader(records: Sequence[Record]) -> Reader | None:
        sizes = standard_eps(records)
        return right_in_worst_case(sizes[place]) if sizes else None

    return PerImage("worst case", reader)


# ---- comparisons --------------------------------------------------------------------------------


@dataclass(frozen=True)
class MoreRight:
    """Checks that more images stay right with the ``first`` runs than with the ``second``.

    On the data set ``data``, or on each one that there is. ``effects`` are the published gains by
    the title of the data set, as fractions.
    """

    first: Runs
    second: Runs
    attacks: PerImage
    published: str | None = None
    data: str | None = None
    effects: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, records: list[Record]) -> Finding:
        names = (self.first.name, self.second.name)
        findings = {
            title: compare_images(*sides, names, self.attacks.quantity, self.effects.get(title))
            for title, group in group_by_data(records).items()
            if self.data in (None, group[0]["cell"]["data"])
            and (sides := self.attacks.sides(self.first.of(group), self.second.of(group)))
        }
        return all_of(findings, self.published)


def compare_images(
    first: BySeed,
    second: BySeed,
    names: tuple[str, str],
    quantity: str,
    effect: float | None = None,
) -> Finding:
    """Whether more images stay right in the first runs than in the second, run by run.

    An attack that breaks every image of both sides, or none, tests nothing. Nor does one that
    leaves the second runs so many that half of the published ``effect`` would not fit on top.
    """
    seeds = sorted(set(first) & set(second))
    if not seeds:
        return Finding(CANNOT, f"{quantity}: no runs of both kinds")
    images = [first[seed] - second[seed] for seed in seeds]
    difference = mean_interval([float(one.mean()) for one in images])
    means = [np.mean([float(side[seed].mean()) for seed in seeds]) for side in (first, second)]
    over = images_interval(images)
    if means in ([0.0, 0.0], [1.0, 1.0]):
        sentence = f"{quantity}: {means[0]:.0%} of {over.runs} images on both sides"
        return Finding(CANNOT, f"{sentence}, so that nothing can be compared")
    if effect is not None and difference.low <= 0 < difference.high and means[1] + effect / 2 > 1:
        sides = ", ".join(f"{name} {mean:.1%}" for name, mean in zip(names, means, strict=True))
        return Finding(CANNOT, f"{quantity}: {sides}: no room for half of the published effect")
    verdict, words, chance = judge_larger(difference, effect)
    gain = Effect(difference_of(quantity, names), difference.times(100), "{:+.1f}", " points")
    runs = f"{difference.runs} run{'s' if difference.runs > 1 else ''}"
    sentence = (
        f"{quantity}: {names[0]} {means[0]:.1%}, {names[1]} {means[1]:.1%}, difference "
        f"{gain} over {runs} ({words}), over their {over.runs} images "
        f"[{100 * over.low:+.1f}, {100 * over.high:+.1f}]"
    )
    return Finding(verdict, sentence, effects={"": gain}, chance=chance)


# ---- tables -------------------------------------------------------------------------------------


def accuracy_estimate(records: Iterable[Record], read: Reader) -> Estimate | None:
    """The accuracy with its interval over seeds (of one seed: over images); None if not there."""
    runs = list(values_by_seed(records, read).values())
    if not runs:
        return None
    if len(runs) == 1:
        return images_interval(runs)
    return mean_interval([float(bits.mean()) for bits in runs])


def accuracy_text(records: Iterable[Record], read: Reader) -> str:
    """An accuracy in % for a table; a dash where there is none."""
    estimate = accuracy_estimate(records, read)
    if estimate is None:
        return "–"
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return f"{100 * estimate.mean:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def accuracy_change(first: Iterable[Record], second: Iterable[Record], read: Reader) -> str:
    """``"73 → 68"``, in %; empty where one of them was not measured."""
    before, after = accuracy_estimate(first, read), accuracy_estimate(second, read)
    if before is None or after is None:
        return ""
    return f"{100 * before.mean:.0f} → {100 * after.mean:.0f}"


def accuracy_table(
    records: list[Record],
    contenders: Sequence[str],
    parts: Sequence[str] = ("weak",),
    strong: Mapping[str, str] | None = None,
    published: Callable[[str, str, float, str], float | None] | None = None,
) -> Table:
    """Accuracies in %: a row for each data set and attack, a column for each contender.

    ``strong`` are the keys of the standard protocol with their titles; ``published`` gives the
    printed number of a data set, attack family, parameter and contender.
    """
    rows = []
    strong = strong or {"right": "**worst case, standard**"}
    for title, group in group_by_data(records).items():
        runs = {name: Runs(name, {"contender": name}).of(group) for name in contenders}
        clean = [[1 - run["result"]["clean"]["error"] for run in some] for some in runs.values()]
        shown = [f"{100 * np.mean(values):.1f}" if values else "–" for values in clean]
        rows.append([title, "none", *shown])
        for part in parts:
            for spec in attack_names(group, part):
                cells = []
                for name, some in runs.items():
                    text = accuracy_text(some, right_after([spec], part))
                    if published is not None and "direction" not in spec:
                        at = (attack_family(spec), attack_parameter(spec), name)
                        printed = published(group[0]["cell"]["data"], *at)
                        text += "" if printed is None else f" ({printed})"
                    cells.append(text)
                rows.append([title, attack_title(spec), *cells])
        for eps in standard_eps(group):
            for key, words in strong.items():
                read = right_in_worst_case(eps, key)
                cells = [accuracy_text(some, read) for some in runs.values()]
                rows.append([title, f"{words}, ε = {eps:g}", *cells])
    return ["data", "attack", *(CONTENDERS[name].title for name in contenders)], rows

"""Accuracy under attacks: which images stay right, contenders compared on them, and tables of it.

Contenders are compared in pairs of runs that share seed, data and attacked images. An attack that
breaks every image of both sides, or none, tests nothing.

A claim about a data set of the paper needs networks that come near its accuracy: an error on clean
images of at most twice the published one, 0.64 % on MNIST, 13.6 % on CIFAR-10, 60.7 % on CIFAR-100.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.robustness import parse
from reproductions.adp.ensembles import ADP_RUNS, BASELINE, contenders_in
from reproductions.adp.published import TABLE1, Changes, changes_text, effects, published_row
from reproductions.comparisons import (
    BySeed,
    Finding,
    Groups,
    Larger,
    Quantity,
    Runs,
    at,
    data_title,
    filter_records,
    group_by_data,
    larger,
)
from reproductions.experiment import Claim, Table, quantity_table
from reproductions.statistics import (
    CANNOT,
    Estimate,
    Interval,
    images_interval,
    mean_interval,
    over_runs,
)
from reproductions.study import Record

#: The attacks that follow the gradient inside a ball, and those that look for small changes.
GRADIENT, SMALL_CHANGES = ("fgsm", "bim", "pgd", "mim"), ("jsma", "cw", "ead")
FAMILIES = {name: name.upper() for name in (*GRADIENT, *SMALL_CHANGES)} | {"cw": "C&W"}
#: The ends of the ε of the standard protocol, the strong attacks, by their names in claims.
SIZES = {"smaller": 0, "larger": -1}

Images = NDArray[np.float64]


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
    return list(dict.fromkeys(spec for one in records for spec in one["result"].get(part, ())))


def standard_eps(record: Record) -> list[float]:
    """The ε of the standard protocol on a record, smallest first; none where it was not run."""
    return sorted(entry["eps"] for entry in record["result"].get("standard") or ())


# ---- which images stayed right ------------------------------------------------------------------


def read_bits(bits: str) -> Images:
    """``"101"`` as numbers, one for each image: 1 where it stayed right."""
    return np.array([character == "1" for character in bits], dtype=np.float64)


def _right_after(name: str, wanted: Callable[[str], bool], part: str) -> Quantity:
    """The mean over the ``wanted`` attacks of whether an image stayed right."""

    def read(record: Record) -> Images | None:
        attacks = record["result"].get(part, {}).items()
        bits = [read_bits(found["right"]) for spec, found in attacks if wanted(spec)]
        return np.mean(bits, axis=0, dtype=np.float64) if bits else None

    return Quantity(name, read, "{:.1%}")


def under(*families: str, part: str = "weak") -> Quantity:
    """Accuracy under the paper's attacks of these families, their mean; the authors' JSMA."""
    names = ", ".join(FAMILIES[family] for family in families)
    return _right_after(
        f"accuracy under {names}",
        lambda spec: attack_family(spec) in families and "direction" not in spec,
        part,
    )


def under_attack(spec: str, part: str = "weak") -> Quantity:
    """Accuracy under one attack."""
    return _right_after(attack_title(spec), lambda one: one == spec, part)


def worst_case_at(eps: float, key: str = "right") -> Quantity:
    """Accuracy under the standard protocol; ``key="autoattack"``: under AutoAttack alone."""

    def read(record: Record) -> Images | None:
        entries = record["result"].get("standard") or ()
        return next((read_bits(one[key]) for one in entries if math.isclose(one["eps"], eps)), None)

    return Quantity(f"worst case, ε = {eps:g}", read, "{:.1%}")


def worst_case(size: str) -> Quantity:
    """Accuracy under the standard protocol at the ``smaller`` or the ``larger`` of two ε."""
    place = SIZES[size]

    def read(record: Record) -> Images | None:
        eps = standard_eps(record)
        return worst_case_at(eps[place]).read(record) if len(eps) > abs(place) else None

    return Quantity(f"accuracy in the worst case, {size} ε", read, "{:.1%}")


def pgd_at(size: str) -> Quantity:
    """Accuracy under the paper's PGD at that ε of the standard protocol."""

    def read(record: Record) -> Images | None:
        specs = [spec for spec in attack_names([record]) if attack_family(spec) == "pgd"]
        eps = standard_eps(record)
        for spec in specs:
            if eps and attack_parameter(spec) == eps[SIZES[size]]:
                return read_bits(record["result"]["weak"][spec]["right"])
        return None

    return Quantity(f"accuracy under PGD, {size} ε", read, "{:.1%}")


# ---- comparisons --------------------------------------------------------------------------------


def on(data: str) -> Groups:
    """The runs on one data set."""
    return lambda records: {data_title(data): filter_records(records, data=data)}


def gains(records: Iterable[Record], quantity: Quantity) -> dict[int, Any]:
    """ADP minus baseline by seed."""
    some = list(records)
    after, before = (quantity.values(runs.of(some)) for runs in (ADP_RUNS, BASELINE))
    return {seed: after[seed] - before[seed] for seed in after if seed in before}


@dataclass(frozen=True)
class Comparable:
    """A check on the data sets on which the baseline comes near the published accuracy.

    Where there are only weaker networks, it shows what they do and decides nothing.
    """

    check: Callable[[list[Record]], Finding]

    def __call__(self, records: list[Record]) -> Finding:
        groups = group_by_data(records).values()
        weak = {id(record) for group in groups if is_too_weak(group) for record in group}
        finding = self.check([record for record in records if id(record) not in weak])
        if finding.verdict != CANNOT or not weak:
            return finding
        finding = self.check([record for record in records if id(record) in weak])
        why = "networks too weak" if finding.effects else finding.measured
        return replace(finding, verdict=CANNOT, measured=why)


_ERROR = Quantity("error", at("clean", "error"))


def published_data(record: Record) -> str:
    """The data set of the paper that a record is on; pairs of MNIST's digits are none."""
    return "" if record["cell"].get("pairs") else str(record["cell"]["data"])


def is_too_weak(group: list[Record]) -> bool:
    """Whether the networks of a data set are too far from the paper's to speak for it."""
    printed = TABLE1.get(published_data(group[0]), {}).get("plain")
    baseline = BASELINE.of(group)
    if printed is None or not baseline:
        return False
    return _ERROR.estimate(baseline).mean > 2 * printed[-1] / 100


def accuracy_claim(
    text: str,
    sides: tuple[Runs, Runs],
    quantity: Quantity,
    groups: Groups = group_by_data,
    *,
    where: str = "",
    changes: Changes | None = None,
    any_networks: bool = False,
    interval: Interval = over_runs,
    again: str = "",
) -> Claim:
    """The claim that the first runs are more accurate; ``changes`` are the published ones.

    Without a place in the paper it is ours; ``any_networks``: also of networks that are far from
    the paper's accuracy.
    """
    printed = changes or {}
    check = larger(
        quantity, *sides, groups, published=effects(printed), interval=interval, share=True
    )
    return Claim(
        text,
        where or quantity.name,
        check if any_networks else Comparable(check),
        changes_text(printed),
        ours=not where,
        again=again,
    )


def keeps_half(interval: Interval = over_runs) -> Larger:
    """A check that ADP keeps half of its clean accuracy in the worst case at the larger ε."""
    worst = worst_case("larger")

    def pairs(records: list[Record]) -> dict[str, tuple[BySeed, BySeed]]:
        cases: dict[str, tuple[BySeed, BySeed]] = {}
        for title, group in group_by_data(records).items():
            rows = ADP_RUNS.of(group)
            left, error = worst.values(rows), _ERROR.values(rows)
            half = {seed: np.full(len(left[seed]), (1 - error[seed]) / 2) for seed in left}
            if left:
                cases[title] = (left, half)
        return cases

    names = (ADP_RUNS.name, "half of its clean accuracy")
    return Larger(worst.name, names, pairs, worst.form, interval=interval)


# ---- tables -------------------------------------------------------------------------------------


def accuracy_estimate(records: Iterable[Record], quantity: Quantity) -> Estimate | None:
    """An accuracy with its interval over seeds (of one seed: over images); None if not there."""
    runs = list(quantity.values(records).values())
    if len(runs) == 1:
        return images_interval(runs)
    return mean_interval([float(bits.mean()) for bits in runs]) if runs else None


def accuracy_text(records: Iterable[Record], quantity: Quantity) -> str:
    """An accuracy in % for a table; a dash where there is none."""
    estimate = accuracy_estimate(records, quantity)
    if estimate is None:
        return "–"
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return f"{100 * estimate.mean:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def contender_table(records: list[Record], *quantities: Quantity) -> Table:
    """The quantities of every contender on every data set on which they were measured."""
    rows = {
        (title, runs.name): runs.of(group)
        for title, group in group_by_data(records).items()
        for runs in contenders_in(group)
        if quantities[0].values(runs.of(group))
    }
    return quantity_table(["data", "contender"], rows, quantities)


def accuracy_table(records: list[Record], groups: Groups = group_by_data) -> Table:
    """Accuracies in %, in round brackets the published ones: a column for each contender."""
    rows, everybody = [], contenders_in(records)
    for title, group in groups(records).items():
        runs = {one.name: one.of(group) for one in everybody}
        rows.append([title, "none", *(_clean_text(some) for some in runs.values())])
        for part in ("weak", "slow"):
            for spec in attack_names(group, part):
                cells = (_attack_text(some, spec, part) for some in runs.values())
                rows.append([title, attack_title(spec), *cells])
        for eps in sorted({eps for record in group for eps in standard_eps(record)}):
            for key, words in {"autoattack": "AutoAttack", "right": "worst case"}.items():
                texts = (accuracy_text(some, worst_case_at(eps, key)) for some in runs.values())
                rows.append([title, f"{words}, ε = {eps:g}", *texts])
    return Table(["data", "attack", *(runs.name for runs in everybody)], rows, 2)


def _clean_text(records: list[Record]) -> str:
    if not records:
        return "–"
    printed = TABLE1.get(published_data(records[0]), {}).get(records[0]["cell"]["contender"])
    text = f"{100 * (1 - _ERROR.estimate(records).mean):.2f}"
    return text if printed is None else f"{text} ({100 - printed[-1]:.2f})"


def _attack_text(records: list[Record], spec: str, part: str) -> str:
    text = accuracy_text(records, under_attack(spec, part))
    if text == "–" or "direction" in spec:
        return text
    row = (published_data(records[0]), attack_family(spec), attack_parameter(spec))
    printed = published_row(*row, records[0]["cell"]["contender"])
    return text if printed is None else f"{text} ({printed})"

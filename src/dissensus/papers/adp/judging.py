"""How the claims about attacks are judged: contender against contender, on every data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dissensus.papers.adp.contenders import CONTENDERS
from dissensus.papers.adp.reading import (
    Bits,
    Reader,
    attack_names,
    by_seed,
    compared,
    data_in,
    kept_by,
    rows_of,
    standard_bits,
    title,
)
from dissensus.papers.base import Finding, Record
from dissensus.robustness import parse

__all__ = [
    "FAMILIES",
    "GRADIENT",
    "Check",
    "attack_title",
    "family",
    "judged_over_data",
    "of_families",
    "parameter",
    "standard_check",
    "standard_eps",
    "weak_check",
]

#: The attacks that follow the gradient inside a ball.
GRADIENT = ("fgsm", "bim", "pgd", "mim")
FAMILIES = {
    "fgsm": "FGSM",
    "bim": "BIM",
    "pgd": "PGD",
    "mim": "MIM",
    "jsma": "JSMA",
    "cw": "C&W",
    "ead": "EAD",
}

Check = Callable[[list[Record]], Finding]


def family(spec: str) -> str:
    """``"pgd"`` of ``"pgd:eps=0.1,…"``."""
    return spec.partition(":")[0]


def parameter(spec: str) -> float:
    """The number that Table 2 names a row by: ε, γ of JSMA, c of C&W and EAD."""
    attack = parse(spec)
    key = {"jsma": "gamma", "cw": "c", "ead": "c"}.get(family(spec), "eps")
    return float(getattr(attack, key))


def of_families(records: Sequence[Record], families: Sequence[str], part: str) -> list[str]:
    """The attacks of these families; JSMA as the authors had it."""
    return [
        spec
        for spec in attack_names(records, part)
        if family(spec) in families and "direction" not in spec
    ]


def standard_eps(records: Sequence[Record]) -> list[float]:
    """The ε of the standard protocol on the first of these records that has it, smallest first."""
    for record in records:
        if record["result"].get("standard"):
            return sorted(found["eps"] for found in record["result"]["standard"])
    return []


def weak_check(
    larger: str,
    smaller: str,
    families: Sequence[str],
    quantity: str,
    published: str | None,
    part: str = "weak",
    only: str | None = None,
) -> Check:
    """More images stay right with ``larger``, over some of the paper's attacks."""

    def read(rows: Sequence[Record]) -> Reader | None:
        specs = of_families(rows, families, part)
        return kept_by(specs, part) if specs else None

    return contender_check(larger, smaller, read, quantity, published, only)


def standard_check(
    larger: str, smaller: str, which: int, quantity: str, only: str | None = None
) -> Check:
    """The same for the worst case of the standard protocol at the ε of place ``which``."""

    def read(rows: Sequence[Record]) -> Reader | None:
        sizes = standard_eps(rows)
        return standard_bits(sizes[which]) if sizes else None

    return contender_check(larger, smaller, read, quantity, None, only)


def contender_check(
    larger: str,
    smaller: str,
    read: Callable[[Sequence[Record]], Reader | None],
    quantity: str,
    published: str | None,
    only: str | None,
) -> Check:
    """More images stay right with ``larger`` than with ``smaller``.

    On ``only`` one data set, over its seeds; or on all, over the runs of all of them, so that what
    differs from one data set to the next widens the interval.
    """

    def check(records: list[Record]) -> Finding:
        runs: dict[str, dict[str, dict[int, Bits]]] = {}
        for data in data_in(records) if only is None else (only,):
            pair = [rows_of(records, data, name) for name in (larger, smaller)]
            reader = read(pair[0])
            found = [by_seed(rows, reader) for rows in pair] if reader is not None else []
            if found and all(found):
                runs[data] = {larger: found[0], smaller: found[1]}
        return judged_over_data(runs, (larger, smaller), quantity, published)

    return check


def judged_over_data(
    runs: Mapping[str, Mapping[str, Mapping[int, Bits]]],
    names: tuple[str, str],
    quantity: str,
    published: str | None = None,
    titles: tuple[str, str] | None = None,
) -> Finding:
    """The finding over the runs of all data sets, ``{data: {name: {seed: images}}}``."""
    sides = [
        {(data, seed): bits for data, both in runs.items() for seed, bits in both[name].items()}
        for name in names
    ]
    shown = titles or (CONTENDERS[names[0]].title, CONTENDERS[names[1]].title)
    finding = compared(sides[0], sides[1], shown, quantity, published)
    if len(runs) < 2:
        return finding
    parts = []
    for data, both in runs.items():
        seeds = set(both[names[0]]) & set(both[names[1]])
        means = [np.mean([float(both[name][s].mean()) for s in seeds]) for name in names]
        parts.append(f"{title(data)} {means[0]:.1%} and {means[1]:.1%}")
    return replace(finding, measured=f"{finding.measured}; by data set: {', '.join(parts)}")


def attack_title(spec: str) -> str:
    """``"PGD, ε = 0.1"``, and which JSMA it is."""
    letter = {"jsma": "γ", "cw": "c", "ead": "c"}.get(family(spec), "ε")
    kind = "JSMA that cannot stick, both ways" if "direction" in spec else FAMILIES[family(spec)]
    return f"{kind}, {letter} = {parameter(spec):g}"

"""How the claims about attacks are judged: contender against contender, on every data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dissensus.experiments.adp.contenders import CONTENDERS
from dissensus.experiments.adp.reading import (
    attack_names,
    by_seed,
    compared,
    data_in,
    kept_by,
    rows_of,
    standard_bits,
    title,
)
from dissensus.experiments.base import Finding, Record
from dissensus.experiments.comparing import (
    all_of,
)
from dissensus.robustness import parse

__all__ = [
    "FAMILIES",
    "GRADIENT",
    "Check",
    "attack_title",
    "family",
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
    """More images stay right with ``larger``, over some of the paper's attacks.

    On every data set, or on ``only`` one; CANNOT where it was not run.
    """
    names = (CONTENDERS[larger].title, CONTENDERS[smaller].title)

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records) if only is None else (only,):
            pair = [rows_of(records, data, name) for name in (larger, smaller)]
            specs = of_families(pair[0], families, part)
            runs = [by_seed(rows, kept_by(specs, part)) for rows in pair]
            if all(runs):
                findings[title(data)] = compared(runs[0], runs[1], names, quantity)
        return all_of(findings, published)

    return check


def standard_check(
    larger: str, smaller: str, which: int, quantity: str, only: str | None = None
) -> Check:
    """The same for the worst case of the standard protocol at the ε of place ``which``."""
    names = (CONTENDERS[larger].title, CONTENDERS[smaller].title)

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records) if only is None else (only,):
            pair = [rows_of(records, data, name) for name in (larger, smaller)]
            sizes = standard_eps(pair[0])
            if not sizes:
                continue
            eps = sizes[which]
            runs = [by_seed(rows, standard_bits(eps)) for rows in pair]
            if all(runs):
                words = f"{quantity}, ε = {eps:g}"
                findings[title(data)] = compared(runs[0], runs[1], names, words)
        return all_of(findings)

    return check


def attack_title(spec: str) -> str:
    """``"PGD, ε = 0.1"``, and which JSMA it is."""
    letter = {"jsma": "γ", "cw": "c", "ead": "c"}.get(family(spec), "ε")
    kind = "JSMA that cannot stick, both ways" if "direction" in spec else FAMILIES[family(spec)]
    return f"{kind}, {letter} = {parameter(spec):g}"

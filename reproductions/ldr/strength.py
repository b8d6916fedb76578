"""Strength λ: its effect on diversity, accuracy and detection (Figure 5, left), and its choice."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reproductions.comparisons import (
    Larger,
    Pairs,
    Quantity,
    Sides,
    at,
    cell_values,
    data_title,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot
from reproductions.ldr.contenders import STUDY
from reproductions.ldr.records import (
    Side,
    accuracy,
    best_on,
    data_with,
    larger_on_parts,
    mean_auroc,
    pds_auroc,
    runs_by_seed,
    score_accuracy,
    summary_table,
    unique,
    unknown_sets,
    with_strength,
)
from reproductions.study import Record


def _strengths(records: Iterable[Record], data: str) -> list[float]:
    return cell_values(with_strength(records, data, "ldr"), "strength")


def _at_end(name: str, place: int) -> Side:
    """LDR at the greatest strength (−1), or at the smallest above 0 (0)."""

    def select(records: list[Record], data: str) -> list[Record]:
        above = [strength for strength in _strengths(records, data) if strength > 0]
        return with_strength(records, data, "ldr", above[place]) if above else []

    return Side(name, select)


_GREATEST, _SMALLEST = _at_end("greatest λ", -1), _at_end("smallest λ", 0)


def _rises(relative: bool) -> Pairs:
    """The rise of C · PDS − 1 over λ = 0 on unknown inputs (mean of the sets), and on test inputs.

    A difference, or with ``relative`` a factor.
    """

    def rise(runs: list[Record], without: list[Record], part: str) -> dict[int, float]:
        more, less = (_spread(part).values(some) for some in (runs, without))
        return {
            seed: more[seed] / less[seed] if relative else more[seed] - less[seed]
            for seed in sorted(set(more) & set(less))
        }

    def cases(records: list[Record]) -> Sides:
        pairs = {}
        for data in data_with(records, "ldr"):
            without = with_strength(records, data, "ldr", 0.0)
            for strength in filter(None, _strengths(records, data) if without else []):
                runs = with_strength(records, data, "ldr", strength)
                known = rise(runs, without, "test")
                each = [rise(runs, without, part) for part in unknown_sets(runs)]
                unknown = {seed: float(np.mean([one[seed] for one in each])) for seed in known}
                pairs[f"{data_title(data)}, λ = {strength:g}"] = (unknown, known)
        return pairs

    return cases


def _spread(part: str) -> Quantity:
    """C · PDS − 1 on a part: 0 for members that agree, the total variation for two members."""
    read = at("parts", part, "pds_sum")
    return Quantity("C · PDS − 1", lambda record: (read(record) or 1.0) - 1)


def _choices_of(first: str, second: str) -> Pairs:
    """The mean AUROC of PDS over unknown sets of the λ that each of two proxies chooses."""

    def cases(records: list[Record]) -> Sides:
        found = {}
        for data in data_with(records, "ldr"):
            runs = [run for run in with_strength(records, data, "ldr") if run["cell"]["strength"]]
            if runs:
                ours, other = (
                    mean_auroc("pds").values(_choice(some, by) for some in runs_by_seed(runs))
                    for by in (first, second)
                )
                found[data_title(data)] = (ours, other)
        return found

    return cases


def _choice(runs: list[Record], proxy: str) -> Record:
    """The run that looks best on a proxy, or is best in hindsight."""
    if proxy != "hindsight":
        return best_on(runs, proxy)
    return max(runs, key=lambda run: mean_auroc("pds").estimate([run]).mean)


def plot(records: list[Record]) -> Plot:
    """#unique, accuracy and AUROC of PDS against λ."""
    panels = []
    for data in data_with(records, "ldr"):
        strengths = _strengths(records, data)
        runs = [with_strength(records, data, "ldr", strength) for strength in strengths]
        x = [max(strength, 0.03) for strength in strengths]  # 0 stands at the left end

        sets = list(enumerate(unknown_sets(runs[0])))
        members = Quantity("accuracy", at("parts", "test", "member_accuracies"))
        lines = {
            "unique predictions of 5": [
                unique("test").series("test", x, runs, 7),
                *(unique(part).series(part, x, runs, number) for number, part in sets),
            ],
            "test accuracy": [
                accuracy("test").series("averaged probabilities", x, runs, 7),
                score_accuracy("test").series("averaged logits", x, runs, 5),
                members.series("a member", x, runs, 3),
            ],
            "AUROC of PDS": [
                pds_auroc(part).series(part, x, runs, number) for number, part in sets
            ],
        }
        titles = (data_title(data), "", "")
        panels += [
            Panel("λ (0 at the left end)", y, series, title, x_log=True, legend="best")
            for (y, series), title in zip(lines.items(), titles, strict=True)
        ]
    alt = "Unique predictions, accuracy and AUROC of PDS against the strength λ"
    return Plot(panels, alt, columns=3)


def table(records: list[Record]) -> Table:
    """Diversity, accuracy and detection for every λ."""
    rows = {
        (data_title(data), f"{strength:g}"): with_strength(records, data, "ldr", strength)
        for data in data_with(records, "ldr")
        for strength in _strengths(records, data)
    }
    return summary_table(["data", "λ"], rows)


EXPERIMENT = Experiment(
    "ldr/strength",
    "Figure 5 (left)",
    "Diversity, accuracy and detection by the strength λ",
    STUDY,
    (
        Claim(
            "A greater λ makes the ensemble more diverse",
            "Section 4.3, Figure 5",
            larger_on_parts(
                _GREATEST, _SMALLEST, unique, lambda runs: ["test", *unknown_sets(runs)]
            ),
            "PDS jumps for λ between 0.1 and 10",
        ),
        Claim(
            "The AUROC of PDS rises with λ over the same range",
            "Section 4.3, Figure 5",
            larger_on_parts(_GREATEST, _SMALLEST, pds_auroc),
            "jumps for λ between 0.1 and 10",
        ),
        Claim(
            "λ raises diversity more on unknown inputs than on test inputs",
            "Section 3.3",
            Larger("rise of C · PDS over λ = 0", ("unknown", "test"), _rises(relative=False)),
            ours=True,
        ),
        Claim(
            "λ raises diversity by a larger factor on unknown inputs than on test inputs",
            "Section 3.3",
            Larger(
                "C · PDS − 1 over that of λ = 0",
                ("unknown", "test"),
                _rises(relative=True),
                "{:.2f}",
            ),
            ours=True,
        ),
        Claim(
            "Strangers made of validation data choose a better λ than averages of two inputs",
            "the choice of λ",
            Larger(
                "AUROC of PDS",
                ("chosen on strangers", "on averages"),
                _choices_of("strangers", "mixed"),
            ),
            ours=True,
        ),
        Claim(
            "The λ that strangers choose detects at most 0.01 worse than the best in hindsight",
            "the choice of λ",
            Larger(
                "AUROC of PDS",
                ("chosen on strangers", "best in hindsight"),
                _choices_of("strangers", "hindsight"),
                margin=-0.01,
            ),
            ours=True,
        ),
    ),
    table,
    plot,
)

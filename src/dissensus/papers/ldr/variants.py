"""Variations of LDR: strength, layers, backbone, two stages, disagreement data, drawn members."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dissensus.papers.base import Claim, Experiment, Finding, Record
from dissensus.papers.comparisons import CANNOT
from dissensus.papers.ldr.contenders import METHOD_NAMES, SETTING, STUDY
from dissensus.papers.ldr.reading import (
    DATA_NAMES,
    Runs,
    Value,
    accuracy,
    auroc,
    chosen,
    compare_sets,
    data_in,
    part,
    sets_in,
    shown,
    with_strength,
)
from dissensus.papers.statistics import mean_interval, paired_difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BACKBONE", "DISAGREEMENT_DATA", "LAYERS", "STOCHASTIC_SUM", "STRENGTH", "TWO_STAGE"]

#: Differences in AUROC or accuracy below this count as none; the paper says "similar", "little".
SIMILAR = 0.01


def at_strength(records: list[Record], data: str, contender: str, strength: float) -> Runs:
    """The runs of one strength, by seed."""
    found = with_strength(records, data, contender, strength)
    return {record["cell"]["seed"]: record for record in found}


def _data(records: list[Record], contender: str) -> list[str]:
    return [data for data in data_in(records) if with_strength(records, data, contender)]


def _aurocs(
    records: list[Record], left: tuple[str, str], right: tuple[str, str], contender: str
) -> dict[str, tuple[Runs, Value, Runs, Value]]:
    """Pairs of (method, score) on every unknown set of the data where ``contender`` was run."""
    pairs = {}
    for data in _data(records, contender):
        first, second = chosen(records, data, left[0]), chosen(records, data, right[0])
        for name in sets_in(first):
            sides = (first, auroc(name, left[1]), second, auroc(name, right[1]))
            pairs[f"{DATA_NAMES[data]} {name}"] = sides
    return pairs


# ---- strength (Figure 5, left) ------------------------------------------------------------------


def _strengths(records: list[Record], data: str) -> list[float]:
    return sorted({record["cell"]["strength"] for record in with_strength(records, data, "ldr")})


def _ends(
    value: Callable[[str], Value], names: Callable[[Runs], list[str]]
) -> Callable[..., dict[str, tuple[Runs, Value, Runs, Value]]]:
    """Pairs of the greatest strength and the smallest above 0, on every part of ``names``."""

    def pairs(records: list[Record]) -> dict[str, tuple[Runs, Value, Runs, Value]]:
        found = {}
        for data in _data(records, "ldr"):
            above = [strength for strength in _strengths(records, data) if strength > 0]
            high = at_strength(records, data, "ldr", above[-1])
            low = at_strength(records, data, "ldr", above[0])
            for name in names(high):
                found[f"{DATA_NAMES[data]} {name}"] = (high, value(name), low, value(name))
        return found

    return pairs


def _more_diverse(records: list[Record]) -> Finding:
    pairs = _ends(lambda name: part(name, "unique"), lambda runs: ["test", *sets_in(runs)])(records)
    return compare_sets(
        pairs,
        ("greatest λ", "smallest λ"),
        "#unique",
        form="{:.2f}",
        published="PDS jumps for λ between 0.1 and 10 (Figure 5)",
    )


def _detects_better(records: list[Record]) -> Finding:
    pairs = _ends(lambda name: auroc(name, "pds"), sets_in)(records)
    return compare_sets(
        pairs,
        ("greatest λ", "smallest λ"),
        "AUROC of PDS",
        published="AUROC jumps for λ between 0.1 and 10 (Figure 5)",
    )


def draw_strength(records: list[Record]) -> Figure:
    """#unique, accuracy and AUROC of PDS against λ."""
    from dissensus.plots.style import add_line, label, new_figure

    data_sets = _data(records, "ldr")
    figure, axes = new_figure(len(data_sets), 3, width=3.4, height=2.6)
    for row, data in zip(axes, data_sets, strict=True):
        strengths = _strengths(records, data)
        runs = [at_strength(records, data, "ldr", strength) for strength in strengths]
        x = [max(strength, 0.03) for strength in strengths]  # 0 stands at the left end
        names = sets_in(runs[0])

        def line(
            panel: object,
            value: Value,
            number: int,
            name: str,
            runs: list[Runs] = runs,
            x: list[float] = x,
        ) -> None:
            found = [mean_interval([value(record) for record in at.values()]) for at in runs]
            band = None
            if all(estimate.runs > 1 for estimate in found):
                band = [estimate.low for estimate in found], [estimate.high for estimate in found]
            add_line(panel, x, [m.mean for m in found], number, band=band, name=name)  # type: ignore[arg-type]

        line(row[0], part("test", "unique"), 7, "test")
        for number, name in enumerate(names):
            line(row[0], part(name, "unique"), number, name)
            line(row[2], auroc(name, "pds"), number, name)
        line(row[1], accuracy("test"), 7, "ensemble")
        line(
            row[1],
            lambda r: float(np.mean(r["result"]["parts"]["test"]["member_accuracies"])),
            3,
            "a member",
        )
        for panel in row:
            panel.set_xscale("log")
        label(
            row[0],
            "λ (0 at the left end)",
            "unique predictions of 5",
            DATA_NAMES[data],
            legend=True,
        )
        label(row[1], "λ", "test accuracy", "", legend=True)
        label(row[2], "λ", "AUROC of PDS", "", legend=True)
    return figure


def table_strength(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Diversity, accuracy and detection for every λ."""
    rows = []
    for data in _data(records, "ldr"):
        for strength in _strengths(records, data):
            runs = at_strength(records, data, "ldr", strength)
            rows.append(
                [
                    DATA_NAMES[data],
                    f"{strength:g}",
                    shown(runs, accuracy("test"), "{:.1%}"),
                    shown(runs, part("test", "unique"), "{:.2f}"),
                    *(f"{name} {shown(runs, auroc(name, 'pds'))}" for name in sets_in(runs)),
                ]
            )
    return ["data", "λ", "test accuracy", "#unique", "AUROC of PDS", "", "", ""], rows


STRENGTH = Experiment(
    "strength",
    "ldr",
    "Figure 5 (left)",
    "What the strength λ does to diversity, accuracy and detection",
    STUDY,
    (
        Claim(
            "A greater λ makes the ensemble more diverse", "Section 4.3, Figure 5", _more_diverse
        ),
        Claim(
            "The AUROC of PDS rises with λ over the same range",
            "Section 4.3, Figure 5",
            _detects_better,
        ),
    ),
    draw_strength,
    table_strength,
    SETTING,
)


# ---- layers (Table 4) and backbone (Table 5) ----------------------------------------------------


def _two_layers(records: list[Record]) -> Finding:
    data_sets = [data for data in _data(records, "ldr") if data in _data(records, "linear-ldr")]
    pairs = {}
    for data in data_sets:
        two, one = chosen(records, data, "ldr"), chosen(records, data, "linear-ldr")
        for name in sets_in(two):
            value = auroc(name, "pds")
            pairs[f"{DATA_NAMES[data]} {name}"] = (two, value, one, value)
    return compare_sets(
        pairs,
        ("two layers", "one layer"),
        "AUROC of PDS",
        published="0.681/0.894/0.977/0.941 and 0.677/0.889/0.964/0.928",
    )


def _convex(records: list[Record]) -> Finding:
    """Members of one linear layer agree more on unknown inputs than members of two layers."""
    pairs = {}
    for data in [data for data in _data(records, "ldr") if data in _data(records, "linear-ldr")]:
        two, one = chosen(records, data, "ldr"), chosen(records, data, "linear-ldr")
        for name in sets_in(two):
            value = part(name, "unique")
            pairs[f"{DATA_NAMES[data]} {name}"] = (two, value, one, value)
    return compare_sets(pairs, ("two layers", "one layer"), "#unique", form="{:.2f}")


def _table_of(rows: tuple[str, ...]) -> Callable[[list[Record]], tuple[list[str], list[list[str]]]]:
    def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
        found = []
        for data in data_in(records):
            if not all(with_strength(records, data, name) for name in rows):
                continue
            for name in rows:
                runs = chosen(records, data, name)
                for score in ("bma", "pds"):
                    cells = [f"{at} {shown(runs, auroc(at, score))}" for at in sets_in(runs)]
                    exact = shown(runs, accuracy("test"), "{:.1%}")
                    found.append(
                        [DATA_NAMES[data], METHOD_NAMES[name], score.upper(), exact, *cells]
                    )
        return ["data", "method", "score", "test accuracy", "AUROC", "", "", ""], found

    return table


LAYERS = Experiment(
    "layers",
    "ldr",
    "Table 4",
    "Training the last layer of each member, or the last two",
    STUDY,
    (
        Claim("Two layers detect better than one", "Section A.6, Table 4", _two_layers),
        Claim(
            "Members of one layer differ less: with cross-entropy their problem is convex",
            "Section A.6",
            _convex,
        ),
    ),
    None,
    _table_of(("linear-deep-ensemble", "linear-ldr", "deep-ensemble", "ldr")),
    SETTING,
)


def _backbone(left: str, right: str, published: str) -> Callable[[list[Record]], Finding]:
    def check(records: list[Record]) -> Finding:
        pairs = {}
        for data in _data(records, "linear-ldr"):
            first = chosen(records, data, "linear-ldr")
            second = chosen(records, data, "linear-deep-ensemble")
            for name in sets_in(first):
                sides = (first, auroc(name, left), second, auroc(name, right))
                pairs[f"{DATA_NAMES[data]} {name}"] = sides
        names = (f"LDR + {left.upper()}", f"deep ensemble + {right.upper()}")
        return compare_sets(pairs, names, "AUROC", published=published)

    return check


BACKBONE = Experiment(
    "backbone",
    "ldr",
    "Table 5",
    "Linear heads on other frozen networks",
    STUDY,
    (
        Claim(
            "With the last layer alone, LDR + PDS detects better than a deep ensemble + PDS",
            "Section A.7, Table 5",
            _backbone("pds", "pds", "68.6/86.0/87.3/81.2 and 64.4/77.4/75.0/76.1"),
        ),
        Claim(
            "With the last layer alone, LDR + PDS detects better than a deep ensemble + BMA",
            "Section A.7, Table 5",
            _backbone("pds", "bma", "68.6/86.0/87.3/81.2 and 66.4/86.1/86.4/80.1"),
        ),
    ),
    None,
    _table_of(("linear-deep-ensemble", "linear-ldr")),
    SETTING,
)


# ---- two stages (Table 7) -----------------------------------------------------------------------


def _joint_detects(records: list[Record]) -> Finding:
    pairs = _aurocs(records, ("ldr", "pds"), ("two-stage", "pds"), "two-stage")
    return compare_sets(
        pairs,
        ("LDR", "two-stage"),
        "AUROC of PDS",
        published="0.686/0.896/0.977/0.941 and 0.597/0.845/0.960/0.911",
    )


def _similar(
    left: str,
    right: str,
    value: Callable[[str], Value],
    names: tuple[str, ...],
    what: str,
    published: str,
) -> Callable[[list[Record]], Finding]:
    """A check that two contenders differ by less than :data:`SIMILAR`, interval included."""

    def check(records: list[Record]) -> Finding:
        words, close, runs = [], True, 0
        for data in _data(records, left):
            first, second = chosen(records, data, left), chosen(records, data, right)
            for name in names:
                of = value(name)
                seeds = sorted(set(first) & set(second))
                difference = paired_difference(
                    [of(first[s]) for s in seeds], [of(second[s]) for s in seeds]
                )
                runs = difference.runs
                close &= max(abs(difference.low), abs(difference.high)) < SIMILAR
                words.append(f"{DATA_NAMES[data]} {name} {difference.shown('{:+.3f}')}")
        if runs < 2:
            return Finding(CANNOT, "fewer than two runs to compare", published)
        verdict = "holds" if close else "does not hold"
        text = f"{what}, {METHOD_NAMES[left]} − {METHOD_NAMES[right]}: {'; '.join(words)}"
        return Finding(verdict, f"{text} (alike means within ±{SIMILAR})", published)  # type: ignore[arg-type]

    return check


TWO_STAGE = Experiment(
    "two-stage",
    "ldr",
    "Table 7",
    "Choosing the rows to disagree on by a first network's confidence, before training",
    STUDY,
    (
        Claim(
            "LDR detects better than the two-stage approach", "Section A.9, Table 7", _joint_detects
        ),
        Claim(
            "Both generalise alike (accuracy within one point)",
            "Section A.9, Table 7",
            _similar(
                "two-stage",
                "ldr",
                accuracy,
                ("test", "corrupt1", "corrupt5"),
                "accuracy",
                "85.2 and 85.3 on val, 77.3 and 77.3 on C-1, 40.7 and 40.6 on C-5",
            ),
        ),
    ),
    None,
    _table_of(("two-stage", "ldr")),
    SETTING,
)


# ---- disagreement data (Table 9) ----------------------------------------------------------------

_CORRUPTED = ("corrupt1", "corrupt5")

DISAGREEMENT_DATA = Experiment(
    "disagreement-data",
    "ldr",
    "Table 9",
    "Which data A2D and DivDis disagree on",
    STUDY,
    (
        *(
            Claim(
                f"It hardly matters which data {METHOD_NAMES[name]} disagrees on (AUROC within one "
                "point on sets that neither is from)",
                "Section A.11, Table 9",
                _similar(
                    f"{name}-other",
                    name,
                    lambda at: auroc(at, "pds"),
                    _CORRUPTED,
                    "AUROC of PDS",
                    "differences up to 0.004",
                ),
            )
            for name in ("a2d", "divdis")
        ),
    ),
    None,
    _table_of(("a2d", "a2d-other", "divdis", "divdis-other")),
    SETTING,
)


# ---- stochastic sum (Table 10) ------------------------------------------------------------------

_DRAWN = {2: "ldr", 3: "ldr-3", 4: "ldr-4", 5: "ldr-all"}


def _epoch_seconds(record: Record) -> float:
    """CPU seconds of one epoch: a training of |I| of M members runs M/|I| times the epochs."""
    cell = record["cell"]
    drawn = cell["active"] or cell["members"]
    times = cell["members"] / drawn if cell["footing"] == "updates" else 1.0
    epochs: int = max(1, round(cell["epochs"] * times))
    return float(record["result"]["training_seconds"]) / epochs


def _drawn_runs(records: list[Record], data: str) -> dict[int, Runs]:
    return {size: at_strength(records, data, name, 0.3) for size, name in _DRAWN.items()}


def _costs_grow(records: list[Record]) -> Finding:
    pairs = {}
    for data in _data(records, "ldr-3"):
        runs = _drawn_runs(records, data)
        pairs[DATA_NAMES[data]] = (runs[5], _epoch_seconds, runs[2], _epoch_seconds)
    return compare_sets(
        pairs,
        ("all 5 members a batch", "2 of 5"),
        "CPU seconds an epoch",
        form="{:.2f}",
        published="585 ± 111 s and 53 ± 5 s",
    )


def _unbiased(records: list[Record]) -> Finding:
    """Drawing pairs detects as well as using all: the AUROC of PDS does not fall."""
    pairs = {}
    for data in _data(records, "ldr-3"):
        runs = _drawn_runs(records, data)
        for name in sets_in(runs[2]):
            value = auroc(name, "pds")
            pairs[f"{DATA_NAMES[data]} {name}"] = (runs[2], value, runs[5], value)
    return compare_sets(
        pairs,
        ("|I| = 2", "|I| = 5"),
        "AUROC of PDS",
        margin=-0.02,
        published="0.686/0.896/0.977/0.941 and 0.711/0.903/0.970/0.937",
    )


def table_drawn(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 10 for five members, λ = 0.3: CPU seconds an epoch, accuracy and AUROC of PDS."""
    rows = []
    for data in _data(records, "ldr-3"):
        for size, runs in _drawn_runs(records, data).items():
            rows.append(
                [
                    DATA_NAMES[data],
                    str(size),
                    shown(runs, _epoch_seconds, "{:.2f}"),
                    shown(runs, accuracy("test"), "{:.1%}"),
                    shown(runs, accuracy("corrupt1"), "{:.1%}"),
                    shown(runs, accuracy("corrupt5"), "{:.1%}"),
                    *(f"{name} {shown(runs, auroc(name, 'pds'))}" for name in sets_in(runs)),
                ]
            )
    head = ["data", "|I|", "s an epoch", "test", "corruption 1", "corruption 5"]
    return [*head, "AUROC of PDS", "", "", ""], rows


STOCHASTIC_SUM = Experiment(
    "stochastic-sum",
    "ldr",
    "Table 10",
    "How many of the five members a batch trains, with the time of an epoch",
    STUDY,
    (
        Claim(
            "An epoch costs more the more members a batch uses",
            "Section A.12, Table 10",
            _costs_grow,
        ),
        Claim(
            "Drawing pairs detects about as well as using all members (at most 0.02 less)",
            "Sections A.12 and A.13, Table 10",
            _unbiased,
        ),
    ),
    None,
    table_drawn,
    SETTING,
)

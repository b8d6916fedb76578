"""When LDR helps: one setting changed at a time, LDR beside a deep ensemble; and ensemble size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dissensus.papers.base import (
    Cell,
    Claim,
    Experiment,
    Finding,
    Record,
    Study,
    Verdict,
)
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.comparisons import CANNOT, where
from dissensus.papers.ldr.cells import CPU, PAPER, SMOKE, ldr_cell, run_cell
from dissensus.papers.ldr.reading import (
    Runs,
    Value,
    accuracy,
    auroc,
    compare_sets,
    part,
    sets_in,
    shown,
)
from dissensus.papers.statistics import Estimate, mean_interval, paired_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CONTENDERS", "FACTORS", "SIZE", "STUDY", "WHEN"]

#: What is compared at every factor: the deep ensemble, and LDR with either pair term.
CONTENDERS: dict[str, dict[str, Any]] = {
    "deep-ensemble": {"method": "deep-ensemble"},
    "ldr": {"method": "ldr", "strength": 0.3},
    "ldr-divdis": {"method": "ldr", "strength": 1.0, "regularizer": "divdis"},
}

#: One change each from the setting of the other tables.
FACTORS: dict[str, dict[str, Any]] = {
    "as elsewhere": {},
    "2,000 training rows": {"train": 2000},
    "learning rate 3e-4": {"optimizer": "adamw:lr=3e-4,weight_decay=0.01"},
    "label smoothing 0.5": {"label_smoothing": 0.5},
    "3 epochs": {"epochs": 3},
    "16 epochs": {"epochs": 16},
    "all members start alike": {"start": "shared"},
    "5% planted": {"planted": 0.05},
}

#: Ensemble sizes of Figure 5; LDR trains for the same number of batches whatever the size.
_SIZES = (2, 5, 10, 50)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every factor for one seed after another, then every size."""
    settings = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    factors = {**FACTORS}
    if scale == "smoke":
        factors = {name: FACTORS[name] for name in ("as elsewhere", "3 epochs", "5% planted")}
    found = []
    for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 3}[scale]):
        for factor, changes in factors.items():
            for name, contender in CONTENDERS.items():
                # Alike at the start and trained alike, members of a deep ensemble stay the same.
                if name != "deep-ensemble" or "start" not in changes:
                    found.append(_cell(settings, name, factor, {**contender, **changes}, seed))
        for members in (2, 5) if scale == "smoke" else _SIZES:
            found += _sizes(settings, members, seed)
    return found


def _cell(
    settings: Mapping[str, Any], name: str, factor: str, changes: Mapping[str, Any], seed: int
) -> Cell:
    slug = factor.replace(",", "").replace("%", "pc").replace(" ", "-")
    base = {**settings, "factor": factor, "seed": seed}
    return ldr_cell(f"{slug}-{name}-seed={seed}", base, **changes)


def _sizes(settings: Mapping[str, Any], members: int, seed: int) -> list[Cell]:
    """Figure 5 (right): LDR with as many batches for 50 members as for 5; A.12's |I| beside it."""
    base = {**settings, "factor": "size", "members": members, "seed": seed, "footing": "epochs"}
    base["epochs"] = round(settings["epochs"] * 2.5)
    found = []
    for active in (2, 5) if members == 50 and seed == 0 else (2,):
        name = f"size-{members}-active={active}-ldr-seed={seed}"
        found.append(ldr_cell(name, base, method="ldr", strength=0.3, active=active))
    if members <= 5:
        usual = {**base, "epochs": settings["epochs"]}
        name = f"size-{members}-deep-ensemble-seed={seed}"
        found.append(ldr_cell(name, usual, method="deep-ensemble"))
    return found


STUDY = Study(
    "factors",
    cells,
    run_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "15 s", "cpu": "20 min", "paper": "GPU days"},
)


# ---- when it helps ------------------------------------------------------------------------------


def _runs(records: list[Record], factor: str, contender: str) -> Runs:
    """The runs of a contender at a factor, by seed."""
    wanted = CONTENDERS[contender]
    return {
        record["cell"]["seed"]: record
        for record in where(records, factor=factor, **wanted)
        if factor != "size"
    }


def _factors_in(records: list[Record]) -> list[str]:
    found = dict.fromkeys(record["cell"]["factor"] for record in records)
    return [factor for factor in found if factor != "size"]


def _rival(records: list[Record], factor: str) -> Runs:
    """The deep ensemble of a factor; where members start alike, the usual one."""
    return _runs(records, factor, "deep-ensemble") or _runs(
        records, "as elsewhere", "deep-ensemble"
    )


def _helps(contender: str) -> Callable[[list[Record]], Finding]:
    """A check that PDS of ``contender`` beats the deep ensemble's, factor by factor."""

    def check(records: list[Record]) -> Finding:
        pairs = {}
        for factor in _factors_in(records):
            runs, rival = _runs(records, factor, contender), _rival(records, factor)
            pairs[factor] = (runs, _mean_auroc, rival, _mean_auroc)
        return compare_sets(
            pairs, (_NAMES[contender], "deep ensemble"), "mean AUROC of PDS over unknown sets"
        )

    return check


def _mean_auroc(record: Record) -> float:
    return float(np.mean([found["pds"] for found in record["result"]["auroc"].values()]))


_NAMES = {"ldr": "LDR", "ldr-divdis": "LDR, DivDis term", "deep-ensemble": "deep ensemble"}


def draw_when(records: list[Record]) -> Figure:
    """What LDR changes over a deep ensemble: AUROC of PDS on each unknown set, and accuracy."""
    from dissensus.plots.style import COLORS, MARKERS, label, new_figure

    factors = _factors_in(records)
    names = sets_in(_rival(records, "as elsewhere"))
    figure, axes = new_figure(1, 3, width=4.0, height=3.6, sharey=True)
    for panel, contender in zip(axes[0], ("ldr", "ldr-divdis"), strict=False):
        for number, name in enumerate(names):
            value = auroc(name, "pds")
            gains = [_gain(records, factor, contender, value) for factor in factors]
            at = [place + (number - 1.5) * 0.16 for place in range(len(factors))]
            _points(panel, gains, at, COLORS[number], MARKERS[number], name)
        label(panel, "AUROC of PDS, minus the deep ensemble's", "", _NAMES[contender])
    for number, contender in enumerate(("ldr", "ldr-divdis")):
        gains = [_gain(records, factor, contender, accuracy("test")) for factor in factors]
        at = [place + (number - 0.5) * 0.2 for place in range(len(factors))]
        _points(axes[0, 2], gains, at, COLORS[number + 4], MARKERS[number], _NAMES[contender])
    label(axes[0, 2], "test accuracy, minus the deep ensemble's", "", "accuracy", legend=True)
    for panel in axes[0]:
        panel.axvline(0, color="#888888", linewidth=0.8)
    axes[0, 0].set_yticks(range(len(factors)), factors, fontsize=8.0)
    axes[0, 0].invert_yaxis()
    axes[0, 0].legend(fontsize=7.0, frameon=False)
    return figure


def _gain(records: list[Record], factor: str, contender: str, value: Value) -> Estimate:
    runs, rival = _runs(records, factor, contender), _rival(records, factor)
    seeds = sorted(set(runs) & set(rival))
    return paired_difference([value(runs[s]) for s in seeds], [value(rival[s]) for s in seeds])


def _points(
    panel: Axes, gains: list[Estimate], at: list[float], color: str, marker: str, name: str
) -> None:
    means = [gain.mean for gain in gains]
    errors = None
    if all(gain.runs > 1 for gain in gains):
        errors = [
            [gain.mean - gain.low for gain in gains],
            [gain.high - gain.mean for gain in gains],
        ]
    panel.errorbar(
        means, at, xerr=errors, fmt=marker, color=color, markersize=3.5, elinewidth=0.8, label=name
    )


def table_when(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Accuracy, #unique and AUROC of PDS of each contender at each factor."""
    rows = []
    for factor in _factors_in(records):
        for contender in CONTENDERS:
            runs = _runs(records, factor, contender)
            if runs:
                rows.append(
                    [
                        factor,
                        _NAMES[contender],
                        shown(runs, accuracy("test"), "{:.1%}"),
                        shown(runs, part("test", "unique"), "{:.2f}"),
                        *(f"{at} {shown(runs, auroc(at, 'pds'))}" for at in sets_in(runs)),
                    ]
                )
    return ["setting", "method", "test accuracy", "#unique", "AUROC of PDS", "", "", ""], rows


_SETTING = {
    "smoke": "Digits, two factors, two sizes, 2 seeds: no claim can show.",
    "cpu": (
        "The heads on features of `detection`, 3 seeds, LDR with λ = 0.3 (A2D's pair term) and "
        "λ = 1 (DivDis's), one setting changed at a time; 5% planted are CIFAR-10 features with "
        "random labels among the training rows. Sizes: LDR trains two members a batch for 20 "
        "epochs whatever the size, λ = 0.3; a deep ensemble 8 epochs."
    ),
    "paper": "The same on ImageNet features of DeiT-III Base/16.",
}

WHEN = Experiment(
    "when",
    "ldr",
    "our question",
    "When LDR helps: one setting changed at a time, beside a deep ensemble",
    STUDY,
    tuple(
        Claim(
            f"{_NAMES[contender]}: PDS detects better than a deep ensemble's PDS, in every setting",
            "Section 4.3 (one setting changed at a time is ours)",
            _helps(contender),
        )
        for contender in ("ldr", "ldr-divdis")
    ),
    draw_when,
    table_when,
    _SETTING,
)


# ---- size (Figure 5, right) ---------------------------------------------------------------------


def _of_size(records: list[Record], members: int, method: str, active: int = 2) -> Runs:
    found = where(records, factor="size", members=members, method=method, active=active)
    return {record["cell"]["seed"]: record for record in found}


def _sizes_in(records: list[Record], method: str) -> list[int]:
    found = where(records, factor="size", method=method)
    return sorted({record["cell"]["members"] for record in found})


def _larger_detects(smaller: int, larger: int, margin: float) -> Callable[[list[Record]], Finding]:
    def check(records: list[Record]) -> Finding:
        few, many = _of_size(records, smaller, "ldr"), _of_size(records, larger, "ldr")
        pairs = {
            name: (many, auroc(name, "pds"), few, auroc(name, "pds")) for name in sets_in(many)
        }
        names = (f"{larger} members", f"{smaller} members")
        return compare_sets(pairs, names, "AUROC of PDS", margin=margin)

    return check


def _constant_cost(records: list[Record]) -> Finding:
    """With two members drawn a batch, an epoch of the most members costs as one of five."""
    sizes = _sizes_in(records, "ldr")
    most, few = _of_size(records, sizes[-1], "ldr"), _of_size(records, 5, "ldr")
    ratios = [_seconds(most[seed]) / _seconds(few[seed]) for seed in sorted(set(most) & set(few))]
    if not ratios:
        return Finding(CANNOT, "no runs of both sizes")
    found = mean_interval(ratios)
    return Finding(
        "holds" if found.mean < 1.25 else "does not hold",
        f"CPU time of a training with {sizes[-1]} members over one with 5, |I| = 2: "
        f"{found.shown('{:.2f}')} (constant means below 1.25; the machine was shared)",
        "O(1); 2189 s for 50 members against 53 s for 5, as models move between devices",
    )


def _seconds(record: Record) -> float:
    return float(record["result"]["training_seconds"])


def _negated(finding: Finding) -> Finding:
    """Holds where the other does not: “at most marginally”."""
    if finding.verdict == CANNOT:
        return finding
    opposite: Verdict = "does not hold" if finding.verdict == "holds" else "holds"
    return Finding(opposite, finding.measured, finding.published)


def draw_size(records: list[Record]) -> Figure:
    """#unique and AUROC of PDS against the number of members."""
    from dissensus.plots.style import add_line, label, new_figure

    figure, axes = new_figure(1, 3, width=3.4, height=2.8)
    sizes = _sizes_in(records, "ldr")
    names = sets_in(_of_size(records, sizes[0], "ldr"))
    for number, name in enumerate(names):
        for panel, value in ((axes[0, 0], part(name, "unique")), (axes[0, 1], auroc(name, "pds"))):
            runs = [_of_size(records, size, "ldr") for size in sizes]
            means = [np.mean([value(record) for record in at.values()]) for at in runs]
            add_line(panel, sizes, means, number, name=name)
            plain = _sizes_in(records, "deep-ensemble")
            others = [_of_size(records, size, "deep-ensemble") for size in plain]
            means = [np.mean([value(record) for record in at.values()]) for at in others]
            add_line(panel, plain, means, number, linestyle=":")
    for number, method in enumerate(("ldr", "deep-ensemble")):
        sizes = _sizes_in(records, method)
        runs = [_of_size(records, size, method) for size in sizes]
        means = [np.mean([accuracy("test")(record) for record in at.values()]) for at in runs]
        add_line(axes[0, 2], sizes, means, number, name=_NAMES[method])
    for panel in axes[0]:
        panel.set_xscale("log")
    label(axes[0, 0], "members (dotted: deep ensemble)", "unique predictions", legend=True)
    label(axes[0, 1], "members", "AUROC of PDS")
    label(axes[0, 2], "members", "test accuracy", legend=True)
    return figure


def table_size(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Seconds, accuracy and AUROC of PDS for each size; Table 10's |I| for the most members."""
    rows = []
    for method in ("ldr", "deep-ensemble"):
        for size in _sizes_in(records, method):
            for active in (2, 5):
                runs = _of_size(records, size, method, active)
                if not runs:
                    continue
                rows.append(
                    [
                        _NAMES[method],
                        str(size),
                        str(active) if method == "ldr" else "all",
                        shown(runs, _seconds, "{:.0f}"),
                        shown(runs, accuracy("test"), "{:.1%}"),
                        shown(runs, part("test", "unique"), "{:.2f}"),
                        *(f"{at} {shown(runs, auroc(at, 'pds'))}" for at in sets_in(runs)),
                    ]
                )
    head = ["method", "members", "|I|", "CPU seconds", "test accuracy", "#unique"]
    return [*head, "AUROC of PDS", "", "", ""], rows


SIZE = Experiment(
    "size",
    "ldr",
    "Figure 5 (right), Table 10",
    "How many members, at a constant cost",
    STUDY,
    (
        Claim(
            "Five members detect better than two",
            "Section 4.3, Figure 5",
            _larger_detects(2, 5, 0.0),
        ),
        Claim(
            "More than five detect at most marginally better (less than 0.02)",
            "Section 4.3, Figure 5",
            lambda records: _negated(_larger_detects(5, 50, 0.02)(records)),
        ),
        Claim(
            "With two members drawn a batch, the cost does not grow with the ensemble",
            "Section 4.3",
            _constant_cost,
        ),
    ),
    draw_size,
    table_size,
    _SETTING,
)

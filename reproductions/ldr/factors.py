"""Factors that decide whether LDR helps, one setting changed at a time; and ensemble size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reproductions.cells import SEEDS_OPTION, seed_cells, seeds_of
from reproductions.comparisons import (
    Effect,
    Finding,
    Larger,
    Quantity,
    Runs,
    Sides,
    at,
    cell_values,
    filter_records,
    found,
    group_records,
    larger,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Rule, Series, estimates
from reproductions.ldr.contenders import CPU, PAPER, SMOKE, run_cell
from reproductions.ldr.records import (
    accuracy,
    mean_auroc,
    pds_auroc,
    summary_table,
    unique,
    unknown_sets,
)
from reproductions.statistics import CANNOT, Verdict, judge_within, mean_interval
from reproductions.study import Cell, Record, Study

#: What is compared at every factor: the deep ensemble, and LDR with either pair term.
CONTENDERS = {
    "deep-ensemble": Runs("deep ensemble", {"method": "deep-ensemble"}),
    "ldr": Runs("LDR", {"method": "ldr", "strength": 0.3}),
    "ldr-divdis": Runs(
        "LDR, DivDis term", {"method": "ldr", "strength": 1.0, "regularizer": "divdis"}
    ),
}
_PLAIN, *_OURS = CONTENDERS.values()

_USUAL = "as elsewhere"
#: One change each from the setting of the other tables.
FACTORS: dict[str, dict[str, Any]] = {
    _USUAL: {},
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
    """Every factor and every size, for one seed after another."""
    settings = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}[scale]
    variants: dict[str, Mapping[str, Any]] = {}
    for factor in (_USUAL, "3 epochs", "5% planted") if scale == "smoke" else FACTORS:
        slug = factor.replace(",", "").replace("%", "pc").replace(" ", "-")
        for name, contender in CONTENDERS.items():
            # Alike at the start and trained alike, members of a deep ensemble stay the same.
            if name != "deep-ensemble" or "start" not in FACTORS[factor]:
                own = {"factor": factor, **contender.settings, **FACTORS[factor]}
                variants[f"{slug}-{name}"] = {**settings, **own}
    for members in (2, 5) if scale == "smoke" else _SIZES:
        variants |= _sizes(settings, members)
    plan = seed_cells(variants, seeds_of(options, {"smoke": 2, "cpu": 10, "paper": 3}[scale]))
    return [cell for cell in plan if cell["active"] == 2 or cell["seed"] == 0]


def _sizes(settings: Mapping[str, Any], members: int) -> dict[str, dict[str, Any]]:
    """Figure 5 (right): LDR with as many batches for 50 members as for 5; A.12's |I| beside it."""
    base = {**settings, "factor": "size", "members": members, "footing": "epochs"}
    long = {**base, "method": "ldr", "strength": 0.3, "epochs": round(settings["epochs"] * 2.5)}
    variants = {
        f"size-{members}-active={active}-ldr": {**long, "active": active}
        for active in ((2, 5) if members == 50 else (2,))
    }
    if members <= 5:
        variants[f"size-{members}-deep-ensemble"] = {**base, "method": "deep-ensemble"}
    return variants


STUDY = Study(
    "factors",
    cells,
    run_cell,
    options=SEEDS_OPTION,
    cost={"smoke": "15 s", "cpu": "1 h", "paper": "GPU days"},
)


# ---- when LDR helps -----------------------------------------------------------------------------

_MEAN_AUROC = replace(mean_auroc("pds"), name="mean AUROC of PDS over unknown sets")


def _by_factor(records: list[Record]) -> dict[str, list[Record]]:
    """The runs at each factor; where members start alike, with the usual deep ensemble."""
    groups = group_records(records, lambda record: str(record["cell"]["factor"]))
    groups.pop("size", None)
    return {
        factor: runs if _PLAIN.of(runs) else [*runs, *_PLAIN.of(groups[_USUAL])]
        for factor, runs in groups.items()
    }


def plot_when(records: list[Record]) -> Plot:
    """LDR's gains over a deep ensemble: AUROC of PDS on each unknown set, and accuracy."""
    groups = _by_factor(records)

    def gains(contender: Runs, quantity: Quantity, name: str, style: int) -> Series:
        pairs = ((contender.of(runs), _PLAIN.of(runs)) for runs in groups.values())
        values = [mean_interval(list(quantity.differences(*pair).values())) for pair in pairs]
        return estimates(name, list(groups), values, style, "points")

    sets = list(enumerate(unknown_sets(_PLAIN.of(groups[_USUAL]))))
    lines = {
        one.name: [gains(one, pds_auroc(part), part, number) for number, part in sets]
        for one in _OURS
    }
    exact = [gains(one, accuracy("test"), one.name, 4 + n) for n, one in enumerate(_OURS)]
    label, zero = "minus the deep ensemble's", [Rule("x", 0.0)]
    panels = [
        Panel("", f"AUROC of PDS, {label}", series, title, horizontal=True, rules=zero)
        for title, series in lines.items()
    ]
    title = f"test accuracy, {label}"
    panels.append(Panel("", title, exact, "accuracy", horizontal=True, rules=zero))
    return Plot(panels, "Gains of LDR over a deep ensemble", columns=3, size=(4.0, 3.6))


def when_table(records: list[Record]) -> Table:
    """Every contender at each factor."""
    rows = {
        (factor, contender.name): filter_records(contender.of(runs), factor=factor)
        for factor, runs in _by_factor(records).items()
        for contender in CONTENDERS.values()
    }
    return summary_table(["setting", "method"], rows)


WHEN = Experiment(
    "ldr/when",
    "Section 4.3",
    "When LDR helps: one setting changed at a time, beside a deep ensemble",
    STUDY,
    tuple(
        Claim(
            f"{contender.name}: PDS detects better than a deep ensemble's in every setting",
            "Section 4.3",
            larger(_MEAN_AUROC, contender, _PLAIN, _by_factor),
            ours=True,
        )
        for contender in _OURS
    ),
    when_table,
    plot_when,
)


# ---- size (Figure 5, right) ---------------------------------------------------------------------

_SECONDS = Quantity("CPU seconds", at("training_seconds"), "{:.0f}")


def _of_size(
    records: list[Record], members: int, method: str = "ldr", active: int = 2
) -> list[Record]:
    return filter_records(records, factor="size", members=members, method=method, active=active)


def _sizes_in(records: list[Record], method: str = "ldr") -> list[int]:
    return cell_values(filter_records(records, factor="size", method=method), "members")


def _larger_detects(smaller: int, most: int, margin: float = 0.0) -> Larger:
    """A check that LDR with more members has the larger AUROC of PDS on every unknown set."""

    def pairs(records: list[Record]) -> Sides:
        many, few = _of_size(records, most), _of_size(records, smaller)
        return {
            part: (pds_auroc(part).values(many), pds_auroc(part).values(few))
            for part in unknown_sets(many)
        }

    names = (f"{most} members", f"{smaller} members")
    return Larger("AUROC of PDS", names, pairs, margin=margin)


def _at_most_marginally(records: list[Record]) -> Finding:
    """Holds where "larger by more than 0.02" does not."""
    finding = _larger_detects(5, 50, 0.02)(records)
    opposite: dict[Verdict, Verdict] = {"holds": "contradicted", "contradicted": "holds"}
    return replace(finding, verdict=opposite.get(finding.verdict, finding.verdict))


def _constant_cost(records: list[Record]) -> Finding:
    """With two members drawn per batch, an epoch of the most members costs as one of five."""
    most = _sizes_in(records)[-1]
    many, few = (_SECONDS.values(_of_size(records, size)) for size in (most, 5))
    ratios = [many[seed] / few[seed] for seed in sorted(many.keys() & few.keys())]
    if not ratios:
        return Finding(CANNOT, "no runs of both sizes")
    ratio = mean_interval(ratios)
    quantity = f"CPU time with {most} members over that with 5, |I| = 2"
    return found(Effect(quantity, ratio, "{:.2f}", judge_within(ratio, high=1.25)))


def plot_size(records: list[Record]) -> Plot:
    """#unique, AUROC of PDS and accuracy against the number of members."""

    def line(quantity: Quantity, method: str, style: int, name: str, **options: Any) -> Series:
        sizes = _sizes_in(records, method)
        runs = [_of_size(records, size, method) for size in sizes]
        return quantity.series(name, sizes, runs, style, **options)

    sets = unknown_sets(_of_size(records, _sizes_in(records)[0]))

    def both(quantity: Any) -> Sequence[Series]:
        styles: dict[str, dict[str, Any]] = {
            "ldr": {},
            "deep-ensemble": {"dash": "dotted", "legend": False},
        }
        return [
            line(quantity(part), method, number, part, **options)
            for method, options in styles.items()
            for number, part in enumerate(sets)
        ]

    exact = [
        line(accuracy("test"), m, n, CONTENDERS[m].name)
        for n, m in enumerate(("ldr", "deep-ensemble"))
    ]
    x = "members (dotted: deep ensemble)"
    panels = [
        Panel(x, "unique predictions", both(unique), x_log=True, legend="best"),
        Panel(x, "AUROC of PDS", both(pds_auroc), x_log=True, legend="best"),
        Panel("members", "test accuracy", exact, x_log=True, legend="best"),
    ]
    return Plot(panels, "Diversity, detection and accuracy against the number of members", 3)


def size_table(records: list[Record]) -> Table:
    """Every size with its CPU seconds; Table 10's |I| for the most members."""
    rows = {
        (CONTENDERS[method].name, str(size), str(active) if method == "ldr" else "all"): runs
        for method in ("ldr", "deep-ensemble")
        for size in _sizes_in(records, method)
        for active in (2, 5)
        if (runs := _of_size(records, size, method, active))
    }
    return summary_table(["method", "members", "|I|"], rows, [_SECONDS])


SIZE = Experiment(
    "ldr/size",
    "Figure 5 (right), Table 10",
    "How many members, at a constant cost",
    STUDY,
    (
        Claim(
            "Five members detect better than two",
            "Section 4.3, Figure 5",
            _larger_detects(2, 5),
        ),
        Claim(
            "More than five detect at most marginally better (here: less than 0.02)",
            "Section 4.3, Figure 5",
            _at_most_marginally,
        ),
        Claim(
            "With two members drawn per batch, the cost does not grow with the ensemble",
            "Section 4.3",
            _constant_cost,
            "O(1)",
        ),
    ),
    size_table,
    plot_size,
)

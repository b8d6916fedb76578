"""Dropping members while training jointly: Figure 18, the paper's negative result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.collusion.comparing import (
    FORMS,
    QUANTITIES,
    compare,
)
from dissensus.papers.collusion.images import (
    CPU,
    PAPER_SWEEP,
    SMOKE,
    by_seed,
    image_cell,
    run_image_cell,
)
from dissensus.papers.collusion.plots import AXES, draw_points
from dissensus.papers.comparisons import CANNOT, all_of, paired, where
from dissensus.papers.statistics import mean_interval, paired_difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DROPOUT", "LEARNER_DROPOUT"]

_DROPS = (0.0, 0.2, 0.4, 0.6)
_KEYS = ("accuracy", "error", "diversity", "member_accuracy", "member_error")


# ---- the study ----------------------------------------------------------------------------------


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Joint training with each share of members dropped, and independent training beside it."""
    settings: Mapping[str, Any] = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER_SWEEP}[scale]
    drops = (0.0, 0.4) if scale == "smoke" else _DROPS
    found = []
    for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 5}[scale]):
        found.append(image_cell(f"independent-seed={seed}", settings, seed=seed))
        found += [
            image_cell(f"joint-drop={drop:g}-seed={seed}", settings, beta=1.0, drop=drop, seed=seed)
            for drop in drops
        ]
    return found


DROPOUT = Study(
    "learner-dropout",
    cells,
    run_image_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "5 s", "cpu": "6 min", "paper": "GPU days"},
)


# ---- claims -------------------------------------------------------------------------------------


def _joint(records: Sequence[Record], drop: float) -> list[Record]:
    return where(records, beta=1.0, drop=drop)


def _drops(records: Sequence[Record]) -> list[float]:
    return sorted({float(record["cell"]["drop"]) for record in records})


def _most(records: list[Record]) -> tuple[list[Record], list[Record], tuple[str, str]]:
    """Runs without dropping and with the most of it, and their names."""
    most = _drops(records)[-1]
    return _joint(records, 0.0), _joint(records, most), ("p = 0", f"p = {most:g}")


def _falls(key: str) -> Callable[[list[Record]], Finding]:
    """A check that ``key`` is larger without dropping than with the most of it."""

    def check(records: list[Record]) -> Finding:
        none, most, names = _most(records)
        return compare(none, most, names, key)

    return check


def _no_better(records: list[Record]) -> Finding:
    """That no share of dropped members makes the ensemble more accurate."""
    found = {}
    for drop in _drops(records)[1:]:
        pair = paired(
            by_seed(_joint(records, drop), "test", "accuracy"),
            by_seed(_joint(records, 0.0), "test", "accuracy"),
        )
        if len(pair[0]) < 2:
            return Finding(CANNOT, "fewer than two pairs of runs")
        difference = paired_difference(*pair)
        found[f"p = {drop:g}"] = Finding(
            "does not hold" if difference.low > 0 else "holds",
            f"test accuracy − that of p = 0 {difference.shown('{:+.1%}')}",
        )
    return all_of(found)


def _still_below_independent(records: list[Record]) -> Finding:
    found = {}
    for drop in _drops(records):
        names = ("independent", f"joint, p = {drop:g}")
        found[f"p = {drop:g}"] = compare(
            where(records, beta=0.0), _joint(records, drop), names, "accuracy"
        )
    return all_of(found)


# ---- figure and table ---------------------------------------------------------------------------


def draw(records: list[Record]) -> Figure:
    """Accuracy, diversity and individual performance against the share that is dropped."""
    from dissensus.plots.style import label, new_figure

    keys = ("accuracy", "diversity", "member_accuracy", "error")
    figure, axes = new_figure(1, len(keys), width=3.2, height=2.8)
    drops = _drops(records)
    for panel, key in zip(axes[0], keys, strict=True):
        runs = [list(by_seed(_joint(records, drop), "test", key).values()) for drop in drops]
        draw_points(panel, drops, runs, 1, "joint (β = 1)")
        other = list(by_seed(where(records, beta=0.0), "test", key).values())
        draw_points(panel, (drops[0], drops[-1]), (other, other), 0, "independent (β = 0)")
        label(panel, "share of members dropped a batch", AXES[key])
    axes[0, 0].legend(loc="lower left", fontsize=8.0, frameon=False)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Means and intervals over runs on test data."""
    rows = []
    groups = {f"joint, p = {drop:g}": _joint(records, drop) for drop in _drops(records)}
    for name, found in {**groups, "independent": where(records, beta=0.0)}.items():
        shown = [
            mean_interval(list(by_seed(found, "test", key).values())).shown(
                FORMS.get(key, "{:.3f}")
            )
            for key in _KEYS
        ]
        rows.append([name, str(len(found)), *shown])
    return ["training", "runs", *(QUANTITIES[key] for key in _KEYS)], rows


# ---- the experiment -----------------------------------------------------------------------------

LEARNER_DROPOUT = Experiment(
    "learner-dropout",
    "collusion",
    "Figure 18",
    "Joint training that drops a share of the members from each batch",
    DROPOUT,
    (
        Claim(
            "Dropping members reduces diversity, and so collusion",
            "Section G.7, Figure 18",
            _falls("diversity"),
        ),
        Claim(
            "The performance of the ensemble does not improve",
            "Section G.7, Figure 18",
            _no_better,
        ),
        Claim(
            "Base learners become weaker on average",
            "Section G.7, Figure 18",
            _falls("member_accuracy"),
        ),
        Claim(
            "It is no remedy: independent training stays more accurate at every share",
            "Section G.7, a negative result",
            _still_below_independent,
        ),
    ),
    draw,
    table,
    {
        "smoke": "256 digits of scikit-learn, a tiny ResNet, 2 epochs, 2 seeds: no claim can show.",
        "cpu": (
            "As beta-sweep at this scale (CIFAR-10, 2,500 training images, a ResNet of two blocks, "
            "5 members, 12 epochs), β = 1, p in {0, 0.2, 0.4, 0.6}, and β = 0 beside it; 3 seeds. "
            "int(5p) members are dropped a batch, and get no step and no weight decay in it."
        ),
        "paper": "CIFAR-10, ResNet-18, 5 members, the schedule of Appendix B, 5 seeds.",
    },
)

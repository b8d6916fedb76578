"""The worst group (Table 8): a class that a shortcut gives away in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.comparisons import where
from dissensus.papers.ldr.cells import FASHION, ldr_cell, run_cell
from dissensus.papers.ldr.contenders import METHOD_NAMES
from dissensus.papers.ldr.reading import Runs, Value, accuracy, compare_sets, shown
from dissensus.papers.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "STUDY"]

#: 4 members, no stochastic sum, the validation digits as disagreement data (Appendix A.10).
_CPU: Mapping[str, Any] = {
    **FASHION,
    "data": "colored_mnist",
    "train": 6000,
    "val": 2000,
    "test": 4000,
    "members": 4,
    "active": None,
    "model": "mlp",
    "model_options": {"hidden": [128, 128]},
    "disagreement": "val",
}

_STRENGTHS = {
    "deep-ensemble": (0.0,),
    "divdis": (0.3, 1.0),
    "a2d": (0.3, 1.0),
    "ldr": (0.3, 1.0),
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Each method at its strengths, seed after seed."""
    settings = dict(_CPU)
    if scale == "smoke":
        settings |= {"data": "colored_digits", "train": 200, "val": 100, "test": 200, "epochs": 2}
        settings["model_options"] = {"hidden": [16]}
    if scale == "paper":
        settings |= {"train": 50_000, "val": 10_000, "test": 10_000, "epochs": 20, "model": "cnn"}
        settings["model_options"] = {"dropout": 0.0}
    return [
        ldr_cell(
            f"{method}-strength={strength:g}-seed={seed}",
            settings,
            method=method,
            strength=strength,
            seed=seed,
        )
        for seed in seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 5}[scale])
        for method, strengths in _STRENGTHS.items()
        for strength in (strengths[-1:] if scale == "smoke" else strengths)
    ]


STUDY = Study(
    "worst-group",
    cells,
    run_cell,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "5 s", "cpu": "10 min", "paper": "1 h on a GPU"},
)


# ---- claims -------------------------------------------------------------------------------------


def _by_method(records: list[Record], method: str) -> Runs:
    """For each seed the strength whose validation accuracy is best.

    Validation digits have either colour in each class, so that accuracy on them does not reward the
    shortcut.
    """
    by_seed: dict[int, list[Record]] = {}
    for record in where(records, method=method):
        by_seed.setdefault(record["cell"]["seed"], []).append(record)
    of = accuracy("val")
    return {seed: max(runs, key=of) for seed, runs in sorted(by_seed.items())}


def _worst(kind: str) -> Value:
    return lambda record: min(record["result"]["groups"][kind])


def _ldr_above(method: str, published: str) -> Claim:
    def check(records: list[Record]) -> Finding:
        pair = (_by_method(records, "ldr"), _worst("ensemble"))
        rival = (_by_method(records, method), _worst("ensemble"))
        names = ("LDR", METHOD_NAMES[method])
        quantity = "worst-group accuracy of the ensemble"
        return compare_sets(
            {"coloured digits": (*pair, *rival)}, names, quantity, published=published
        )

    return Claim(
        f"In its worst group, LDR's ensemble is more accurate than that of {METHOD_NAMES[method]}",
        "Section A.10, Table 8",
        check,
    )


def _oracle(records: list[Record]) -> Finding:
    pair = (_by_method(records, "divdis"), _worst("oracle"))
    rival = (_by_method(records, "ldr"), _worst("oracle"))
    return compare_sets(
        {"coloured digits": (*pair, *rival)},
        ("DivDis", "LDR"),
        "worst-group accuracy of the best member",
        published="87.2 and 83.5",
    )


def draw(records: list[Record]) -> Figure:
    """Worst-group accuracy of the ensemble, of its best member and of the mean member."""
    from dissensus.plots.style import COLORS, label, new_figure

    figure, axes = new_figure(1, 1, width=5.0, height=3.0)
    panel = axes[0, 0]
    for number, kind in enumerate(("ensemble", "oracle", "mean_member")):
        for place, method in enumerate(_STRENGTHS):
            found = mean_interval([_worst(kind)(r) for r in _by_method(records, method).values()])
            error = (
                None if found.runs < 2 else [[found.mean - found.low], [found.high - found.mean]]
            )
            name = {"oracle": "best member", "mean_member": "mean member"}.get(kind, kind)
            panel.bar(
                place + (number - 1) * 0.26,
                found.mean,
                0.24,
                yerr=error,
                color=COLORS[number],
                label=None if place else name,
            )
    panel.set_xticks(range(len(_STRENGTHS)), [METHOD_NAMES[method] for method in _STRENGTHS])
    panel.set_ylim(0, 1.2)  # room for the legend
    label(panel, "", "accuracy in the worst group", legend=True)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Table 8 and the accuracy over all groups."""
    rows = []
    for method in _STRENGTHS:
        runs = _by_method(records, method)
        strengths = sorted({record["cell"]["strength"] for record in runs.values()})
        rows.append(
            [
                METHOD_NAMES[method],
                "/".join(f"{strength:g}" for strength in strengths),
                shown(runs, accuracy("test"), "{:.1%}"),
                *(
                    shown(runs, _worst(kind), "{:.1%}")
                    for kind in ("ensemble", "oracle", "mean_member")
                ),
            ]
        )
    head = ["method", "λ chosen", "test accuracy", "worst group, ensemble"]
    return [*head, "worst group, best member", "worst group, mean member"], rows


EXPERIMENT = Experiment(
    "worst-group",
    "ldr",
    "Table 8",
    "The worst group where training has a shortcut",
    STUDY,
    (
        _ldr_above("deep-ensemble", "80.6 and 72.0 (ERM)"),
        _ldr_above("divdis", "80.6 and 78.3"),
        _ldr_above("a2d", "80.6 and 78.3"),
        Claim("DivDis finds the better single member", "Section A.10, Table 8", _oracle),
    ),
    draw,
    table,
    {
        "smoke": "200 coloured digits of scikit-learn, a small MLP, 2 epochs: no claim can show.",
        "cpu": (
            "Coloured MNIST stands in for Waterbirds, which cannot be had here: is the digit 5 or "
            "more, where 95% of the training digits have the colour of their class; 6,000 digits "
            "of 14 × 14 pixels, an MLP of two hidden layers of 128, 4 members, all in every batch, "
            "8 epochs, 5 seeds. Validation digits (2,000, either colour in each class) are the "
            "disagreement data of A2D and DivDis and choose λ, by accuracy."
        ),
        "paper": "Coloured MNIST, all digits, the CNN of collusion; Waterbirds is not offered.",
    },
)

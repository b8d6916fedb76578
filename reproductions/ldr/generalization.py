"""Generalisation: accuracy under shift (Table 3), and in the worst group (Table 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reproductions.cells import seed_study
from reproductions.comparisons import (
    Larger,
    Quantity,
    Sides,
    cell_values,
    data_title,
    filter_records,
)
from reproductions.experiment import Claim, Experiment, Table, quantity_table
from reproductions.ldr.contenders import FASHION, STUDY, contender_title, run_cell
from reproductions.ldr.records import (
    QuantityOn,
    Side,
    accuracy,
    at_strength,
    choose_runs,
    chosen,
    data_with,
    on_all_parts,
    runs_by_seed,
    score_accuracy,
    soup,
)
from reproductions.study import Record

# ---- shift (Table 3) ----------------------------------------------------------------------------

_METHODS = ("single", "deep-ensemble", "diverse-hyperparameters", "divdis", "a2d", "ldr")
_SHIFTS = ("corrupt1", "corrupt5")

#: How members become one prediction: by name, the accuracy on a part.
_WAYS: dict[str, QuantityOn] = {
    "prediction ensemble": accuracy,
    "averaged logits": score_accuracy,
    "uniform soup": lambda part: soup(part, "uniform"),
    "greedy soup": lambda part: soup(part, "greedy"),
    "oracle selection": lambda part: soup(part, "oracle"),
    "mean member": lambda part: soup(part, "mean_member"),
}


_LDR, _PLAIN = chosen("ldr"), chosen("deep-ensemble")
#: LDR with λ = 0: what the drawing of members does alone.
_DRAWING = at_strength("ldr", 0.0, "LDR with λ = 0")


def _better_under_shift(first: Side, second: Side, way: str, published: str = "") -> Claim:
    """The claim that ``first`` is more accurate on both corruptions."""
    pairs = on_all_parts(first, second, _WAYS[way], lambda runs: _SHIFTS)
    return Claim(
        f"Under shift, the {way} of {first.name} is more accurate than that of {second.name}",
        "Section A.2, Table 3",
        Larger(f"accuracy, {way}", (first.name, second.name), pairs),
        published,
    )


def shift_table(records: list[Record]) -> Table:
    """Table 3 for the labelled shifts at hand."""
    rows = []
    for data in data_with(records, "ldr"):
        contenders = {contender_title(name): choose_runs(records, data, name) for name in _METHODS}
        contenders["LDR, λ = 0"] = _DRAWING.select(records, data)
        for name, runs in contenders.items():
            for way, quantity in _WAYS.items():
                single = name == contender_title("single")
                if runs and not (single and way != "prediction ensemble"):
                    cells = [quantity(part).text(runs) for part in ("test", *_SHIFTS)]
                    rows.append([data_title(data), name, way, *cells])
    header = ["data", "method", "combination", "test", "corruption 1", "corruption 5"]
    return Table(header, rows, labels=3)


GENERALIZATION = Experiment(
    "ldr/generalization",
    "Table 3",
    "Accuracy under shift of averaged predictions, averaged weights and the best member",
    STUDY,
    (
        _better_under_shift(_LDR, _PLAIN, "prediction ensemble", "77.3 > 75.7, 40.7 > 38.6"),
        _better_under_shift(_LDR, _PLAIN, "uniform soup", "77.3 > 75.5, 40.6 > 38.3"),
        _better_under_shift(_DRAWING, _LDR, "prediction ensemble"),
        _better_under_shift(_DRAWING, _PLAIN, "prediction ensemble", "77.3 > 75.7, 40.7 > 38.6"),
    ),
    shift_table,
)


# ---- worst group (Table 8) ----------------------------------------------------------------------

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


_COLORED = {
    "smoke": {
        **_CPU,
        "data": "colored_digits",
        "train": 200,
        "val": 100,
        "test": 200,
        "epochs": 2,
        "model_options": {"hidden": [16]},
    },
    "cpu": _CPU,
    "paper": {
        **_CPU,
        "train": 50_000,
        "val": 10_000,
        "test": 10_000,
        "epochs": 20,
        "model": "cnn",
        "model_options": {"dropout": 0.0},
    },
}

WORST_GROUP_STUDY = seed_study(
    "worst-group",
    {
        scale: {
            f"{method}-strength={strength:g}": {**settings, "method": method, "strength": strength}
            for method, strengths in _STRENGTHS.items()
            for strength in (strengths[-1:] if scale == "smoke" else strengths)
        }
        for scale, settings in _COLORED.items()
    },
    run_cell,
    seeds=(2, 20, 5),
    cost=("5 s", "10 min", "1 h on a GPU"),
)


#: How a group is predicted, as figures call it.
_KINDS = {"ensemble": "ensemble", "oracle": "best member", "mean_member": "mean member"}


def _best_validated(records: list[Record], method: str) -> list[Record]:
    """For each seed the strength whose validation accuracy is best.

    Validation digits have either colour in each class, so that accuracy on them does not reward the
    shortcut.
    """
    return [
        max(runs, key=lambda run: float(run["result"]["parts"]["val"]["accuracy"]))
        for runs in runs_by_seed(filter_records(records, method=method))
    ]


def _worst(kind: str) -> Quantity:
    return Quantity("", lambda record: min(record["result"]["groups"][kind]), "{:.1%}")


def _better_in_worst_group(first: str, second: str, kind: str) -> Larger:
    """A check that the first method has the larger worst-group accuracy."""

    def pairs(records: list[Record]) -> Sides:
        ours, other = (
            _worst(kind).values(_best_validated(records, one)) for one in (first, second)
        )
        return {"coloured digits": (ours, other)}

    names = (contender_title(first), contender_title(second))
    return Larger(f"worst-group accuracy of the {_KINDS[kind]}", names, pairs)


def group_table(records: list[Record]) -> Table:
    """Table 8 and the accuracy over all groups."""
    rows = {}
    for method in _STRENGTHS:
        runs = _best_validated(records, method)
        chosen_at = "/".join(f"{strength:g}" for strength in cell_values(runs, "strength"))
        rows[contender_title(method), chosen_at] = runs
    quantities = [
        replace(accuracy("test"), name="test accuracy"),
        replace(score_accuracy("test"), name="averaged logits"),
        *(replace(_worst(kind), name=f"worst group, {_KINDS[kind]}") for kind in _KINDS),
    ]
    return quantity_table(["method", "λ chosen"], rows, quantities)


WORST_GROUP = Experiment(
    "ldr/worst-group",
    "Table 8",
    "The worst group where training has a shortcut",
    WORST_GROUP_STUDY,
    (
        *(
            Claim(
                "In its worst group, LDR's ensemble is more accurate than that of "
                f"{contender_title(method)}",
                "Section A.10, Table 8",
                _better_in_worst_group("ldr", method, "ensemble"),
                published,
            )
            for method, published in (
                ("deep-ensemble", "80.6 > 72.0 (ERM)"),
                ("divdis", "80.6 > 78.3"),
                ("a2d", "80.6 > 78.3"),
            )
        ),
        Claim(
            "DivDis finds the better single member",
            "Section A.10, Table 8",
            _better_in_worst_group("divdis", "ldr", "oracle"),
            "87.2 > 83.5",
        ),
    ),
    group_table,
)

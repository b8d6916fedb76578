"""Variants of LDR: layers, backbone, two stages, disagreement data, members drawn."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.comparisons import (
    Larger,
    Quantity,
    Sides,
    Within,
    data_title,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.ldr.contenders import STUDY, contender_title
from reproductions.ldr.records import (
    UNKNOWN,
    QuantityOn,
    accuracy,
    at_strength,
    chosen,
    data_with,
    detects_better,
    larger_on_parts,
    on_all_parts,
    pds_auroc,
    quantity_on,
    score_accuracy,
    tabulate,
    unique,
    unknown_sets,
)
from reproductions.study import Record

#: Differences in AUROC or accuracy below this count as none; the paper says "similar", "little".
SIMILAR = 0.01


def _similar(first: str, second: str, quantity: QuantityOn, parts: tuple[str, ...]) -> Within:
    """A check that two contenders differ by less than :data:`SIMILAR`, interval included."""
    pairs = on_all_parts(chosen(first), chosen(second), quantity, lambda runs: parts)

    def differences(records: list[Record]) -> dict[str, list[float]]:
        return {
            case: [float(one[seed] - other[seed]) for seed in sorted(one.keys() & other.keys())]
            for case, (one, other) in pairs(records).items()
        }

    name = f"{quantity('').name}, {contender_title(first)} − {contender_title(second)}"
    return Within(name, differences, -SIMILAR, SIMILAR, "{:+.3f}")


def _tabulate(*names: str) -> Callable[[list[Record]], Table]:
    """AUROC with either score and accuracy of these contenders, where all were run."""
    return tabulate([(name, score) for name in names for score in ("bma", "pds")], *names)


# ---- layers (Table 4) and backbone (Table 5) ----------------------------------------------------

_TWO_LAYERS, _ONE_LAYER = chosen("ldr", "two layers"), chosen("linear-ldr", "one layer")

LAYERS = Experiment(
    "ldr/layers",
    "Table 4",
    "Training the last layer of each member, or the last two",
    STUDY,
    (
        Claim(
            "Two layers detect better than one",
            "Section A.6, Table 4",
            larger_on_parts(_TWO_LAYERS, _ONE_LAYER, pds_auroc),
            "68.1/89.4/97.7/94.1 > 67.7/88.9/96.4/92.8",
        ),
        Claim(
            "Members of one layer differ less",
            "Section A.6",
            larger_on_parts(_TWO_LAYERS, _ONE_LAYER, unique),
        ),
    ),
    _tabulate("linear-deep-ensemble", "linear-ldr", "deep-ensemble", "ldr"),
)

BACKBONE = Experiment(
    "ldr/backbone",
    "Table 5",
    "Linear heads on other frozen networks",
    STUDY,
    tuple(
        detects_better(
            ("linear-ldr", "pds"),
            ("linear-deep-ensemble", score),
            "Section A.7, Table 5",
            f"68.6/86.0/87.3/81.2 > {published}",
        )
        for score, published in (
            ("pds", "64.4/77.4/75.0/76.1"),
            ("bma", "66.4/86.1/86.4/80.1"),
        )
    ),
    _tabulate("linear-deep-ensemble", "linear-ldr"),
)


# ---- two stages (Table 7) and disagreement data (Table 9) ---------------------------------------

TWO_STAGE = Experiment(
    "ldr/two-stage",
    "Table 7",
    "Choosing the rows to disagree on by a first network's confidence, before training",
    STUDY,
    (
        Claim(
            "LDR detects better than the two-stage approach",
            "Section A.9, Table 7",
            larger_on_parts(chosen("ldr"), chosen("two-stage"), pds_auroc),
            "68.6/89.6/97.7/94.1 > 59.7/84.5/96.0/91.1",
        ),
        Claim(
            "Both generalise alike (here: accuracy within one point)",
            "Section A.9, Table 7",
            _similar("two-stage", "ldr", accuracy, ("test", "corrupt1", "corrupt5")),
            "differences up to 0.1 points",
        ),
    ),
    _tabulate("two-stage", "ldr"),
)

DISAGREEMENT_DATA = Experiment(
    "ldr/disagreement-data",
    "Table 9",
    "Which data A2D and DivDis disagree on",
    STUDY,
    tuple(
        Claim(
            f"It hardly matters which data {contender_title(name)} disagrees on (here: by 0.01)",
            "Section A.11, Table 9",
            _similar(f"{name}-other", name, pds_auroc, ("corrupt1", "corrupt5")),
            "differences up to 0.004",
        )
        for name in ("a2d", "divdis")
    ),
    _tabulate("a2d", "a2d-other", "divdis", "divdis-other"),
)


# ---- stochastic sum (Table 10) ------------------------------------------------------------------

#: LDR that trains so many of the five members in a batch, at the same strength.
_DRAWN = {
    members: at_strength(contender, 0.3, f"|I| = {members}")
    for members, contender in ((2, "ldr"), (3, "ldr-3"), (4, "ldr-4"), (5, "ldr-all"))
}


def _epoch_seconds(record: Record) -> float:
    """CPU seconds of one epoch: a training of |I| of M members runs M/|I| times the epochs."""
    cell = record["cell"]
    drawn = cell["active"] or cell["members"]
    times = cell["members"] / drawn if cell["footing"] == "updates" else 1.0
    epochs: int = max(1, round(cell["epochs"] * times))
    return float(record["result"]["training_seconds"]) / epochs


_SECONDS = Quantity("CPU seconds per epoch", _epoch_seconds, "{:.2f}")


def _drawn_table(records: list[Record]) -> Table:
    """Table 10 for five members, λ = 0.3: CPU seconds per epoch, accuracy and AUROC of PDS."""
    rows = []
    for data in data_with(records, "ldr-3"):
        for members, side in _DRAWN.items():
            runs = side.select(records, data)
            accuracies = [accuracy(part).text(runs) for part in ("test", "corrupt1", "corrupt5")]
            accuracies.insert(1, score_accuracy("test").text(runs))
            aurocs = quantity_on(unknown_sets(runs), pds_auroc, runs)
            rows.append([data_title(data), str(members), _SECONDS.text(runs), *accuracies, *aurocs])
    header = ["data", "|I|", "s per epoch", "test", "averaged logits"]
    header += ["corruption 1", "corruption 5"]
    return Table([*header, *UNKNOWN], rows, labels=2)


def _seconds_by_drawn(records: list[Record]) -> Sides:
    pairs = {}
    for data in data_with(records, "ldr-3"):
        all_members, two = (_SECONDS.values(_DRAWN[m].select(records, data)) for m in (5, 2))
        pairs[data_title(data)] = (all_members, two)
    return pairs


STOCHASTIC_SUM = Experiment(
    "ldr/stochastic-sum",
    "Table 10",
    "How many of the five members a batch trains, with the time of an epoch",
    STUDY,
    (
        Claim(
            "An epoch costs more the more members a batch uses",
            "Section A.12, Table 10",
            Larger(
                "CPU seconds per epoch",
                ("all 5 members per batch", "2 of 5"),
                _seconds_by_drawn,
                "{:.2f}",
            ),
            "585 ± 111 s > 53 ± 5 s",
        ),
        Claim(
            "Drawing pairs detects about as well as all members (here: at most 0.02 less)",
            "Sections A.12 and A.13, Table 10",
            larger_on_parts(_DRAWN[2], _DRAWN[5], pds_auroc, margin=-0.02),
            "68.6/89.6/97.7/94.1 and 71.1/90.3/97.0/93.7",
        ),
    ),
    _drawn_table,
)

"""Variants of LDR: layers, backbone, two stages, disagreement data, members drawn."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.ldr.contenders import STUDY, contender_title
from reproductions.ldr.records import (
    QuantityOn,
    accuracy,
    at_strength,
    choose_runs,
    chosen,
    data_with,
    detection_table,
    detects_better,
    larger_on_parts,
    on_all_parts,
    pds_auroc,
    quantity_on,
    score_accuracy,
    unique,
    unknown_sets,
)
from reproductions.old.base import Claim, Experiment, Record, Table
from reproductions.old.comparisons import (
    LargerInAll,
    Pairs,
    Quantity,
    Within,
    data_title,
    pair_values,
)

#: Differences in AUROC or accuracy below this count as none; the paper says "similar", "little".
SIMILAR = 0.01


def _similar(
    first: str, second: str, quantity: QuantityOn, parts: tuple[str, ...], published: str
) -> Within:
    """A check that two contenders differ by less than :data:`SIMILAR`, interval included."""
    cases = on_all_parts(chosen(first), chosen(second), quantity, lambda runs: parts)

    def differences(records: list[Record]) -> dict[str, list[float]]:
        pairs = {case: pair_values(*sides) for case, sides in cases(records).items()}
        return {
            case: [one - other for one, other in zip(*sides, strict=True)]
            for case, sides in pairs.items()
        }

    name = f"{quantity('').name}, {contender_title(first)} − {contender_title(second)}"
    alike = f"alike means within ±{SIMILAR}"
    return Within(f"{name} ({alike})", differences, -SIMILAR, SIMILAR, "{:+.3f}", published)


def _contender_table(*names: str) -> Callable[[list[Record]], Table]:
    """AUROC with either score and accuracy of these contenders, where all were run."""

    def table(records: list[Record]) -> Table:
        return detection_table(
            (data, (name, score), choose_runs(records, data, name))
            for data in data_with(records, *names)
            for name in names
            for score in ("bma", "pds")
        )

    return table


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
            larger_on_parts(
                _TWO_LAYERS,
                _ONE_LAYER,
                pds_auroc,
                "0.681/0.894/0.977/0.941 and 0.677/0.889/0.964/0.928",
            ),
        ),
        Claim(
            "Members of one layer differ less: with cross-entropy their problem is convex",
            "Section A.6",
            larger_on_parts(_TWO_LAYERS, _ONE_LAYER, unique),
        ),
    ),
    None,
    _contender_table("linear-deep-ensemble", "linear-ldr", "deep-ensemble", "ldr"),
)

BACKBONE = Experiment(
    "ldr/backbone",
    "Table 5",
    "Linear heads on other frozen networks",
    STUDY,
    tuple(
        Claim(
            "With the last layer alone, LDR + PDS detects better than a deep ensemble + "
            f"{score.upper()}",
            "Section A.7, Table 5",
            detects_better(
                ("linear-ldr", "pds"),
                ("linear-deep-ensemble", score),
                published,
                ("LDR + PDS", f"deep ensemble + {score.upper()}"),
            ),
        )
        for score, published in (
            ("pds", "68.6/86.0/87.3/81.2 and 64.4/77.4/75.0/76.1"),
            ("bma", "68.6/86.0/87.3/81.2 and 66.4/86.1/86.4/80.1"),
        )
    ),
    None,
    _contender_table("linear-deep-ensemble", "linear-ldr"),
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
            larger_on_parts(
                chosen("ldr"),
                chosen("two-stage"),
                pds_auroc,
                "0.686/0.896/0.977/0.941 and 0.597/0.845/0.960/0.911",
            ),
        ),
        Claim(
            "Both generalise alike (accuracy within one point)",
            "Section A.9, Table 7",
            _similar(
                "two-stage",
                "ldr",
                accuracy,
                ("test", "corrupt1", "corrupt5"),
                "85.2 and 85.3 on val, 77.3 and 77.3 on C-1, 40.7 and 40.6 on C-5",
            ),
        ),
    ),
    None,
    _contender_table("two-stage", "ldr"),
)

DISAGREEMENT_DATA = Experiment(
    "ldr/disagreement-data",
    "Table 9",
    "Which data A2D and DivDis disagree on",
    STUDY,
    tuple(
        Claim(
            f"It hardly matters which data {contender_title(name)} disagrees on (AUROC within one "
            "point on sets from neither of them)",
            "Section A.11, Table 9",
            _similar(
                f"{name}-other",
                name,
                pds_auroc,
                ("corrupt1", "corrupt5"),
                "differences up to 0.004",
            ),
        )
        for name in ("a2d", "divdis")
    ),
    None,
    _contender_table("a2d", "a2d-other", "divdis", "divdis-other"),
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


def drawn_data(records: list[Record]) -> list[str]:
    """The data sets on which batches of several sizes were run."""
    return data_with(records, "ldr-3")


def drawn_table(records: list[Record]) -> Table:
    """Table 10 for five members, λ = 0.3: CPU seconds per epoch, accuracy and AUROC of PDS."""
    rows = []
    for data in drawn_data(records):
        for members, side in _DRAWN.items():
            runs = side.select(records, data)
            accuracies = [accuracy(part).text(runs) for part in ("test", "corrupt1", "corrupt5")]
            accuracies.insert(1, score_accuracy("test").text(runs))
            aurocs = quantity_on(unknown_sets(runs), pds_auroc, runs)
            rows.append([data_title(data), str(members), _SECONDS.text(runs), *accuracies, *aurocs])
    header = ["data", "|I|", "s per epoch", "test", "averaged logits"]
    header += ["corruption 1", "corruption 5"]
    return [*header, "AUROC of PDS", "", "", ""], rows


def _seconds_cases(records: list[Record]) -> Pairs:
    return {
        data_title(data): _SECONDS.sides(*(_DRAWN[m].select(records, data) for m in (5, 2)))
        for data in drawn_data(records)
    }


STOCHASTIC_SUM = Experiment(
    "ldr/stochastic-sum",
    "Table 10",
    "How many of the five members a batch trains, with the time of an epoch",
    STUDY,
    (
        Claim(
            "An epoch costs more the more members a batch uses",
            "Section A.12, Table 10",
            LargerInAll(
                _seconds_cases,
                ("all 5 members per batch", "2 of 5"),
                "CPU seconds per epoch",
                "{:.2f}",
                published="585 ± 111 s and 53 ± 5 s",
            ),
        ),
        Claim(
            "Drawing pairs detects about as well as using all members (at most 0.02 less)",
            "Sections A.12 and A.13, Table 10",
            larger_on_parts(
                _DRAWN[2],
                _DRAWN[5],
                pds_auroc,
                "0.686/0.896/0.977/0.941 and 0.711/0.903/0.970/0.937",
                margin=-0.02,
            ),
        ),
    ),
    None,
    drawn_table,
)

"""Tables 2 and 3: white-box attacks, the paper's and strong ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dissensus.experiments.adp.contenders import CONTENDERS
from dissensus.experiments.adp.ensembles import ENSEMBLES
from dissensus.experiments.adp.judging import (
    FAMILIES,
    GRADIENT,
    Check,
    attack_title,
    family,
    of_families,
    parameter,
    standard_check,
    standard_eps,
    weak_check,
)
from dissensus.experiments.adp.published import gains, published_row
from dissensus.experiments.adp.reading import (
    Bits,
    accuracy_text,
    attack_names,
    by_seed,
    compared,
    contenders_in,
    data_in,
    kept_by,
    pooled,
    rows_of,
    standard_bits,
    title,
)
from dissensus.experiments.adp.settings import ENSEMBLE_SETTING
from dissensus.experiments.base import Claim, Experiment, Finding, Record
from dissensus.experiments.collusion.comparing import CANNOT, all_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["WHITE_BOX"]


# ---- checks -------------------------------------------------------------------------------------


def _overstated(which: int) -> Check:
    """ADP's gain under the paper's PGD against its gain in the worst case, on the same images."""

    def check(records: list[Record]) -> Finding:
        findings = {}
        for data in data_in(records):
            pair = [rows_of(records, data, name) for name in ("adp", "plain")]
            sizes = standard_eps(pair[0])
            if not sizes:
                continue
            eps = sizes[which]
            specs = [s for s in of_families(pair[0], ("pgd",), "weak") if parameter(s) == eps]
            weak = [by_seed(rows, kept_by(specs)) for rows in pair]
            strong = [by_seed(rows, standard_bits(eps)) for rows in pair]
            if not all((*weak, *strong)):
                continue
            gains_ = [_difference(adp, plain, strong[0]) for adp, plain in (weak, strong)]
            words = f"gain of ADP₂,₀.₅ over the baseline at ε = {eps:g}"
            names = ("under the paper's PGD", "in the worst case")
            findings[title(data)] = compared(gains_[0], gains_[1], names, words)
        return all_of(findings)

    return check


def _difference(
    first: dict[int, Bits], second: dict[int, Bits], images: dict[int, Bits]
) -> dict[int, Bits]:
    """First minus second by seed, on the images that the strong attacks were tried on."""
    seeds = set(first) & set(second) & set(images)
    count = {seed: len(images[seed]) for seed in seeds}
    return {s: first[s][: count[s]] - second[s][: count[s]] for s in sorted(seeds)}


def _withstands(records: list[Record]) -> Finding:
    """Whether ADP keeps half of its clean accuracy at the larger ε, on every data set."""
    findings = {}
    for data in data_in(records):
        rows = rows_of(records, data, "adp")
        sizes = standard_eps(rows)
        if not sizes:
            continue
        left = by_seed(rows, standard_bits(sizes[-1]))
        half = {
            record["cell"]["seed"]: np.full(
                len(left[record["cell"]["seed"]]), (1 - record["result"]["clean"]["error"]) / 2
            )
            for record in rows
            if record["cell"]["seed"] in left
        }
        if left:
            names = ("ADP₂,₀.₅ in the worst case", "half of its clean accuracy")
            words = f"ε = {sizes[-1]:g}"
            findings[title(data)] = compared(left, half, names, words)
    return all_of(findings)


def _no_masking(records: list[Record]) -> Finding:
    """The checks that an attack must pass before its failure says anything about a network."""
    runs = [record["result"] for record in records if record["result"].get("standard")]
    if not runs:
        return Finding(CANNOT, "the standard protocol was not run")
    at_half = max(run["at_half"] for run in runs)
    zero = max(found["largest_zero_share"] for run in runs for found in run["standard"])
    nan = sum(found["nan_gradients"] for run in runs for found in run["standard"])
    after, before = 0, 0
    for run in runs:
        for found in run["standard"]:
            left = list(found["left"].values())
            after, before = after + left[-1], before + left[-2]
    sentence = (
        f"over {len(runs)} ensembles: at ε = 0.5 at most {at_half:.1%} are left, at most "
        f"{zero:.1%} of an attack's gradients are 0 and {nan} are not finite, and Square breaks "
        f"{before - after} of the {before} images that gradients left"
    )
    fine = at_half <= 0.05 and zero <= 0.1 and nan == 0 and before - after <= 0.02 * max(before, 50)
    return Finding("holds" if fine else "does not hold", sentence)


def brief(records: list[Record]) -> list[str]:
    """What the paper's attacks say, what the worst case says, and what follows."""
    found = []
    for data in data_in(records):
        pair = [rows_of(records, data, name) for name in ("plain", "adp")]
        parts = []
        for eps in standard_eps(pair[1]):
            specs = [s for s in of_families(pair[1], ("pgd",), "weak") if parameter(s) == eps]
            weak = [pooled(rows, kept_by(specs)) for rows in pair]
            worst = [pooled(rows, standard_bits(eps)) for rows in pair]
            told = [
                f"{100 * before.mean:.0f} → {100 * after.mean:.0f} {words}"
                for (before, after), words in (
                    (weak, "under the paper's PGD"),
                    (worst, "in the worst case"),
                )
                if before is not None and after is not None
            ]
            parts += [f"at ε = {eps:g} " + ", ".join(told)] if told else []
        if parts:
            found.append(f"Accuracy in %, baseline → ADP₂,₀.₅, {title(data)}: {'; '.join(parts)}.")
    fallen = [title(data) for data in data_in(records) if _share_left(records, data) < 0.5]
    if fallen:
        found.append(
            "**ADP is not a white-box defence**: in the worst case at the larger ε it keeps less "
            f"than half of its accuracy on {', '.join(fallen)}."
        )
    return found


def _share_left(records: list[Record], data: str) -> float:
    """ADP's accuracy in the worst case at the largest ε, as a share of that on clean images."""
    rows = rows_of(records, data, "adp")
    sizes = standard_eps(rows)
    if not sizes:
        return 1.0
    worst = pooled(rows, standard_bits(sizes[-1]))
    clean = float(np.mean([1 - row["result"]["clean"]["error"] for row in rows]))
    return 1.0 if worst is None or not clean else worst.mean / clean


# ---- the figure and the table -------------------------------------------------------------------


def draw(records: list[Record]) -> Figure:
    """Accuracy against ε: the paper's PGD beside one that crosses the ball, and the worst case."""
    from dissensus.experiments.drawing import COLORS, MARKERS, add_line, label, new_figure
    from dissensus.experiments.statistics import curve_interval

    drawn = [record for record in records if "curve" in record["result"]]
    sets = data_in(drawn)
    figure, axes = new_figure(1, max(1, len(sets)), width=4.4, height=3.4)
    for panel, data in zip(axes[0], sets, strict=True):
        for number, contender in enumerate(("plain", "adp")):
            rows = rows_of(drawn, data, contender)
            if not rows:
                continue
            eps = rows[0]["cell"]["curve"]["eps"]
            name = CONTENDERS[contender].title
            for kind, style, words in (("weak", "--", "paper's PGD"), ("strong", "-", "PGD-40")):
                curves = np.array([row["result"]["curve"][kind] for row in rows])
                mean, low, high = curve_interval(curves)
                add_line(
                    panel,
                    eps,
                    mean,
                    number,
                    band=(low.clip(0), high.clip(max=1)) if kind == "strong" else None,
                    name=f"{name}, {words}",
                    markers=False,
                    linestyle=style,
                )
            for size in standard_eps(rows):
                bits = by_seed(rows, standard_bits(size)).values()
                worst = float(np.mean([float(one.mean()) for one in bits]))
                mark = MARKERS[number]
                panel.plot([size], [worst], mark, color=COLORS[number], markersize=7.0)
        label(panel, "ε (L∞)", "accuracy", title(data))
        panel.set_ylim(-0.03, 1.03)
    if sets:
        axes[0, 0].legend(loc="lower left", fontsize=7.5, frameon=False)
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Accuracies in %, ours and in round brackets the published ones."""
    everybody = contenders_in(records)
    header = ["data", "attack", *(CONTENDERS[name].title for name in everybody)]
    rows = []
    for data in data_in(records):
        mine = [record for record in records if record["cell"]["data"] == data]
        clean = [_clean_text(rows_of(mine, data, name)) for name in everybody]
        rows.append([title(data), "none", *clean])
        for part in ("weak", "slow"):
            for spec in attack_names(mine, part):
                cells = []
                for name in everybody:
                    text = accuracy_text(rows_of(mine, data, name), kept_by([spec], part))
                    printed = published_row(data, family(spec), parameter(spec), name)
                    if "direction" not in spec and printed is not None:
                        text += f" ({printed})"
                    cells.append(text)
                rows.append([title(data), attack_title(spec), *cells])
        for eps in standard_eps(mine):
            for key, words in (("autoattack", "AutoAttack"), ("right", "**worst case, standard**")):
                read = standard_bits(eps, key)
                cells = [accuracy_text(rows_of(mine, data, name), read) for name in everybody]
                rows.append([title(data), f"{words}, ε = {eps:g}", *cells])
    return header, rows


def _clean_text(rows: Sequence[Record]) -> str:
    values = [1 - record["result"]["clean"]["error"] for record in rows]
    return f"{100 * np.mean(values):.1f}" if values else "–"


# ---- the experiment -----------------------------------------------------------------------------

_WEAK = "Section 4.3, Table 2; the paper's attacks (historical, weak)"
_STRONG = "Section 4.3, Table 2; standard protocol"
_OURS = "our question; standard protocol"

WHITE_BOX = Experiment(
    "white-box",
    "adp",
    "Tables 2 and 3",
    "Accuracy under white-box attacks on the whole ensemble",
    ENSEMBLES,
    (
        *(
            Claim(
                f"Under {FAMILIES[name]}, ADP₂,₀.₅ is more accurate than the baseline",
                _WEAK,
                weak_check(
                    "adp", "plain", (name,), f"accuracy under {FAMILIES[name]}", gains(name)
                ),
            )
            for name in GRADIENT
        ),
        *(
            Claim(
                f"Under {FAMILIES[name]}, ADP₂,₀.₅ is more accurate than the baseline",
                _WEAK,
                weak_check(
                    "adp", "plain", (name,), f"accuracy under {FAMILIES[name]}", gains(name), "slow"
                ),
            )
            for name in ("jsma", "cw", "ead")
        ),
        Claim(
            "The entropy alone helps: ADP₂,₀ is more accurate than the baseline",
            _WEAK,
            weak_check(
                "adp-entropy",
                "plain",
                GRADIENT,
                "accuracy, mean of FGSM, BIM, PGD and MIM",
                f"PGD: {gains('pgd', 'adp-entropy')}",
            ),
        ),
        Claim(
            "The determinant helps beyond it: ADP₂,₀.₅ is more accurate than ADP₂,₀",
            _WEAK,
            weak_check(
                "adp",
                "adp-entropy",
                GRADIENT,
                "accuracy, mean of FGSM, BIM, PGD and MIM",
                f"PGD: {gains('pgd', 'adp', 'adp-entropy')}",
            ),
        ),
        Claim(
            "At the smaller ε, ADP₂,₀.₅ is more accurate than the baseline in the worst case",
            _STRONG,
            standard_check("adp", "plain", 0, "worst case"),
        ),
        Claim(
            "At the larger ε, ADP₂,₀.₅ is more accurate than the baseline in the worst case",
            _STRONG,
            standard_check("adp", "plain", -1, "worst case"),
        ),
        Claim(
            "At the smaller ε, ADP₂,₀.₅ is more accurate than ADP₂,₀ in the worst case",
            _STRONG,
            standard_check("adp", "adp-entropy", 0, "worst case"),
        ),
        Claim(
            "ADP₂,₀.₅ withstands white-box attacks: at the larger ε it keeps at least half of its "
            "accuracy on clean images",
            _OURS,
            _withstands,
        ),
        Claim(
            "The paper's PGD overstates ADP's gain, at the smaller ε",
            _OURS,
            _overstated(0),
        ),
        Claim(
            "The paper's PGD overstates ADP's gain, at the larger ε",
            _OURS,
            _overstated(-1),
        ),
        Claim(
            "ADP₂,₀.₅ gains more than label smoothing with the F_y of Eq. 7, under the paper's "
            "attacks",
            "our question; the paper's attacks (historical, weak)",
            weak_check(
                "adp", "smoothed", GRADIENT, "accuracy, mean of FGSM, BIM, PGD and MIM", None
            ),
        ),
        Claim(
            "ADP₂,₀.₅ gains more than label smoothing with the F_y of Eq. 7, at the smaller ε",
            _OURS,
            standard_check("adp", "smoothed", 0, "worst case"),
        ),
        Claim(
            "A plain ensemble is more robust than a single network, at the smaller ε",
            _OURS,
            standard_check("plain", "single", 0, "worst case"),
        ),
        Claim(
            "The strong attacks can be trusted: no sign of masked gradients",
            "our check",
            _no_masking,
        ),
    ),
    draw,
    table,
    ENSEMBLE_SETTING,
    brief,
)

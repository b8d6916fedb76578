"""The paper's own setting, made to order: training data from (1 − ε) P + ε Q (Theorem 2).

P is Fashion-MNIST and Q is KMNIST with random labels; disagreement is then measured on KMNIST
images that were not planted, on test images of P, and on the training rows of highest loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from dissensus.papers.base import Cell, Claim, Experiment, Finding, Record, Study
from dissensus.papers.cells import SEEDS_OPTION, seeds_of
from dissensus.papers.comparisons import where
from dissensus.papers.ldr.cells import FASHION, SMOKE, ldr_cell
from dissensus.papers.ldr.measuring import measure, outputs_of
from dissensus.papers.ldr.methods import train_ensemble
from dissensus.papers.ldr.reading import Runs, Value, accuracy, auroc, compare_sets, shown
from dissensus.papers.ldr.settings import load_setting
from dissensus.papers.statistics import mean_interval, paired_difference
from dissensus.scores import disagreement, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "STUDY", "high_loss_facts"]

#: H of Theorem 2: this share of the training rows, those with the highest loss.
HIGH_LOSS = 0.05

_SHARES = (0.0, 0.01, 0.05)
_STRENGTHS = (0.1, 0.3, 1.0)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every ε with a deep ensemble and with LDR at each strength."""
    settings = dict(SMOKE if scale == "smoke" else FASHION)
    if scale == "paper":
        settings |= {"train": 50_000, "val": 10_000, "test": 10_000, "epochs": 20}
    shares = (0.0, 0.05) if scale == "smoke" else _SHARES
    strengths = (0.3,) if scale == "smoke" else _STRENGTHS
    found = []
    for seed in seeds_of(options, {"smoke": 2, "cpu": 3, "paper": 5}[scale]):
        for share in shares:
            common = {**settings, "planted": share, "seed": seed}
            name = f"planted={share:g}"
            found.append(ldr_cell(f"{name}-deep-ensemble-seed={seed}", common))
            found += [
                ldr_cell(
                    f"{name}-ldr-strength={strength:g}-seed={seed}",
                    common,
                    method="ldr",
                    strength=strength,
                )
                for strength in strengths
            ]
    return found


def run(cell: Cell) -> dict[str, Any]:
    """Train, measure, and look at the training rows of highest loss."""
    setting = load_setting(cell)
    ens = train_ensemble(cell, setting)
    outputs = partial(outputs_of, ens)
    result = measure(outputs, setting)
    seen = outputs(setting.train[0])
    result["high_loss"] = high_loss_facts(seen, setting.train[1], setting.planted)
    groups = {"test": setting.test[0], **{name: x for name, (x, _) in setting.unknown.items()}}
    result["any_disagreement"] = {name: _any(outputs(x)) for name, x in groups.items()}
    return result


def high_loss_facts(logits: Tensor, y: Tensor, planted: Tensor | None) -> dict[str, float]:
    """δ_H, the pairwise disagreement on H, and how much of H is planted (Assumption 4's ρ).

    The loss is ``Σ_m −log p_y^m``, as in Theorem 2.
    """
    repeated = y.expand(len(logits), -1)
    loss = functional.cross_entropy(logits.transpose(1, 2), repeated, reduction="none").sum(0)
    hardest = loss.argsort(descending=True)[: max(1, round(HIGH_LOSS * len(y)))]
    on_hardest = logits[:, hardest]
    facts = {
        "delta": float(disagreement(on_hardest).double().mean()),
        "least_loss": float(loss[hardest].min()),
        "rest_delta": float(disagreement(logits).double().mean()),
    }
    if planted is not None:
        disagreed = unique(on_hardest) > 1
        facts["planted_share"] = float(planted[hardest].double().mean())
        facts["rho"] = (
            float(planted[hardest][disagreed].double().mean()) if disagreed.any() else 0.0
        )
        facts["planted_found"] = float(planted[hardest].sum() / planted.sum())
    return facts


def _any(logits: Tensor) -> float:
    """``Pr[J(x) = 1]``: the share of inputs on which some two members differ."""
    return float((unique(logits) > 1).double().mean())


STUDY = Study(
    "planted",
    cells,
    run,
    jobs=2,
    options=SEEDS_OPTION,
    cost={"smoke": "5 s", "cpu": "10 min", "paper": "1 h on a GPU"},
)


# ---- claims -------------------------------------------------------------------------------------


def _runs(records: list[Record], share: float, strength: float | None) -> Runs:
    """LDR at a strength, or the deep ensemble (None), with a planted share; by seed."""
    if strength is None:
        found = where(records, planted=share, method="deep-ensemble")
    else:
        found = where(records, planted=share, method="ldr", strength=strength)
    return {record["cell"]["seed"]: record for record in found}


def _strengths_in(records: list[Record]) -> list[float]:
    return sorted({record["cell"]["strength"] for record in where(records, method="ldr")})


def _shares_in(records: list[Record]) -> list[float]:
    return sorted({record["cell"]["planted"] for record in records})


def _stranger(records: list[Record]) -> str:
    """The unknown set that planted rows come from."""
    return "kmnist" if "kmnist" in records[0]["result"]["auroc"] else "negative"


def _any_on(name: str) -> Value:
    return lambda record: float(record["result"]["any_disagreement"][name])


def _fact(name: str) -> Value:
    return lambda record: float(record["result"]["high_loss"][name])


def _against_plain(value: Value, quantity: str, *, form: str = "{:.3f}") -> Any:
    """A check that ``value`` is larger for LDR than for a deep ensemble, for every ε and λ."""

    def check(records: list[Record]) -> Finding:
        pairs = {
            f"ε = {share:g}, λ = {strength:g}": (
                _runs(records, share, strength),
                value,
                _runs(records, share, None),
                value,
            )
            for share in _shares_in(records)
            for strength in _strengths_in(records)
        }
        return compare_sets(pairs, ("LDR", "deep ensemble"), quantity, form=form)

    return check


def _any_on_stranger(records: list[Record]) -> Finding:
    value = _any_on(_stranger(records))
    return _against_plain(value, "Pr[J = 1] on Q")(records)  # type: ignore[no-any-return]


def _more_on_stranger(records: list[Record]) -> Finding:
    """The gain on Q against the gain on P."""
    name = _stranger(records)
    pairs = {}
    for share in _shares_in(records):
        plain = _runs(records, share, None)
        for strength in _strengths_in(records):
            runs = _runs(records, share, strength)

            def gain(at: str, plain: Runs = plain) -> Value:
                value = _any_on(at)
                return lambda record: value(record) - value(plain[record["cell"]["seed"]])

            pairs[f"ε = {share:g}, λ = {strength:g}"] = (runs, gain(name), runs, gain("test"))
    return compare_sets(pairs, ("on Q", "on P"), "gain of Pr[J = 1] over a deep ensemble")


def _detects(records: list[Record]) -> Finding:
    value = auroc(_stranger(records), "pds")
    return _against_plain(value, "AUROC of PDS on Q")(records)  # type: ignore[no-any-return]


def _planting_helps(records: list[Record]) -> Finding:
    """With planted rows LDR detects Q better than without."""
    shares = _shares_in(records)
    value = auroc(_stranger(records), "pds")
    pairs = {
        f"λ = {strength:g}": (
            _runs(records, shares[-1], strength),
            value,
            _runs(records, 0.0, strength),
            value,
        )
        for strength in _strengths_in(records)
    }
    names = (f"ε = {shares[-1]:g}", "ε = 0")
    return compare_sets(pairs, names, "AUROC of PDS on Q, LDR")


def _enriched(records: list[Record]) -> Finding:
    """Rows of Q are more frequent among the rows of high loss than in the training data."""
    pairs = {}
    for share in [share for share in _shares_in(records) if share > 0]:
        for strength in (None, *_strengths_in(records)):
            runs = _runs(records, share, strength)
            name = "deep ensemble" if strength is None else f"λ = {strength:g}"

            def planted(record: Record) -> float:
                return float(record["cell"]["planted"])

            pairs[f"ε = {share:g}, {name}"] = (runs, _fact("planted_share"), runs, planted)
    return compare_sets(pairs, ("among high-loss rows", "in training"), "share of planted rows")


def draw(records: list[Record]) -> Figure:
    """δ_H against Pr[J = 1] on Q and on P, and the AUROC of PDS on Q against ε."""
    from dissensus.plots.style import COLORS, MARKERS, add_line, label, new_figure

    name = _stranger(records)
    figure, axes = new_figure(1, 3, width=3.6, height=3.0)
    strengths: list[float | None] = [None, *_strengths_in(records)]
    for number, strength in enumerate(strengths):
        title = "deep ensemble" if strength is None else f"LDR, λ = {strength:g}"
        for panel, at in ((axes[0, 0], name), (axes[0, 1], "test")):
            for share in _shares_in(records):
                runs = list(_runs(records, share, strength).values())
                panel.scatter(
                    [_fact("delta")(record) for record in runs],
                    [_any_on(at)(record) for record in runs],
                    s=16,
                    color=COLORS[number],
                    marker=MARKERS[_shares_in(records).index(share)],
                    label=title if not share else None,
                )
        shares = _shares_in(records)
        means = [
            mean_interval([auroc(name, "pds")(r) for r in _runs(records, share, strength).values()])
            for share in shares
        ]
        add_line(axes[0, 2], shares, [found.mean for found in means], number, name=title)
    label(
        axes[0, 0], "δ_H: disagreement on high-loss rows", "Pr[J = 1] on Q", "unknown", legend=True
    )
    label(axes[0, 1], "δ_H", "Pr[J = 1] on P", "test")
    label(axes[0, 2], "ε: share of Q in training", "AUROC of PDS on Q")
    return figure


def table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """The quantities of Theorem 2 for each ε and method."""
    name = _stranger(records)
    rows = []
    for share in _shares_in(records):
        for strength in (None, *_strengths_in(records)):
            runs = _runs(records, share, strength)
            enriched = [
                shown(runs, _fact(key), "{:.2f}") if share else "–"
                for key in ("planted_share", "rho")
            ]
            rows.append(
                [
                    f"{share:g}",
                    "deep ensemble" if strength is None else f"LDR, λ = {strength:g}",
                    shown(runs, accuracy("test"), "{:.1%}"),
                    shown(runs, _fact("delta"), "{:.2f}"),
                    *enriched,
                    shown(runs, _any_on(name), "{:.2f}"),
                    shown(runs, _any_on("test"), "{:.2f}"),
                    shown(runs, auroc(name, "pds")),
                ]
            )
    head = ["ε", "method", "test accuracy", "δ_H", "planted share of H", "ρ"]
    return [*head, "Pr[J = 1] on Q", "on P", "AUROC of PDS on Q"], rows


def brief(records: list[Record]) -> list[str]:
    """What a planted share of the unknown changes, at the strength that serves best without one."""
    value = auroc(_stranger(records), "pds")

    def mean(share: float, strength: float | None) -> float:
        return float(
            np.mean([value(record) for record in _runs(records, share, strength).values()])
        )

    best = max(_strengths_in(records), key=lambda strength: mean(0.0, strength))
    words = []
    for share in _shares_in(records):
        runs, rival = _runs(records, share, best), _runs(records, share, None)
        seeds = sorted(set(runs) & set(rival))
        gain = paired_difference([value(runs[s]) for s in seeds], [value(rival[s]) for s in seeds])
        words.append(f"ε = {share:g}: {mean(share, best):.3f}, {gain.shown('{:+.3f}')}")
    return [
        "With a share ε of the unknown planted in the training data, AUROC of LDR + PDS on Q, and "
        f"its difference from a deep ensemble's + PDS (λ = {best:g}): {'; '.join(words)}."
    ]


EXPERIMENT = Experiment(
    "planted",
    "ldr",
    "Theorem 2",
    "Disagreement on high-loss rows and on Q, with a planted share of Q in the training data",
    STUDY,
    (
        Claim(
            "Disagreement on high-loss training samples raises disagreement on Q",
            "Theorem 2",
            _any_on_stranger,
        ),
        Claim(
            "It raises disagreement on Q more than on P, so that it can tell them apart",
            "Section A.4",
            _more_on_stranger,
        ),
        Claim("So Q is detected better than by a deep ensemble", "Sections 3.3 and A.4", _detects),
        Claim(
            "High-loss training samples are enriched with samples of Q",
            "Section A.4.2, Assumptions 3 and 4",
            _enriched,
        ),
        Claim(
            "LDR detects Q better when Q is in the training data",
            "Section 3.3: “the necessary OOD-like samples are already present”",
            _planting_helps,
        ),
    ),
    draw,
    table,
    {
        "smoke": "Digits with 5% negatives planted, 2 seeds: no claim can show.",
        "cpu": (
            "P is Fashion-MNIST (6,000 training images, settings of `detection`), Q is KMNIST: ε "
            "of the training rows are replaced by KMNIST images with random labels, and 2,000 "
            "others are tested on. H are the 5% of training rows with the highest summed loss "
            "after training. 3 seeds."
        ),
        "paper": "The same with 50,000 images and 20 epochs.",
    },
    brief,
)

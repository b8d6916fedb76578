"""Planted data, the paper's own setting made to order: training data from (1 − ε) P + ε Q.

P is Fashion-MNIST and Q is KMNIST with random labels; disagreement is then measured on KMNIST
images that were not planted, on test images of P, and on the training rows of highest loss
(Theorem 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from dissensus.scores import disagreement, unique
from reproductions.cells import Variants, seed_study
from reproductions.comparisons import (
    Larger,
    Quantity,
    Sides,
    at,
    cell_values,
    filter_records,
)
from reproductions.experiment import Claim, Experiment, Table, quantity_table
from reproductions.ldr.contenders import FASHION, SMOKE
from reproductions.ldr.data import load_data
from reproductions.ldr.measurements import measure, outputs_of
from reproductions.ldr.methods import train_ensemble
from reproductions.ldr.records import QuantityOn, accuracy, pds_auroc, score_accuracy
from reproductions.study import Cell, Record

#: H of Theorem 2: this share of the training rows, those with the highest loss.
HIGH_LOSS = 0.05

_SHARES = (0.0, 0.01, 0.05)
_STRENGTHS = (0.1, 0.3, 1.0)


def _variants(
    settings: Mapping[str, Any],
    shares: Sequence[float] = _SHARES,
    strengths: Sequence[float] = _STRENGTHS,
) -> Variants:
    """Every ε with a deep ensemble and with LDR at each strength."""
    variants = {}
    for share in shares:
        name, common = f"planted={share:g}", {**settings, "planted": share}
        variants[f"{name}-deep-ensemble"] = common
        for strength in strengths:
            ldr = {**common, "method": "ldr", "strength": strength}
            variants[f"{name}-ldr-strength={strength:g}"] = ldr
    return variants


def run(cell: Cell) -> dict[str, Any]:
    """Train, measure, and look at the training rows of highest loss."""
    data = load_data(cell)
    ens = train_ensemble(cell, data)
    outputs = partial(outputs_of, ens)
    result = measure(outputs, data)
    seen = outputs(data.train[0])
    result["high_loss"] = high_loss_disagreement(seen, data.train[1], data.planted)
    groups = {"test": data.test[0], **{name: x for name, (x, _) in data.unknown.items()}}
    result["any_disagreement"] = {name: _any(outputs(x)) for name, x in groups.items()}
    return result


def high_loss_disagreement(logits: Tensor, y: Tensor, planted: Tensor | None) -> dict[str, float]:
    """δ_H, the pairwise disagreement on H, and how much of H is planted (Assumption 4's ρ).

    The loss is ``Σ_m −log p_y^m``, as in Theorem 2.
    """
    repeated = y.expand(len(logits), -1)
    loss = functional.cross_entropy(logits.transpose(1, 2), repeated, reduction="none").sum(0)
    hardest = loss.argsort(descending=True)[: max(1, round(HIGH_LOSS * len(y)))]
    on_hardest = logits[:, hardest]
    numbers = {
        "delta": float(disagreement(on_hardest).double().mean()),
        "least_loss": float(loss[hardest].min()),
        "rest_delta": float(disagreement(logits).double().mean()),
    }
    if planted is not None:
        disagreed = unique(on_hardest) > 1
        numbers["planted_share"] = float(planted[hardest].double().mean())
        numbers["rho"] = (
            float(planted[hardest][disagreed].double().mean()) if disagreed.any() else 0.0
        )
        numbers["planted_found"] = float(planted[hardest].sum() / planted.sum())
    return numbers


def _any(logits: Tensor) -> float:
    """``Pr[J(x) = 1]``: the share of inputs on which some two members differ."""
    return float((unique(logits) > 1).double().mean())


_LARGE = {"train": 50_000, "val": 10_000, "test": 10_000, "epochs": 20}

STUDY = seed_study(
    "planted",
    {
        "smoke": _variants(SMOKE, (0.0, 0.05), (0.3,)),
        "cpu": _variants(FASHION),
        "paper": _variants({**FASHION, **_LARGE}),
    },
    run,
    seeds=(2, 10, 5),
    cost=("5 s", "1 h", "1 h on a GPU"),
)


# ---- quantities and runs ------------------------------------------------------------------------


def _any_on(part: str) -> Quantity:
    """``Pr[J(x) = 1]`` on a part."""
    return Quantity(f"Pr[J = 1] on {part}", at("any_disagreement", part), "{:.2f}")


_ON_P = replace(_any_on("test"), name="Pr[J = 1] on P")
_DELTA = Quantity("δ_H", at("high_loss", "delta"), "{:.2f}")
_PLANTED = Quantity("planted share of H", at("high_loss", "planted_share"), "{:.2f}")
_RHO = Quantity("ρ", at("high_loss", "rho"), "{:.2f}")


def _stranger(records: list[Record]) -> str:
    """Q: the unknown set that planted rows come from."""
    return "kmnist" if "kmnist" in records[0]["result"]["auroc"] else "negative"


def _runs(records: list[Record], share: float, strength: float) -> list[Record]:
    """LDR at a strength, or the deep ensemble (0), with a planted share."""
    return filter_records(records, planted=share, strength=strength)


def _cases(records: list[Record]) -> list[tuple[str, float, float]]:
    """Every ε and λ, the deep ensemble first: its name, ε and λ."""
    return [
        (f"ε = {share:g}, {f'λ = {strength:g}' if strength else 'deep ensemble'}", share, strength)
        for share in cell_values(records, "planted")
        for strength in cell_values(records, "strength")
    ]


# ---- claims and table ---------------------------------------------------------------------------


def _larger_with_ldr(quantity: QuantityOn, name: str) -> Larger:
    """A check that a quantity on Q is larger for LDR than for a deep ensemble, at every ε and λ."""

    def pairs(records: list[Record]) -> Sides:
        of = quantity(_stranger(records))
        return {
            case: (
                of.values(_runs(records, share, strength)),
                of.values(_runs(records, share, 0.0)),
            )
            for case, share, strength in _cases(records)
            if strength
        }

    return Larger(name, ("LDR", "deep ensemble"), pairs)


def _gains(records: list[Record]) -> Sides:
    """The gain of Pr[J = 1] over a deep ensemble, on Q and on P."""
    on_q, cases = _any_on(_stranger(records)), {}
    for case, share, strength in _cases(records):
        if strength:
            ldr, plain = (_runs(records, share, one) for one in (strength, 0.0))
            cases[case] = (on_q.differences(ldr, plain), _ON_P.differences(ldr, plain))
    return cases


def _with_and_without(records: list[Record]) -> Sides:
    """LDR's AUROC on Q with the largest planted share and with none."""
    pds, most = pds_auroc(_stranger(records)), cell_values(records, "planted")[-1]
    return {
        f"λ = {strength:g}": (
            pds.values(_runs(records, most, strength)),
            pds.values(_runs(records, 0.0, strength)),
        )
        for strength in filter(None, cell_values(records, "strength"))
    }


def _enrichment(records: list[Record]) -> Sides:
    """The share of planted rows among those of high loss, and in the training data."""
    sides = {}
    for case, share, strength in _cases(records):
        if share:
            among = _PLANTED.values(_runs(records, share, strength))
            sides[case] = (among, dict.fromkeys(among, share))
    return sides


def table(records: list[Record]) -> Table:
    """The quantities of Theorem 2 for each ε and method."""
    stranger = _stranger(records)
    rows = {(case,): _runs(records, share, one) for case, share, one in _cases(records)}
    quantities = (
        replace(accuracy("test"), name="test accuracy"),
        replace(score_accuracy("test"), name="averaged logits"),
        *(_DELTA, _PLANTED, _RHO, replace(_any_on(stranger), name="Pr[J = 1] on Q"), _ON_P),
        replace(pds_auroc(stranger), name="AUROC of PDS on Q"),
    )
    return quantity_table(["setting"], rows, quantities)


EXPERIMENT = Experiment(
    "ldr/planted",
    "Theorem 2",
    "Disagreement on high-loss rows and on Q, with a planted share of Q in the training data",
    STUDY,
    (
        Claim(
            "Disagreement on high-loss training samples raises disagreement on Q",
            "Theorem 2",
            _larger_with_ldr(_any_on, "Pr[J = 1] on Q"),
        ),
        Claim(
            "It raises disagreement on Q more than on P",
            "Section A.4",
            Larger("gain of Pr[J = 1] over a deep ensemble", ("on Q", "on P"), _gains),
        ),
        Claim(
            "LDR therefore detects Q better than a deep ensemble does",
            "Sections 3.3 and A.4",
            _larger_with_ldr(pds_auroc, "AUROC of PDS on Q"),
        ),
        Claim(
            "High-loss training samples are enriched with samples of Q",
            "Section A.4.2, Assumptions 3 and 4",
            Larger("share of planted rows", ("among high-loss rows", "in training"), _enrichment),
        ),
        Claim(
            "LDR detects Q better when Q is in the training data",
            "Section 3.3",
            Larger("AUROC of PDS on Q, LDR", ("largest ε", "ε = 0"), _with_and_without),
        ),
    ),
    table,
)

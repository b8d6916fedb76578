"""Image cells: one training of an ensemble, and its quantities against β.

Every image study is made of these cells. The paper's settings (Appendix B) are in
:data:`PAPER_SWEEP`; a study changes what differs in it. The sweeps share checks, a table and a
figure over β.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from dissensus.decomposition import decompose
from dissensus.ensemble import Ensemble
from dissensus.objectives import Augmented, LearnerDropout, Objective
from dissensus.outputs import combined_log_probs
from dissensus.training import History, fit, predict
from reproductions.cells import (
    Variants,
    augmentation,
    load_images,
    new_ensemble,
    rates_of_mean,
    recipe,
    seed_study,
)
from reproductions.comparisons import (
    Check,
    Finding,
    Groups,
    Larger,
    Quantity,
    Runs,
    at,
    cell_values,
    larger,
    pooled,
)
from reproductions.experiment import Claim, Table, quantity_table
from reproductions.figures import Panel, Plot
from reproductions.statistics import CANNOT
from reproductions.study import Cell, Record, Study

BETAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: The two ends of β, for studies of these alone.
KINDS = Runs("independent", {"beta": 0.0}), Runs("joint", {"beta": 1.0})

#: Where the small networks are, for the ``model`` of a cell.
NETWORKS = "reproductions.networks"

_SGD = "sgd:lr=0.1,momentum=0.9,weight_decay=5e-4"

#: Appendix B, "Practical Implications": the settings of Figures 6 (left), 13, 14, 16, 17 and 18.
#: As in the authors' script, the optimiser of a cell is for the mean over members.
PAPER_SWEEP: Mapping[str, Any] = {
    "data": "cifar10",
    "train": None,
    "val": 0.2,
    "test": None,
    "size": None,
    "model": "resnet18",
    "model_options": {},
    "members": 5,
    "combine": "probability",
    "beta": 0.0,
    "drop": 0.0,
    "optimizer": _SGD,
    "schedule": "multistep:at=30/50/70,factor=0.2",
    "epochs": 80,
    "batch_size": 128,
    "augment": "collusion",
    "patience": None,
    "watch": 0,
    "seed": 0,
}

#: What two cores can train: 2,500 images of CIFAR-10 and a ResNet of two blocks. In a training this
#: short the paper's 0.1 is meant for one member's loss, and times the members for their mean. Both
#: ends of the sweep have a lower validation loss with it than with 0.1 for the mean.
CPU: Mapping[str, Any] = {
    **PAPER_SWEEP,
    "train": 2500,
    "val": 1000,
    "test": 5000,
    "model": f"{NETWORKS}:small_resnet",
    "model_options": {"width": 16, "stages": [1, 1], "stem": 4},
    "optimizer": "sgd:lr=0.5,momentum=0.9,weight_decay=5e-4",
    "schedule": "multistep:at=7/10,factor=0.2",
    "epochs": 12,
    "batch_size": 64,
    "augment": "none",
}

#: A few steps on the digits of scikit-learn, to see that everything works.
SMOKE: Mapping[str, Any] = {
    **PAPER_SWEEP,
    "data": "digits",
    "train": 256,
    "val": 100,
    "test": 200,
    "model": f"{NETWORKS}:small_resnet",
    "model_options": {"width": 4, "stages": [1], "stem": 2},
    "members": 3,
    "optimizer": "adam:lr=5e-3",
    "schedule": "constant",
    "epochs": 2,
    "batch_size": 64,
    "augment": "none",
}


# ---- cells --------------------------------------------------------------------------------------

#: Names of sweeps, with the settings of each and the β it goes through.
Plan = Mapping[str, tuple[Mapping[str, Any], Sequence[float]]]


def beta_variants(plan: Plan) -> Variants:
    """The settings for each sweep and β."""
    return {
        f"{name}-beta={beta:g}": {**settings, "beta": beta}
        for name, (settings, betas) in plan.items()
        for beta in betas
    }


def beta_study(name: str, plans: Mapping[str, Plan], **scales: Any) -> Study:
    """A study of sweeps over β; ``scales`` are the seeds and the cost of each scale."""
    variants = {scale: beta_variants(plan) for scale, plan in plans.items()}
    return seed_study(name, variants, run_image_cell, **scales)


def kind_variants(plan: Variants) -> Variants:
    """Independent and joint training with each of the settings."""
    return {
        f"{name}-{kind.name}": {**settings, **kind.settings}
        for name, settings in plan.items()
        for kind in KINDS
    }


def run_image_cell(cell: Cell) -> dict[str, Any]:
    """Train one ensemble and measure it at the epoch with the least validation ERR.

    Without validation data (``val`` 0) the last epoch is measured, as for the generalisation gap.
    ``watch`` measures training and test data after every so many epochs, for the curves.
    """
    data = load_images(cell)
    ens = new_ensemble(cell, data, combine=cell["combine"])
    objective, curve = _objective(cell), list[dict[str, Any]]()
    active = objective.sample_members(cell["members"]) or range(cell["members"])

    def watch(record: dict[str, Any], trained: Ensemble) -> None:
        epoch, every = record["epoch"], cell["watch"]
        if every and (epoch % every == 0 or epoch in (1, cell["epochs"])):
            both = {part: _measure(trained, getattr(data, part)) for part in ("train", "test")}
            curve.append({"epoch": epoch, **both})

    history = fit(
        ens,
        data.train,
        objective,
        val=data.val,
        augment=augmentation(cell),
        callbacks=[watch],
        progress=False,
        recipe=recipe(
            cell,
            patience=cell["patience"],
            optimizer=rates_of_mean(cell["optimizer"], len(active)),
        ),
    )
    result: dict[str, Any] = {
        "best_epoch": history.best_epoch if data.val is not None else len(history.epochs),
        "epochs": len(history.epochs),
        "parameters": sum(p.numel() for p in ens.member(0).parameters()),
        **{part: _measure(ens, getattr(data, part)) for part in data.measured},
    }
    if curve:
        result["watched"] = columns(curve)
    if data.val is not None:
        result["validation"] = _validation_curve(history)
    return result


def _objective(cell: Cell) -> Objective:
    """``L^β`` (Eq. 2), of the members that a draw leaves if ``drop`` is above 0 (G.7)."""
    objective = Augmented(beta=cell["beta"], combine=cell["combine"])
    return LearnerDropout(drop=cell["drop"], objective=objective) if cell["drop"] else objective


# ---- measuring ----------------------------------------------------------------------------------


def _measure(ens: Ensemble, part: Any) -> dict[str, Any]:
    predictions = predict(ens, part)
    assert predictions.targets is not None  # every part is labelled
    return measure(predictions.outputs, predictions.targets, ens.combine)


def measure(logits: Tensor, targets: Tensor, combine: str) -> dict[str, Any]:
    """ERR, mean ERR and DIV (cross-entropy), top-1 and top-5 accuracy, each member's accuracy."""
    split = decompose(logits, targets, "cross_entropy", combine)
    ranked = combined_log_probs(logits, combine).topk(min(5, logits.shape[-1]))
    hits = ranked.indices == targets[:, None]
    own = (logits.argmax(-1) == targets).double().mean(-1)
    return {
        "error": float(split.ensemble_error),
        "member_error": float(split.member_error),
        "diversity": float(split.diversity),
        "accuracy": float(hits[:, 0].double().mean()),
        "top5": float(hits.any(-1).double().mean()),
        "member_accuracies": own.tolist(),
    }


def columns(curve: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Measurements of epochs as one short list for each quantity: ``{"train_error": […], …}``."""
    table: dict[str, Any] = {"epoch": [point["epoch"] for point in curve]}
    for part in ("train", "test"):
        for key in ("error", "member_error", "accuracy"):
            table[f"{part}_{key}"] = [_short(point[part][key]) for point in curve]
        own = [np.mean(point[part]["member_accuracies"]) for point in curve]
        table[f"{part}_member_accuracy"] = [_short(float(accuracy)) for accuracy in own]
    return table


def _validation_curve(history: History) -> dict[str, Any]:
    """ERR, mean ERR and accuracies on validation data after each epoch."""
    members = [_short(float(np.mean(a))) for a in history.column("val/per_member_accuracy")]
    columns = {"error": "ensemble_error", "member_error": "member_error", "accuracy": "accuracy"}
    return {
        **{key: list(map(_short, history.column(f"val/{name}"))) for key, name in columns.items()},
        "member_accuracy": members,
    }


def _short(value: float) -> float:
    """Four digits are more than a curve can show."""
    return float(f"{value:.4g}")


# ---- quantities against β ----------------------------------------------------------------------

#: The quantities of a run on test data.
QUANTITIES = {
    "accuracy": Quantity("test accuracy", at("test", "accuracy"), "{:.1%}"),
    "top5": Quantity("top-5 test accuracy", at("test", "top5"), "{:.1%}"),
    "member_accuracy": Quantity(
        "test accuracy of a member", at("test", "member_accuracies"), "{:.1%}"
    ),
    "error": Quantity("test ERR", at("test", "error")),
    "member_error": Quantity("mean test ERR of members", at("test", "member_error")),
    "diversity": Quantity("test DIV", at("test", "diversity")),
}


def at_beta(beta: float) -> Runs:
    """The runs at one β."""
    return Runs(f"β = {beta:g}", {"beta": beta})


INDEPENDENT, JOINT = at_beta(0.0), at_beta(1.0)


# ---- claims -------------------------------------------------------------------------------------


def independent_larger(key: str, groups: Groups) -> Larger:
    """A check that a quantity is larger with independent than with joint training."""
    return larger(QUANTITIES[key], INDEPENDENT, JOINT, groups)


def in_each(check: Check, groups: Groups) -> Check:
    """A check of every group: holds if ``check`` holds in each."""
    return lambda records: pooled({name: check(runs) for name, runs in groups(records).items()})


def joint_worst(key: str) -> Check:
    """A check that β = 1 is worse than every other β, by the one that comes nearest to it."""

    def check(records: list[Record]) -> Finding:
        findings = []
        for other in (at_beta(beta) for beta in cell_values(records, "beta") if beta != 1):
            pair = (JOINT, other) if key == "error" else (other, JOINT)
            findings.append(larger(QUANTITIES[key], *pair)(records))
        if not findings or not all(finding.effects for finding in findings):
            return Finding(CANNOT, "β = 1 alone was run")
        return min(findings, key=lambda one: one.effects[""].estimate.low)

    return check


def late_drop(records: list[Record]) -> Finding:
    """Whether accuracy falls more from the last β below 1 to 1 than from 0 to there."""
    below = [beta for beta in cell_values(records, "beta") if 0 < beta < 1]
    if not below:
        return Finding(CANNOT, "no β between 0 and 1 was run")
    quantity, near = QUANTITIES["accuracy"], below[-1]
    first, middle, last = (at_beta(beta).of(records) for beta in (0.0, near, 1.0))
    sides = {"": (quantity.differences(middle, last), quantity.differences(first, middle))}
    names = (f"from β = {near:g} to 1", f"from 0 to {near:g}")
    return Larger(f"fall of {quantity.name}", names, lambda _: sides, quantity.form)(records)


#: What several experiments claim of joint training: in words, and the check of their groups.
_CLAIMS: Mapping[str, tuple[str, Callable[[Groups], Check]]] = {
    "less accurate": (
        "Joint training is less accurate than independent training",
        partial(independent_larger, "accuracy"),
    ),
    "larger loss": (
        "Joint training has a larger test loss than independent training",
        partial(larger, QUANTITIES["error"], JOINT, INDEPENDENT),
    ),
    "least accurate": (
        "Joint training (β = 1) has the worst test accuracy of all β",
        partial(in_each, joint_worst("accuracy")),
    ),
    "largest loss": (
        "Joint training (β = 1) has the largest test loss of all β",
        partial(in_each, joint_worst("error")),
    ),
    "members": (
        "Members are less accurate under joint training",
        partial(independent_larger, "member_accuracy"),
    ),
    "late drop": (
        "Accuracy falls more from the last β below 1 to 1 than from 0 to there",
        partial(in_each, late_drop),
    ),
}


def joint_claim(
    kind: str,
    where: str,
    groups: Groups,
    published: str = "",
    *,
    more: str = "",
    ours: bool = False,
) -> Claim:
    """One of these claims; ``more`` ends its sentence where an experiment makes it twice."""
    text, check = _CLAIMS[kind]
    return Claim(text + more, where, check(groups), published, ours=ours)


# ---- table and figure ---------------------------------------------------------------------------


def beta_table(groups: Mapping[str, Sequence[Record]], keys: Sequence[str]) -> Table:
    """Rows of group and β with each of ``keys`` on test data, as mean and interval."""
    rows = {}
    for name, records in groups.items():
        for beta in cell_values(records, "beta"):
            runs = at_beta(beta).of(records)
            rows[name, f"{beta:g}", str(len(runs))] = runs
    return quantity_table(["setting", "β", "runs"], rows, [QUANTITIES[key] for key in keys])


def plot_beta_curves(groups: Mapping[str, Sequence[Record]], keys: Sequence[str]) -> Plot:
    """A panel for each quantity and a line for each group, against β, with intervals over runs."""
    panels = []
    for key in keys:
        series = []
        for number, (name, records) in enumerate(groups.items()):
            betas = cell_values(records, "beta")
            runs = [at_beta(beta).of(records) for beta in betas]
            series.append(QUANTITIES[key].series(name, betas, runs, number))
        panels.append(Panel("β (0 independent, 1 joint)", QUANTITIES[key].name, series))
    return Plot(panels, "Test quantities against β", len(panels), (3.8, 3.0))

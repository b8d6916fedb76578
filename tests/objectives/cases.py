"""Every entry of ``OBJECTIVES``, in every variant that differs, as data for the contract.

A new objective is one more :class:`Case` here; ``test_contract`` fails until there is one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dissensus.diversity import DETERMINANT_FLOOR
from dissensus.objectives import (
    A2D,
    ADP,
    GNCL,
    JSD,
    LDR,
    NCL,
    Augmented,
    DivDis,
    Gaussian,
    GradientAdjustedTargets,
    Independent,
    Joint,
    LearnerDropout,
    Objective,
    Repulsion,
    Sequential,
    Terms,
    equivalent_beta,
    hardness_weights,
)
from tests.objectives import reference

Parts = Mapping[str, Any]


class Inputs(NamedTuple):
    """What an objective is called with."""

    outputs: Tensor
    targets: Tensor
    disagreement: Tensor | None = None
    weights: Tensor | None = None

    def extra(self) -> dict[str, Tensor | None]:
        return {"disagreement": self.disagreement, "weights": self.weights}


@dataclass(frozen=True)
class Case:
    """One objective and what is known about it."""

    name: str
    objective: Objective
    reference: Callable[..., reference.Result]
    #: The loss from its parts, the hyperparameters and the number of members, as documented.
    combination: Callable[[Parts, Parts, int], Any]
    #: A number that rises with diversity, from the parts (and, for LDR, the inputs).
    diversity: Callable[[Parts, Inputs], Any]
    #: The diversity of identical members, where there is a formula for it.
    least: Callable[[Inputs], Any] = lambda inputs: 0.0
    #: Three values of every hyperparameter, for vmap.
    grid: Mapping[str, list[float]] = field(default_factory=dict)
    #: Settings that the reference needs beyond the hyperparameters.
    settings: Mapping[str, Any] = field(default_factory=dict)
    regression: bool = False
    #: How many outputs there are for each target.
    outputs_each: int = 1
    soft_labels: bool = True
    #: Something is a constant for the gradient: plain gradcheck cannot hold.
    held: bool = False
    #: The paper's sum over members: the factor M of Σ_k CE_k also counts members of weight 0.
    sums_members: bool = False
    #: Its formula has the number of members in it, so leaving out one of weight 0 changes it.
    counts_members: bool = False
    fewest_members: int = 1
    #: The reference's plain formula is still right in float64 at logits of ±1e4.
    slow_at_extremes: bool = True

    def build(self, members: int) -> Objective:
        """The objective for this many members: only ``Sequential`` has to know."""
        if isinstance(self.objective, Sequential):
            return Sequential(stage=members - 1, objective=self.objective.objective)
        return self.objective

    def inputs(
        self,
        members: int = 3,
        batch: int = 4,
        classes: int = 5,
        *,
        seed: int = 0,
        scale: float = 1.5,
        dtype: torch.dtype = torch.float64,
        soft: bool = False,
        weighted: bool = False,
    ) -> Inputs:
        """Random inputs that fit the objective."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        outputs = scale * normal(members, batch, classes * self.outputs_each)
        if self.regression:
            targets = normal(batch, classes)
        elif soft:
            targets = normal(batch, classes).softmax(-1)
        else:
            targets = torch.randint(classes, (batch,), generator=generator)
        disagreement = None
        if self.objective.needs_disagreement:
            disagreement = (scale * normal(members, batch + 1, classes)).to(dtype)
        weights = normal(members).softmax(0).to(dtype) if weighted else None
        if targets.is_floating_point():
            targets = targets.to(dtype)
        return Inputs(outputs.to(dtype), targets, disagreement, weights)

    def slow(self, inputs: Inputs, held: np.ndarray | None = None, **changed: Any) -> Any:
        """The reference's ``(loss, parts)`` for these inputs."""
        members = inputs.outputs.shape[0]
        weights = np.full(members, 1 / members)
        if inputs.weights is not None:
            weights = inputs.weights.double().numpy()
        disagreement = inputs.disagreement
        return self.reference(
            inputs.outputs.detach().double().numpy(),
            inputs.targets.numpy(),
            weights,
            disagreement=None if disagreement is None else disagreement.detach().double().numpy(),
            held=held,
            **{**values_of(self.objective), **self.settings, **changed},
        )


def values_of(objective: Objective) -> dict[str, Any]:
    """The hyperparameters by name; a wrapper has those of the objective inside."""
    inner = getattr(objective, "objective", objective)
    return {name: getattr(inner, name) for name in inner.hyperparameters}


def call(objective: Objective, inputs: Inputs, example_weights: Tensor | None = None) -> Terms:
    """Call the objective, checks included."""
    return objective(
        inputs.outputs, inputs.targets, **inputs.extra(), example_weights=example_weights
    )


def with_gradient(
    objective: Objective, inputs: Inputs, example_weights: Tensor | None = None
) -> tuple[Terms, list[Tensor]]:
    """The terms, and the gradient with respect to outputs and (where there is) disagreement."""
    names = ["outputs"] if inputs.disagreement is None else ["outputs", "disagreement"]
    leaves = {name: getattr(inputs, name).detach().clone().requires_grad_() for name in names}
    terms = call(objective, inputs._replace(**leaves), example_weights)
    grads = torch.autograd.grad(
        terms.loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return terms, list(grads)


# ---- the combinations that the docstrings promise -----------------------------------------------


def _eq_2(parts: Parts, values: Parts, members: int) -> Any:
    return (1 - values["beta"]) * parts["member_error"] + values["beta"] * parts["ensemble_error"]


def _adjusted(others_only: bool) -> Callable[[Parts, Parts, int], Any]:
    def combination(parts: Parts, values: Parts, members: int) -> Any:
        alpha = float(values["alpha"])
        beta = equivalent_beta(alpha, members, others_only=others_only)
        return (1 + alpha) ** 2 * (parts["member_error"] - beta * parts["diversity"])

    return combination


def _minus(first: str, second: str) -> Callable[[Parts, Parts, int], Any]:
    return lambda parts, values, members: parts[first] - values["strength"] * parts[second]


def _plus_disagreement(parts: Parts, values: Parts, members: int) -> Any:
    return parts["cross_entropy"] + values["strength"] * parts["disagreement"]


def _adp_least(inputs: Inputs) -> float:
    members = inputs.outputs.shape[0]
    floor = DETERMINANT_FLOOR
    return math.log(members + floor) + (members - 1) * math.log(floor)


def _a2d_least(inputs: Inputs) -> float:
    """``mean_n log(2 p_ŷ (1 − p_ŷ))`` of the one prediction that all members make."""
    top = inputs.disagreement[0].softmax(-1).amax(-1)
    return float((2 * top * (1 - top)).log().mean())


def _interpolated(name: str, objective: Objective, **settings: Any) -> Case:
    fixed = {"independent": {"beta": 0.0}, "joint": {"beta": 1.0}}.get(name.split("-")[0], {})
    return Case(
        name,
        objective,
        reference.augmented,
        lambda parts, values, members: _eq_2(parts, {**fixed, **values}, members),
        lambda parts, inputs: parts["diversity"],
        grid={} if fixed else {"beta": [0.0, 0.3, 1.0]},
        settings={**fixed, **settings},
        regression=settings["loss"] == "mse",
    )


def _gat(others_only: bool, detach: bool) -> Case:
    return Case(
        "gat" + "-others" * others_only + "-detached" * detach,
        GradientAdjustedTargets(0.7, others_only, detach),
        reference.gradient_adjusted,
        _adjusted(others_only),
        lambda parts, inputs: parts["diversity"],
        grid={"alpha": [0.0, 0.4, 1.5]},
        settings={"others_only": others_only, "detach": detach},
        regression=True,
        held=detach,
        counts_members=others_only,
        fewest_members=2 if others_only else 1,
    )


def _ldr(regularizer: str, label_smoothing: float = 0.0) -> Case:
    return Case(
        f"ldr-{regularizer}" + "-smoothed" * bool(label_smoothing),
        LDR(2.0, active=None, regularizer=regularizer, label_smoothing=label_smoothing),
        reference.ldr,
        _plus_disagreement,
        lambda parts, inputs: (
            -parts["disagreement"] / hardness_weights(inputs.outputs, inputs.targets).mean()
        ),
        least=lambda inputs: 0.0 if regularizer == "jsd" else None,
        grid={"strength": [0.0, 0.5, 5.0]},
        settings={"regularizer": regularizer, "label_smoothing": label_smoothing},
        soft_labels=False,
        held=True,
    )


CE, PROB, SCORE = "cross_entropy", "probability", "score"
CASES: list[Case] = [
    _interpolated("independent", Independent(), loss=CE, combine=PROB),
    _interpolated("joint-probability", Joint(), loss=CE, combine=PROB),
    _interpolated("joint-score", Joint(combine=SCORE), loss=CE, combine=SCORE),
    _interpolated("augmented-probability", Augmented(0.4), loss=CE, combine=PROB),
    _interpolated("augmented-score", Augmented(0.4, combine=SCORE), loss=CE, combine=SCORE),
    _interpolated(
        "augmented-smoothed",
        Augmented(0.4, label_smoothing=0.3),
        loss=CE,
        combine=PROB,
        label_smoothing=0.3,
    ),
    _interpolated("augmented-brier", Augmented(0.4, loss="brier"), loss="brier", combine=PROB),
    _interpolated(
        "augmented-brier-score",
        Augmented(0.4, loss="brier", combine=SCORE),
        loss="brier",
        combine=SCORE,
    ),
    _interpolated("augmented-mse", Augmented(0.4, loss="mse"), loss="mse", combine="mean"),
    _gat(False, False),
    _gat(True, False),
    _gat(False, True),
    _gat(True, True),
    *[
        Case(
            f"ncl-{loss}",
            NCL(0.6, loss=loss),
            reference.ncl,
            lambda parts, values, members: (
                parts["member_error"] + 2 * values["strength"] * parts["correlation_penalty"]
            ),
            lambda parts, inputs: -parts["correlation_penalty"],
            grid={"strength": [0.0, 0.5, 1.0]},
            settings={"loss": loss},
            regression=loss == "mse",
            held=True,
        )
        for loss in ("mse", "brier")
    ],
    *[
        Case(
            f"gncl-{loss}-{combine}",
            GNCL(0.6, loss=loss, combine=combine),
            reference.gncl,
            _minus("member_error", "second_order_diversity"),
            lambda parts, inputs: parts["second_order_diversity"],
            grid={"strength": [0.0, 0.5, 1.0]},
            settings={"loss": loss, "combine": combine},
            regression=loss == "mse",
            slow_at_extremes=combine != PROB,  # 1 / p̄² is infinite
        )
        for loss, combine in (("mse", "mean"), (CE, SCORE), (CE, PROB))
    ],
    Case(
        "gaussian",
        Gaussian(),
        reference.gaussian,
        lambda parts, values, members: parts["weighted_error"],
        lambda parts, inputs: parts["diversity"],
        grid={"weighting": [0.0, 0.4, 1.0]},
        regression=True,
        held=True,
        outputs_each=2,
    ),
    *[
        Case(
            name,
            objective,
            reference.adp,
            lambda parts, values, members: (
                parts["cross_entropy"]
                - values["alpha"] * parts["ensemble_entropy"]
                - values["beta"] * parts["log_diversity"]
            ),
            lambda parts, inputs: parts["log_diversity"],
            least=_adp_least,
            grid={"alpha": [0.0, 1.0, 2.0], "beta": [0.5, 0.0, 1.0], "temperature": [1.0, 0.5, 4]},
            soft_labels=False,
            sums_members=True,
        )
        for name, objective in (("adp", ADP()), ("adp-warm", ADP(1.3, 0.7, temperature=2.5)))
    ],
    Case(
        "jsd",
        JSD(1.7),
        reference.jsd,
        _minus("cross_entropy", "jensen_shannon"),
        lambda parts, inputs: parts["jensen_shannon"],
        grid={"strength": [0.0, 0.5, 3.0]},
        sums_members=True,
    ),
    Case(
        "a2d",
        A2D(1.7, label_smoothing=0.2),
        reference.a2d_objective,
        _plus_disagreement,
        lambda parts, inputs: -parts["disagreement"],
        least=_a2d_least,
        grid={"strength": [0.0, 0.5, 3.0]},
        settings={"label_smoothing": 0.2},
    ),
    *[
        Case(
            name,
            DivDis(1.7, 0.4, prior=prior),
            reference.divdis,
            lambda parts, values, members: (
                parts["cross_entropy"]
                + values["strength"] * parts["mutual_information"]
                + values["balance"] * parts["imbalance"]
            ),
            lambda parts, inputs: -parts["mutual_information"],
            least=lambda inputs: None,
            grid={"strength": [0.0, 0.5, 3.0], "balance": [1.0, 0.0, 2.0]},
            settings={"prior": prior},
        )
        for name, prior in (("divdis", None), ("divdis-prior", (0.1, 0.3, 0.2, 0.15, 0.25)))
    ],
    Case(
        "repulsion",
        Repulsion(1.7, 3.0),
        reference.repulsion,
        lambda parts, values, members: (
            parts["member_error"] + values["strength"] * parts["disagreement"]
        ),
        lambda parts, inputs: -parts["disagreement"],
        least=lambda inputs: -9.0,
        grid={"strength": [0.0, 0.5, 3.0], "scale": [2.0, 3.0, 5.0]},
        regression=True,
    ),
    _ldr("a2d"),
    _ldr("a2d", label_smoothing=0.5),
    _ldr("divdis"),
    _ldr("jsd"),
    Case(
        "learner_dropout",
        LearnerDropout(0.4, Augmented(0.4)),
        reference.augmented,
        _eq_2,
        lambda parts, inputs: parts["diversity"],
        grid={"beta": [0.0, 0.3, 1.0]},
        settings={"loss": CE, "combine": PROB},
    ),
    Case(
        "sequential",
        Sequential(stage=2, objective=A2D(1.7, label_smoothing=0.2)),
        reference.sequential,
        _plus_disagreement,
        lambda parts, inputs: -parts["disagreement"],
        least=_a2d_least,
        grid={"strength": [0.0, 0.5, 3.0]},
        settings={"label_smoothing": 0.2},
        held=True,
    ),
]

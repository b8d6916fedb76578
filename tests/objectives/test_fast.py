"""Gradients at the outputs: the fused ones equal their formulas, and training needs none."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dissensus.objectives import (
    Augmented,
    Independent,
    Joint,
    LearnerDropout,
    Objective,
    Terms,
    fast,
)
from dissensus.objectives.fast import fleet_value_and_gradient, value_and_gradient
from tests.objectives.cases import CASES, Case, Inputs
from tests.objectives.test_contract import over, variants

#: Every setting that has a fused gradient.
FUSED: list[Objective] = [
    Independent(),
    Independent(combine="score"),
    Independent(label_smoothing=0.2),
    Independent(label_smoothing=0.2, combine="score"),
    Joint(),
    Joint(combine="score"),
    Augmented(0.4),
    Augmented(0.4, combine="score"),
    LearnerDropout(0.4, Augmented(0.4)),
]
REGRESSION = [Independent(loss="mse"), Joint(loss="mse"), Augmented(0.4, loss="mse")]


def plain(
    objective: Objective,
    outputs: Tensor,
    targets: Tensor,
    disagreement: Tensor | None = None,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """Value and gradient of the formula itself."""
    leaves = [x.clone().requires_grad_() for x in (outputs, disagreement) if x is not None]
    unlabelled = None if disagreement is None else leaves[1]
    terms = objective.evaluate(leaves[0], targets, unlabelled, weights, example_weights)
    grads = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
    parts = {name: part.detach() for name, part in terms.parts.items()}
    return Terms(terms.loss.detach(), parts), list(grads)


def is_fused(objective: Objective, outputs: Tensor, targets: Tensor) -> bool:
    return fast._fused(objective, outputs, targets, None, None) is not None


@pytest.mark.parametrize("objective", FUSED, ids=repr)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**16),
    members=st.integers(1, 4),
    batch=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 5.0, 1e4]),
    weighted=st.booleans(),
    times=st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=5, max_size=5)),
)
def test_a_fused_gradient_is_that_of_its_formula(
    objective: Objective,
    seed: int,
    members: int,
    batch: int,
    scale: float,
    weighted: bool,
    times: list[int] | None,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(members, batch, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (batch,), generator=generator)
    weights = torch.rand(members, generator=generator, dtype=torch.float64)
    if members > 1 and seed % 2:
        weights[0] = 0
    inputs = Inputs(logits, labels, None, weights / weights.sum() if weighted else None)
    examples = None if times is None else torch.tensor(times[:batch])
    assert is_fused(objective, logits, labels)
    got = value_and_gradient(objective, *inputs, examples)
    assert_close(got, plain(objective, *inputs, examples), rtol=1e-9, atol=1e-9)
    assert not got[0].loss.requires_grad


@pytest.mark.parametrize("objective", REGRESSION, ids=repr)
def test_a_fused_gradient_of_the_squared_error_is_that_of_its_formula(objective: Objective) -> None:
    by_member = None, torch.tensor([0.0, 0.7, 0.3]).double()
    by_example = None, torch.tensor([0, 1, 2, 1, 0, 3]).double()
    for outputs, weights, examples in itertools.product((1, 3), by_member, by_example):
        predictions, targets = torch.randn(3, 6, outputs).double(), torch.randn(6, outputs).double()
        assert is_fused(objective, predictions, targets)
        got = value_and_gradient(objective, predictions, targets, None, weights, examples)
        wanted = plain(objective, predictions, targets, None, weights, examples)
        assert_close(got, wanted, rtol=1e-9, atol=1e-9)


# Fused or not: soft labels, other losses, unlabelled data.
@over(CASES)
def test_value_and_gradient_of_every_objective(case: Case) -> None:
    for inputs in variants(case):
        objective = case.build(inputs.outputs.shape[0])
        got = value_and_gradient(objective, *inputs)
        assert_close(got, plain(objective, *inputs), rtol=1e-9, atol=1e-9)


@over([case for case in CASES if not case.objective.needs_disagreement])
def test_a_fleet_is_the_loop_over_its_ensembles(case: Case) -> None:
    runs = [case.inputs(seed=seed) for seed in range(3)]
    outputs, targets = (torch.stack([run[i] for run in runs]) for i in (0, 1))
    values = {name: torch.tensor(grid).double() for name, grid in case.grid.items()}
    objective = case.build(3)
    for examples in (None, torch.rand(3, 4, dtype=torch.float64)):
        terms, (gradient,) = fleet_value_and_gradient(objective, values, outputs, targets, examples)
        for i in range(3):
            own = objective.with_values(**{name: float(value[i]) for name, value in values.items()})
            weights = None if examples is None else examples[i]
            wanted, (slope,) = plain(own, outputs[i], targets[i], example_weights=weights)
            assert_close(terms.loss[i], wanted.loss)
            assert_close({name: part[i] for name, part in terms.parts.items()}, wanted.parts)
            assert_close(gradient[i], slope)


def test_a_subclass_with_another_formula_is_not_fused() -> None:
    class Own(Joint):
        def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
            return Terms(2 * super().terms(outputs, targets, weights).loss, {})

    logits, labels = torch.randn(3, 4, 5), torch.tensor([0, 1, 2, 3])
    terms, (gradient,) = value_and_gradient(Own(), logits, labels)
    assert_close(terms.loss, 2 * Joint()(logits, labels).loss)
    assert_close(gradient, 2 * plain(Joint(), logits, labels)[1][0])

"""Example weights: a weight of v is the example v times, in value and in gradient."""

import pytest
import torch
from torch import Tensor

from dissensus.objectives import A2D, Independent
from dissensus.objectives.base import Objective, Terms
from tests.objectives.cases import CASES, Case, Inputs

LABELLED = [case for case in CASES if not case.objective.needs_disagreement]
TIMES = torch.tensor([2, 0, 1, 3, 1])


def evaluated(
    objective: Objective, inputs: Inputs, example_weights: Tensor | None
) -> tuple[Terms, Tensor]:
    outputs = inputs.outputs.detach().requires_grad_()
    terms = objective(
        outputs, inputs.targets, weights=inputs.weights, example_weights=example_weights
    )
    return terms, torch.autograd.grad(terms.loss, outputs)[0]


@pytest.mark.parametrize("case", LABELLED, ids=lambda case: case.name)
def test_weights_are_repetitions(case: Case) -> None:
    inputs = case.inputs(members=3, batch=len(TIMES))
    objective = case.build(3)
    weighed, gradient = evaluated(objective, inputs, TIMES.double())
    index = torch.arange(len(TIMES)).repeat_interleave(TIMES)
    repeated, outputs = inputs.outputs[:, index], inputs.targets[index]
    again, repeated_gradient = evaluated(
        objective, inputs._replace(outputs=repeated, targets=outputs), None
    )
    larger = len(index) / len(TIMES)  # a mean over more examples is smaller
    torch.testing.assert_close(weighed.loss, again.loss * larger)
    for name, part in again.parts.items():
        torch.testing.assert_close(weighed.parts[name], part * larger)
    summed = torch.zeros_like(gradient).index_add(1, index, repeated_gradient * larger)
    torch.testing.assert_close(gradient, summed)
    assert bool((gradient[:, TIMES == 0] == 0).all())


def test_errors_say_what_to_do() -> None:
    logits, labels = torch.zeros(2, 3, 4), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must be \[batch\] = \(3,\), got \(4,\)"):
        Independent()(logits, labels, example_weights=torch.ones(4))
    with pytest.raises(ValueError, match="A2D has a term on unlabelled data"):
        A2D()(logits, labels, disagreement=logits, example_weights=torch.ones(3))

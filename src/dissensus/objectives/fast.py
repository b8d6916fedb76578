"""Fast gradients of objectives: the one function that trainers call, and fused entries behind it.

:func:`value_and_gradient` differentiates an objective's formula by autograd, unless ``FAST`` has an
entry for it. Deleting entries changes nothing but speed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dissensus.objectives.base import Objective, Terms

__all__ = ["FAST", "value_and_gradient"]

Fused = Callable[..., tuple[Terms, Tensor] | None]

#: Objectives with a fused value and gradient.
FAST: dict[type[Objective], Fused] = {}


def value_and_gradient(
    objective: Objective,
    outputs: Tensor,
    targets: Tensor,
    disagreement: Tensor | None = None,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """The terms, without a graph, and the gradient of the loss at the outputs; unchecked.

    With ``disagreement`` there is a second gradient, at those outputs.
    """
    leaves = [x.detach().requires_grad_() for x in (outputs, disagreement) if x is not None]
    unlabelled = None if disagreement is None else leaves[1]
    with torch.enable_grad():
        terms = objective.evaluate(leaves[0], targets, unlabelled, weights, example_weights)
    gradients = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
    parts = {name: part.detach() for name, part in terms.parts.items()}
    return Terms(terms.loss.detach(), parts), list(gradients)

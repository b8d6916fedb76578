"""Flow of LDR's pair term: how fast it moves members apart, row by row and through the network.

Members move apart where their total variation, the mean over pairs of ``½ Σ_c |p_c^m − p_c^l|``,
rises. Under the gradient flow of a term D, ``dθ/dt = −∇D``, it changes at the rate ``−⟨∇TV, ∇D⟩``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.ensemble import Ensemble
from dissensus.losses import mean_cross_entropy
from dissensus.objectives.disagreement import PAIR_TERMS, a2d_pairs, mean_over_pairs, pair_weights
from dissensus.objectives.ldr import hardness_weights


def total_variation(logits: Tensor) -> Tensor:
    """The mean over pairs of members of ``½ Σ_c |p_c^m − p_c^l|``, ``[batch]``, from 0 to 1.

    >>> total_variation(torch.tensor([[[9.0, -9.0]], [[-9.0, 9.0]]]))
    tensor([1.])
    """
    probs = logits.softmax(-1)
    members = probs.shape[0]
    total = logits.new_zeros(logits.shape[1])
    for m in range(members):
        for other in range(m):
            total = total + (probs[m] - probs[other]).abs().sum(-1) / 2
    return total / max(members * (members - 1) // 2, 1)


def row_flow(logits: Tensor, alpha: Tensor) -> Tensor:
    """The rate at which ``α_n G`` moves members apart on each row, ``[batch]``, as logits flow.

    ``−Σ_{m,c} ∂TV_n/∂f_c^m · ∂(α_n G_n)/∂f_c^m``: below 0 where the term draws members together.
    """
    logits = logits.detach().requires_grad_()
    pairs = a2d_pairs(log_softmax(logits, -1))  # Eq. 3, [members, members, batch]
    shares = pair_weights(logits, logits.shape[0])
    (push,) = torch.autograd.grad((torch.tensordot(shares, pairs, 2) * alpha).sum(), logits)
    (apart,) = torch.autograd.grad(total_variation(logits).sum(), logits)
    return -(apart * push).sum((0, 2))


def network_flow(
    ens: Ensemble, x: Tensor, labels: Tensor, sets: Mapping[str, Tensor]
) -> dict[str, dict[str, float]]:
    """For each set of inputs, the mean total variation and how each term of LDR moves it.

    ``"tv"``, ``"pair_term"`` and ``"cross_entropy"``: the last two are rates of the mean total
    variation on the set as the members' weights follow the gradient of that term on the training
    rows ``x``; the pair term without its strength λ.
    """
    weights = [weight for weight in ens.parameters() if weight.requires_grad]
    logits = ens(x)
    alpha = hardness_weights(logits, labels)
    terms = {
        "pair_term": mean_over_pairs(PAIR_TERMS["a2d"](log_softmax(logits, -1), alpha)),
        "cross_entropy": mean_cross_entropy(logits, labels),
    }
    pushes = {
        name: torch.autograd.grad(term, weights, retain_graph=True) for name, term in terms.items()
    }
    flows = {}
    for name, inputs in sets.items():
        mean = total_variation(ens(inputs)).mean()
        apart = torch.autograd.grad(mean, weights)
        flows[name] = {"tv": float(mean.detach())} | {
            term: -sum(float((a * b).sum()) for a, b in zip(apart, push, strict=True))
            for term, push in pushes.items()
        }
    return flows

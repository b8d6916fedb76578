"""ERR, mean ERR and their difference, diversity: the gain of an ensemble over its members.

The paper is *collusion* (Jeffares et al., "Joint Training of Deep Ensembles Fails Due to Learner
Collusion"). Its Definition 4.2, ``DIV = mean ERR − ERR``, is :func:`decompose`. For some losses DIV
has a closed form that shows it to be a spread of the members around their combination
(:data:`CLOSED_FORMS`), for every twice differentiable loss it is a variance weighted by the loss's
curvature (:func:`hessian_diversity`), and the part of it that constant offsets of the members make
up can be removed (:func:`debias`).

All functions check their arguments and raise for results that are not finite. Under
``torch.func.vmap`` over a leading axis, where values cannot be read, they look at shapes only.
"""

from __future__ import annotations

from dissensus.decomposition.closed_forms import (
    CLOSED_FORMS,
    ClosedForm,
    ambiguity,
    brier_diversity,
    kl_diversity,
    log_ratio_diversity,
    vote_diversity,
)
from dissensus.decomposition.hessian import HessianDiversity, hessian_diversity, hessian_terms
from dissensus.decomposition.identity import (
    Decomposition,
    DecompositionTerms,
    debias,
    decompose,
    decomposition_terms,
    optimal_offsets,
)

__all__ = [
    "CLOSED_FORMS",
    "ClosedForm",
    "Decomposition",
    "DecompositionTerms",
    "HessianDiversity",
    "ambiguity",
    "brier_diversity",
    "debias",
    "decompose",
    "decomposition_terms",
    "hessian_diversity",
    "hessian_terms",
    "kl_diversity",
    "log_ratio_diversity",
    "optimal_offsets",
    "vote_diversity",
]

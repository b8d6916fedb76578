"""The one tensor: every member's output for a batch, ``[members, batch, outputs]``.

It is called ``logits`` for classification and ``outputs`` where regression is meant too. Here are
the checks that the public functions run on it, the ways to combine it into one prediction, and
:class:`Predictions`, the same tensor on disk.

The functions whose names begin with ``check_`` look at shapes and values and raise; everything else
is pure and has no branch that depends on data. Inside ``torch.func.vmap`` and while
``torch.export`` traces, values cannot be read, so there only shapes are checked.
"""

from __future__ import annotations

from dissensus.outputs.checks import (
    FLOATS,
    check_floats,
    check_labels,
    check_logits,
    check_outputs,
    check_regression_targets,
    check_targets,
    check_tensor,
    check_weights,
    looks_like_probs,
)
from dissensus.outputs.combination import (
    COMBINATIONS,
    SPACES,
    combine,
    combined_log_probs,
    log_mean_exp,
    majority_vote,
    to_logits,
    weighted_mean,
)
from dissensus.outputs.predictions import KEY_HINT, Predictions, array_names, stored_space

__all__ = [
    "COMBINATIONS",
    "FLOATS",
    "KEY_HINT",
    "SPACES",
    "Predictions",
    "array_names",
    "check_floats",
    "check_labels",
    "check_logits",
    "check_outputs",
    "check_regression_targets",
    "check_targets",
    "check_tensor",
    "check_weights",
    "combine",
    "combined_log_probs",
    "log_mean_exp",
    "looks_like_probs",
    "majority_vote",
    "stored_space",
    "to_logits",
    "weighted_mean",
]

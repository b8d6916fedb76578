"""What is attacked: an ensemble, or some of its members, held still while it is attacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.outputs import combined_log_probs

__all__ = ["Victim", "frozen"]


class Victim:
    """An ensemble as its attacker sees it, or some members of it.

    The attacked output is the log-probability that the ensemble predicts with:
    ``logsumexp_j(log_softmax(f_j) + log w_j)`` for ``combine="probability"`` and
    ``log_softmax(Σ_j w_j f_j)`` for ``"score"``. The log of a mean of softmaxes would be −∞ with
    NaN gradients for over-confident members, and an attack on it would find nothing.
    """

    def __init__(self, ens: Ensemble, members: Sequence[int] | None = None) -> None:
        if not isinstance(ens, Ensemble):
            raise ValueError(
                f"an attack needs a dissensus.Ensemble, got {type(ens).__name__}; wrap one network "
                "with Ensemble.from_members([network])"
            )
        if ens.combine == "mean":
            raise ValueError(
                "attacks change a predicted class, and this ensemble predicts values "
                "(combine='mean', regression); they need combine='probability' or 'score'"
            )
        self.ens = ens
        self.members = None if members is None else [int(member) for member in members]
        self.weights = ens.weights
        if members is not None and ens.weights is not None:
            kept = ens.weights[self.members]
            self.weights = kept / kept.sum() if bool(kept.sum() > 0) else None

    @property
    def dtype(self) -> torch.dtype:
        """What the members compute in; the default where they have no parameters."""
        found = (p.dtype for p in self.ens.parameters() if p.is_floating_point())
        return next(found, torch.get_default_dtype())

    def logits(self, x: Tensor) -> Tensor:
        """The attacked members' outputs, ``[members, batch, classes]``."""
        outputs: Tensor = self.ens(x, self.members)
        return outputs

    def combined(self, logits: Tensor) -> Tensor:
        """The log-probabilities of the attacked members together, ``[batch, classes]``."""
        return combined_log_probs(logits, self.ens.combine, self.weights)

    def log_probs(self, x: Tensor) -> Tensor:
        """Both in one: what the attacked members predict for ``x``."""
        return self.combined(self.logits(x))


@contextmanager
def frozen(ens: Ensemble) -> Iterator[None]:
    """Evaluation mode, and no gradients for parameters; all as it was afterwards, come what may.

    Gradients are switched on for inputs, even where the caller has switched them off.
    """
    modes = [(module, module.training) for module in ens.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in ens.parameters()]
    try:
        ens.eval()
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for parameter, grad in wanted:
            parameter.requires_grad_(grad)
        for module, training in modes:
            module.training = training

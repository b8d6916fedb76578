"""Objectives made from another objective: which members a batch uses, and which it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import cross_entropy
from dissensus.objectives.base import Objective, Terms, number, sample_without_replacement
from dissensus.objectives.disagreement import A2D
from dissensus.objectives.fused import a2d_term
from dissensus.objectives.interpolation import Joint

__all__ = ["LearnerDropout", "Sequential"]


@dataclass(frozen=True)
class LearnerDropout(Objective):
    """Drop a share of the members from each batch and train the rest (collusion, Appendix G.7).

    One draw of ``int(members · drop)`` members a batch; an ``objective`` that draws members too
    (``LDR``) draws from those that are left. The paper's remedy for learner collusion with joint
    training; it lowers diversity but, as bootstrapping does, weakens the members.

    >>> LearnerDropout(drop=0.4).sample_members(5, torch.Generator().manual_seed(0))
    [0, 1, 4]
    """

    drop: float = number(0.2, low=0.0, high=1.0)
    objective: Objective = field(default_factory=Joint)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inner("LearnerDropout", self.objective)
        if isinstance(self.objective, Sequential):
            raise ValueError(
                "LearnerDropout: objective must train all members at once, got Sequential, which "
                "needs every member before its stage"
            )

    @property
    def needs_disagreement(self) -> bool:  # type: ignore[override]
        """Whatever the wrapped objective needs."""
        return self.objective.needs_disagreement

    @property
    def coupled(self) -> bool:  # type: ignore[override]
        """As the wrapped objective is."""
        return self.objective.coupled

    def values(self) -> dict[str, Any]:
        """The hyperparameters of the wrapped objective."""
        return self.objective.values()

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        self.objective.check(outputs, targets)

    def sample_members(
        self, members: int, generator: torch.Generator | None = None
    ) -> Sequence[int] | None:
        dropped = int(members * self.drop)
        if dropped >= members:
            raise ValueError(
                f"LearnerDropout: drop={self.drop:g} of {members} members leaves none to train"
            )
        if dropped == 0:
            return self.objective.sample_members(members, generator)
        kept = sample_without_replacement(members, members - dropped, generator)
        drawn = self.objective.sample_members(len(kept), generator)
        return kept if drawn is None else [kept[member] for member in drawn]

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        return self.objective.core(
            outputs, targets, disagreement=disagreement, weights=weights, **hyperparameters
        )

    def weighted(
        self,
        outputs: Tensor,
        targets: Tensor,
        example_weights: Tensor,
        *,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        return self.objective.weighted(
            outputs, targets, example_weights, weights=weights, **hyperparameters
        )


@dataclass(frozen=True)
class Sequential(Objective):
    """Train member ``stage`` to disagree with the members before it, which stay as they are.

    Agree to disagree as its authors trained it (Pagliardini et al., 2023): member 0 on its own,
    member 1 against member 0, member 2 against both, …; ``CE_k + λ · mean_{l<k} G(p^l, p^k)``, with
    G of Eq. 3 (ldr) on unlabelled data and λ from ``objective``. Outputs are those of members
    0 … stage, the earlier ones taken as constants; only member ``stage`` is updated.
    """

    needs_disagreement = True

    stage: int = number(0, low=0)
    objective: Objective = field(default_factory=A2D)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inner("Sequential", self.objective)
        if not isinstance(self.objective, A2D):
            got = type(self.objective).__name__
            raise ValueError(f"Sequential: objective must be A2D, got {got}")

    def values(self) -> dict[str, Any]:
        """The hyperparameters of the wrapped objective."""
        return self.objective.values()

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        self.objective.check(outputs, targets)
        if outputs.shape[0] != self.stage + 1:
            raise ValueError(
                f"Sequential: stage {self.stage} takes the outputs of members 0 to {self.stage}, "
                f"got {outputs.shape[0]} members; use sample_members to choose them"
            )

    def sample_members(
        self, members: int, generator: torch.Generator | None = None
    ) -> Sequence[int] | None:
        if self.stage >= members:
            raise ValueError(f"Sequential: there is no stage {self.stage} with {members} members")
        return list(range(self.stage + 1))

    def trained_members(self, drawn: Sequence[int]) -> Sequence[int]:
        return [self.stage]

    def core(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        disagreement: Tensor | None = None,
        weights: Tensor | None = None,
        **hyperparameters: Any,
    ) -> Terms:
        assert isinstance(self.objective, A2D)
        assert disagreement is not None  # checked by the shell
        ce = cross_entropy(
            log_softmax(outputs[-1], -1), targets, self.objective.label_smoothing
        ).mean()
        fixed_and_new = torch.cat([disagreement[:-1].detach(), disagreement[-1:]])
        # Both orders of every pair with the new member, as elsewhere; 0 for the first member.
        last = torch.zeros(self.stage + 1, self.stage + 1, 1).to(outputs)
        last[-1, :-1] = last[:-1, -1] = 0.5 / max(self.stage, 1)
        share = last / disagreement.shape[1]
        factors = (hyperparameters["strength"],)
        loss, term = a2d_term.total(factors, fixed_and_new, share, base=ce)
        return Terms(loss, {"cross_entropy": ce, "disagreement": term})


def _check_inner(name: str, objective: Objective) -> None:
    if not isinstance(objective, Objective):
        raise ValueError(
            f"{name}: objective must be an objective such as Joint(), got "
            f"{type(objective).__name__}; objectives.parse builds one from a string"
        )

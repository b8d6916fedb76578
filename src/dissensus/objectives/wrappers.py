"""Wrappers: of objectives, which choose the members that a batch trains, and of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.losses import cross_entropy
from dissensus.objectives.base import Objective, Terms, number, sample_without_replacement
from dissensus.objectives.disagreement import A2D, a2d_pairs
from dissensus.objectives.interpolation import Joint


@dataclass(frozen=True)
class LearnerDropout(Objective):
    """Drop a share of the members from each batch and train the rest (collusion, Appendix G.7).

    Each batch drops ``int(members · drop)`` members, drawn anew. An ``objective`` that draws
    members itself (``LDR``) draws from those that are left. The remedy for learner collusion in
    joint training that the paper tries: it lowers diversity but weakens the members.

    >>> LearnerDropout(drop=0.4).sample_members(5, torch.Generator().manual_seed(0))
    [0, 1, 4]
    """

    drop: float = number(0.2, low=0.0, high=1.0)
    objective: Objective = field(default_factory=Joint)

    def __post_init__(self) -> None:
        _check_inner("LearnerDropout", self.objective)
        super().__post_init__()
        if isinstance(self.objective, Sequential):
            raise ValueError(
                "LearnerDropout: objective must train all members at once, got Sequential"
            )
        for name in ("needs_disagreement", "coupled", "reduction", "weighs_examples"):
            object.__setattr__(self, name, getattr(self.objective, name))

    def with_values(self, **values: Any) -> Self:
        """A copy with other hyperparameters of the wrapped objective."""
        return super().with_values(objective=self.objective.with_values(**values))

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

    def terms(self, *args: Any, **kwargs: Any) -> Terms:
        return self.objective.terms(*args, **kwargs)


@dataclass(frozen=True)
class Sequential(Objective):
    """Train member ``stage`` to disagree with the members before it, which stay as they are.

    Agree to disagree as its authors trained it (Pagliardini et al., 2023): member 0 on its own,
    member 1 against member 0, member 2 against both, …; ``CE_k + λ · mean_{l<k} G(p^l, p^k)``, with
    G of Eq. 3 (ldr) on unlabelled data and λ from ``objective``. Outputs are those of members
    0 … stage, the earlier ones taken as constants; only member ``stage`` is updated.
    """

    needs_disagreement = True
    reduction = "sum"  # of the one member that is trained

    stage: int = number(0, low=0)
    objective: Objective = field(default_factory=A2D)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inner("Sequential", self.objective)
        if not isinstance(self.objective, A2D):
            got = type(self.objective).__name__
            raise ValueError(f"Sequential: objective must be A2D, got {got}")

    def with_values(self, **values: Any) -> Self:
        """A copy with other hyperparameters of the wrapped objective."""
        return super().with_values(objective=self.objective.with_values(**values))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        self.objective.check(outputs, targets)
        if outputs.shape[0] != self.stage + 1:
            raise ValueError(
                f"Sequential: stage {self.stage} takes {self.stage + 1} members, got {len(outputs)}"
            )

    def sample_members(
        self, members: int, generator: torch.Generator | None = None
    ) -> Sequence[int] | None:
        if self.stage >= members:
            raise ValueError(f"Sequential: there is no stage {self.stage} with {members} members")
        return list(range(self.stage + 1))

    def trained_members(self, drawn: Sequence[int]) -> Sequence[int]:
        return [self.stage]

    def terms(
        self, logits: Tensor, targets: Tensor, disagreement: Tensor, weights: Tensor | None = None
    ) -> Terms:
        assert isinstance(self.objective, A2D)
        log_probs = log_softmax(logits[-1], -1)
        ce = cross_entropy(log_probs, targets, self.objective.label_smoothing)
        fixed, new = disagreement[:-1].detach(), disagreement[-1:]
        pairs = a2d_pairs(log_softmax(torch.cat([fixed, new]), -1)).mean(-1)  # ldr, Eq. 3
        # Both orders of each pair with the new member, as elsewhere; 0 for the first member.
        term = (pairs[-1, :-1] + pairs[:-1, -1]).sum() / (2 * max(self.stage, 1))
        loss = ce + self.objective.strength * term
        return Terms(loss, {"cross_entropy": ce, "disagreement": term})


def _check_inner(name: str, objective: Objective) -> None:
    if not isinstance(objective, Objective):
        raise ValueError(
            f"{name}: objective must be one such as Joint(), got {type(objective).__name__}"
        )


@dataclass(frozen=True)
class FunctionObjective(Objective):
    """The loss that ``function`` gives for outputs ``[members, batch, outputs]`` and targets.

    It is a scalar or ``[batch]``, a value for each example, and a mean over members. ``fit`` takes
    the function itself.
    """

    function: Callable[[Tensor, Tensor], Any]

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Say which shapes the function saw if it fails, or returns something else than a loss."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
        try:
            loss = self.function(outputs, targets)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"{name} failed for {shapes}: {error}; it gets all members' outputs, [members, "
                "batch, outputs]. Make a loss of one network a mean over members: lambda logits, "
                f"targets: torch.stack([{name}(own, targets) for own in logits]).mean()"
            ) from error
        if not isinstance(loss, Tensor) or tuple(loss.shape) not in ((), (outputs.shape[1],)):
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"{name} must return a scalar tensor or [batch], got {got} for {shapes}"
            )

    def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
        """What the function returns."""
        if weights is not None:
            raise ValueError("a function as an objective takes no weights of members")
        return Terms(self.function(outputs, targets), {})

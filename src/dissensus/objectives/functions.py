"""Functions as objectives: ``(logits, targets) -> loss``, for a try without a class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dissensus.objectives.base import Objective, Terms


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

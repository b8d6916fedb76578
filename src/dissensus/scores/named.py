"""Scores by name, at a temperature if one is named: ``"bma:temperature=2"``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.scores.functions import SCORES
from dissensus.specs import check_name, join_spec, read_settings, split_spec

__all__ = ["NamedScore", "at_temperature", "parse"]

#: Scores whose order a temperature shared by all members cannot change.
_UNMOVED = frozenset({"max_logit", "unique", "disagreement", "variance"})


@dataclass(frozen=True)
class NamedScore:
    """A score of ``SCORES`` of the logits divided by a temperature; ``str`` gives its name back.

    The energy is ``−T log Σ_c exp(f_c / T)``, multiplied by T as its definition says.
    """

    name: str
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_name(self.name, SCORES, "score")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be greater than 0, got {self.temperature!r}")
        if self.temperature != 1 and self.name in _UNMOVED:
            raise ValueError(f"a temperature changes nothing about {self.name}; leave it out")

    def __call__(self, logits: Tensor, weights: Tensor | None = None) -> Tensor:
        """The score of each example, ``[batch]``."""
        if self.temperature == 1:
            return SCORES[self.name](logits, weights)
        return self.factor * SCORES[self.name](logits / self.temperature, weights)

    @property
    def factor(self) -> float:
        """What the score of the divided logits is multiplied by."""
        return self.temperature if self.name == "energy" else 1.0

    def __str__(self) -> str:
        settings = {} if self.temperature == 1 else {"temperature": float(self.temperature)}
        return join_spec(self.name, settings)


def parse(text: str) -> NamedScore:
    """The score that ``text`` names.

    >>> parse("energy:temperature=10")(torch.zeros(3, 2, 4))         # −10 log 4
    tensor([-13.8629, -13.8629])
    >>> str(parse("bma"))
    'bma'
    """
    name, settings = split_spec(text)
    check_name(name, SCORES, "score")
    return NamedScore(name, **read_settings(name, settings, NamedScore, ["temperature"]))


def at_temperature(
    score: str | Callable[..., Tensor], temperature: Tensor | float
) -> Callable[..., Tensor]:
    """``score`` of ``logits_j / T_j``: one temperature, or one for each member ``[members]``.

    Takes what :func:`dissensus.calibration.fit_temperature` finds. A named score at one temperature
    comes back as a :class:`NamedScore`, which a ``Detector`` can save.

    >>> tempered = at_temperature("bma", torch.tensor(4.0))
    >>> str(tempered)
    'bma:temperature=4'
    """
    temperature = torch.as_tensor(temperature, dtype=torch.float64)
    if isinstance(score, str):
        score = parse(score)
    if isinstance(score, NamedScore) and temperature.ndim == 0:
        return NamedScore(score.name, score.temperature * float(temperature))
    if temperature.ndim > 1 or not bool((temperature > 0).all()):
        raise ValueError(
            "temperature must be a scalar or [members], and greater than 0, got "
            f"{temperature.tolist()}"
        )
    function = score

    def tempered(logits: Tensor, weights: Tensor | None = None) -> Tensor:
        if temperature.ndim and len(temperature) != logits.shape[0]:
            raise ValueError(
                f"there are {len(temperature)} temperatures, and the logits are of "
                f"{logits.shape[0]} members"
            )
        scale = temperature.to(logits).reshape(-1, 1, 1)
        return (
            function(logits / scale, weights) if weights is not None else function(logits / scale)
        )

    return tempered

"""AutoAttack (Croce and Hein 2020) through the package ``pyautoattack``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.robustness.base import Attack, Case, Journal, Victim
from dissensus.tools.specs import number

MISSING = "pyautoattack is not installed, pip install 'dissensus[robustness]'"


def is_installed() -> bool:
    """Whether ``pyautoattack`` can be imported."""
    return find_spec("pyautoattack") is not None


@dataclass(frozen=True)
class AutoAttack(Attack):
    """AutoAttack's standard version: APGD on cross-entropy, targeted APGD and FAB, Square.

    Untargeted, with ``steps`` for APGD and FAB and ``queries`` for Square. With fewer than four
    classes the targeted parts are replaced by untargeted FAB, as their loss needs four. Its random
    numbers depend on the batch, so that results may change a little with the batch size.

    For ensembles it is not the last word: run ``reweighted`` beside it.
    """

    eps: float = number(0.1, above=0, always=True)
    norm: str = "linf"
    steps: int = number(100, low=1)
    queries: int = number(5000, low=1)

    def perturb(self, victim: Victim, case: Case, journal: Journal) -> Tensor:
        if not is_installed():
            raise ValueError(f"the attack autoattack is not there: {MISSING}")
        import pyautoattack

        shape = case.x.shape
        # The package computes in float32 whatever it is given; the model keeps its own precision.
        x = case.x.float()
        x = x if x.ndim == 4 else x.reshape(len(case), 1, 1, -1)
        with torch.no_grad():
            classes = victim.log_probs(case.x[:1]).shape[-1]
        model = _Model(victim, shape[1:])
        norm = {"linf": "Linf", "l2": "L2"}[self.norm]
        settings: dict[str, Any] = {"version": "standard"}
        if classes < 4:
            settings = {"version": "custom", "attacks": ["apgd-ce", "fab", "square"]}
        with _restore_process(x.device):
            attack = pyautoattack.AutoAttack(
                model, eps=self.eps, norm=norm, seed=case.seed, device=x.device, **settings
            )
            attack.square.n_queries = self.queries
            for part in (attack.apgd, attack.apgd_targeted, attack.fab):
                part.n_iter = self.steps
            attack.apgd_targeted.n_target_classes = min(9, classes - 1)
            attack.fab.n_target_classes = min(9, classes - 1)
            examples, _ = attack.run_standard_evaluation(
                x.contiguous(), case.goal.labels, batch_size=len(x)
            )
        points: Tensor = examples.detach().reshape(shape).to(case.x.dtype)
        return points


class _Model(nn.Module):
    """The victim's log-probabilities as the logits that the package expects."""

    def __init__(self, victim: Victim, shape: torch.Size) -> None:
        super().__init__()
        # In a tuple, so that the ensemble is not taken for a part of this module.
        self.held, self.shape = (victim,), shape

    def forward(self, x: Tensor) -> Tensor:
        (victim,) = self.held
        return victim.log_probs(x.reshape(len(x), *self.shape).to(victim.dtype)).float()


@contextmanager
def _restore_process(device: torch.device) -> Iterator[None]:
    """Restore what the package changes: it seeds torch, stops tracing and logs.

    Its warnings (zero gradients, Square stronger than the rest) are flags of our own evaluation.
    """
    trace, logger = sys.gettrace(), logging.getLogger("auto-attack")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        logger.setLevel(level)
        sys.settrace(trace)

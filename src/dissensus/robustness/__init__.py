"""Attacks on ensembles, and the accuracy that remains under all of them.

>>> import torch
>>> from dissensus.ensemble import Ensemble
>>> ens = Ensemble(lambda: torch.nn.Linear(4, 3), members=3)
>>> x = torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
>>> y = ens.predict(x).argmax(1)
>>> attack(ens, x, y, "fgsm:eps=0.3", progress=False).accuracy < 1
True
"""

from __future__ import annotations

from dissensus.robustness.adaptive import Disguised, Reweighted
from dissensus.robustness.adversarial_training import AdversarialBatches, adversary
from dissensus.robustness.attacks import ATTACKS, Protocol, joined, paper, parse, standard
from dissensus.robustness.autoattack import AutoAttack
from dissensus.robustness.base import Attack
from dissensus.robustness.checks import AttackRow, Flag
from dissensus.robustness.detection import AdversarialDetection, detect
from dissensus.robustness.distortion import EAD, JSMA, CarliniWagner
from dissensus.robustness.evaluation import Curve, Robustness, Worst, curve_over_eps, evaluate
from dissensus.robustness.gradient import BIM, FGSM, MIM, PGD
from dissensus.robustness.outcome import AttackError, Outcome, attack, check_inputs
from dissensus.robustness.square import Noise, Square
from dissensus.robustness.transfer import transfer

__all__ = [
    "ATTACKS",
    "BIM",
    "EAD",
    "FGSM",
    "JSMA",
    "MIM",
    "PGD",
    "AdversarialBatches",
    "AdversarialDetection",
    "Attack",
    "AttackError",
    "AttackRow",
    "AutoAttack",
    "CarliniWagner",
    "Curve",
    "Disguised",
    "Flag",
    "Noise",
    "Outcome",
    "Protocol",
    "Reweighted",
    "Robustness",
    "Square",
    "Worst",
    "adversary",
    "attack",
    "check_inputs",
    "curve_over_eps",
    "detect",
    "evaluate",
    "joined",
    "paper",
    "parse",
    "standard",
    "transfer",
]

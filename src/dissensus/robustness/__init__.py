"""Attacks on ensembles, and what is left of the accuracy under all of them.

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
from dissensus.robustness.attacks import ATTACKS, parse, spec
from dissensus.robustness.autoattack import AutoAttack
from dissensus.robustness.base import Attack
from dissensus.robustness.carlini_wagner import EAD, CarliniWagner
from dissensus.robustness.curves import Curve, curve_over_eps
from dissensus.robustness.detecting import AdversarialDetection, detect
from dissensus.robustness.evaluation import Robustness, Worst, evaluate
from dissensus.robustness.gradient import BIM, FGSM, MIM, PGD
from dissensus.robustness.masking import Flag, Row
from dissensus.robustness.outcome import Outcome
from dissensus.robustness.protocols import Protocol, joined, paper, standard
from dissensus.robustness.running import AttackError, attack, check_inputs
from dissensus.robustness.saliency import JSMA
from dissensus.robustness.square import Noise, Square
from dissensus.robustness.transfer import transfer, transfer_between

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
    "Row",
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
    "spec",
    "standard",
    "transfer",
    "transfer_between",
]

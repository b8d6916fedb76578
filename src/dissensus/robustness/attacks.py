"""Every attack by name, and attacks from strings.

>>> parse("pgd:eps=0.1,steps=10").steps
10
>>> parse("pgd:esp=0.1")
Traceback (most recent call last):
...
ValueError: pgd has no setting 'esp'; did you mean 'eps'?
"""

from __future__ import annotations

from dissensus.robustness.adaptive import Disguised, Reweighted
from dissensus.robustness.autoattack import AutoAttack
from dissensus.robustness.base import Attack
from dissensus.robustness.carlini_wagner import EAD, CarliniWagner
from dissensus.robustness.gradient import BIM, FGSM, MIM, PGD
from dissensus.robustness.saliency import JSMA
from dissensus.robustness.square import Noise, Square
from dissensus.specs import parse_spec, spec_of

__all__ = ["ATTACKS", "parse", "spec"]

#: Every attack by the name that ``parse`` and the command line know it by.
ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "bim": BIM,
    "pgd": PGD,
    "mim": MIM,
    "jsma": JSMA,
    "cw": CarliniWagner,
    "ead": EAD,
    "reweighted": Reweighted,
    "disguised": Disguised,
    "square": Square,
    "noise": Noise,
    "autoattack": AutoAttack,
}


def parse(text: str | Attack) -> Attack:
    """The attack that ``name:key=value,key=value`` asks for; an attack is returned as it is."""
    if isinstance(text, Attack):
        return text
    if not isinstance(text, str):
        raise ValueError(
            f"an attack is a string such as 'pgd:eps=0.1' or an Attack, got {type(text).__name__}"
        )
    attack: Attack = parse_spec(text, ATTACKS, "attack")
    return attack


def spec(attack: Attack) -> str:
    """The string that :func:`parse` turns back into ``attack``; most defaults are left out.

    >>> spec(PGD(eps=0.2, restarts=5))
    'pgd:eps=0.2,restarts=5'
    """
    return spec_of(attack, ATTACKS, "attack")

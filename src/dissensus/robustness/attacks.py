"""Attacks by name, attacks from strings, and protocols: lists of attacks that belong together.

>>> parse("pgd:eps=0.2,restarts=5").spec()
'pgd:eps=0.2,restarts=5'
>>> parse("pgd:esp=0.1")
Traceback (most recent call last):
...
ValueError: pgd has no setting 'esp'; did you mean 'eps'?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dissensus.robustness.adaptive import Disguised, Reweighted
from dissensus.robustness.autoattack import MISSING, AutoAttack, is_installed
from dissensus.robustness.base import NORMS, Attack
from dissensus.robustness.distortion import EAD, JSMA, CarliniWagner
from dissensus.robustness.gradient import BIM, FGSM, MIM, PGD
from dissensus.robustness.square import Noise, Square
from dissensus.tools.guards import describe
from dissensus.tools.specs import check_choice, parse_spec

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
        raise ValueError(f"an attack is a string such as 'pgd:eps=0.1', got {describe(text)}")
    attack: Attack = parse_spec(text, ATTACKS, "attack")
    return attack


# ---- protocols ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """Attacks with a name, a label for reports, and notes on what a reader should know."""

    name: str
    label: str
    attacks: tuple[Attack, ...]
    notes: tuple[str, ...] = ()


def joined(protocols: Sequence[Protocol]) -> Protocol:
    """Several protocols as one, each attack once.

    >>> both = joined([paper("cifar100"), Protocol("own", "mine", paper("cifar100").attacks)])
    >>> both.name, len(both.attacks)
    ('paper + own', 6)
    """
    attacks = {attack.spec(): attack for protocol in protocols for attack in protocol.attacks}
    notes = dict.fromkeys(note for protocol in protocols for note in protocol.notes)
    return Protocol(
        " + ".join(protocol.name for protocol in protocols),
        "; ".join(protocol.label for protocol in protocols),
        tuple(attacks.values()),
        tuple(notes),
    )


#: The adp paper's parameters (Tables 2, 3 and 5), for data like these: ε of FGSM, then of BIM, PGD
#: and MIM; θ and γ of JSMA; c of C&W and of EAD.
PAPER: dict[str, dict[str, Sequence[float]]] = {
    "mnist": {
        "fgsm": (0.1, 0.2),
        "iterative": (0.1, 0.15),
        "theta": (0.2,),
        "gamma": (0.3, 0.6),
        "cw": (0.1, 1.0, 10.0),
        "ead": (5.0, 10.0),
    },
    "cifar10": {
        "fgsm": (0.02, 0.04),
        "iterative": (0.01, 0.02),
        "theta": (0.1,),
        "gamma": (0.05, 0.1),
        "cw": (0.001, 0.01, 0.1),
        "ead": (1.0, 5.0),
    },
    "cifar100": {"iterative": (0.005, 0.01)},
}


def paper(like: str = "mnist") -> Protocol:
    """The adp paper's evaluation (Section 4.3), historical and weak.

    Ten steps of ε/10, from a random start for PGD, cannot even cross the ball. C&W and EAD have one
    c, 1,000 iterations, learning rate 0.01 and confidence 0.1 (the paper used the first 1,000
    images). JSMA is the authors' own program, with the mask that gets stuck (100 images).

    >>> [attack.spec() for attack in paper("cifar100").attacks][:2]
    ['bim:eps=0.005,step=0.1,early=false', 'bim:eps=0.01,step=0.1,early=false']
    """
    check_choice("paper", "like", like, list(PAPER))
    wanted = PAPER[like]
    texts = [f"fgsm:eps={eps}" for eps in wanted.get("fgsm", ())]
    for name in ("bim", "pgd", "mim"):
        texts += [f"{name}:eps={eps},steps=10,step=0.1,early=false" for eps in wanted["iterative"]]
    for theta in wanted.get("theta", ()):
        jsma = f"jsma:theta={theta},variant=original,early=false"
        texts += [f"{jsma},gamma={gamma}" for gamma in wanted["gamma"]]
    shared = "searches=1,steps=1000,lr=0.01,confidence=0.1"
    texts += [f"cw:c={c},{shared}" for c in wanted.get("cw", ())]
    texts += [f"ead:c={c},{shared},beta=0.01" for c in wanted.get("ead", ())]
    return Protocol(
        "paper",
        f"the adp paper's attacks as for {like}: historical, weak",
        tuple(parse(text) for text in texts),
        ("These attacks are the paper's, and weak; the protocol `standard` is the honest one.",),
    )


def standard(eps: float, norm: str = "linf", *, steps: int = 100, restarts: int = 5) -> Protocol:
    """PGD with several step sizes, restarts and losses, ensemble-aware attacks, Square, AutoAttack.

    AutoAttack is left out, with a note, where ``pyautoattack`` is not installed.
    """
    check_choice("standard", "norm", norm, NORMS)
    ball = f"eps={eps},norm={norm}"
    pgd = f"pgd:{ball},steps={steps},restarts={restarts}"
    texts = [
        f"noise:{ball}",
        f"fgsm:{ball}",
        pgd,
        f"{pgd},step=0.1",
        f"{pgd},step=0.25",
        f"{pgd},loss=margin",
        f"{pgd},loss=margin,step=0.25",
        f"{pgd},of=members",
        f"reweighted:{ball},steps={steps},restarts={restarts}",
        f"square:{ball},queries={50 * steps}",
    ]
    notes: tuple[str, ...] = ()
    if is_installed():
        texts.append(f"autoattack:{ball},steps={steps},queries={50 * steps}")
    else:
        notes = (f"AutoAttack was left out: {MISSING}.",)
    label = f"standard: {norm}, ε = {eps:g}, PGD of {steps} steps and {restarts} restarts"
    return Protocol("standard", label, tuple(parse(text) for text in texts), notes)


def choose_protocol(attacks: Sequence[str | Attack] | None, protocol: Protocol | None) -> Protocol:
    """The attacks that :func:`dissensus.robustness.evaluate` is asked for."""
    if not isinstance(protocol, Protocol | None):
        raise ValueError(f"protocol must be one such as standard(0.1), got {protocol!r}")
    protocols = [] if protocol is None else [protocol]
    if attacks is not None:
        attacks = [attacks] if isinstance(attacks, str | Attack) else attacks
        own = tuple(parse(attack) for attack in attacks)
        if len({attack.spec() for attack in own}) < len(own):
            raise ValueError("an attack is given twice; leave one out")
        protocols.append(Protocol("own", "attacks as asked for", own))
    chosen = joined(protocols)
    if not chosen.attacks:
        raise ValueError("evaluate needs attacks=['pgd:eps=0.1', …] or protocol=standard(0.1)")
    return chosen

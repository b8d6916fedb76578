"""Settings of the demo: the objectives, the data, the attacks and the β sweep."""

from __future__ import annotations

from typing import Any, NamedTuple


class Contender(NamedTuple):
    """An objective, its display name, and what it does."""

    name: str
    objective: str
    what: str
    disagreement: str | None = None  # what members learn to disagree on


#: What is compared, by the name of its run folder.
CONTENDERS = {
    "independent": Contender(
        "independent", "independent", "each member is trained on its own: the plain deep ensemble"
    ),
    "strangers": Contender(
        "strangers",
        "a2d:strength=0.1",
        "members disagree on strangers, images made from the training digits that are no digits",
        "strangers",
    ),
    "joint": Contender(
        "joint",
        "joint:combine=score",
        "only the averaged score is trained, as if it were one network",
    ),
    "beta-0.5": Contender("β = 0.5", "augmented:beta=0.5,combine=score", "halfway between the two"),
    "adp": Contender("ADP", "adp", "members agree on the digit and differ on all others"),
    "ldr": Contender(
        "LDR", "ldr:strength=0.1", "two members per batch, pushed apart on hard examples"
    ),
}

EPOCHS = 60

#: Settings of ``dissensus train`` that all contenders share; 8 and 9 are never trained on.
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "hold_out": "8,9",
    "model": "mlp",
    "model_options": ["hidden=64,64"],
    "members": 5,
    "batch_size": 64,
    "optimizer": "adam:lr=2e-3",
    "select_by": "last",
    "quiet": True,
}

#: The corruption of test digits that serves as the second unknown set.
CORRUPTED = "corrupt:4"

#: How many test digits are attacked, with the attack of the adp paper and with strong ones.
ATTACKED = 200
PAPER = "pgd:eps=0.1,steps=10,step=0.1,early=false"
STRONG = (
    "pgd:eps=0.1,steps=100,restarts=5",
    "pgd:eps=0.1,steps=100,restarts=5,loss=margin",
    "square:eps=0.1,queries=1000",
)
#: Values of ε for accuracy against ε, by the strongest gradient attack.
CURVE = (0.05, 0.1, 0.15, 0.2)

#: The β sweep: a regression, in which constant offsets of members are easy to see.
SWEEP: dict[str, Any] = {
    "data": "diabetes",
    "objective": "augmented",
    "model": "mlp",
    "model_options": ["hidden=30,30"],
    "members": 10,
    "epochs": 60,
    "batch_size": 32,
}
BETAS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
REPEATS = 3

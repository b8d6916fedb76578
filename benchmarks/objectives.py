"""Objectives: what each adds to a whole training step, and what its fast gradient saves.

A step is outputs, objective, gradients and update of five members on a batch of 128, all members
active. On labelled data an objective may cost at most 1.5 times a step of ``independent``. The
fused gradient of the default family has to save 10% of a step on a small network. A2D and DivDis,
which read unlabelled data too, are shown beside an independent step on as many examples.
"""

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.timing import Contender, Result, compare
from benchmarks.training import ours
from dissensus.ensemble import Ensemble
from dissensus.models import MemberFactory, make_factory
from dissensus.objectives import parse
from dissensus.training import Recipe
from dissensus.training.step import Trainer
from dissensus.training.stream import TrainingBatch

MEMBERS, BATCH, CLASSES = 5, 128, 10
LIMIT, SAVING = 1.5, 0.9

CLASSIFICATION = (
    "joint",
    "joint:combine=score",
    "augmented",
    "augmented:loss=brier",
    "ncl:loss=brier",
    "gncl",
    "gncl:combine=probability",
    "adp",
    "jsd",
    "ldr:active=none",
    "ldr:active=none,regularizer=jsd",
    "ldr:active=none,regularizer=divdis",
)
FUSED = ("independent", "joint", "augmented")
REGRESSION = ("joint:loss=mse", "augmented:loss=mse", "gat", "ncl", "gncl:loss=mse")


def run(quick: bool) -> list[Result]:
    """All comparisons; one thread unless ``--threads`` says otherwise."""
    repeats = 5 if quick else 40
    return [
        _ratios("independent", CLASSIFICATION, repeats),
        _ratios("independent:loss=mse", REGRESSION, repeats),
        _unlabelled(repeats),
        *(_saving(spec, repeats) for spec in FUSED),
    ]


def _network(*sizes: int) -> tuple[str, MemberFactory]:
    name = f"MLP {'-'.join(map(str, sizes))}, {MEMBERS} members, batch {BATCH}"
    return name, make_factory("mlp", sizes[:1], sizes[-1], hidden=sizes[1:-1])


def _step(make: MemberFactory, spec: str, x: Tensor, y: Tensor) -> Callable[[], object]:
    """A step of the library, with as many unlabelled examples where the objective needs some."""
    objective = parse(spec)
    if not objective.needs_disagreement:
        return ours(make, MEMBERS, x, y, objective)
    trainer = Trainer(Ensemble(make, MEMBERS).train(), objective, Recipe())
    batch = TrainingBatch(x, y, torch.randn_like(x), None)
    return partial(trainer.step, batch, set(), 1.0, check=False)


def _ratios(baseline: str, specs: tuple[str, ...], repeats: int) -> Result:
    name, make = _network(64, 128, 128, CLASSES)
    x = torch.randn(BATCH, 64)
    regression = baseline.endswith("mse")
    y = torch.randn(BATCH, CLASSES) if regression else torch.randint(CLASSES, (BATCH,))
    return compare(
        f"{name}: one step, ratio to {baseline}",
        Contender(baseline, _step(make, baseline, x, y)),
        [Contender(spec, _step(make, spec, x, y), LIMIT) for spec in specs],
        repeats=repeats,
    )


def _unlabelled(repeats: int) -> Result:
    name, make = _network(64, 128, 128, CLASSES)
    x, y = torch.randn(BATCH, 64), torch.randint(CLASSES, (BATCH,))
    both = _step(make, "independent", x.repeat(2, 1), y.repeat(2))
    return compare(
        f"{name}, and {BATCH} unlabelled examples: one step, ratio to independent on both",
        Contender("independent", both),
        [Contender(spec, _step(make, spec, x, y)) for spec in ("a2d", "divdis")],
        repeats=repeats,
    )


def _saving(spec: str, repeats: int) -> Result:
    """A step with the fused gradient against the same step without it."""
    name, make = _network(20, 64, CLASSES)
    x, y = torch.randn(BATCH, 20), torch.randint(CLASSES, (BATCH,))
    fused, plain = (_step(make, spec, x, y) for _ in range(2))

    def formula() -> None:
        with patch("dissensus.objectives.fast._fused", lambda *_: None):
            plain()

    return compare(
        f"{name}, {spec}: one step, ratio to a step by the formula alone",
        Contender("formula", formula),
        [Contender("fused", fused, SAVING)],
        repeats=repeats,
    )

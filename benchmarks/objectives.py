"""What each objective costs: forward and backward, against plain cross-entropy of the same outputs.

The baseline is one ``F.cross_entropy`` over all members' outputs at once. An objective that also
reads unlabelled outputs (A2D, DivDis) is compared with cross-entropy over both tensors, one that
draws members (LDR) with cross-entropy over all of them, as that is what a step would cost without
it, and beside it, for those who want to know, over the drawn ones alone; a regression objective is
compared with the squared error of the same outputs. The checks of a call are part of what is timed.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import Contender, Result, compare
from dissensus.objectives import OBJECTIVES, Objective, parse

MEMBERS, BATCH, CLASSES = 5, 128, (10, 1000)
ADP_LIMIT, LDR_LIMIT, LIMIT = 6.0, 3.0, 2.5

#: Objectives as ``parse`` reads them, with the ratio that is good enough. DivDis at 1,000 classes
#: needs the joint distribution of every pair, classes² numbers each, and is shown without a limit.
ON_LABELS = {
    "independent": LIMIT,
    "joint": LIMIT,
    "joint:combine=score": LIMIT,
    "augmented": LIMIT,
    "gncl": LIMIT,
    "gncl:combine=probability": LIMIT,
    "jsd": LIMIT,
    "adp": ADP_LIMIT,
    "learner_dropout/joint": LIMIT,
}


def run(quick: bool) -> list[Result]:
    """Time every objective at both sizes."""
    results = []
    for classes in CLASSES:
        # A round at the small size is short and noisy: more of them.
        repeats = 5 if quick else 150 if classes <= 10 else 40
        results += [
            _labelled(classes, repeats),
            _drawn(2, classes, repeats),
            _drawn(MEMBERS, classes, repeats),
            _unlabelled(classes, repeats),
        ]
    return [*results, _regression(5 if quick else 150)]


def _title(name: str, members: int, classes: int) -> str:
    return f"{name} on [{members}, {BATCH}, {classes}]: forward + backward, ratio to cross-entropy"


def _labelled(classes: int, repeats: int) -> Result:
    logits, labels = _batch(MEMBERS, classes)
    contenders = [
        Contender(spec, partial(_step, parse(spec), logits, labels), limit)
        for spec, limit in ON_LABELS.items()
    ]
    title = _title("Objectives", MEMBERS, classes)
    return compare(title, _plain(logits, labels), contenders, repeats=repeats)


def _drawn(compared: int, classes: int, repeats: int) -> Result:
    """LDR of two drawn members against cross-entropy of so many."""
    logits, labels = _batch(2, classes)
    objective = OBJECTIVES["ldr"]()
    limit = LDR_LIMIT if compared == MEMBERS else None
    contenders = [Contender("ldr (2 active)", lambda: _step(objective, logits, labels), limit)]
    plain = _plain(_batch(compared, classes)[0], labels)
    title = _title("LDR of 2 members, cross-entropy", compared, classes)
    return compare(title, plain, contenders, repeats=repeats)


def _unlabelled(classes: int, repeats: int) -> Result:
    logits, labels = _batch(MEMBERS, classes)
    unlabelled = _batch(MEMBERS, classes)[0]

    def both() -> None:
        loss = cross_entropy(logits.flatten(0, 1), labels.repeat(MEMBERS))
        loss = loss + cross_entropy(unlabelled.flatten(0, 1), labels.repeat(MEMBERS))
        torch.autograd.grad(loss, (logits, unlabelled))

    def step(objective: Objective) -> None:
        loss = objective(logits, labels, disagreement=unlabelled).loss
        torch.autograd.grad(loss, (logits, unlabelled))

    contenders = [
        Contender("a2d", partial(step, parse("a2d")), LIMIT),
        Contender("divdis", partial(step, parse("divdis")), LIMIT if classes <= 10 else None),
    ]
    title = _title("Disagreement on unlabelled data", MEMBERS, classes)
    return compare(title, Contender("cross-entropy of both", both), contenders, repeats=repeats)


def _regression(repeats: int) -> Result:
    outputs = torch.randn(MEMBERS, BATCH, 10, requires_grad=True)
    targets = torch.randn(BATCH, 10)

    def plain() -> None:
        torch.autograd.grad((outputs - targets).square().sum(-1).mean(), outputs)

    specs = ("independent:loss=mse", "joint:loss=mse", "augmented:loss=mse", "gat", "ncl")
    contenders = [
        Contender(spec, partial(_step, parse(spec), outputs, targets), LIMIT) for spec in specs
    ]
    title = f"Regression on [{MEMBERS}, {BATCH}, 10]: forward + backward, ratio to squared error"
    return compare(title, Contender("squared error", plain), contenders, repeats=repeats)


def _batch(members: int, classes: int) -> tuple[Tensor, Tensor]:
    logits = torch.randn(members, BATCH, classes, requires_grad=True)
    return logits, torch.randint(classes, (BATCH,))


def _plain(logits: Tensor, labels: Tensor) -> Contender:
    members = logits.shape[0]

    def run() -> None:
        loss = cross_entropy(logits.flatten(0, 1), labels.repeat(members))
        torch.autograd.grad(loss, logits)

    return Contender("cross-entropy", run)


def _step(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    torch.autograd.grad(objective(outputs, targets).loss, outputs)

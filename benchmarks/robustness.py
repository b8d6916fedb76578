"""PGD against a minimal hand-written loop, foolbox and ART; the cost of a transfer matrix.

Three small CNNs on Fashion-MNIST if ``DISSENSUS_DATA`` says where it is, else on made images of its
shape; 100 steps. Where nothing breaks, all contenders make the same steps, and the ratio is the
cost of a step of an example. Where most examples break early, ours leaves them out and the others
do not.
"""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Check, Contender, Result, compare
from dissensus.data import load
from dissensus.ensemble import Ensemble
from dissensus.models import make_factory
from dissensus.outputs import combined_log_probs
from dissensus.robustness import PGD, attack, transfer
from dissensus.training import fit

_MEMBERS, _EXAMPLES, _STEPS = 3, 32, 100
_SMALL, _LARGE = 1e-4, 0.2  # an ε at which nothing breaks, and one at which nearly all does


def run(quick: bool) -> list[Result]:
    """All comparisons; one thread unless ``--threads`` says otherwise."""
    ens, x, y = _problem(_MEMBERS)
    return [
        _steps(ens, x, y, repeats=2 if quick else 5),
        _early(ens, x, y, repeats=2 if quick else 3),
        _matrix(repeats=2 if quick else 3),
    ]


def _problem(members: int) -> tuple[Ensemble, Tensor, Tensor]:
    """An ensemble that has been trained a little, and examples that it gets right."""
    x, y = _images()
    ens = Ensemble(make_factory("small_cnn", (1, 28, 28), 10), members=members, seed=0)
    fit(ens, (x, y), epochs=3, batch_size=64, progress=False)
    ens.eval()
    right = (ens.predict(x).argmax(1) == y).nonzero().squeeze(1)[:_EXAMPLES]
    return ens, x[right], y[right]


def _data() -> str:
    return "Fashion-MNIST" if os.environ.get("DISSENSUS_DATA") else "28 × 28"


def _images(count: int = 1024) -> tuple[Tensor, Tensor]:
    """Fashion-MNIST, or ten blurred patterns with noise."""
    if os.environ.get("DISSENSUS_DATA"):
        x, y = load("fashion_mnist", download=False).train
        return x[:count], y[:count]
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(10, 1, 7, 7, generator=generator)
    patterns = nn.functional.interpolate(patterns, 28, mode="bilinear")
    y = torch.randint(10, (count,), generator=generator)
    return 0.7 * patterns[y] + 0.3 * torch.rand(count, 1, 28, 28, generator=generator), y


def _hand_loop(ens: Ensemble, x: Tensor, y: Tensor, eps: float) -> Callable[[], None]:
    """PGD as one writes it in ten lines, with frozen parameters and without early exit."""
    length = 2.5 * eps / _STEPS

    def loop() -> None:
        ens.requires_grad_(False)
        at = (x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(_STEPS):
            at = at.detach().requires_grad_()
            log_probs = combined_log_probs(ens(at))
            loss = nn.functional.nll_loss(log_probs, y, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, at)
            at = at.detach() + length * gradient.sign()
            at = (x + (at - x).clamp(-eps, eps)).clamp(0, 1)
        with torch.no_grad():
            (combined_log_probs(ens(at)).argmax(1) == y).sum()
        ens.requires_grad_(True)

    return loop


def _ours(ens: Ensemble, x: Tensor, y: Tensor, eps: float) -> Callable[[], object]:
    how = PGD(eps=eps, steps=_STEPS)
    return lambda: attack(ens, x, y, how, progress=False)


def _steps(ens: Ensemble, x: Tensor, y: Tensor, repeats: int) -> Result:
    found = attack(ens, x, y, PGD(eps=_SMALL, steps=_STEPS), progress=False)
    assert float(found.accuracy) == 1, "an example breaks, so that work differs"
    return compare(
        f"PGD, {_STEPS} steps on {_MEMBERS} small CNNs, {_EXAMPLES} images of {_data()}, none "
        "breaks: cost of a step of an example, ratio to a hand-written loop",
        Contender("hand-written loop", _hand_loop(ens, x, y, _SMALL)),
        [
            Contender("dissensus", _ours(ens, x, y, _SMALL), 1.02),
            *_others(ens, x, y, _SMALL),
        ],
        repeats=repeats,
    )


def _early(ens: Ensemble, x: Tensor, y: Tensor, repeats: int) -> Result:
    found = attack(ens, x, y, PGD(eps=_LARGE, steps=_STEPS), progress=False)
    done = int(found.gradients.sum()) / (_STEPS * len(x))
    return compare(
        f"The same where {1 - float(found.accuracy):.0%} break: whole attack, ratio to the loop; "
        f"{done:.0%} of the steps are made",
        Contender("hand-written loop", _hand_loop(ens, x, y, _LARGE)),
        [Contender("dissensus", _ours(ens, x, y, _LARGE), 1 / 1.5), *_others(ens, x, y, _LARGE)],
        repeats=repeats,
    )


def _matrix(repeats: int) -> Result:
    """Five members: the whole matrix against five attacks, one on each member."""
    ens, x, y = _problem(5)
    how = PGD(eps=0.05, steps=20, early=False)

    def attacks() -> None:
        for member in range(5):
            attack(ens, x, y, how, members=[member], progress=False)

    started = time.process_time()
    attack(ens, x, y, how, members=[0], progress=False)
    one = time.process_time() - started
    started = time.process_time()
    transfer(ens, x, y, how, progress=False)
    whole = time.process_time() - started
    return compare(
        "Transfer matrix of 5 members, PGD of 20 steps, ratio to five attacks",
        Contender("five attacks", attacks),
        [Contender("transfer", lambda: transfer(ens, x, y, how, progress=False), 1.3)],
        repeats=repeats,
        checks=[Check("time of the matrix / time of one attack (25 pairs)", whole / one, 10.0)],
    )


class _Single(nn.Module):
    """The ensemble as one network, as other libraries want it."""

    def __init__(self, ens: Ensemble) -> None:
        super().__init__()
        self.ens = ens

    def forward(self, x: Tensor) -> Tensor:
        return combined_log_probs(self.ens(x))


def _others(ens: Ensemble, x: Tensor, y: Tensor, eps: float) -> list[Contender]:
    """Foolbox and ART where they are installed, their way of freezing parameters included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            Contender(name, made)
            for name, make in (("foolbox", _foolbox), ("ART", _art))
            if (made := make(ens, x, y, eps)) is not None
        ]


def _foolbox(ens: Ensemble, x: Tensor, y: Tensor, eps: float) -> Callable[[], Any] | None:
    try:
        import foolbox
    except ImportError:
        return None
    model = foolbox.PyTorchModel(_Single(ens).eval(), bounds=(0, 1), device="cpu")
    pgd = foolbox.attacks.LinfPGD(steps=_STEPS, rel_stepsize=2.5 / _STEPS)
    return lambda: pgd(model, x, y, epsilons=eps)


def _art(ens: Ensemble, x: Tensor, y: Tensor, eps: float) -> Callable[[], Any] | None:
    try:
        from art.attacks.evasion import ProjectedGradientDescentPyTorch
        from art.estimators.classification import PyTorchClassifier
    except ImportError:
        return None
    model = PyTorchClassifier(
        _Single(ens).eval(),
        nn.CrossEntropyLoss(),
        tuple(x.shape[1:]),
        10,
        clip_values=(0, 1),
        device_type="cpu",
    )
    pgd = ProjectedGradientDescentPyTorch(
        model,
        eps=eps,
        eps_step=2.5 * eps / _STEPS,
        max_iter=_STEPS,
        num_random_init=1,
        batch_size=len(x),
        verbose=False,
    )
    inputs, labels = x.numpy(), y.numpy()
    return lambda: pgd.generate(inputs, labels)

"""Optimisers for some members: torch's own numbers for those that step, nothing for the others."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dissensus.training import MemberOptimizer, Optimizer
from dissensus.training.optim import OPTIMIZERS, clip_by_member

MEMBERS = 3
SHAPES = [(3, 2), (4,), ()]


def stacks(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    return [torch.randn(MEMBERS, *shape, **options) for shape in SHAPES]


def torch_optimizer(settings: Optimizer, parameters: list[Tensor], member: int) -> Any:
    lr, decay = (values[member] for values in settings.for_members(MEMBERS))
    common = {"lr": lr, "weight_decay": decay}
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, momentum=settings.momentum, nesterov=settings.nesterov, **common
        )
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
    return kind(parameters, betas=(settings.beta1, settings.beta2), eps=settings.eps, **common)


def per_member(numbers: Any) -> Any:
    return numbers | st.tuples(*[numbers] * MEMBERS)


@st.composite
def optimizers(draw: Any) -> Optimizer:
    name = draw(st.sampled_from(list(OPTIMIZERS)))
    values = {
        "lr": draw(per_member(st.floats(1e-4, 0.3))),
        "weight_decay": draw(per_member(st.sampled_from([0.0, 1e-3, 0.2]))),
    }
    if name == "sgd":
        values["momentum"] = draw(st.sampled_from([0.0, 0.5, 0.9]))
        values["nesterov"] = values["momentum"] > 0 and draw(st.booleans())
    else:
        values |= {"beta1": draw(st.sampled_from([0.0, 0.9])), "beta2": draw(st.floats(0.5, 0.999))}
        values["eps"] = draw(st.sampled_from([1e-8, 1e-3]))
    return Optimizer(name, **values)


draws = st.none() | st.lists(st.integers(0, MEMBERS - 1), min_size=1, unique=True)
steps = st.lists(st.tuples(draws, st.sampled_from([1.0, 0.1])), min_size=1, max_size=7)


@given(optimizers(), steps, st.integers(0, 6))
def test_steps_are_torchs_for_drawn_members_and_nothing_for_the_others(
    settings: Optimizer, taken: list[tuple[list[int] | None, float]], reload_at: int
) -> None:
    ours = stacks(0)
    optimizer = MemberOptimizer(settings, ours, MEMBERS)
    theirs = [[p[j].clone().requires_grad_() for p in ours] for j in range(MEMBERS)]
    reference = [torch_optimizer(settings, theirs[j], j) for j in range(MEMBERS)]
    base = [group["lr"] for member in reference for group in member.param_groups]
    for number, (drawn, scale) in enumerate(taken):
        if number == reload_at:  # through a checkpoint
            saved = {name: tensor.clone() for name, tensor in optimizer.state().items()}
            optimizer = MemberOptimizer(settings, ours, MEMBERS)
            optimizer.load(saved)
        gradients = stacks(number + 1)
        rows = list(range(MEMBERS)) if drawn is None else drawn
        before = snapshot(optimizer)
        optimizer.step([g[rows] for g in gradients], drawn, scale)
        for j in rows:
            reference[j].param_groups[0]["lr"] = base[j] * scale
            for parameter, gradient in zip(theirs[j], gradients, strict=True):
                parameter.grad = gradient[j].clone()
            reference[j].step()
        after = snapshot(optimizer)
        for j in range(MEMBERS):
            for stack, parameter in zip(ours, theirs[j], strict=True):
                torch.testing.assert_close(stack[j], parameter.detach(), rtol=1e-9, atol=1e-12)
            if j not in rows:
                assert all(torch.equal(a[j], b[j]) for a, b in zip(before, after, strict=True))


def snapshot(optimizer: MemberOptimizer) -> list[Tensor]:
    """Parameters, moments and step counts, each with a leading axis of members."""
    moments = [tensor for slot in optimizer.moments for tensor in slot]
    tensors = [*optimizer.parameters, *moments, torch.tensor(optimizer.counts)]
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("limit", [1e-3, 1.0, 100.0])
def test_clipping_is_torchs_for_each_member(limit: float) -> None:
    gradients = stacks(3)
    gradients[0][1] *= 30
    for gradient in gradients:
        gradient[2] = 0
    before = copy.deepcopy(gradients)
    clipped = clip_by_member(gradients, limit)
    for j in range(MEMBERS):
        leaves = [torch.zeros_like(g[j], requires_grad=True) for g in gradients]
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient[j].clone()
        torch.nn.utils.clip_grad_norm_(leaves, limit)
        for leaf, got in zip(leaves, clipped, strict=True):
            torch.testing.assert_close(got[j], leaf.grad, rtol=1e-12, atol=0)
    assert all(map(torch.equal, gradients, before))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rmsprop:lr=1", "there is no optimizer 'rmsprop'; known are sgd, adam, adamw"),
        (
            "adam:rate=1",
            "adam has no setting 'rate'; known are lr, weight_decay, beta1",
        ),
        ("adam:momentum=0.9", "adam has no setting 'momentum'"),
        ("torch.optim:AdamW", "torch.optim:AdamW is code, which only Python can pass"),
        ("sgd:eps=1", "sgd has no setting 'eps'; known are lr, weight_decay, momentum, nesterov"),
        ("adam:lr", "expected key=value"),
        ("adam:lr=fast", "lr must be a number, got 'fast'"),
        ("adam:lr=1,lr=2", "'lr' is given twice"),
        ("adam:lr=-1", "lr must be finite and at least 0"),
        ("adam:lr=1e-3/nan", "lr must be finite"),
        ("adam:beta1=0.9/0.8", "beta1 must be a number"),
        ("adam:beta2=1", "beta2 must be .* less than 1, got 1"),
        ("adam:eps=0", "eps must be a finite number greater than 0"),
        ("sgd:nesterov=maybe", "nesterov must be true or false, got 'maybe'"),
        ("sgd:momentum=0,nesterov=true", "nesterov needs sgd with a momentum"),
    ],
)
def test_what_no_optimizer_is(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Optimizer.parse(text)

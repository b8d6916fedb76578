"""``WrittenOut``: its means, its refusal of a second derivative, and the terms of DivDis."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from dissensus.losses import cross_entropy, mean_cross_entropy
from dissensus.objectives.disagreement import divdis_pairs, pair_weights
from dissensus.objectives.fused import divdis_parts, jensen_shannon_parts, member_weights
from dissensus.objectives.gradients import WrittenOut
from dissensus.outputs import mean_over_members, weighted_mean


def draw(members: int = 3, batch: int = 4, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels, weights of which one is 0."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(members, batch, classes, generator=generator, dtype=torch.float64)
    weights = torch.arange(float(members), dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    return 2 * logits, labels, weights / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("used", [[0], [1], [0, 1]])
def test_means_are_the_means_of_the_values(weighted: bool, used: list[int]) -> None:
    logits, labels, some = draw()
    weights = some if weighted else None
    leaf = logits.requires_grad_()
    got = jensen_shannon_parts.mean(weights, leaf, labels, weights)
    ce, divergence = jensen_shannon_parts(leaf, labels, weights)
    wanted = (mean_over_members(ce, weights), divergence.mean())
    assert_close(got, wanted)
    # With some of them unused, and weighed unlike each other.
    gradients = [
        torch.autograd.grad(sum((i + 2) * parts[i] for i in used), leaf)[0]
        for parts in (got, wanted)
    ]
    assert_close(*gradients)


def test_a_second_derivative_is_refused_where_the_first_is_not_weighed_by_anything() -> None:
    # The incoming gradient is a constant 1: nothing but the logits has a history.
    logits, labels, weights = draw()
    leaf = logits.requires_grad_()
    for values in (jensen_shannon_parts, lambda *given: jensen_shannon_parts.mean(None, *given)):
        total = sum(value.sum() for value in values(leaf, labels, weights))
        plain = cross_entropy(log_softmax(leaf, -1), labels).sum()
        first = torch.autograd.grad(total + plain, leaf, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="JSD has no second derivative"):
            torch.autograd.grad(first.sum(), leaf)


def test_slopes_of_scalars_and_of_values_by_example() -> None:
    # v = (Σ z², z_0 of every member and example), the slopes 2 z and 1 at class 0.
    def compute(z: Tensor) -> tuple[Tensor, ...]:
        first = torch.zeros_like(z)
        first[..., 0] = 1
        return z.square().sum(), z[..., 0].clone(), 2 * z, first

    term = WrittenOut("squares", compute, values=2)
    z = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(term, (z,))
    assert torch.autograd.gradcheck(lambda z: term.mean(None, z), (z,))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_terms_of_divdis_are_the_plain_ones(weighted: bool) -> None:
    logits, _, some = draw()
    weights = some if weighted else None
    pairs = pair_weights(logits, 3, weights)
    log_prior = torch.linspace(-1, 1, 5, dtype=torch.float64).log_softmax(0)

    def plain(z: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = log_softmax(z, -1)
        mean = log_probs.exp().mean(1)
        imbalance = (mean * (mean.log() - log_prior)).sum(-1)
        return (pairs * divdis_pairs(log_probs)).sum(), weighted_mean(imbalance, weights)

    def fused(z: Tensor) -> tuple[Tensor, ...]:
        return divdis_parts(z, log_prior, pairs, member_weights(z, weights))

    leaf = logits.requires_grad_()
    assert_close(fused(leaf), plain(leaf))
    for part in (0, 1):
        got, wanted = (torch.autograd.grad(f(leaf)[part], leaf)[0] for f in (fused, plain))
        assert_close(got, wanted)


def test_equal_pairs_made_inside_a_transform_do_not_outlive_it() -> None:
    def total(z: Tensor) -> Tensor:
        return (z * pair_weights(z, 7)).sum()

    vmap(grad(total))(torch.zeros(2, 7, 7))
    kept = pair_weights(torch.zeros(7), 7)
    assert not torch._C._functorch.is_functorch_wrapped_tensor(kept)
    assert float(kept.sum()) == pytest.approx(1)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_mean_cross_entropy_is_the_mean_of_cross_entropy(
    smoothing: float, weighted: bool, soft: bool
) -> None:
    logits, labels, some = draw()
    targets = logits[0].softmax(-1) if soft else labels.int()
    weights = some if weighted else None
    wanted = mean_over_members(cross_entropy(log_softmax(logits, -1), targets, smoothing), weights)
    assert_close(mean_cross_entropy(logits, targets, weights, smoothing), wanted)

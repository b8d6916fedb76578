"""``WrittenOut``: its totals, its refusal of a second derivative, and the terms of DivDis."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from dissensus.losses import cross_entropy, mean_cross_entropy
from dissensus.objectives.arrays import Array, Namespace
from dissensus.objectives.disagreement import divdis_pairs, pair_weights
from dissensus.objectives.fused import divdis_parts, jensen_shannon_parts, member_weights
from dissensus.objectives.gradients import Factor, WrittenOut
from dissensus.outputs import mean_over_members, weighted_mean


def draw(members: int = 3, batch: int = 4, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels, weights of which one is 0."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(members, batch, classes, generator=generator, dtype=torch.float64)
    weights = torch.arange(float(members), dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    return 2 * logits, labels, weights / weights.sum()


def squares(xp: Namespace, z: Array) -> tuple[Array, ...]:
    """``Σ z²``, ``Σ z³``, and what their gradients need."""
    return xp.total(z**2), xp.total(z**3), z * 1


def gradient_of_squares(
    xp: Namespace, factors: Sequence[Factor], _: object, kept: Sequence[Array]
) -> Array:
    return 2 * kept[0] * factors[0] + 3 * kept[0] ** 2 * factors[1]


POWERS = WrittenOut("powers", squares, values=2, gradient=gradient_of_squares)


def powers() -> tuple[Tensor, Tensor]:
    return torch.tensor([[[1.0, 2.0]]], requires_grad=True), torch.tensor(7.0, requires_grad=True)


def test_a_total_is_the_first_value_and_the_others_times_their_factors() -> None:
    z, base = powers()
    for factor in (0.5, torch.tensor(0.5)):
        assert [part.item() for part in POWERS.total((factor,), z)] == [5 + 0.5 * 9, 5, 9]
        assert_close(torch.autograd.grad(POWERS.total((factor,), z)[0], z)[0], 2 * z + 1.5 * z**2)
        total, first, second = POWERS.total((2.0, factor), z, base=base)
        assert [part.item() for part in (total, first, second)] == [7 + 10 + 4.5, 5, 9]
        of_z, of_base = torch.autograd.grad(3 * total, (z, base))
        assert_close(of_z, 3 * (4 * z + 1.5 * z**2))
        assert float(of_base) == 3


def test_a_total_and_its_values_can_be_differentiated_together_and_alone() -> None:
    z, base = powers()
    slopes = [2 * z + 1.5 * z**2, 2 * z, 3 * z**2]
    for used in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        parts = POWERS.total((0.5,), z)
        gradient = torch.autograd.grad(sum((i + 2) * parts[i] for i in used), z)[0]
        assert_close(gradient, sum((i + 2) * slopes[i] for i in used))
    # With a base that wants a gradient and logits that do not, and the other way round.
    assert float(torch.autograd.grad(POWERS.total((1.0, 1.0), z.detach(), base=base)[0], base)[0])
    total, *_ = POWERS.total((1.0, 1.0), z, base=base.detach())
    assert_close(torch.autograd.grad(total, z)[0], 2 * z + 3 * z**2)
    assert torch.autograd.gradcheck(lambda z: POWERS.total((0.5,), z), (z.double(),))
    with torch.no_grad():
        assert not any(part.requires_grad for part in POWERS.total((0.5,), z))


def test_a_total_can_be_differentiated_again_and_again_where_the_graph_is_kept() -> None:
    z, _ = powers()
    total = POWERS.total((0.5,), z)[0]
    first, second = (torch.autograd.grad(total, z, retain_graph=True)[0] for _ in range(2))
    assert_close(first, second)
    torch.autograd.grad(total, z)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(total, z)


def test_a_second_derivative_is_refused_where_the_first_is_not_weighed_by_anything() -> None:
    # The incoming gradient is a constant 1: nothing but the logits has a history.
    logits, labels, weights = draw()
    leaf = logits.requires_grad_()
    given = leaf, labels, weights
    for values in (jensen_shannon_parts(*given), jensen_shannon_parts.total((2.0,), *given)[:1]):
        plain = cross_entropy(log_softmax(leaf, -1), labels).sum()
        first = torch.autograd.grad(sum(values) + plain, leaf, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="JSD has no second derivative"):
            torch.autograd.grad(first.sum(), leaf)


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

"""Terms whose gradients are written out, against the plain functions that define them."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from dissensus.diversity import jensen_shannon
from dissensus.losses import cross_entropy
from dissensus.objectives.disagreement import a2d_pairs
from dissensus.objectives.fused import a2d_term, jensen_shannon_parts, score_curvature_parts
from dissensus.objectives.ldr import hardness_weights, ldr_parts
from dissensus.outputs import mean_over_members, weighted_mean

Parts = tuple[Tensor, ...]
Function = Callable[[Tensor, Tensor, Tensor], Parts]


def fused_ldr(logits: Tensor, targets: Tensor, weights: Tensor) -> Parts:
    return ldr_parts(logits, targets, weights, _pairs(weights)[..., None] / logits.shape[1])


def plain_ldr(logits: Tensor, targets: Tensor, weights: Tensor) -> Parts:
    log_probs = log_softmax(logits, -1)
    alpha = hardness_weights(logits, targets, weights)
    terms = (a2d_pairs(log_probs) * alpha).mean(-1)
    ce = mean_over_members(cross_entropy(log_probs, targets), weights)
    return ce, (_pairs(weights) * terms).sum()


def _pairs(weights: Tensor) -> Tensor:
    """Unlike for every pair and for its two orders, the diagonal 0."""
    members = weights.shape[0]
    order = torch.arange(1.0, members**2 + 1, dtype=weights.dtype).reshape(members, members)
    return torch.outer(weights, weights) * order * (1 - torch.eye(members, dtype=weights.dtype))


def plain_jensen_shannon(logits: Tensor, targets: Tensor, weights: Tensor) -> Parts:
    log_probs = log_softmax(logits, -1)
    ce = mean_over_members(cross_entropy(log_probs, targets), weights)
    return logits.shape[0] * ce, jensen_shannon(log_probs, weights).mean()


def plain_score_curvature(logits: Tensor, targets: Tensor, weights: Tensor) -> Parts:
    away = logits - weighted_mean(logits, weights)
    probs = weighted_mean(logits, weights).softmax(-1)
    variance = (probs * away.square()).sum(-1) - (probs * away).sum(-1).square()
    ce = mean_over_members(cross_entropy(log_softmax(logits, -1), targets), weights)
    return ce, mean_over_members(variance / 2, weights)


FUSED: dict[str, tuple[Function, Function]] = {
    "ldr": (fused_ldr, plain_ldr),
    "jensen_shannon": (jensen_shannon_parts, plain_jensen_shannon),
    "score_curvature": (score_curvature_parts, plain_score_curvature),
}
every_term = pytest.mark.parametrize("name", FUSED)


def draw(
    seed: int, members: int = 3, batch: int = 4, classes: int = 5, scale: float = 2.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, hard labels, soft labels, weights."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    return (
        scale * torch.randn(members, batch, classes, **options),
        torch.randint(classes, (batch,), generator=generator),
        torch.randn(batch, classes, **options).softmax(-1),
        torch.randn(members, **options).softmax(0),
    )


def values_and_gradients(
    function: Function, logits: Tensor, targets: Tensor, weights: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Each part, the gradient of each alone, and of all together."""
    values: list[Tensor] = []
    gradients = []
    for chosen in ([0], [1], [0, 1]):
        leaf = logits.clone().requires_grad_()
        parts = function(leaf, targets, weights)
        # Unlike numbers for unlike parts, so that none can stand in for another.
        weighed = sum((i + 2) * parts[i] for i in chosen)
        gradients.append(torch.autograd.grad(weighed, leaf)[0])
        values = [part.detach() for part in parts]
    return values, gradients


@every_term
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    members=st.integers(1, 4),
    classes=st.integers(2, 6),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    soft=st.booleans(),
    dropped=st.booleans(),
)
def test_fused_terms_are_the_plain_ones(
    name: str, seed: int, members: int, classes: int, scale: float, soft: bool, dropped: bool
) -> None:
    logits, hard, smooth, weights = draw(seed, members, 4, classes, scale)
    if dropped and members > 1:
        weights[0] = 0
        weights = weights / weights.sum()
    targets = smooth if soft and name != "ldr" else hard
    got, wanted = (values_and_gradients(f, logits, targets, weights) for f in FUSED[name])
    assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@every_term
def test_fused_terms_where_logits_tie(name: str) -> None:
    # Small integers: many ties for the top class, whose first is taken; many equal members.
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(2, (4, 50, 3), generator=generator).double()
    labels = torch.randint(3, (50,), generator=generator)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    got, wanted = (values_and_gradients(f, logits, labels, weights) for f in FUSED[name])
    assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@every_term
@pytest.mark.parametrize("scale", [50.0, 1e4])
def test_fused_terms_in_float32_are_those_of_float64(name: str, scale: float) -> None:
    # Members sure to unlike degrees, of the same class and of others, to the right of the smallest
    # float32 that 1 − p can be and far to its left.
    generator = torch.Generator().manual_seed(1)
    logits = scale * torch.randn(3, 200, 4, generator=generator)
    labels = torch.randint(4, (200,), generator=generator)
    weights = torch.tensor([0.5, 0.2, 0.3])
    got = values_and_gradients(FUSED[name][0], logits, labels, weights)
    wanted = values_and_gradients(FUSED[name][0], logits.double(), labels, weights.double())
    for narrow, wide in zip(got[0] + got[1], wanted[0] + wanted[1], strict=True):
        assert bool(torch.isfinite(narrow).all())
        rounding = 1e-6 + 1e-5 * float(wide.abs().max())
        assert_close(narrow.double(), wide, rtol=5e-3, atol=rounding)


@every_term
def test_vmap_of_the_gradient_is_the_loop(name: str) -> None:
    runs = [draw(seed) for seed in range(3)]
    stacked = [torch.stack(part) for part in zip(*runs, strict=True)]

    def total(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        first, second = FUSED[name][0](logits, labels, weights)
        return first + 3 * second.square()

    got = vmap(grad(total))(stacked[0], stacked[1], stacked[3])
    wanted = [grad(total)(logits, labels, weights) for logits, labels, _, weights in runs]
    assert_close(got, torch.stack(wanted))
    # One set of labels and weights for many outputs, and the other way round.
    _, labels, _, weights = runs[0]
    got = vmap(grad(total), (0, None, None))(stacked[0], labels, weights)
    assert_close(got, torch.stack([grad(total)(run[0], labels, weights) for run in runs]))
    got = vmap(grad(total), (None, 0, 0))(runs[0][0], stacked[1], stacked[3])
    assert_close(got, torch.stack([grad(total)(runs[0][0], run[1], run[3]) for run in runs]))


@every_term
def test_a_second_derivative_is_refused_rather_than_wrong(name: str) -> None:
    logits, labels, _, weights = draw(0)
    for part in (0, 1):

        def loss(z: Tensor, part: int = part) -> Tensor:
            return FUSED[name][0](z, labels, weights)[part].square()

        with pytest.raises(RuntimeError, match="no second derivative"):
            jacrev(grad(loss))(logits)
        leaf = logits.clone().requires_grad_()
        first = torch.autograd.grad(loss(leaf), leaf, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(first.sum(), leaf)


def test_the_term_of_a2d_is_the_weighted_sum_of_its_pairs() -> None:
    logits, _, _, weights = draw(2)
    examples = torch.linspace(0.5, 2, 4, dtype=torch.float64)
    share = _pairs(weights)[..., None] * examples

    def plain(z: Tensor) -> Tensor:
        return (a2d_pairs(log_softmax(z, -1)) * share).sum()

    leaf = logits.requires_grad_()
    got, wanted = a2d_term(leaf, share)[0], plain(leaf)
    assert_close(got, wanted)
    assert_close(*(torch.autograd.grad(value, leaf)[0] for value in (got, wanted)))

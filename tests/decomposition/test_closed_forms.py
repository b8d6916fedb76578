"""Closed forms of diversity, and exponential families, against the identity and slow sums."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import softplus

from dissensus import decomposition as dc
from dissensus.losses import mse
from dissensus.outputs import weighted_mean
from tests.decomposition.cases import (
    LABELS,
    LOGITS,
    NAN_LOGITS,
    Array,
    Case,
    cases,
    make_case,
    slow_errors,
    slow_softmax,
    softmax_loss,
    tensor,
)

SMOOTH_FORMS = [pair for pair in dc.CLOSED_FORMS if pair[0] != "zero_one"]


@pytest.mark.parametrize(("loss", "way"), dc.CLOSED_FORMS)
@settings(max_examples=60)
@given(case=cases(), soft=st.booleans())
def test_closed_form_equals_the_identity(loss: str, way: str, case: Case, soft: bool) -> None:
    targets = case.targets(loss, soft)
    _, ensemble, mean = slow_errors(case, loss, way, targets.numpy())
    outputs, weights = case.tensors
    diversity = dc.closed_form_diversity(outputs, targets, loss, way, weights)
    np.testing.assert_allclose(diversity, mean - ensemble, rtol=1e-9, atol=1e-11 * (1 + mean.max()))


@pytest.mark.parametrize(("loss", "way"), SMOOTH_FORMS)
def test_gradients_of_the_closed_forms(loss: str, way: str) -> None:
    case = make_case()
    outputs, weights = case.tensors
    for targets in (case.targets(loss, soft=False), case.targets(loss, soft=True)):
        form = dc.CLOSED_FORMS[loss, way]
        logits = outputs.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, f=form, y=targets: f(x, y, weights), logits)
        by_form = torch.autograd.grad(form(logits, targets, weights).mean(), logits)
        by_definition = torch.autograd.grad(
            dc.decompose(logits, targets, loss, way, weights).diversity, logits
        )
        torch.testing.assert_close(by_form, by_definition)


def slow_kl(family: str, first: Array, second: Array) -> float:
    """KL(p_first ‖ p_second) from the densities, not from their log-partition functions."""
    if family == "gaussian":  # E over N(a, 1) of ½ (x − b)² − ½ (x − a)², on a fine grid
        total = 0.0
        for a, b in zip(first, second, strict=True):
            x = np.linspace(a - 12, a + 12, 20001)
            density = np.exp(-((x - a) ** 2) / 2) / math.sqrt(2 * math.pi)
            total += float(np.sum(density * ((x - b) ** 2 - (x - a) ** 2) / 2) * (x[1] - x[0]))
        return total
    if family == "softmax":
        pairs = zip(slow_softmax(first), slow_softmax(second), strict=True)
        return sum(p * math.log(p / q) for p, q in pairs)
    total = 0.0
    for a, b in zip(first, second, strict=True):  # independent Poissons with rates e^a and e^b
        for count in range(150):
            log_p = a * count - math.exp(a) - math.lgamma(count + 1)
            log_q = b * count - math.exp(b) - math.lgamma(count + 1)
            total += math.exp(log_p) * (log_p - log_q)
    return total


def poisson_loss(log_rate: Tensor, count: Tensor) -> Tensor:
    return (log_rate.exp() - count * log_rate + torch.lgamma(count + 1)).sum(-1)


def gaussian_loss(mean: Tensor, value: Tensor) -> Tensor:
    return ((mean - value).square() / 2 + math.log(2 * math.pi) / 2).sum(-1)


LIKELIHOODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": softmax_loss,
    "poisson": poisson_loss,
    "gaussian": gaussian_loss,
}


def test_every_log_partition_has_a_likelihood_here() -> None:
    assert LIKELIHOODS.keys() == dc.LOG_PARTITIONS.keys()


@pytest.mark.parametrize("family", dc.LOG_PARTITIONS)
def test_score_averaging_gives_a_divergence_in_every_exponential_family(family: str) -> None:
    case = make_case(members=3, batch=2)
    natural, weights = case.tensors
    targets = {"poisson": tensor([[0.0, 3.0, 1.0], [7.0, 2.0, 0.0]])}.get(
        family, torch.from_numpy(case.soft)
    )
    diversity = dc.exponential_family_diversity(natural, family, weights)
    result = dc.decompose(natural, targets, LIKELIHOODS[family], "score", weights)
    torch.testing.assert_close(diversity, result.examples.diversity)
    mean = sum(w * row for w, row in zip(case.weights, case.outputs, strict=True))
    for n in range(2):
        divergences = [slow_kl(family, mean[n], case.outputs[j, n]) for j in range(3)]
        assert diversity[n].item() == pytest.approx(float(case.weights @ divergences), rel=1e-7)
    partition = dc.LOG_PARTITIONS[family]  # Σ_j w_j A(η_j) − A(η̄)
    jensen = weighted_mean(partition(natural), weights) - partition(weighted_mean(natural, weights))
    torch.testing.assert_close(diversity, jensen)


def test_the_softmax_family_is_the_kl_form_and_the_gaussian_half_the_ambiguity() -> None:
    outputs, weights = make_case().tensors
    by_family = {
        name: dc.exponential_family_diversity(outputs, name, weights) for name in dc.LOG_PARTITIONS
    }
    torch.testing.assert_close(by_family["softmax"], dc.kl_diversity(outputs, weights))
    torch.testing.assert_close(by_family["gaussian"], dc.ambiguity(outputs, weights) / 2)


def test_a_family_of_ones_own() -> None:
    # Bernoulli, A(η) = log(1 + e^η): the softmax family with logits (0, η).
    scores = make_case(classes=1).tensors[0]
    both = torch.cat([torch.zeros_like(scores), scores], -1)
    diversity = dc.exponential_family_diversity(scores, lambda natural: softplus(natural).sum(-1))
    torch.testing.assert_close(diversity, dc.kl_diversity(both))


@pytest.mark.parametrize("family", dc.LOG_PARTITIONS)
def test_gradients_and_vmap_of_exponential_families(family: str) -> None:
    natural, weights = make_case().tensors

    def diversity(values: Tensor) -> Tensor:
        return dc.exponential_family_diversity(values, family, weights)

    assert torch.autograd.gradcheck(diversity, natural.clone().requires_grad_())
    many = torch.stack([natural, natural.flip(0)])
    torch.testing.assert_close(
        vmap(diversity)(many), torch.stack([diversity(values) for values in many])
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "brier", "combine": "score"}, "'brier' with combine='score' has no closed form"),
        ({"loss": "zero_one"}, "'zero_one' with combine='probability' has no closed form; use dec"),
        ({"loss": mse}, "a callable loss has no closed form; use decompose, or hessian_diversity"),
        ({"outputs": NAN_LOGITS}, "logits must be finite"),
        ({"weights": torch.ones(2)}, "weights must not be negative and must sum to 1"),
    ],
)
def test_closed_forms_say_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dc.closed_form_diversity(**{"outputs": LOGITS, "targets": LABELS, **arguments})


def test_every_form_wants_members_first() -> None:
    with pytest.raises(ValueError, match=r"one of 'softmax', .* or a callable, got 'gamma'"):
        dc.exponential_family_diversity(LOGITS, "gamma")
    for form in dc.CLOSED_FORMS.values():
        with pytest.raises(ValueError, match=r"got \(4, 3\); for one model pass \w+\[None\]"):
            form(LOGITS[0], LABELS)

"""The flow of LDR's pair term, against finite differences of a slow NumPy computation."""

import numpy as np
import torch
from torch import nn

import dissensus as ds
from dissensus.objectives.ldr import LDR
from reproductions.ldr.flow import network_flow, row_flow, total_variation
from reproductions.ldr.published import favourite_shares

Array = np.ndarray


def softmax(logits: Array) -> Array:
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def slow_variation(logits: Array) -> float:
    """Of one row, ``[members, classes]``."""
    probs = softmax(logits)
    pairs = [(m, k) for m in range(len(probs)) for k in range(m)]
    return float(np.mean([np.abs(probs[m] - probs[k]).sum() / 2 for m, k in pairs]))


def slow_term(logits: Array, tops: Array) -> float:
    """Eq. 3 of one row, mean over ordered pairs; ŷ is held, as it has no gradient."""
    probs = softmax(logits)
    terms = []
    for m, top in enumerate(tops):
        for k in range(len(probs)):
            if k != m:
                p, q = probs[m, top], probs[k, top]
                terms.append(-np.log(p * (1 - q) + q * (1 - p)))
    return float(np.mean(terms))


def slow_gradient(function: object, logits: Array, step: float = 1e-6) -> Array:
    gradient = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        moved = [logits.copy(), logits.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        gradient[index] = (function(moved[0]) - function(moved[1])) / (2 * step)  # type: ignore[operator]
    return gradient


def test_rows_against_numpy() -> None:
    random = np.random.default_rng(0)
    logits, alpha = random.normal(size=(3, 4, 5)), random.uniform(0.5, 2, 4)
    found = row_flow(torch.from_numpy(logits), torch.from_numpy(alpha))
    for row in range(4):
        here = logits[:, row]
        tops = here.argmax(-1)
        push = alpha[row] * slow_gradient(lambda x, tops=tops: slow_term(x, tops), here)
        rate = -(push * slow_gradient(slow_variation, here)).sum()
        np.testing.assert_allclose(float(found[row]), rate, rtol=1e-5)
        variation = total_variation(torch.from_numpy(logits[:, [row]]))
        np.testing.assert_allclose(float(variation), slow_variation(here))


def test_unsure_members_are_moved_apart_though_both_gain_the_same_class() -> None:
    """∂/∂q_ŷ has the sign of 2 p_ŷ − 1: below ½ both p_ŷ and q_ŷ rise, the larger faster."""

    def rate(*probs: list[float]) -> float:
        logits = torch.tensor(probs, dtype=torch.float64)[:, None].log()
        return float(row_flow(logits, torch.ones(1, dtype=torch.float64)))

    unsure = torch.tensor([[[0.48, 0.26, 0.26]], [[0.4, 0.3, 0.3]]], dtype=torch.float64)
    logits = unsure.log().requires_grad_()
    term = LDR(active=None)(logits, torch.tensor([0])).parts["disagreement"]
    (gradient,) = torch.autograd.grad(term, logits)
    assert (gradient[:, 0, 0] < 0).all()  # a descent raises the first class in both
    assert rate(*unsure[:, 0].tolist()) > 0.03  # and yet they move apart
    assert (
        rate([0.3, 0.25, 0.25, 0.2], [0.28, 0.24, 0.24, 0.24]) < -0.001
    )  # these are drawn together


def test_networks_against_a_small_step() -> None:
    """The rate is the change of total variation in a small step down the term's gradient."""
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=3, seed=0).double()
    random = torch.Generator().manual_seed(0)
    x, other = (torch.randn(20, 4, generator=random, dtype=torch.float64) for _ in range(2))
    y = torch.randint(3, (20,), generator=random)
    found = network_flow(ens, x, y, {"train": x, "other": other})
    weights = list(ens.parameters())
    terms = LDR(active=None)(ens(x), y).parts
    for key, part in (("pair_term", "disagreement"), ("cross_entropy", "cross_entropy")):
        gradient = torch.autograd.grad(terms[part], weights, retain_graph=True)
        for name, inputs in (("train", x), ("other", other)):
            values = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    for weight, g in zip(weights, gradient, strict=True):
                        weight.sub_(step * g)
                    values.append(float(total_variation(ens(inputs)).mean()))
                    for weight, g in zip(weights, gradient, strict=True):
                        weight.add_(step * g)
            rate = (values[0] - values[1]) / 2e-6
            np.testing.assert_allclose(found[name][key], rate, rtol=1e-4)
            np.testing.assert_allclose(found[name]["tv"], np.mean(values))


def test_favourite_shares_by_hand() -> None:
    logits = torch.zeros(2, 4, 3)
    logits[0, :, 1] = 1.0
    logits[1, [0, 1], 0] = 1.0
    logits[1, [2], 1] = 1.0
    logits[1, [3], 2] = 1.0
    assert favourite_shares(logits) == [1.0, 0.5]

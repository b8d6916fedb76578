"""Calibration against slow loops and hand-worked values; temperatures against planted ones."""

import itertools
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

import dissensus as ds
from dissensus.calibration import (
    TemperatureAtBound,
    apply_temperature,
    brier_score,
    calibration,
    ece,
    fit_temperature,
    nll,
    reliability,
)
from dissensus.calibration.temperature import _scaled_nll


def draw(members: int = 3, batch: int = 50, classes: int = 4, scale: float = 2.0) -> Tensor:
    return torch.randn(members, batch, classes, dtype=torch.float64) * scale


def labels_from(probs: Tensor) -> Tensor:
    """Draw labels from the probabilities themselves, so that these are calibrated."""
    return torch.multinomial(probs, 1).squeeze(-1)


def slow_ece(probs: np.ndarray, targets: np.ndarray, edges: list[float]) -> float:
    """One bin and one example at a time."""
    total = 0.0
    for lower, upper in itertools.pairwise(edges):
        inside = [n for n in range(len(probs)) if lower < max(probs[n]) <= upper]
        if inside:
            accuracy = sum(probs[n].argmax() == targets[n] for n in inside) / len(inside)
            confidence = sum(max(probs[n]) for n in inside) / len(inside)
            total += len(inside) / len(probs) * abs(accuracy - confidence)
    return total


# ---- measures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["probability", "score"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_and_brier_agree_with_slow_loops(combine: str, weighted: bool) -> None:
    logits = draw()
    hard = torch.randint(4, (50,))
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64) if weighted else None
    share = [1 / 3] * 3 if weights is None else weights.tolist()
    likelihoods, squares = [], []
    for n in range(50):
        if combine == "probability":
            terms = [
                w * np.exp(f) / np.exp(f).sum()
                for w, f in zip(share, logits[:, n].numpy(), strict=True)
            ]
            p = sum(terms)
        else:
            mean = sum(w * f for w, f in zip(share, logits[:, n].numpy(), strict=True))
            p = np.exp(mean) / np.exp(mean).sum()
        likelihoods.append(-math.log(p[hard[n]]))
        squares.append(sum((p[k] - (k == int(hard[n]))) ** 2 for k in range(4)))
    soft = one_hot(hard, 4).double()
    for targets in (hard, soft):
        arguments = (logits, targets, combine, weights)
        assert float(nll(*arguments)) == pytest.approx(np.mean(likelihoods))
        assert float(brier_score(*arguments)) == pytest.approx(np.mean(squares))


def test_ece_worked_by_hand() -> None:
    """Confidences 0.8, 0.8 (on the edge 12/15) and 0.95, 1.0; right, wrong, wrong, right.

    Bin (11/15, 12/15]: accuracy ½ against 0.8. Bin (14/15, 1]: accuracy ½ against 0.975.
    """
    top = torch.tensor([0.8, 0.8, 0.95, 1.0])
    probs = torch.stack([top, 1 - top], 1)
    targets = torch.tensor([0, 1, 1, 0])
    assert float(ece(probs, targets)) == pytest.approx(0.5 * 0.3 + 0.5 * 0.475)
    table = reliability(probs, targets)
    assert table.count.tolist() == [0] * 11 + [2, 0, 0, 2]
    assert table.confidence[11].item() == pytest.approx(0.8)
    # Two bins of equal mass have their edge at the second confidence, 0.8: the same two groups.
    assert reliability(probs, targets, 2, "mass").count.tolist() == [2, 2]
    assert float(ece(probs, targets, 1)) == pytest.approx(abs(0.5 - 0.8875))


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.integers(0, 2**20))
def test_ece_agrees_with_a_slow_loop(batch: int, bins: int, ties: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(batch, 3, dtype=torch.float64, generator=generator) + 0.01
    if ties:
        probs = (probs * 4).ceil()
    probs = probs / probs.sum(-1, keepdim=True)
    targets = torch.randint(3, (batch,), generator=generator)
    width = [k / bins for k in range(bins)] + [2.0]
    ordered = sorted(probs.amax(-1).tolist())
    mass = [0.0] + [ordered[math.ceil(k * batch / bins) - 1] for k in range(1, bins)] + [2.0]
    for scheme, edges in (("width", width), ("mass", mass)):
        wanted = slow_ece(probs.numpy(), targets.numpy(), edges)
        assert float(ece(probs, targets, bins, scheme)) == pytest.approx(wanted, abs=1e-12)


@given(st.integers(1, 80), st.integers(1, 15), st.integers(0, 2**20))
def test_equal_mass_bins_ignore_order_and_never_split_ties(
    batch: int, bins: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    top = 0.5 + torch.rand(batch, dtype=torch.float64, generator=generator) / 2
    targets = torch.randint(2, (batch,), generator=generator)

    def table(confidence: Tensor, order: Tensor) -> list[int]:
        probs = torch.stack([confidence, 1 - confidence], 1)[order]
        return reliability(probs, targets[order], bins, "mass").count.tolist()

    straight, mixed = torch.arange(batch), torch.randperm(batch, generator=generator)
    distinct = table(top, straight)
    assert max(distinct) - min(distinct) <= 1
    rough = (top * 8).round() / 8
    assert table(rough, straight) == table(rough, mixed)
    same = rough.unique(return_counts=True)[1].tolist()
    sizes = [count for count in table(rough, straight) if count]
    assert all(edge in np.cumsum(same) for edge in np.cumsum(sizes))


def test_calibrated_probabilities_have_little_ece_and_overconfident_ones_much() -> None:
    logits = draw(members=1, batch=20_000, scale=1.0)
    targets = labels_from(logits[0].softmax(-1))
    for scheme in ("width", "mass"):
        assert float(ece(ds.combine(logits), targets, scheme=scheme)) < 0.02
        assert float(ece(ds.combine(3 * logits), targets, scheme=scheme)) > 0.15


def test_calibration_is_all_measures_at_once() -> None:
    logits = draw().float().requires_grad_()
    targets, weights = torch.randint(4, (50,)), torch.tensor([0.5, 0.5, 0.0])
    found = calibration(logits, targets, "score", weights)
    probs = ds.combine(logits.detach(), "score", weights)
    assert found.accuracy == pytest.approx((probs.argmax(-1) == targets).double().mean().item())
    assert found.nll == nll(logits.detach(), targets, "score", weights).item()
    assert found.brier == brier_score(logits.detach(), targets, "score", weights).item()
    assert found.ece_width == ece(probs, targets).item()
    assert found.ece_mass == ece(probs, targets, scheme="mass").item()
    assert int(found.width.count.sum()) == int(found.mass.count.sum()) == 50
    assert f"accuracy {found.accuracy:.4f}" in found.summary()


def test_extreme_logits_give_finite_measures() -> None:
    logits = torch.tensor([[[1e4, -1e4]] * 4, [[-1e4, 1e4]] * 4])
    found = calibration(logits, torch.tensor([0, 0, 0, 1]))
    assert found.nll == pytest.approx(math.log(2))
    assert found.brier == pytest.approx(0.5)
    assert calibration(logits[:1], torch.ones(4, dtype=torch.long)).nll == 2e4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nll(draw()[0], torch.zeros(50)), r"got \(50, 4\); for one model pass logits"),
        (lambda: nll(draw(), torch.full((50,), 4)), r"labels must lie in \[0, 4\)"),
        (lambda: nll(draw(), torch.zeros(50).long(), "mean"), "'probability' or 'score', got 'me"),
        (
            lambda: brier_score(draw(), torch.zeros(50).long(), weights=torch.ones(3)),
            "sum to 1, got a smallest of 1 and a sum of 3",
        ),
        (lambda: ece(draw(), torch.zeros(50).long()), r"probs must be \[batch, classes\], got"),
        (
            lambda: ece(draw()[0], torch.zeros(50).long()),
            "probs must be probabilities",
        ),
        (
            lambda: ece(torch.ones(2, 2) / 2, torch.zeros(2).long(), 0),
            "bins must be an integer",
        ),
        (
            lambda: ece(torch.ones(2, 2) / 2, torch.zeros(2).long(), scheme="size"),
            "scheme must be one of width, mass, got 'size'",
        ),
        (lambda: apply_temperature(draw(), 0.0), "temperature must be positive, got 0"),
        (lambda: apply_temperature(draw(), torch.ones(2)), r"\[members\] = \(3,\), got \(2,\)"),
        (
            lambda: fit_temperature(draw(), torch.zeros(50).long(), bounds=(2.0, 5.0)),
            "bounds must be 0 < low ≤ 1 ≤ high",
        ),
    ],
)
def test_bad_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


# ---- temperatures -------------------------------------------------------------------------------


@pytest.mark.parametrize("planted", [0.3, 4.0, 1e4])
@pytest.mark.parametrize("combine", ["probability", "score"])
def test_a_planted_temperature_is_found(planted: float, combine: str) -> None:
    """The targets are the ensemble's probabilities at T = 1; its logits arrive multiplied by T."""
    logits = draw(members=4, batch=300)
    targets = ds.combine(logits, combine)
    found = fit_temperature((logits * planted).float(), targets, combine)
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(planted, rel=1e-4)
    restored = apply_temperature((logits * planted).float(), found)
    assert restored.dtype == torch.float32
    torch.testing.assert_close(ds.combine(restored, combine).double(), targets, rtol=0, atol=1e-4)


@pytest.mark.parametrize("combine", ["probability", "score"])
def test_labels_drawn_from_the_ensemble_give_its_temperature_and_calibrate_it(combine: str) -> None:
    logits = draw(members=4, batch=40_000)
    targets = labels_from(ds.combine(logits, combine))
    found = fit_temperature((logits * 4).float(), targets, combine)
    assert float(found) == pytest.approx(4.0, rel=0.02)
    restored = apply_temperature((logits * 4).float(), found)
    assert float(ece(ds.combine(restored, combine), targets)) < 0.01


@pytest.mark.parametrize("combine", ["probability", "score"])
def test_planted_temperatures_of_members_are_found(combine: str) -> None:
    logits = draw(members=3, batch=300, scale=3.0)
    planted = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    targets = ds.combine(logits, combine)
    found = fit_temperature(logits * planted[:, None, None], targets, combine, per_member=True)
    assert found.tolist() == pytest.approx(planted.tolist(), rel=1e-3)


def test_no_temperature_nearby_is_better() -> None:
    """Slow check of a single member: no temperature nearby does better."""
    logits, targets = draw(batch=300), torch.randint(4, (300,))
    logits = logits + 2 * one_hot(targets, 4)
    for member in logits:
        temperature = fit_temperature(member[None], targets)
        best = nll(member[None] / temperature, targets)
        for factor in (0.25, 0.5, 0.99, 1.01, 2.0, 4.0):
            assert nll(member[None] / (temperature * factor), targets) > best


@settings(max_examples=40)
@given(
    st.integers(1, 4),
    st.integers(1, 30),
    st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    st.sampled_from(["probability", "score"]),
    st.integers(0, 2**20),
)
def test_the_loss_never_rises(
    members: int, batch: int, scale: float, combine: str, seed: int
) -> None:
    """From no scaling to one temperature to one a member, on any data, up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(members, batch, 3, generator=generator, dtype=torch.float64) * scale
    targets = torch.randint(3, (batch,), generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperatureAtBound)
        shared = fit_temperature(logits, targets, combine)
        each = fit_temperature(logits, targets, combine, per_member=True)
    assert bool(torch.isfinite(each).all())
    before, one, many = (
        float(nll(apply_temperature(logits, t), targets, combine)) for t in (1.0, shared, each)
    )
    assert one <= before * (1 + 1e-12)
    assert many <= one * (1 + 1e-12)


def test_member_order_and_weights_carry_over() -> None:
    logits, targets = draw(batch=200), torch.randint(4, (200,))
    logits = logits * torch.tensor([1.0, 2.0, 4.0])[:, None, None] + 3 * one_hot(targets, 4)
    weights = torch.tensor([0.2, 0.3, 0.5])
    order = torch.tensor([2, 0, 1])
    straight = fit_temperature(logits, targets, per_member=True, weights=weights)
    turned = fit_temperature(logits[order], targets, per_member=True, weights=weights[order])
    torch.testing.assert_close(turned, straight[order], rtol=1e-4, atol=0)
    twice = torch.cat([logits[:1], logits[:1], logits[1:2]])
    thirds = torch.tensor([2 / 3, 1 / 3])
    torch.testing.assert_close(
        fit_temperature(twice, targets), fit_temperature(logits[:2], targets, weights=thirds)
    )


def test_parts_of_a_large_batch_add_up_to_the_whole() -> None:
    logits = draw(members=2, batch=30_000, classes=50)  # more than one part, of unequal size
    targets = labels_from(ds.combine(logits))
    at = [0.3, -0.2]
    value, slope = _scaled_nll(logits, targets, "probability", None, at, gradient=True)
    log_t = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    whole = nll(logits / log_t.exp()[:, None, None], targets)
    whole.backward()
    assert value == pytest.approx(whole.item(), rel=1e-12)
    assert slope == pytest.approx(log_t.grad.tolist(), rel=1e-9)


def test_soft_labels_give_the_temperature_of_hard_ones() -> None:
    logits, targets = draw(batch=200), torch.randint(4, (200,))
    logits = logits + 2 * one_hot(targets, 4)
    soft = fit_temperature(logits, one_hot(targets, 4).double())
    torch.testing.assert_close(soft, fit_temperature(logits, targets))


@pytest.mark.parametrize("value", [math.nan, 1e9])
def test_a_failed_search_falls_back_on_the_shared_temperature(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, targets = draw(batch=200), torch.randint(4, (200,))
    failed = SimpleNamespace(fun=value, x=[0.0, 0.0, 0.0])
    monkeypatch.setattr("scipy.optimize.minimize", lambda *_, **__: failed)
    shared = fit_temperature(logits, targets)
    assert torch.equal(fit_temperature(logits, targets, per_member=True), shared.expand(3))


@pytest.mark.parametrize("per_member", [False, True])
@pytest.mark.parametrize("scale", [2.0, 1e4])
@pytest.mark.parametrize("batch", [1, 8])
def test_data_without_a_best_temperature_give_the_bound_and_a_warning(
    per_member: bool, scale: float, batch: int
) -> None:
    targets = torch.arange(batch) % 2
    right = scale * one_hot(targets, 2).float().expand(2, -1, -1)
    with pytest.warns(TemperatureAtBound, match=r"T = 0\.01: sharper was always better"):
        found = fit_temperature(right, targets, per_member=per_member)
    assert found.tolist() == ([0.01, 0.01] if per_member else 0.01)
    with pytest.warns(TemperatureAtBound, match="flatter was always better"):
        found = fit_temperature(-right, targets, per_member=per_member, bounds=(0.5, 20.0))
    assert found.tolist() == ([20.0, 20.0] if per_member else 20.0)


def test_logits_that_no_temperature_changes_keep_one() -> None:
    assert fit_temperature(torch.full((2, 6, 3), 1e4), torch.arange(6) % 3).item() == 1.0

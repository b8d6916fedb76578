"""The decomposition against slow loops written from the paper, by hand, and by its identities.

Equation numbers are those of collusion (Jeffares et al.).
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from dissensus import decomposition as dc
from dissensus.losses import mse
from tests.decomposition.cases import (
    LABELS,
    LOGITS,
    NAN_LOGITS,
    PAIRS,
    Case,
    cases,
    make_case,
    slow_errors,
    tensor,
)

CONVEX = [
    ("mse", "mean"),
    ("cross_entropy", "probability"),
    ("cross_entropy", "score"),
    ("brier", "probability"),
]


@pytest.mark.parametrize(("loss", "way"), PAIRS)
@settings(max_examples=40)
@given(case=cases(), soft=st.booleans())
def test_decompose_equals_a_slow_loop(loss: str, way: str, case: Case, soft: bool) -> None:
    targets = case.targets(loss, soft)
    per_member, ensemble, mean = slow_errors(case, loss, way, targets.numpy())
    outputs, weights = case.tensors
    result = dc.decompose(outputs, targets, loss, way, weights)
    close = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(result.examples.per_member, per_member, **close)
    np.testing.assert_allclose(result.examples.ensemble_error, ensemble, **close)
    np.testing.assert_allclose(result.examples.member_error, mean, **close)
    np.testing.assert_allclose(result.per_member, per_member.mean(1), **close)
    np.testing.assert_allclose(result.ensemble_error, ensemble.mean(), **close)
    np.testing.assert_allclose(result.member_error, mean.mean(), **close)
    assert result.diversity == result.member_error - result.ensemble_error
    assert torch.equal(
        result.examples.diversity, result.examples.member_error - result.examples.ensemble_error
    )


@pytest.mark.parametrize(("loss", "way"), CONVEX)
@settings(max_examples=40)
@given(case=cases(), soft=st.booleans())
def test_convex_losses_gain_from_combining(loss: str, way: str, case: Case, soft: bool) -> None:
    outputs, weights = case.tensors
    terms = dc.decompose(outputs, case.targets(loss, soft), loss, way, weights).examples
    assert (terms.diversity >= -1e-12 * (1 + terms.member_error)).all()


def test_squared_error_by_hand() -> None:
    # Members 1, 2, 6 with weights ½, ¼, ¼ and target 2: f̄ = ½ + ½ + 1½ = 2½.
    # Errors 1, 0, 16: mean ERR = ½ + 0 + 4 = 4½, ERR = ¼, DIV = 4¼.
    # Eq. 1: ½ · 1½² + ¼ · ½² + ¼ · 3½² = 1.125 + 0.0625 + 3.0625 = 4¼.
    outputs, weights = tensor([[[1.0]], [[2.0]], [[6.0]]]), tensor([0.5, 0.25, 0.25])
    result = dc.decompose(outputs, tensor([[2.0]]), loss="mse", weights=weights)
    assert result.per_member.tolist() == [1, 0, 16]
    assert (result.member_error, result.ensemble_error, result.diversity) == (4.5, 0.25, 4.25)
    assert dc.ambiguity(outputs, weights).tolist() == [4.25]


def test_probability_averaging_by_hand() -> None:
    # p = (½, ½) and (¼, ¾), true class 0: p̄(0) = ⅜. Theorem 4.3:
    # DIV = ½ log(⅜ / ½) + ½ log(⅜ / ¼) = log ⅜ − ½ log ⅛ = log 3 − 3/2 log 2 = 0.0588915.
    logits = tensor([[[0.5, 0.5]], [[0.25, 0.75]]]).log()
    result = dc.decompose(logits, torch.tensor([0]))
    assert result.combine == "probability"
    assert result.ensemble_error.item() == pytest.approx(math.log(8 / 3))
    assert result.member_error.item() == pytest.approx(1.5 * math.log(2))
    assert result.diversity.item() == pytest.approx(0.0588915, abs=1e-7)
    # Soft label (½, ½): the other class has p̄(1) = ⅝, log ⅝ − ½ log ⅜ = 0.0204110.
    # DIV = ½ · 0.0588915 + ½ · 0.0204110 = 0.0396512; one class alone would give 0.0294457.
    soft = dc.log_ratio_diversity(logits, tensor([[0.5, 0.5]]))
    assert soft.item() == pytest.approx(0.0396512, abs=1e-7)
    assert dc.decompose(logits, tensor([[0.5, 0.5]])).diversity.item() == pytest.approx(soft.item())
    # Brier: each p_j is ⅛ from p̄ in both classes: DIV = 2 · (⅛)² = 1/32. With true class 0,
    # mean ERR = ½ (½ + 9/8) = 13/16, ERR = 2 · (⅝)² = 25/32, 26/32 − 25/32 = 1/32.
    brier = dc.decompose(logits, torch.tensor([0]), loss="brier")
    assert brier.ensemble_error.item() == pytest.approx(25 / 32)
    assert brier.member_error.item() == pytest.approx(13 / 16)
    assert dc.brier_diversity(logits).item() == pytest.approx(1 / 32)


def test_score_averaging_by_hand() -> None:
    # Logits (0, 0) and (0, 2 log 3): p = (½, ½) and (1/10, 9/10), mean logits (0, log 3),
    # q̄ = (¼, ¾). KL(q̄ ‖ p_1) = ¼ log ½ + ¾ log 3/2 and KL(q̄ ‖ p_2) = ¼ log 5/2 + ¾ log ⅚.
    # Half their sum is ½ (¼ log 5/4 + ¾ log 5/4) = ½ log 5/4 = 0.1115718, for either label:
    # label 0: mean ERR = ½ (log 2 + log 10), ERR = log 4, ½ log 20 − log 4 = ½ log 20/16.
    logits = tensor([[[0.0, 0.0]], [[0.0, 2 * math.log(3)]]])
    assert dc.kl_diversity(logits).item() == pytest.approx(0.5 * math.log(5 / 4))
    for label in (0, 1):
        result = dc.decompose(logits, torch.tensor([label]), combine="score")
        assert result.diversity.item() == pytest.approx(0.5 * math.log(5 / 4))


def test_majority_vote_by_hand() -> None:
    # Votes 0, 1, 1, 2: class 1 wins. Truth 1: ERR = 0, mean ERR = ½: good diversity ½, the two who
    # disagree. Truth 0: ERR = 1, mean ERR = ¾: bad diversity −¼, the one who is right; member 3
    # disagrees with the wrong vote too, but is wrong itself and does not count.
    logits = tensor(2 * np.eye(3)[[0, 1, 1, 2]])[:, None]
    for truth, wanted in [(1, 0.5), (0, -0.25), (2, -0.25)]:
        targets = torch.tensor([truth])
        assert dc.vote_diversity(logits, targets).item() == wanted
        assert dc.decompose(logits, targets, "zero_one", "vote").diversity == wanted
    # A label that is 1 with ¾ and 0 with ¼: ¾ · ½ − ¼ · ¼ = 5/16.
    assert dc.vote_diversity(logits, tensor([[0.25, 0.75, 0.0]])).item() == 5 / 16


def test_brier_with_score_averaging_can_lose_by_combining() -> None:
    # True class 0, logits (−10, 0) and (0, 0): the mean (−5, 0) has p(0) = 1 / (1 + e⁵) = 0.0067.
    # ERR = 2 · 0.9933² = 1.9734; mean ERR = ½ (2 · 0.99995² + ½) = 1.2499; DIV = −0.7235.
    logits, target = tensor([[[-10.0, 0.0]], [[0.0, 0.0]]]), torch.tensor([0])
    assert dc.decompose(logits, target, "brier", "score").diversity.item() == pytest.approx(
        -0.7235, abs=1e-4
    )
    assert dc.decompose(logits, target, "brier").diversity > 0


@pytest.mark.parametrize(("loss", "way"), PAIRS)
def test_the_order_of_members_does_not_matter(loss: str, way: str) -> None:
    case, order = make_case(members=5), [3, 0, 4, 1, 2]
    (outputs, weights), targets = case.tensors, case.targets(loss, soft=False)
    result = dc.decompose(outputs, targets, loss, way, weights)
    moved = dc.decompose(outputs[order], targets, loss, way, weights[order])
    torch.testing.assert_close(moved.examples.diversity, result.examples.diversity)
    torch.testing.assert_close(moved.per_member, result.per_member[order])
    if (loss, way) in dc.CLOSED_FORMS:
        form = dc.CLOSED_FORMS[loss, way]
        torch.testing.assert_close(
            form(outputs[order], targets, weights[order]), form(outputs, targets, weights)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize(("loss", "way"), PAIRS)
def test_members_that_agree_have_no_diversity(
    loss: str, way: str, members: int, dtype: torch.dtype
) -> None:
    case = make_case(members=1, batch=1)
    outputs = torch.from_numpy(case.outputs).to(dtype).repeat(members, 1, 1)
    targets = case.targets(loss, soft=False)
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    result = dc.decompose(outputs, targets, loss, way)
    assert result.diversity.dtype == dtype
    assert result.diversity.shape == ()
    assert result.per_member.shape == (members,)
    assert abs(float(result.diversity)) <= 8 * torch.finfo(dtype).eps * float(result.member_error)
    if (loss, way) in dc.CLOSED_FORMS:
        (diversity,) = dc.CLOSED_FORMS[loss, way](outputs, targets)
        assert abs(float(diversity)) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("loss", "way"), PAIRS)
def test_vmap_equals_the_loop(loss: str, way: str, soft: bool) -> None:
    many = [make_case(seed) for seed in range(3)]
    outputs = torch.stack([case.tensors[0] for case in many])
    weights = torch.stack([case.tensors[1] for case in many])
    targets = torch.stack([case.targets(loss, soft) for case in many])

    def terms(*arguments: Tensor) -> dc.DecompositionTerms:
        values, wanted, members = arguments
        return dc.decomposition_terms(values, wanted, loss, way, members)

    forms = [terms] if (loss, way) not in dc.CLOSED_FORMS else [terms, dc.CLOSED_FORMS[loss, way]]
    for form in forms:
        batched = vmap(form)(outputs, targets, weights)
        looped = [form(*arguments) for arguments in zip(outputs, targets, weights, strict=True)]
        if isinstance(batched, Tensor):
            torch.testing.assert_close(batched, torch.stack(looped))
        else:
            for got, wanted in zip(batched, zip(*looped, strict=True), strict=True):
                torch.testing.assert_close(got, torch.stack(wanted))


def test_the_summary_says_who_gains() -> None:
    logits, targets = tensor(2 * np.eye(3)[[0, 1, 1, 2]])[:, None], torch.tensor([1])
    gain = dc.decompose(logits.requires_grad_(), targets, "zero_one", "vote")
    assert gain.summary() == (
        "Combining 4 members by vote takes 0.5 off their mean zero_one of 0.5, "
        "so the ensemble's is 0."
    )
    loss = dc.decompose(logits, targets - 1, "zero_one", "vote")
    assert "adds 0.25 to their mean zero_one of 0.75" in loss.summary()
    named = dc.decompose(logits, logits[0], mse)  # a callable is called by its name
    assert "by mean takes" in named.summary()
    assert "their mean mse of" in named.summary()
    with pytest.raises(AttributeError):
        gain.diversity = loss.diversity


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": LOGITS[0]}, r"be \[members, batch, classes\], got \(4, 3\); .*logits\[None\]"),
        ({"outputs": NAN_LOGITS}, "must be finite, got 12 NaN or infinite of 24 values"),
        ({"targets": LABELS + 1}, r"labels must lie in \[0, 3\), got values from 1 to 3"),
        ({"weights": torch.ones(2)}, r"must sum to 1, .* a sum of 2; pass weights / weights.sum"),
        ({"loss": "hinge"}, "loss must be one of 'mse', .* or a callable, got 'hinge'"),
        ({"combine": "vote"}, "loss='cross_entropy' goes with combine='probability' or 'score'"),
        ({"combine": "mean"}, "goes with combine='probability' or 'score', got 'mean'"),
        ({"loss": mse, "combine": "vote"}, "combine must be one of .* got 'vote'"),
        ({"loss": "mse", "combine": "score"}, "loss='mse' goes with combine='mean', got 'score'"),
        ({"loss": "mse"}, r"regression targets must be \[batch, outputs\] = \(4, 3\), got \(4,\)"),
        (
            {"loss": "mse", "outputs": LOGITS[..., :1], "targets": torch.zeros(4)},
            r"got \(4,\); pass targets\[:, None\]",
        ),
        (
            {"loss": lambda f, y: (f - y[:, None]).square().mean(), "targets": LABELS},
            r"a loss must return \[batch\] = \(4,\), got \(\); drop its reduction",
        ),
    ],
)
def test_decompose_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dc.decompose(**{"outputs": LOGITS, "targets": LABELS, **arguments})

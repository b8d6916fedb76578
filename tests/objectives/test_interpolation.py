"""Independent, Joint, Augmented, GAT, NCL and GNCL: the theorems of *collusion*."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from dissensus.objectives import (
    GNCL,
    NCL,
    Augmented,
    GradientAdjustedTargets,
    Independent,
    Joint,
    Objective,
    equivalent_alpha,
    equivalent_beta,
)

SETTINGS = [
    {"loss": "cross_entropy", "combine": "probability"},
    {"loss": "cross_entropy", "combine": "score"},
    {"loss": "cross_entropy", "combine": "probability", "label_smoothing": 0.2},
    {"loss": "brier", "combine": "probability"},
    {"loss": "brier", "combine": "score"},
    {"loss": "mse", "combine": "mean"},
]
VARIANTS = [(False, False), (True, False), (False, True), (True, True)]
every_variant = pytest.mark.parametrize(("others_only", "detach"), VARIANTS)


def draw(seed: int, members: int = 4, batch: int = 5, size: int = 3) -> tuple[Tensor, ...]:
    """Outputs, regression targets, labels, weights."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    return (
        2 * torch.randn(members, batch, size, **options),
        torch.randn(batch, size, **options),
        torch.randint(size, (batch,), generator=generator),
        torch.randn(members, **options).softmax(0),
    )


def value_and_gradient(
    objective: Objective, outputs: Tensor, targets: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    leaf = outputs.clone().requires_grad_()
    loss = objective(leaf, targets, weights=weights).loss
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


# ---- values worked by hand ----------------------------------------------------------------------


def test_cross_entropy_values_by_hand() -> None:
    # Two members, one example of true class 0: p_1 = (1/2, 1/2), p_2 = (1/8, 7/8).
    probs = torch.tensor([[[1 / 2, 1 / 2]], [[1 / 8, 7 / 8]]], dtype=torch.float64)
    label = torch.tensor([0])
    # mean ERR = −½ (log ½ + log ⅛) = ½ (1 + 3) log 2 = 2 log 2
    # p̄(0) = ½ (½ + ⅛) = 5/16, ERR = log(16/5), DIV = log 4 − log(16/5) = log(5/4)
    parts = Augmented(0.5)(probs.log(), label).parts
    assert float(parts["member_error"]) == pytest.approx(2 * math.log(2))
    assert float(parts["ensemble_error"]) == pytest.approx(math.log(16 / 5))
    assert float(parts["diversity"]) == pytest.approx(math.log(5 / 4))
    # Score averaging: mean logit difference ½ (0 + log 7), so q̄(0) = 1 / (1 + √7)
    score = Augmented(0.25, combine="score")(probs.log(), label)
    assert float(score.parts["ensemble_error"]) == pytest.approx(math.log(1 + math.sqrt(7)))
    # ¾ · 2 log 2 + ¼ log(1 + √7)
    wanted = 1.5 * math.log(2) + 0.25 * math.log(1 + math.sqrt(7))
    assert float(score.loss) == pytest.approx(wanted)
    # Weights (¼, ¾): p̄(0) = ¼ · ½ + ¾ · ⅛ = 7/32; mean ERR = ¼ log 2 + ¾ log 8 = 2.5 log 2
    weighted = Joint()(probs.log(), label, weights=torch.tensor([0.25, 0.75]))
    assert float(weighted.loss) == pytest.approx(math.log(32 / 7))
    assert float(weighted.parts["member_error"]) == pytest.approx(2.5 * math.log(2))


def test_squared_error_values_by_hand() -> None:
    # f_1 = 3, f_2 = −1, y = 0: mean ERR = ½ (9 + 1) = 5, f̄ = 1, ERR = 1, DIV = ½ (4 + 4) = 4
    outputs, y = torch.tensor([[[3.0]], [[-1.0]]]), torch.zeros(1, 1)
    terms = Augmented(0.75, loss="mse")(outputs, y)
    assert [float(part) for part in terms.parts.values()] == [5.0, 1.0, 4.0]
    assert float(terms.loss) == 2.0  # 5 − ¾ · 4
    # GAT, α = 1: ỹ = 0 − (1 − 0) = −1; ½ ((3 + 1)² + (−1 + 1)²) = 8 = (1 + 1)² · 2 (Theorem D.1)
    assert float(GradientAdjustedTargets(1.0)(outputs, y).loss) == 8.0
    # Others only, α = ½: ỹ_1 = −½ (−1) = ½, ỹ_2 = −½ · 3 = −3/2;
    # ½ ((5/2)² + (1/2)²) = 13/4
    assert float(GradientAdjustedTargets(0.5, others_only=True)(outputs, y).loss) == 3.25
    # NCL, λ = ½: p_1 = (3 − 1)(−1 − 1) = −4 = p_2; 5 + 2 · ½ · (−4) = 1
    assert float(NCL(0.5)(outputs, y).loss) == 1.0
    # GNCL of the squared error is exact: 5 − ½ · 4 = 3
    assert float(GNCL(0.5, loss="mse")(outputs, y).loss) == 3.0


def test_brier_value_by_hand() -> None:
    # p_1 = (½, ½), p_2 = (1, 0) to rounding, y = class 0: ‖p_1 − y‖² = ½, ‖p_2 − y‖² = 0;
    # p̄ = (¾, ¼): ERR = 1/16 + 1/16 = ⅛; DIV = ¼ − ⅛ = ⅛ = mean_j ‖p_j − p̄‖²
    logits = torch.tensor([[[0.0, 0.0]], [[50.0, -50.0]]], dtype=torch.float64)
    parts = Augmented(0.5, loss="brier")(logits, torch.tensor([0])).parts
    assert [float(part) for part in parts.values()] == pytest.approx([1 / 4, 1 / 8, 1 / 8])


def test_label_smoothing_by_hand() -> None:
    # p = (¾, ¼), y = class 0, s = 0.4 of two classes: label (0.8, 0.2)
    logits = torch.tensor([[[3.0, 1.0]]], dtype=torch.float64).log()
    loss = Independent(label_smoothing=0.4)(logits, torch.tensor([0])).loss
    assert float(loss) == pytest.approx(-0.8 * math.log(3 / 4) - 0.2 * math.log(1 / 4))


# ---- Eq. 2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("weighted", [False, True])
def test_beta_0_is_independent_and_beta_1_is_joint(settings: dict, weighted: bool) -> None:
    for seed in range(3):
        outputs, real, labels, weights = draw(seed)
        targets = real if settings["loss"] == "mse" else labels
        chosen = weights if weighted else None
        for beta, other in ((0.0, Independent(**settings)), (1.0, Joint(**settings))):
            got = value_and_gradient(Augmented(beta, **settings), outputs, targets, chosen)
            wanted = value_and_gradient(other, outputs, targets, chosen)
            assert_close(got, wanted, rtol=0, atol=0)  # to the last bit
        # And they are not the same thing.
        low = value_and_gradient(Independent(**settings), outputs, targets, chosen)
        high = value_and_gradient(Joint(**settings), outputs, targets, chosen)
        assert float(low[0] - high[0]) > 1e-3
        assert float((low[1] - high[1]).abs().max()) > 1e-3


def test_colluding_members_are_stationary_for_joint_but_not_for_independent_training() -> None:
    # Appendix F: f_j = f + c_j. Every c with mean y − f minimises ERR; mean ERR only c_j = y − f.
    y = torch.full((1, 1), 2.0, dtype=torch.float64)
    colluding = torch.tensor([-98.0, 1.0, 103.0], dtype=torch.float64).reshape(3, 1, 1)
    loss, gradient = value_and_gradient(Joint(loss="mse"), colluding, y)
    assert float(loss) == 0
    assert float(gradient.abs().max()) == 0
    loss, gradient = value_and_gradient(Independent(loss="mse"), colluding, y)
    # (100² + 1² + 101²) / 3, slope 2 c_j / 3
    assert float(loss) == pytest.approx(20202 / 3)
    assert_close(gradient.flatten().tolist(), [-200 / 3, -2 / 3, 202 / 3])


# ---- Theorem 5.1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.2, 1.0 + 1e-9, -0.1])
def test_beta_outside_zero_and_one_is_refused_with_the_reason(beta: float) -> None:
    text = rf"Augmented: beta must be a finite number in \[0, 1\], got {beta!r}; .*minus infinity"
    with pytest.raises(ValueError, match=rf"{text}.*Theorem 5.1.*below 0 diversity is punished"):
        Augmented(beta)
    for kind in (NCL, GNCL):
        with pytest.raises(ValueError, match=r"strength must be .* \[0, 1\].*Theorem 5.1"):
            kind(beta)


def _apart(setting: str, t: float) -> tuple[Tensor, Tensor]:
    """The sequences of the proof (Appendix C.4), for three members."""
    if setting == "mse":  # case 1: f_1 = t, f_2 = −t, f_3 = 0, so f̄ = 0
        return torch.tensor([[[t]], [[-t]], [[0.0]]]).double(), torch.ones(1, 1).double()
    apart = torch.tensor([[[t, -t]], [[-t, t]], [[0.0, 0.0]]]).double()
    if setting == "score":
        return apart, torch.tensor([0])
    # case 2: all but the first predict y, an inner point; the first runs to the boundary
    soft = torch.tensor([[0.7, 0.3]]).double()
    others = soft.log().expand(2, 1, 2)
    return torch.cat([apart[:1], others]), soft


@pytest.mark.parametrize("setting", ["mse", "score", "probability"])
def test_beyond_beta_1_the_loss_has_no_lower_bound(setting: str) -> None:
    loss = "mse" if setting == "mse" else "cross_entropy"
    combine = "mean" if setting == "mse" else setting
    objective = Augmented(1.0, loss=loss, combine=combine)
    steps = [_apart(setting, 10.0**power) for power in range(1, 7)]
    beyond = [float(objective.with_values(beta=1.2).evaluate(*step).loss) for step in steps]
    at_one = [float(objective.evaluate(*step).loss) for step in steps]
    assert all(later < earlier - 1 for earlier, later in itertools.pairwise(beyond))
    assert beyond[-1] < -1e4
    assert max(at_one) - min(at_one) < 1e-6
    assert min(at_one) > 0


# ---- gradient adjusted targets ------------------------------------------------------------------


@every_variant
@settings(max_examples=25)
@given(alpha=st.floats(0, 3), seed=st.integers(0, 2**16), weighted=st.booleans())
def test_adjusted_targets_equal_augmented(
    others_only: bool, detach: bool, alpha: float, seed: int, weighted: bool
) -> None:
    outputs, targets, _, weights = draw(seed)
    chosen = weights if weighted else None
    members = outputs.shape[0]
    adjusted = GradientAdjustedTargets(alpha, others_only, detach)
    loss, gradient = value_and_gradient(adjusted, outputs, targets, chosen)
    beta = equivalent_beta(alpha, members, others_only=others_only, detach=detach)
    same = Augmented(min(beta, 1.0), loss="mse")
    same_loss, same_gradient = value_and_gradient(same, outputs, targets, chosen)
    if detach:  # only the gradient: the moved target is not part of it
        assert_close(gradient, (1 + alpha) * same_gradient)
    else:
        assert_close(loss, (1 + alpha) ** 2 * same_loss)
        assert_close(gradient, (1 + alpha) ** 2 * same_gradient)


@every_variant
@given(beta=st.floats(0, 0.999), members=st.integers(2, 30))
def test_equivalent_alpha_is_the_inverse_of_equivalent_beta(
    others_only: bool, detach: bool, beta: float, members: int
) -> None:
    kind = {"others_only": others_only, "detach": detach}
    alpha = equivalent_alpha(beta, members, **kind)
    assert alpha >= 0
    assert equivalent_beta(alpha, members, **kind) == pytest.approx(beta, abs=1e-12)
    if others_only:  # the smaller of the two solutions
        assert alpha <= members - 1
        assert equivalent_alpha(1.0, members, **kind) == pytest.approx(members - 1)


@given(alpha=st.floats(0, 100), members=st.integers(2, 50))
def test_gamma_is_that_of_theorem_d3(alpha: float, members: int) -> None:
    m = members
    printed = alpha / (alpha + 1) ** 2 * m * ((alpha + 2) * m - 2 * (alpha + 1)) / (m - 1) ** 2
    assert equivalent_beta(alpha, m, others_only=True) == pytest.approx(printed, abs=1e-12)


def test_equivalences_by_hand() -> None:
    assert equivalent_beta(1.0) == 0.75  # the paper's example below Theorem D.1
    assert equivalent_beta(1.0, detach=True) == 0.5
    # M = 3, α = 1: 1 − ((2 − 1) / (2 · 2))² = 15/16; detached 1 · 3 / (2 · 2) = ¾
    assert equivalent_beta(1.0, 3, others_only=True) == 15 / 16
    assert equivalent_beta(1.0, 3, others_only=True, detach=True) == 0.75


# ---- negative correlation -----------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["mse", "brier"])
@settings(max_examples=25)
@given(strength=st.floats(0, 1), seed=st.integers(0, 2**16), weighted=st.booleans())
def test_ncl_has_the_gradient_of_augmented(
    loss: str, strength: float, seed: int, weighted: bool
) -> None:
    outputs, real, labels, weights = draw(seed)
    targets, chosen = (real if loss == "mse" else labels), (weights if weighted else None)
    got = value_and_gradient(NCL(strength, loss=loss), outputs, targets, chosen)[1]
    wanted = value_and_gradient(Augmented(strength, loss=loss), outputs, targets, chosen)[1]
    assert_close(got, wanted)


# ---- Appendix E ---------------------------------------------------------------------------------


def test_closed_gradients_of_appendix_e() -> None:
    outputs, _, labels, _ = draw(3, members=3, batch=1, size=4)
    members, true = 3, int(labels)
    phi = outputs[:, 0].softmax(-1)
    phi_of_mean = outputs[:, 0].mean(0).softmax(-1)
    independent, probability, score = (torch.zeros(3, 4, dtype=torch.float64) for _ in range(3))
    for i in range(members):
        for k in range(4):
            if k == true:
                independent[i, k] = -(1 - phi[i, true]) / members
                probability[i, k] = -phi[i, true] * (1 - phi[i, true]) / phi[:, true].sum()
                score[i, k] = -(1 - phi_of_mean[true]) / members
            else:
                independent[i, k] = phi[i, k] / members
                probability[i, k] = phi[i, k] * phi[i, true] / phi[:, true].sum()
                score[i, k] = phi_of_mean[k] / members
    for objective, wanted in [
        (Independent(), independent),
        (Joint(), probability),
        (Joint(combine="score"), score),
    ]:
        got = value_and_gradient(objective, outputs, labels)[1][:, 0]
        assert_close(got, wanted)
    # Their conclusions: with score averaging members get the same gradient, else their own.
    assert_close(score, score[:1].expand(3, 4))
    assert float((probability[0] - probability[1]).abs().max()) > 1e-2


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Joint(loss="zero_one"), "'zero_one' has no gradient to train on"),
        (lambda: Augmented(loss="mse", combine="score"), "'mse' goes with combine='mean'"),
        (lambda: Independent(loss="hinge"), r"loss must be one of .* got 'hinge'"),
        (lambda: Joint(loss="brier", label_smoothing=0.1), "goes with loss='cross_entropy'"),
        (lambda: NCL(loss="cross_entropy"), "NCL: loss must be one of mse, brier"),
        (lambda: GNCL(loss="brier"), "GNCL: loss must be one of mse, cross_entropy"),
        (lambda: GradientAdjustedTargets(-1.0), r"alpha must be .*at least 0, got -1.0; it is"),
        (lambda: equivalent_beta(-0.5), "alpha must be a finite number of at least 0"),
        (lambda: equivalent_alpha(math.nan), r"beta must lie in \[0, 1\), no finite alpha"),
        (
            lambda: equivalent_alpha(math.inf, 3, others_only=True),
            r"beta must lie in \[0, 1\], got",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()

"""The decomposition against slow loops written from the paper, by hand, and by its identities.

Equation numbers are those of collusion (Jeffares et al.).
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import logsigmoid, one_hot, softplus

from dissensus import decomposition as dc
from dissensus.losses import LOSSES, mse
from dissensus.outputs import combine, weighted_mean

Array = NDArray[np.float64]
PAIRS = [(loss, way) for loss, entry in LOSSES.items() for way in entry.combinations]
CONVEX = [
    ("mse", "mean"),
    ("cross_entropy", "probability"),
    ("cross_entropy", "score"),
    ("brier", "probability"),
]
SMOOTH_FORMS = [pair for pair in dc.CLOSED_FORMS if pair[0] != "zero_one"]


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- random ensembles, and the paper's definitions as slow loops --------------------------------


class Case(NamedTuple):
    """An ensemble's outputs and targets; classification and regression read the same outputs."""

    outputs: Array  # [members, batch, outputs]
    labels: NDArray[np.int64]  # [batch]
    soft: Array  # [batch, outputs], probabilities
    values: Array  # [batch, outputs], regression targets
    weights: Array | None

    def targets(self, loss: str, soft: bool) -> Tensor:
        if loss == "mse":
            return torch.from_numpy(self.values)
        return torch.from_numpy(self.soft if soft else self.labels)

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None]:
        weights = None if self.weights is None else torch.from_numpy(self.weights)
        return torch.from_numpy(self.outputs), weights


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    members, batch = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    classes, scale = draw(st.integers(2, 5)), draw(st.sampled_from([1.0, 0.01, 10.0, 30.0]))
    weights = None
    if draw(st.booleans()):
        weights = rng.dirichlet(np.ones(members))
        if members > 2 and draw(st.booleans()):
            weights[0] = 0.0  # a member that does not count
            weights /= weights.sum()
    return Case(
        rng.normal(0, scale, (members, batch, classes)),
        rng.integers(0, classes, batch),
        rng.dirichlet(np.ones(classes), batch),
        rng.normal(0, scale, (batch, classes)),
        weights,
    )


def make_case(seed: int = 0, members: int = 3, batch: int = 4, classes: int = 3) -> Case:
    rng = np.random.default_rng(seed)
    return Case(
        rng.normal(0, 2, (members, batch, classes)),
        rng.integers(0, classes, batch),
        rng.dirichlet(np.ones(classes), batch),
        rng.normal(0, 2, (batch, classes)),
        rng.dirichlet(np.ones(members)),
    )


def slow_softmax(scores: Array) -> Array:
    shifted = [math.exp(score - max(scores)) for score in scores]
    return np.array([value / sum(shifted) for value in shifted])


def slow_loss(loss: str, prediction: Array, target: Array) -> float:
    """L(prediction, target) of one example, from outputs, probabilities, or a one-hot label."""
    total = 0.0
    for value, wanted in zip(prediction, target, strict=True):
        if loss == "cross_entropy":
            total -= wanted * math.log(value) if wanted else 0.0
        elif loss == "zero_one":
            total += wanted * (1 - value)
        else:
            total += (value - wanted) ** 2
    return total


def slow_combination(rows: Array, way: str, weights: Array) -> Array:
    """The ensemble's prediction for one example, from the members' rows of outputs."""
    if way == "vote":
        votes = np.zeros(rows.shape[1])
        for row, weight in zip(rows, weights, strict=True):
            votes[int(row.argmax())] += weight
        return votes
    if way == "probability":
        rows = np.array([slow_softmax(row) for row in rows])
    mean = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        mean += weight * row
    return slow_softmax(mean) if way == "score" else mean


def slow_errors(case: Case, loss: str, way: str, targets: Array) -> tuple[Array, Array, Array]:
    """Definition 4.1 with loops: per-member losses, ERR and mean ERR of every example."""
    members, batch, width = case.outputs.shape
    weights = np.full(members, 1 / members) if case.weights is None else case.weights
    per_member, ensemble, mean = np.zeros((members, batch)), np.zeros(batch), np.zeros(batch)
    for n in range(batch):
        target = targets[n] if targets.ndim == 2 else np.eye(width)[targets[n]]
        combined = slow_combination(case.outputs[:, n], way, weights)
        if loss == "zero_one":
            combined = np.eye(width)[int(combined.argmax())]
        ensemble[n] = slow_loss(loss, combined, target)
        for j in range(members):
            row = case.outputs[j, n]
            if loss == "zero_one":
                row = np.eye(width)[int(row.argmax())]
            elif loss != "mse":
                row = slow_softmax(row)
            per_member[j, n] = slow_loss(loss, row, target)
            mean[n] += weights[j] * per_member[j, n]
    return per_member, ensemble, mean


# ---- the identity -------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("loss", "way"), dc.CLOSED_FORMS)
@settings(max_examples=60)
@given(case=cases(), soft=st.booleans())
def test_closed_form_equals_the_identity(loss: str, way: str, case: Case, soft: bool) -> None:
    targets = case.targets(loss, soft)
    _, ensemble, mean = slow_errors(case, loss, way, targets.numpy())
    outputs, weights = case.tensors
    diversity = dc.closed_form_diversity(outputs, targets, loss, way, weights)
    np.testing.assert_allclose(diversity, mean - ensemble, rtol=1e-9, atol=1e-11 * (1 + mean.max()))


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
    logits = tensor(np.eye(3)[[0, 1, 1, 2]])[:, None]
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


@pytest.mark.parametrize("spread", ["apart", "agreeing", "one weight zero"])
@pytest.mark.parametrize(("loss", "way"), [pair for pair in PAIRS if pair[0] != "zero_one"])
def test_huge_logits_have_finite_values_and_gradients(loss: str, way: str, spread: str) -> None:
    huge = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]])
    logits = torch.stack([huge, huge if spread == "agreeing" else -huge]).requires_grad_()
    weights = torch.tensor([0.0, 1.0]) if spread == "one weight zero" else None
    for targets in (torch.tensor([1, 0]), torch.full((2, 3), 1 / 3)):
        if loss == "mse" and not targets.is_floating_point():
            continue
        values = [dc.decompose(logits, targets, loss, way, weights).diversity]
        if (loss, way) in dc.CLOSED_FORMS:
            values.append(dc.closed_form_diversity(logits, targets, loss, way, weights).mean())
        for value in values:
            (gradient,) = torch.autograd.grad(value, logits)
            assert torch.isfinite(value)
            assert torch.isfinite(gradient).all()


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
    logits, targets = tensor(np.eye(3)[[0, 1, 1, 2]])[:, None], torch.tensor([1])
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


# ---- exponential families -----------------------------------------------------------------------


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


def softmax_loss(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)


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


# ---- the Hessian form ---------------------------------------------------------------------------


class Problem(NamedTuple):
    """A twice differentiable loss, and outputs and targets that suit it."""

    loss: Callable[[Tensor, Tensor], Tensor]
    outputs: Callable[[Tensor], Tensor]
    targets: Callable[[Tensor], Tensor]


def signs(noise: Tensor) -> Tensor:
    return torch.where(noise > 0, 1.0, -1.0).double()


HESSIAN_PROBLEMS: dict[str, Problem] = {
    "squared": Problem(mse, lambda z: z, lambda z: z),
    "logistic": Problem(lambda f, y: -logsigmoid(y * f).sum(-1), lambda z: z, signs),
    "exponential": Problem(lambda f, y: (-y * f).exp().sum(-1), lambda z: z, signs),
    "softplus of a product": Problem(
        lambda f, y: softplus((f * y).sum(-1)) + softplus(f).prod(-1), lambda z: z, lambda z: z
    ),
    "score cross-entropy": Problem(softmax_loss, lambda z: z, lambda z: z.softmax(-1)),
    "cross-entropy of probabilities": Problem(
        lambda f, y: -(y * f.log()).sum(-1), lambda z: z.softmax(-1), lambda z: z.softmax(-1)
    ),
    "not convex": Problem(lambda f, y: (f + y).sin().prod(-1), lambda z: z, lambda z: z),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HESSIAN_PROBLEMS)
@settings(max_examples=6)
@given(case=cases())
def test_the_exact_hessian_form_equals_diversity(name: str, case: Case) -> None:
    problem, (noise, weights) = HESSIAN_PROBLEMS[name], case.tensors
    noise = noise / max(1.0, float(noise.abs().max()) / 5)
    outputs = problem.outputs(noise)
    targets = problem.targets(torch.from_numpy(case.values).clamp(-5, 5))
    result = dc.hessian_diversity(outputs, targets, problem.loss, weights)
    wanted = dc.decompose(outputs, targets, problem.loss, weights=weights).examples
    size = float(wanted.per_member.abs().max() + wanted.ensemble_error.abs().max())
    torch.testing.assert_close(result.diversity, wanted.diversity, rtol=1e-8, atol=1e-10 * size)
    assert ((result.c >= 0) & (result.c <= 1)).all()
    assert result.solved.all()


def test_the_curvature_is_the_hessian_of_the_paper() -> None:
    # For L = −yᵀ log f the Hessian is diag(y ⊘ f²); for squared error it is 2 I and any c will do.
    case = make_case()
    weights = torch.from_numpy(case.weights)
    probs, targets = torch.from_numpy(case.outputs).softmax(-1), torch.from_numpy(case.soft)
    loss = HESSIAN_PROBLEMS["cross-entropy of probabilities"].loss
    result = dc.hessian_diversity(probs, targets, loss, weights)
    for n in range(4):
        mean = sum(w * p for w, p in zip(case.weights, probs[:, n].numpy(), strict=True))
        diversity = 0.0
        for j in range(3):
            deviation = probs[j, n].numpy() - mean
            between = mean + result.c[j, n].item() * deviation
            form = deviation @ np.diag(case.soft[n] / between**2) @ deviation
            assert result.curvature[j, n].item() == pytest.approx(form)
            diversity += 0.5 * case.weights[j] * form
        assert result.diversity[n].item() == pytest.approx(diversity)
    squared = dc.hessian_diversity(probs, targets, mse, weights)
    assert (squared.c == 0).all()
    torch.testing.assert_close(squared.diversity, dc.ambiguity(probs, weights))


def test_the_c_of_the_exponential_loss_by_hand() -> None:
    # Members 1 and 3, loss e^f, mean 2: γ(t) = e^{2 + tδ}, δ = ±1. For δ = 1 the remainder is
    # e³ − e² − e², so ½ e^{2 + c} = e³ − 2e², c = log(2 (e − 2)) = 0.36225. For δ = −1 it is
    # e − e² + e² = e, so ½ e^{2 − c} = e, c = 1 − log 2 = 0.30685. DIV = ½ (e³ − 2e² + e).
    outputs = torch.tensor([[[1.0]], [[3.0]]])
    result = dc.hessian_diversity(outputs, torch.zeros(1, 1), lambda f, y: (f - y).exp().sum(-1))
    assert result.diversity.dtype == result.c.dtype == torch.float32
    assert result.c.flatten().tolist() == pytest.approx([1 - math.log(2), math.log(2 * math.e - 4)])
    assert result.diversity.item() == pytest.approx((math.e**3 - 2 * math.e**2 + math.e) / 2)


@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e2, 1e4])
def test_a_bend_far_narrower_than_the_grid_is_found(gap: float) -> None:
    # Logistic loss between far members bends only within about 1 / gap of one point.
    outputs = torch.linspace(-1, 1.3, 5, dtype=torch.float64)[:, None, None] * gap
    targets = torch.ones(1, 1, dtype=torch.float64)
    loss = HESSIAN_PROBLEMS["logistic"].loss
    result = dc.hessian_diversity(outputs, targets, loss)
    wanted = dc.decompose(outputs, targets, loss).diversity
    assert result.diversity.item() == pytest.approx(wanted.item(), rel=1e-7)


def test_the_second_order_form_is_off_by_the_cube() -> None:
    case = make_case()
    outputs, weights = case.tensors
    targets, centre = torch.from_numpy(case.soft), torch.from_numpy(case.values)
    missed = []
    for delta in (0.2, 0.1, 0.05, 0.025):
        near = centre + delta * (outputs - weighted_mean(outputs, weights))
        result = dc.hessian_diversity(near, targets, softmax_loss, weights, form="second_order")
        assert (result.c == 0).all()
        diversity = dc.decompose(near, targets, softmax_loss, "score", weights).examples.diversity
        error = result.diversity - diversity
        torch.testing.assert_close(weighted_mean(result.residual, weights), error)
        missed.append(float(error.abs().max()))
    ratios = [first / second for first, second in itertools.pairwise(missed)]
    assert ratios == pytest.approx([8, 8, 8], rel=0.15)  # halving δ divides the error by 2³
    assert ratios[-1] == pytest.approx(8, rel=0.03)


def test_the_second_order_form_has_the_right_gradient() -> None:
    case = make_case(members=2, batch=2)
    outputs, weights = case.tensors
    targets = torch.from_numpy(case.soft)

    def diversity(values: Tensor) -> Tensor:
        return dc.hessian_diversity(values, targets, softmax_loss, weights, "second_order")[0]

    assert torch.autograd.gradcheck(diversity, outputs.clone().requires_grad_())


@pytest.mark.parametrize("form", ["exact", "second_order"])
def test_vmap_of_the_hessian_form(form: str) -> None:
    many = [make_case(seed, members=2, batch=2) for seed in range(2)]
    outputs = torch.stack([case.tensors[0] for case in many])
    weights = torch.stack([case.tensors[1] for case in many])
    targets = torch.stack([torch.from_numpy(case.soft) for case in many])

    def terms(*arguments: Tensor) -> dc.HessianDiversity:
        values, wanted, members = arguments
        return dc.hessian_terms(values, wanted, softmax_loss, members, form)

    looped = [terms(*arguments) for arguments in zip(outputs, targets, weights, strict=True)]
    for got, wanted in zip(
        vmap(terms)(outputs, targets, weights), zip(*looped, strict=True), strict=True
    ):
        torch.testing.assert_close(got, torch.stack(wanted))


# ---- debiasing, and Appendix F ------------------------------------------------------------------


@settings(max_examples=30)
@given(case=cases())
def test_debiasing_keeps_the_prediction_and_is_optimal(case: Case) -> None:
    outputs, weights = case.tensors
    members, _, width = outputs.shape
    share = torch.ones(members).double() / members if weights is None else weights
    offsets, debiased = dc.optimal_offsets(outputs, weights), dc.debias(outputs, weights)
    scale = float(outputs.abs().max())
    near = {"rtol": 0, "atol": 1e-12 * scale}
    slow = np.array(
        [(row - np.tensordot(share.numpy(), case.outputs, 1)).mean(0) for row in case.outputs]
    )
    np.testing.assert_allclose(offsets, slow, **near)
    torch.testing.assert_close(share @ offsets, torch.zeros(width).double(), **near)
    torch.testing.assert_close(
        combine(debiased, "mean", weights), combine(outputs, "mean", weights), **near
    )
    least = float(dc.ambiguity(debiased, weights).mean())
    assert least <= float(dc.ambiguity(outputs, weights).mean()) + 1e-12 * scale**2
    for seed in range(5):  # other offsets with Σ_j w_j b_j = 0 never leave less diversity
        step = scale * torch.randn(
            members, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        moved = outputs - (offsets + step - share @ step)[:, None]
        assert float(dc.ambiguity(moved, weights).mean()) >= least - 1e-12 * scale**2


def test_debiasing_by_hand_needs_the_weighted_constraint() -> None:
    # Weights ¾, ¼; members constant at 0 and 4: f̄ = 1, b = (−1, 3), and ¾ · (−1) + ¼ · 3 = 0,
    # though −1 + 3 ≠ 0. Without them all members say 1.
    outputs, weights = tensor([[[0.0], [0.0]], [[4.0], [4.0]]]), tensor([0.75, 0.25])
    assert dc.optimal_offsets(outputs, weights).flatten().tolist() == [-1, 3]
    assert dc.debias(outputs, weights).flatten().tolist() == [1, 1, 1, 1]
    many = torch.stack([outputs, 2 * outputs])
    assert torch.equal(
        vmap(lambda values: dc.optimal_offsets(values, weights))(many),
        torch.stack([dc.optimal_offsets(values, weights) for values in many]),
    )


def test_colluding_offsets_are_free_under_joint_training() -> None:
    # Appendix F: f_j = f + c_j, here with f = 3, y = 1.
    prediction, target = tensor(3.0), tensor([[1.0]])

    def terms(offsets: Tensor) -> dc.DecompositionTerms:
        return dc.decomposition_terms((prediction + offsets)[:, None, None], target, "mse")

    offsets = torch.randn(5, dtype=torch.float64)
    offsets -= offsets.mean()
    excess = []
    for size in (0.0, 1.0, 10.0, 100.0):
        colluding = (size * offsets).requires_grad_()
        errors = terms(colluding)
        assert errors.ensemble_error.item() == pytest.approx(4)  # (f − y)², whatever the c_j
        (gradient,) = torch.autograd.grad(errors.ensemble_error.sum(), colluding)
        torch.testing.assert_close(gradient, gradient.mean().expand(5))  # flat within Σ_j c_j = 0
        if size:
            excess.append((errors.member_error / errors.diversity).item() - 1)
    # mean ERR / DIV = 1 + (f − y)² / mean c²: it tends to 1 as |c| grows.
    spread = offsets.square().mean().item()
    assert excess == pytest.approx([4 / (size**2 * spread) for size in (1, 10, 100)])
    # mean ERR = (f − y)² + mean c² + (2 / M) Σ_j c_j (f − y), the 2 being missing in the paper,
    free = torch.randn(5, dtype=torch.float64)
    wanted = 4 + free.square().mean() + 2 * free.mean() * 2
    torch.testing.assert_close(terms(free).member_error[0], wanted)
    # and its minimum is at c_j = y − f, where the paper says 0.
    alone = torch.full((5,), -2.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(terms(alone).member_error.sum(), alone)
    assert torch.equal(gradient, torch.zeros(5).double())
    assert terms(alone.detach()).member_error.item() == 0


# ---- bad input ----------------------------------------------------------------------------------

LOGITS, LABELS = torch.zeros(2, 4, 3), torch.tensor([0, 1, 2, 0])
NAN_LOGITS = torch.zeros(2, 4, 3).index_fill(0, torch.tensor([1]), float("nan"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": LOGITS[0]}, r"be \[members, batch, classes\], got \(4, 3\); .*logits\[None\]"),
        ({"outputs": LOGITS.tolist()}, "must be a torch.Tensor .*, got list; convert it with"),
        ({"outputs": LOGITS[:, :0], "targets": LABELS[:0]}, r"at least one .*got \(2, 0, 3\)"),
        ({"outputs": NAN_LOGITS}, "must be finite, got 12 NaN or infinite of 24 values"),
        ({"outputs": LOGITS[..., :1]}, r"at least two classes, got \(2, 4, 1\)"),
        ({"targets": LABELS + 1}, r"labels must lie in \[0, 3\) for 3 classes, got .* 1 to 3"),
        ({"targets": LABELS - 1}, r"labels must lie in \[0, 3\) for 3 classes, got .* -1 to 1"),
        ({"targets": LABELS[:3]}, r"integer targets must be \[batch\] = \(4,\), got \(3,\)"),
        ({"targets": LABELS.float()}, r"soft targets must be \[batch, classes\] = \(4, 3\)"),
        ({"targets": torch.ones(4, 3)}, "soft targets must be probabilities.*sums from 3 to 3"),
        ({"targets": LABELS.tolist()}, "targets must be a torch.Tensor, got list"),
        ({"weights": torch.ones(2)}, r"must sum to 1, .* a sum of 2; pass weights / weights.sum"),
        ({"weights": torch.tensor([1.5, -0.5])}, "must not be negative .* a smallest of -0.5"),
        ({"weights": torch.ones(3) / 3}, r"\[members\] = \(2,\), got \(3,\)"),
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
        ({"loss": mse, "targets": torch.zeros(3, 3)}, r"a batch of 4, got \(3, 3\)"),
        ({"loss": mse, "targets": [0.0] * 4}, "targets must be a torch.Tensor, got list"),
        (
            {"loss": lambda f, y: (f - y[:, None]).square().mean(), "targets": LABELS},
            r"one value for each example, \[batch\] = \(4,\), got \(\); drop its reduction",
        ),
    ],
)
def test_decompose_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dc.decompose(**{"outputs": LOGITS, "targets": LABELS, **arguments})


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


def kinked(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).abs().sum(-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": kinked}, "no c in .* for 1 of 2 pairs .* first for member 1 and example 0; the"),
        ({"loss": lambda f, y: -f.log().sum(-1)}, "curvature is not finite for 2 of 2 pairs"),
        ({"loss": lambda f, y: f}, r"one value for each example, \[batch\] = \(1,\), got \(1, 1\)"),
        ({"loss": "mse"}, r"must be a callable .* got 'mse'; .* pass dissensus.losses.mse"),
        ({"form": "first_order"}, "form must be 'exact' or 'second_order', got 'first_order'"),
        ({"outputs": torch.zeros(2, 1)}, r"batch, outputs\], got \(2, 1\); .*outputs\[None\]"),
        ({"targets": tensor([[float("nan")]])}, "targets must be finite, got 1 NaN"),
        ({"weights": torch.ones(2)}, "must sum to 1, got"),
    ],
)
def test_the_hessian_form_says_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    usual = {"outputs": tensor([[[-3.0]], [[2.0]]]), "targets": tensor([[0.0]]), "loss": mse}
    with pytest.raises(ValueError, match=message):
        dc.hessian_diversity(**{**usual, **arguments})


def test_other_functions_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"one of 'softmax', .* or a callable, got 'gamma'"):
        dc.exponential_family_diversity(LOGITS, "gamma")
    for form in dc.CLOSED_FORMS.values():
        with pytest.raises(ValueError, match=r"got \(4, 3\); for one model pass \w+\[None\]"):
            form(LOGITS[0], LABELS)
    with pytest.raises(ValueError, match=r"for one model pass outputs\[None\]"):
        dc.optimal_offsets(LOGITS[0])
    with pytest.raises(ValueError, match="outputs must be finite"):
        dc.debias(NAN_LOGITS)
    with pytest.raises(ValueError, match="weights must be a tensor"):
        dc.debias(LOGITS, [0.5, 0.5])


def test_hard_labels_are_one_hot_soft_labels() -> None:
    case = make_case(classes=4)
    outputs, weights = case.tensors
    labels = torch.from_numpy(case.labels)
    for loss, way in PAIRS[1:]:
        hard = dc.decompose(outputs, labels, loss, way, weights).examples
        soft = dc.decompose(outputs, one_hot(labels, 4).double(), loss, way, weights).examples
        for got, wanted in zip(soft, hard, strict=True):
            torch.testing.assert_close(got, wanted)

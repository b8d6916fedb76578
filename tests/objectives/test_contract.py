"""What holds for every objective, run over every entry of ``OBJECTIVES`` (see ``cases.py``)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from dissensus.objectives import (
    OBJECTIVES,
    Independent,
    Sequential,
    Terms,
)
from tests.objectives.cases import CASES, Case, Inputs, call, values_of, with_gradient


def over(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


every_case = over(CASES)
any_classes = over([case for case in CASES if not case.settings.get("prior")])


@pytest.fixture
def _no_vmap_fallback():
    """Let vmap fail, rather than loop slowly, over an operation without a batching rule."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


def close(got: Tensor | float, wanted: object, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(
        torch.as_tensor(got).detach().double().numpy(), np.asarray(wanted), rtol=rtol, atol=atol
    )


def variants(case: Case) -> list[Inputs]:
    """Hard and soft labels, with and without weights, one member, a batch of one."""
    few = case.fewest_members
    chosen = [
        case.inputs(),
        case.inputs(weighted=True, seed=1),
        case.inputs(members=few, seed=2),
        case.inputs(batch=1, seed=3),
        case.inputs(members=few, batch=1, weighted=True, seed=4),
    ]
    if case.soft_labels:
        chosen.append(case.inputs(soft=True, weighted=True, seed=5))
    return chosen


def test_every_objective_has_a_case() -> None:
    assert {type(case.objective) for case in CASES} == set(OBJECTIVES.values())
    for case in CASES:
        assert set(case.grid) == set(values_of(case.objective)), case.name


# ---- values and gradients -----------------------------------------------------------------------


@every_case
def test_value_and_parts_agree_with_the_slow_loop(case: Case) -> None:
    for inputs in variants(case):
        members = inputs.outputs.shape[0]
        objective = case.build(members)
        terms = call(objective, inputs)
        loss, parts = case.slow(inputs)
        close(terms.loss, loss)
        assert terms.loss.shape == ()
        assert set(terms.parts) == set(parts)
        for name, part in parts.items():
            close(terms.parts[name], part)
        documented = case.combination(terms.parts, values_of(objective), members)
        close(terms.loss, documented.detach())


def _is_float(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point()


@every_case
def test_gradient_is_the_slope_of_the_slow_loop(case: Case) -> None:
    inputs = case.inputs(members=3, batch=2, weighted=True, seed=3)
    _, grads = with_gradient(case.build(3), inputs)
    names = ["outputs", "disagreement"][: len(grads)]
    held = (inputs.outputs if inputs.disagreement is None else inputs.disagreement).numpy()
    step = 1e-5
    for name, got in zip(names, grads, strict=True):
        wanted = np.zeros(got.shape)
        for place in np.ndindex(*got.shape):
            sides = []
            for sign in (1, -1):
                moved = getattr(inputs, name).clone()
                moved[place] += sign * step
                sides.append(case.slow(inputs._replace(**{name: moved}), held=held)[0])
            wanted[place] = (sides[0] - sides[1]) / (2 * step)
        close(got, wanted, rtol=1e-5, atol=1e-7)
        assert np.abs(wanted).max() > 1e-3


@over([case for case in CASES if not case.held])
def test_gradcheck(case: Case) -> None:
    inputs = case.inputs(members=2, batch=2, weighted=True, soft=case.soft_labels)
    leaves = [x.requires_grad_() for x in (inputs.outputs, inputs.disagreement) if x is not None]

    def terms(outputs: Tensor, disagreement: Tensor | None = None) -> tuple[Tensor, ...]:
        loss, parts = call(case.build(2), inputs._replace(outputs=outputs))
        if disagreement is not None:
            moved = inputs._replace(outputs=outputs, disagreement=disagreement)
            loss, parts = call(case.build(2), moved)
        return (loss, *parts.values())

    assert torch.autograd.gradcheck(terms, leaves)
    assert torch.autograd.gradgradcheck(terms, leaves, fast_mode=True)


# ---- members ------------------------------------------------------------------------------------


@every_case
def test_order_of_members_does_not_matter(case: Case) -> None:
    inputs = case.inputs(members=4, weighted=True)
    # Sequential trains the last member against those before it: only those may change places.
    order = torch.tensor([2, 0, 1, 3] if isinstance(case.objective, Sequential) else [2, 0, 3, 1])
    mixed = inputs._replace(
        outputs=inputs.outputs[order],
        disagreement=None if inputs.disagreement is None else inputs.disagreement[order],
        weights=inputs.weights[order],
    )
    terms, grads = with_gradient(case.build(4), inputs)
    mixed_terms, mixed_grads = with_gradient(case.build(4), mixed)
    close(mixed_terms.loss, terms.loss.detach())
    for name, part in terms.parts.items():
        close(mixed_terms.parts[name], part.detach())
    for got, wanted in zip(mixed_grads, grads, strict=True):
        close(got, wanted[order])


@every_case
def test_identical_members_have_the_least_diversity(case: Case) -> None:
    for seed in range(5):
        unlike = case.inputs(members=3, batch=64, scale=4.0, seed=seed)
        same = unlike._replace(
            outputs=unlike.outputs[:1].expand_as(unlike.outputs),
            disagreement=None
            if unlike.disagreement is None
            else unlike.disagreement[:1].expand_as(unlike.disagreement),
        )
        least = case.diversity(call(case.build(3), same).parts, same)
        more = case.diversity(call(case.build(3), unlike).parts, unlike)
        assert more > least + 0.1
        if case.least(same) is not None:
            close(least, case.least(same), atol=1e-9)


@every_case
def test_equal_weights_are_no_weights(case: Case) -> None:
    plain = case.inputs()
    weighted = plain._replace(weights=torch.full((3,), 1 / 3, dtype=torch.float64))
    terms, grads = with_gradient(case.build(3), plain)
    same, same_grads = with_gradient(case.build(3), weighted)
    close(same.loss, terms.loss.detach())
    for got, wanted in zip(same_grads, grads, strict=True):
        close(got, wanted)
    # Weights of another precision than the outputs are taken as they are meant.
    close(call(case.build(3), weighted._replace(weights=weighted.weights.float())).loss,
          terms.loss.detach(), rtol=1e-6)  # fmt: skip


# Sequential trains one member and takes no notice of weights.
@over([case for case in CASES if not isinstance(case.objective, Sequential)])
def test_a_member_of_weight_zero_counts_for_nothing(case: Case) -> None:
    full = case.inputs(members=4)
    weights = torch.tensor([0.5, 0.2, 0.3, 0.0], dtype=torch.float64)
    full = full._replace(weights=weights)
    terms, grads = with_gradient(case.build(4), full)
    for got in grads:
        assert torch.all(got[3] == 0) or float(got[3].abs().max()) < 1e-12
        assert float(got[:3].abs().amax((1, 2)).min()) > 1e-4
    if case.counts_members:
        return
    fewer = full._replace(
        outputs=full.outputs[:3],
        weights=weights[:3],
        disagreement=None if full.disagreement is None else full.disagreement[:3],
    )
    wanted = call(case.build(3), fewer)
    for name, part in wanted.parts.items():
        close(terms.parts[name], part * (4 / 3 if case.sums_members and "cross" in name else 1))
    if not case.sums_members:
        close(terms.loss, wanted.loss)
    # However far out it is, and where only one member is left.
    if not case.regression:
        far = full.outputs.clone()
        far[3] = 1e4 * torch.eye(5, dtype=torch.float64)[:4]
        close(call(case.build(4), full._replace(outputs=far)).loss, terms.loss.detach())
    alone = full._replace(weights=torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    single = Inputs(
        full.outputs[1:2],
        full.targets,
        None if full.disagreement is None else full.disagreement[1:2],
    )
    wanted = call(case.build(1), single)
    for name, part in call(case.build(4), alone).parts.items():
        close(part, wanted.parts[name] * (4 if case.sums_members and "cross" in name else 1))


# ---- examples -----------------------------------------------------------------------------------

labelled_cases = over([case for case in CASES if not case.objective.needs_disagreement])


@labelled_cases
def test_an_example_weight_is_a_number_of_repetitions(case: Case) -> None:
    times = torch.tensor([2, 0, 1, 3, 1])
    index = torch.arange(len(times)).repeat_interleave(times)
    inputs = case.inputs(batch=len(times), weighted=True)
    repeated = inputs._replace(outputs=inputs.outputs[:, index], targets=inputs.targets[index])
    terms, (gradient,) = with_gradient(case.build(3), inputs, example_weights=times.double())
    again, (repeated_gradient,) = with_gradient(case.build(3), repeated)
    larger = len(index) / len(times)  # a mean over more examples is smaller
    close(terms.loss, again.loss.detach() * larger)
    for name, part in again.parts.items():
        close(terms.parts[name], part.detach() * larger)
    summed = torch.zeros_like(gradient).index_add(1, index, repeated_gradient * larger)
    close(gradient, summed)
    assert bool((gradient[:, times == 0] == 0).all())
    # A batch of weight 0 has no loss.
    terms, (gradient,) = with_gradient(case.build(3), case.inputs(), example_weights=torch.zeros(4))
    assert float(terms.loss.detach()) == 0
    assert float(gradient.abs().max()) == 0


def test_bad_example_weights_are_refused() -> None:
    logits, labels = torch.zeros(2, 3, 4), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must be \[batch\] = \(3,\), got \(4,\)"):
        OBJECTIVES["independent"]()(logits, labels, example_weights=torch.ones(4))
    with pytest.raises(ValueError, match="A2D has a term on unlabelled data"):
        OBJECTIVES["a2d"]()(logits, labels, disagreement=logits, example_weights=torch.ones(3))

    class Scalar(Independent):
        def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
            return Terms(outputs.square().mean(), {})

    with pytest.raises(ValueError, match=r"Scalar returns a scalar loss.*return \[batch\]"):
        Scalar()(logits, labels, example_weights=torch.ones(3))


# ---- numbers at the edge ------------------------------------------------------------------------


def extreme(case: Case, dtype: torch.dtype) -> Inputs:
    """Logits of ±1e4: sure and right, sure and wrong, all apart, torn, one unsure, mixed signs."""
    e = torch.eye(4, dtype=torch.float64)
    big = 1e4
    rows = [
        (big * (2 * e[0] - 1)).expand(3, 4),  # all sure of the true class
        (big * (2 * e[1] - 1)).expand(3, 4),  # all sure of the same wrong class
        big * (2 * e[[0, 1, 2]] - 1),  # each sure of another class
        torch.stack([big * e[0], -big * e[0], big * (e[0] + e[1])]),
        torch.stack([0 * e[0], big * e[2], -big * e[3]]),
        torch.tensor([[1.0, -1, 1, -1], [-1, 1, -1, 1], [1, 1, -1, -1]], dtype=torch.float64) * big,
    ]
    outputs = torch.stack(rows, 1).to(dtype)
    targets: Tensor = torch.zeros(6, dtype=torch.long)
    if case.regression:
        targets = torch.zeros(6, 4 // case.outputs_each, dtype=dtype)
    disagreement = outputs.flip(1).contiguous() if case.objective.needs_disagreement else None
    return Inputs(outputs, targets, disagreement)


@any_classes
def test_finite_and_right_at_logits_of_ten_thousand(case: Case) -> None:
    for weights in (None, torch.tensor([0.5, 0.1, 0.4])):
        inputs = extreme(case, torch.float32)._replace(weights=weights)
        terms, grads = with_gradient(case.build(3), inputs)
        for value in (terms.loss, *terms.parts.values(), *grads):
            assert bool(torch.isfinite(value).all())
        if case.slow_at_extremes:
            loss, parts = case.slow(inputs)
            close(terms.loss, loss, rtol=1e-5, atol=1e-4)
            for name, part in parts.items():
                close(terms.parts[name], part, rtol=1e-5, atol=1e-4)
        wide = extreme(case, torch.float64)._replace(
            weights=None if weights is None else weights.double()
        )
        for got, wanted in zip(grads, with_gradient(case.build(3), wide)[1], strict=True):
            # A float32 at 2e4 has steps of 2e-3: that is what a softmax of log-probabilities has.
            # Differences of squared logits (GNCL) are rounded at the scale of the largest gradient.
            rounding = float(torch.finfo(torch.float32).eps * 1e3 * wanted.abs().max())
            close(got, wanted, rtol=2e-3, atol=max(5e-4, rounding))


@any_classes
def test_members_that_agree_exactly(case: Case) -> None:
    for classes in (10, 1000):
        one = case.inputs(members=1 if case.fewest_members == 1 else 2, classes=classes, scale=3.0)
        inputs = Inputs(
            one.outputs[:1].float().expand(3, -1, -1),
            one.targets.float() if _is_float(one.targets) else one.targets,
            None if one.disagreement is None else one.disagreement[:1].float().expand(3, -1, -1),
        )
        terms, grads = with_gradient(case.build(3), inputs)
        for value in (terms.loss, *terms.parts.values(), *grads):
            assert bool(torch.isfinite(value).all())
        if isinstance(case.objective, Sequential):
            continue
        # Nothing tells the members apart, so nothing may be done to them that differs. The inverse
        # of ADP's Gram matrix is 1e6 here: float32 leaves it a few hundredths.
        for got in grads:
            close(got, got[:1].expand_as(got), rtol=1e-4, atol=0.05 if "adp" in case.name else 1e-5)


# ---- one batched operation for many ensembles ---------------------------------------------------


@every_case
@pytest.mark.usefixtures("_no_vmap_fallback")
def test_vmap_equals_the_loop(case: Case) -> None:
    runs = [case.inputs(seed=seed, weighted=True) for seed in range(3)]
    given = [k for k, value in runs[0]._asdict().items() if value is not None]
    data = {k: torch.stack([getattr(run, k) for run in runs]) for k in given}
    hyper = {k: torch.tensor(values, dtype=torch.float64) for k, values in case.grid.items()}
    objective = case.build(3)

    def loss(outputs: Tensor, rest: dict[str, Tensor], hyper: dict[str, Tensor]) -> Tensor:
        return objective.with_values(**hyper).evaluate(outputs, **rest).loss

    def parts(outputs: Tensor, rest: dict[str, Tensor], hyper: dict[str, Tensor]) -> Tensor:
        return objective.with_values(**hyper).evaluate(outputs, **rest).parts

    outputs = data.pop("outputs")
    # vmap refuses an empty mapping, and objectives without hyperparameters have one.
    axes = (0, 0, 0 if hyper else None)
    got = vmap(loss, axes)(outputs, data, hyper)
    got_parts = vmap(parts, axes)(outputs, data, hyper)
    got_grads = vmap(grad(loss), axes)(outputs, data, hyper)
    for i, run in enumerate(runs):
        values = {k: float(v[i]) for k, v in hyper.items()}
        leaf = run.outputs.clone().requires_grad_()
        terms = objective.with_values(**values).evaluate(leaf, run.targets, **run.extra())
        close(got[i], terms.loss.detach())
        for name, part in terms.parts.items():
            close(got_parts[name][i], part.detach())
        close(got_grads[i], torch.autograd.grad(terms.loss, leaf)[0])
        close(got[i], case.slow(run, **values)[0])


# ---- purity -------------------------------------------------------------------------------------


@every_case
def test_no_hidden_randomness_and_inputs_stay_as_they_are(case: Case) -> None:
    inputs = case.inputs(weighted=True)
    before = [None if x is None else x.clone() for x in inputs]
    versions = [None if x is None else x._version for x in inputs]
    state = torch.get_rng_state()
    first, first_grads = with_gradient(case.build(3), inputs)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    second, second_grads = with_gradient(case.build(3), inputs)
    assert torch.equal(first.loss, second.loss)
    assert all(torch.equal(a, b) for a, b in zip(first_grads, second_grads, strict=True))
    for old, new, version in zip(before, inputs, versions, strict=True):
        assert old is None or (torch.equal(old, new) and new._version == version)
    assert first.parts.keys() == second.parts.keys()


# ---- what is refused, in words ------------------------------------------------------------------


BAD: list[tuple[str, Callable[[Inputs], Any], str]] = [
    ("outputs", lambda good: good.outputs[0], r"must be \[members, batch, .*; for one model pass"),
    ("outputs", lambda good: good.outputs[:, :0], r"must be \[members, batch, \w+\], got \(3, 0"),
    ("outputs", lambda good: good.outputs.long(), "must be floating point, got torch.int64"),
    ("outputs", lambda good: good.outputs.numpy(), "must be a torch.Tensor, got ndarray"),
    ("targets", lambda good: good.targets[:3], r"got \(3,"),
    ("weights", lambda good: torch.full((3,), 2 / 3), "must sum to 1, got a smallest of 0.6667"),
    ("weights", lambda good: torch.tensor([1.2, -0.2, 0.0]), "weights must not be negative"),
    ("weights", lambda good: torch.tensor([0.5, 0.5]), r"must be \[members\] = \(3,\)"),
    ("weights", lambda good: torch.tensor([0.5, torch.nan, 0.5]), "weights must be finite"),
    ("weights", lambda good: torch.full((3,), 1 / 3, requires_grad=True), "pass weights.detach"),
]
BAD_LABELS: list[tuple[Any, str]] = [
    (torch.tensor([0, 5, 1, 2]), r"labels must lie in \[0, 5\), got values from 0 to 5"),
    (torch.tensor([0, -1, 1, 2]), "values from -1 to 2"),
    (torch.full((4, 5), 0.4).double(), "soft targets must be prob.*sums from 2 to 2|needs integer"),
]


@every_case
def test_bad_inputs_are_refused(case: Case) -> None:
    good, needs = case.inputs(), case.objective.needs_disagreement
    bad = [(name, change(good), text) for name, change, text in BAD]
    bad += [("targets", labels, text) for labels, text in BAD_LABELS if not case.regression]
    if needs:
        bad.append(("disagreement", None, "needs disagreement=, the members' outputs"))
        bad.append(("disagreement", good.disagreement[:2], r"\[3, batch, 5\], got .* \[2, 5, 5\]"))
    else:
        bad.append(("disagreement", good.outputs, "takes no disagreement data"))
    for name, value, text in bad:
        with pytest.raises(ValueError, match=text):
            call(case.build(3), good._replace(**{name: value}))

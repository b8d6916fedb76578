"""Fast gradients: each entry equals its formula, and training does not need any of them."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

import dissensus as ds
from dissensus.objectives import (
    ADP,
    GNCL,
    JSD,
    LDR,
    OBJECTIVES,
    Augmented,
    Independent,
    Joint,
    LearnerDropout,
    Objective,
    Terms,
    fast,
    parse,
)
from dissensus.objectives.fast import FAST, fleet_value_and_gradient, value_and_gradient
from tests.objectives.cases import CASES, Case, Inputs
from tests.objectives.test_contract import extreme, over, variants

#: Every setting that an entry covers; ``test_every_entry_is_tested`` fails if one is missing.
COVERED: list[Objective] = [
    Independent(),
    Independent(combine="score"),
    Independent(label_smoothing=0.2),
    Independent(label_smoothing=0.2, combine="score"),
    Joint(),
    Joint(combine="score"),
    Augmented(0.4),
    Augmented(0.4, combine="score"),
    ADP(1.3, 0.7),
    ADP(0.0, 0.5),
    ADP(2.0, 0.0, temperature=2.5),
    JSD(1.7),
    GNCL(0.6),
    LDR(2.0, active=None),
    LDR(2.0, active=None, regularizer="jsd"),
    LDR(2.0, active=None, regularizer="divdis"),
    LearnerDropout(0.4, Augmented(0.4)),
]
REGRESSION = [Independent(loss="mse"), Joint(loss="mse"), Augmented(0.4, loss="mse")]
every_entry = pytest.mark.parametrize("objective", COVERED, ids=repr)


def plain(
    objective: Objective,
    outputs: Tensor,
    targets: Tensor,
    disagreement: Tensor | None = None,
    weights: Tensor | None = None,
    example_weights: Tensor | None = None,
) -> tuple[Terms, list[Tensor]]:
    """Value and gradient of the formula itself."""
    leaves = [x.clone().requires_grad_() for x in (outputs, disagreement) if x is not None]
    unlabelled = None if disagreement is None else leaves[1]
    terms = objective.evaluate(leaves[0], targets, unlabelled, weights, example_weights)
    grads = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
    parts = {name: part.detach() for name, part in terms.parts.items()}
    return Terms(terms.loss.detach(), parts), list(grads)


def uses_an_entry(objective: Objective, outputs: Tensor, targets: Tensor) -> bool:
    return fast._fused(objective, outputs, targets, None, None) is not None


def draw(seed: int, members: int = 3, batch: int = 4, scale: float = 1.0) -> Inputs:
    """Inputs with member weights, one of them 0 for odd seeds."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    weights = torch.rand(members, **options)
    if members > 1 and seed % 2:
        weights[0] = 0
    logits = scale * torch.randn(members, batch, 5, **options)
    labels = torch.randint(5, (batch,), generator=generator)
    return Inputs(logits, labels, None, weights / weights.sum())


def test_every_entry_is_tested() -> None:
    inner = [getattr(objective, "objective", objective) for objective in COVERED]
    assert {type(objective) for objective in inner} == set(FAST)
    assert set(FAST) <= set(OBJECTIVES.values())
    assert {one.regularizer for one in inner if isinstance(one, LDR)} == set(fast.PAIR_SLOPES)
    logits, labels = torch.randn(3, 4, 5), torch.tensor([0, 1, 2, 3])
    assert all(uses_an_entry(objective, logits, labels) for objective in COVERED)


@every_entry
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**16),
    members=st.integers(1, 4),
    batch=st.integers(1, 5),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    weighted=st.booleans(),
    times=st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=5, max_size=5)),
)
def test_an_entry_is_its_formula(
    objective: Objective,
    seed: int,
    members: int,
    batch: int,
    scale: float,
    weighted: bool,
    times: list[int] | None,
) -> None:
    inputs = draw(seed, members, batch, scale)
    if not weighted:
        inputs = inputs._replace(weights=None)
    examples = None if times is None else torch.tensor(times[:batch])
    got = value_and_gradient(objective, *inputs, examples)
    assert_close(got, plain(objective, *inputs, examples), rtol=1e-9, atol=1e-9)
    assert not got[0].loss.requires_grad


@pytest.mark.parametrize("objective", REGRESSION, ids=repr)
def test_a_regression_entry_is_its_formula(objective: Objective) -> None:
    by_member = None, torch.tensor([0.0, 0.7, 0.3]).double()
    by_example = None, torch.tensor([0, 1, 2, 1, 0, 3]).double()
    for outputs, weights, examples in itertools.product((1, 3), by_member, by_example):
        predictions, targets = torch.randn(3, 6, outputs).double(), torch.randn(6, outputs).double()
        assert uses_an_entry(objective, predictions, targets)
        got = value_and_gradient(objective, predictions, targets, None, weights, examples)
        wanted = plain(objective, predictions, targets, None, weights, examples)
        assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@every_entry
def test_an_entry_is_its_formula_where_logits_tie(objective: Objective) -> None:
    # Small integers: many ties for the top class, whose first is taken; many equal members.
    inputs = draw(0, members=4, batch=50)
    inputs = Inputs(*(x.round() if _is_float(x) and x.ndim == 3 else x for x in inputs))
    # Equal members leave ADP's Gram matrix a smallest eigenvalue of 1e-6.
    got = value_and_gradient(objective, *inputs)
    assert_close(got, plain(objective, *inputs), rtol=1e-7, atol=1e-7)


# Whether an entry covers it or not: soft labels, other losses, unlabelled data.
@over(CASES)
def test_value_and_gradient_of_every_objective(case: Case) -> None:
    for inputs in variants(case):
        objective = case.build(inputs.outputs.shape[0])
        got = value_and_gradient(objective, *inputs)
        assert_close(got, plain(objective, *inputs), rtol=1e-9, atol=1e-9)


@over([case for case in CASES if not case.settings.get("prior")])
def test_extremes(case: Case) -> None:
    # Logits of ±1e4 in float32, against the formula in float64.
    for weights in (None, torch.tensor([0.5, 0.1, 0.4])):
        inputs = extreme(case, torch.float32)._replace(weights=weights)
        terms, grads = value_and_gradient(case.build(3), *inputs)
        wide = Inputs(*(x.double() if _is_float(x) else x for x in inputs))
        wanted, wanted_grads = plain(case.build(3), *wide)
        for value in (terms.loss, *terms.parts.values(), *grads):
            assert bool(torch.isfinite(value).all())
        assert_close(terms.loss.double(), wanted.loss, rtol=1e-5, atol=1e-4)
        for got, exact in zip(grads, wanted_grads, strict=True):
            rounding = float(torch.finfo(torch.float32).eps * 1e3 * exact.abs().max())
            assert_close(got.double(), exact, rtol=2e-3, atol=max(5e-4, rounding))


def _is_float(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point()


@over([case for case in CASES if not case.objective.needs_disagreement])
def test_a_fleet_is_the_loop_over_its_ensembles(case: Case) -> None:
    runs = [case.inputs(seed=seed) for seed in range(3)]
    outputs, targets = (torch.stack([run[i] for run in runs]) for i in (0, 1))
    values = {name: torch.tensor(grid).double() for name, grid in case.grid.items()}
    objective = case.build(3)
    for examples in (None, torch.rand(3, 4, dtype=torch.float64)):
        terms, (gradient,) = fleet_value_and_gradient(objective, values, outputs, targets, examples)
        for i in range(3):
            own = objective.with_values(**{name: float(value[i]) for name, value in values.items()})
            weights = None if examples is None else examples[i]
            wanted, (slope,) = plain(own, outputs[i], targets[i], example_weights=weights)
            assert_close(terms.loss[i], wanted.loss)
            assert_close({name: part[i] for name, part in terms.parts.items()}, wanted.parts)
            assert_close(gradient[i], slope)


def test_a_subclass_with_another_formula_does_not_get_the_entry_of_its_base() -> None:
    class Own(Joint):
        def terms(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Terms:
            return Terms(2 * super().terms(outputs, targets, weights).loss, {})

    logits, labels, _, _ = draw(0)
    terms, (gradient,) = value_and_gradient(Own(), logits, labels)
    assert_close(terms.loss, 2 * Joint()(logits, labels).loss)
    assert_close(gradient, 2 * plain(Joint(), logits, labels)[1][0])


# ---- training without entries -------------------------------------------------------------------


def train(spec: str) -> tuple[list[dict], Tensor]:
    """The history of a few epochs, and the predictions after them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 6, generator=generator)
    y = (x[:, :4] + 0.3 * torch.randn(96, 4, generator=generator)).argmax(-1)
    ens = ds.Ensemble(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), 3, seed=1)
    history = ds.fit(ens, (x, y), spec, val=(x, y), epochs=4, batch_size=32, seed=2, progress=False)
    return history.epochs, ens.predict(x)


@pytest.mark.parametrize(
    "spec",
    [
        "independent",
        "joint",
        "joint:combine=score",
        "augmented",
        "adp",
        "jsd",
        "gncl",
        "ldr",
        "ldr:active=none,regularizer=divdis",
        "ldr:active=none,regularizer=jsd",
        "learner_dropout:drop=0.4/joint",
    ],
)
def test_training_without_entries_comes_to_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    assert uses_an_entry(parse(spec), torch.zeros(2, 3, 5), torch.zeros(3).long())
    epochs, probs = train(spec)
    for kind in list(FAST):
        monkeypatch.delitem(FAST, kind)
    assert not uses_an_entry(parse(spec), torch.zeros(2, 3, 5), torch.zeros(3).long())
    slow_epochs, slow_probs = train(spec)
    assert_close(probs, slow_probs, rtol=1e-4, atol=1e-5)
    for one, other in zip(epochs, slow_epochs, strict=True):
        for split in ("train", "val"):
            assert_close(one[split], other[split], rtol=1e-4, atol=1e-5)

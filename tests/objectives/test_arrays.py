"""Terms that are computed by torch or by NumPy, whichever is quicker: to the same numbers."""

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import Parameter
from torch.testing import assert_close

from dissensus.objectives import ADP, GNCL, JSD, LDR, Terms, arrays, gradients
from dissensus.objectives.arrays import Namespace, NumPy, Torch, namespace
from tests.objectives.cases import CASES, Case, Inputs, with_gradient

#: The cases that have a term which NumPy computes where the outputs are few.
BOTH = {
    "a2d",
    "adp",
    "adp-warm",
    "divdis",
    "divdis-prior",
    "gncl-cross_entropy-score",
    "jsd",
    "ldr-a2d",
    "ldr-a2d-smoothed",
    "sequential",
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """Which namespace every term was computed with."""
    chosen: list[Namespace] = []

    def spy(*tensors: Tensor | None) -> Namespace:
        chosen.append(namespace(*tensors))
        return chosen[-1]

    monkeypatch.setattr(gradients, "namespace", spy)
    return chosen


def results(case: Case, inputs: Inputs) -> list[Tensor]:
    terms, grads = with_gradient(case.build(inputs.outputs.shape[0]), inputs)
    return [terms.loss.detach(), *(part.detach() for part in terms.parts.values()), *grads]


def assert_both_agree(
    case: Case, inputs: Inputs, used: list[Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = results(case, inputs)
    assert (NumPy in used) == (case.name in BOTH)
    used.clear()
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "SMALL", 0)
        many = results(case, inputs)
    assert NumPy not in used
    for got, wanted in zip(few, many, strict=True):
        assert got.dtype == wanted.dtype
        assert bool(torch.isfinite(got).all())
        # A gradient is rounded at the scale of the largest.
        eps = torch.finfo(got.dtype).eps
        scale = max(1.0, float(wanted.abs().max()))
        assert_close(got, wanted, rtol=1e3 * eps, atol=1e2 * eps * scale)


over_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@over_cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_torch_and_numpy_agree(
    case: Case,
    dtype: torch.dtype,
    weighted: bool,
    used: list[Namespace],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = case.inputs(3, 30, 5, dtype=dtype, weighted=weighted)
    assert_both_agree(case, inputs, used, monkeypatch)


@over_cases
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_torch_and_numpy_agree_at_the_edge(
    case: Case, scale: float, used: list[Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Members that agree exactly and tie for every class; members sure beyond any float.
    inputs = case.inputs(3, 8, 5, scale=scale)
    assert_both_agree(case, inputs, used, monkeypatch)


@pytest.mark.parametrize("case", [case for case in CASES if case.soft_labels and case.name in BOTH],
                         ids=lambda case: case.name)  # fmt: skip
def test_torch_and_numpy_agree_on_soft_labels(
    case: Case, used: list[Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_both_agree(case, case.inputs(3, 8, 5, soft=True, weighted=True), used, monkeypatch)


def test_the_parts_can_be_differentiated_both_ways(
    used: list[Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(8) % 5

    def slopes(terms: Terms) -> list[Tensor]:
        parts = terms.parts.values()
        return [torch.autograd.grad(part, logits, retain_graph=True)[0] for part in parts]

    for objective in (LDR(), ADP(), JSD(), GNCL()):
        few = slopes(objective(logits, labels))
        with monkeypatch.context() as patch:
            patch.setattr(arrays, "SMALL", 0)
            many = slopes(objective(logits, labels))
        assert_close(few, many, rtol=1e-4, atol=1e-6)
    assert NumPy in used
    assert Torch in used


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_narrow_labels_reach_the_last_logit(dtype: torch.dtype, used: list[Namespace]) -> None:
    # Positions among 3 · 60 · 7 logits do not fit into the eight bits of a label.
    logits = torch.randn(3, 60, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 7
    for objective in (LDR(active=None), ADP(), JSD(), GNCL()):
        assert torch.equal(objective(logits, labels.to(dtype)).loss, objective(logits, labels).loss)
    assert set(used) == {NumPy}


@pytest.mark.parametrize("objective", [LDR(), ADP(), JSD(), GNCL()])
def test_outputs_that_are_not_finite_give_a_loss_that_says_so(objective: LDR | ADP) -> None:
    # In silence: the training loop looks at the loss, and warnings are errors here.
    for bad in (torch.nan, torch.inf):
        logits = torch.randn(3, 8, 5)
        logits[1, 2, 3] = bad
        assert not bool(torch.isfinite(objective(logits, torch.arange(8) % 5).loss))


def test_numpy_takes_what_is_small_and_what_it_can_read() -> None:
    few = torch.zeros(2, 64, 128)  # 64 KB
    assert namespace(few, None, torch.zeros(2)) is NumPy
    assert namespace(Parameter(few)) is NumPy
    assert namespace(torch.zeros(2, 64, 129)) is Torch
    assert namespace(few.double()) is Torch
    assert namespace(few.half()) is Torch
    assert namespace(few.to("meta")) is Torch
    assert namespace(few, torch.zeros(2, dtype=torch.bfloat16)) is Torch
    assert namespace(few.as_subclass(Odd)) is Torch
    chosen = []
    vmap(lambda z: chosen.append(namespace(z)) or z.sum())(few)
    assert chosen == [Torch]


class Odd(Tensor):
    """A tensor that may mean something else by its memory."""


def test_both_namespaces_have_the_same_functions() -> None:
    names = [{name for name in vars(xp) if not name.startswith("_")} for xp in (Torch, NumPy)]
    assert names[0] == names[1]


def test_the_first_of_equal_classes_is_the_top_in_both() -> None:
    z = torch.randint(2, (4, 3, 50), generator=torch.Generator().manual_seed(0)).float()
    value, index = Torch.top(z)
    assert torch.equal(value, z.amax(0))
    assert torch.equal(index[0], z.argmax(0))
    assert torch.equal(vmap(lambda row: Torch.top(row)[1])(z[None])[0], index)
    array, places = NumPy.top(z.numpy())
    assert (array == value.numpy()).all()
    assert (places == NumPy.index(index[0].numpy(), z.numpy())).all()

"""Closed forms of diversity, and exponential families, against the identity and slow sums."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus import decomposition as dc
from tests.decomposition.cases import (
    LABELS,
    LOGITS,
    Case,
    cases,
    make_case,
    slow_errors,
)

SMOOTH_FORMS = [pair for pair in dc.CLOSED_FORMS if pair[0] != "zero_one"]


@pytest.mark.parametrize(("loss", "way"), dc.CLOSED_FORMS)
@settings(max_examples=60)
@given(case=cases(), soft=st.booleans())
def test_closed_form_equals_the_identity(loss: str, way: str, case: Case, soft: bool) -> None:
    targets = case.targets(loss, soft)
    _, ensemble, mean = slow_errors(case, loss, way, targets.numpy())
    outputs, weights = case.tensors
    diversity = dc.CLOSED_FORMS[loss, way](outputs, targets, weights)
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


def test_every_form_wants_members_first() -> None:
    for form in dc.CLOSED_FORMS.values():
        with pytest.raises(ValueError, match=r"got \(4, 3\); for one model pass \w+\[None\]"):
            form(LOGITS[0], LABELS)

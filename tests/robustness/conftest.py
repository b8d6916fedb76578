"""A small ensemble on real digits, trained once, and attacked by all tests in this folder."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import dissensus as ds
from dissensus.models import make_factory


class Problem(NamedTuple):
    ens: ds.Ensemble
    x: Tensor
    y: Tensor


@pytest.fixture(scope="session")
def trained() -> Problem:
    """Three dense members on 8 × 8 digits and 100 test images; not to be changed."""
    data = ds.data.load("digits", seed=0)
    make = make_factory("mlp", data.input_shape, 10, hidden=(64,))
    ens = ds.Ensemble(make, members=3, seed=0)
    ds.fit(ens, data.train, epochs=20, batch_size=64, progress=False)
    return Problem(ens.eval(), data.test[0][:100], data.test[1][:100])


@pytest.fixture
def problem(trained: Problem) -> Iterator[Problem]:
    """The same, checked to be as it was when the test has ended."""
    before = [p.detach().clone() for p in trained.ens.parameters()]
    torch.manual_seed(0)
    return_to = torch.get_rng_state()
    yield trained
    assert torch.equal(torch.get_rng_state(), return_to), "an attack drew global random numbers"
    assert all(p.grad is None and p.requires_grad for p in trained.ens.parameters())
    assert not trained.ens.training
    for parameter, values in zip(trained.ens.parameters(), before, strict=True):
        assert torch.equal(parameter, values)

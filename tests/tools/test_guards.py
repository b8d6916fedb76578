"""Checks that stand once: what passes, and the sentence for what does not."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dissensus.tools.guards import check_finite, check_row_weights, check_shape
from dissensus.tools.specs import check_integer, check_keys, check_number

NAN = float("nan")


def test_good_values_pass() -> None:
    assert check_integer("k", np.int64(3), 1, 3) == 3
    assert type(check_integer("k", np.int64(3))) is int
    assert check_number("p", np.float32(0.5), 0, 1) == 0.5
    check_keys("fit", ["a"], ["a", "b"])
    for values in (torch.ones(2, 3), np.ones((2, 3))):
        check_shape(values, name="x", rows=2, columns=None)
        check_finite(values, name="x")
        check_row_weights(values[0], 3)
    check_finite(torch.full((2,), torch.finfo(torch.float32).max), name="x")  # its sum overflows


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_integer("k", True), "k must be an integer of at least 1, got True"),
        (lambda: check_integer("k", 2.0), "k must be an integer of at least 1, got 2.0"),
        (lambda: check_integer("k", 5, 1, 4), r"k must be an integer in \[1, 4\], got 5"),
        (lambda: check_number("p", NAN), "p must be a finite number, got nan"),
        (lambda: check_number("p", "1"), "p must be a finite number, got '1'"),
        (lambda: check_number("p", 0, above=0, below=1), "greater than 0 and less than 1, got 0"),
        (lambda: check_keys("fit", ["c"], []), "fit has no option 'c'; it has none"),
        (lambda: check_shape(np.ones(2), name="x", a=None, b=3), r"\[a, b\] = \(any, 3\), got \(2"),
        (lambda: check_shape(torch.ones(0), name="x", rows=None), r"x must be \[rows\], got \(0,"),
        (lambda: check_shape(None, name="x", rows=2), r"x must be \[rows\] = \(2,\), got None"),
        (lambda: check_finite(np.array([1, NAN]), name="x"), "got 1 NaN or infinite of 2 values"),
        (lambda: check_row_weights(torch.tensor([-1.0, 1]), 2), "weights must be at least 0"),
        (lambda: check_row_weights(np.zeros(2), 2), "weights must be at least 0, and not"),
    ],
)
def test_others_are_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

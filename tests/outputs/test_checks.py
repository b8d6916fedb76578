"""Checks of the tensor, its targets and its weights: each says what is wrong."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dissensus import outputs as out

GOOD = torch.zeros(2, 4, 3)


@pytest.mark.parametrize(
    ("logits", "how", "weights", "message"),
    [
        (
            GOOD[0],
            "score",
            None,
            r"\[members, batch, classes\], got \(4, 3\); .*pass logits\[None\]",
        ),
        (
            GOOD[0],
            "mean",
            None,
            r"\[members, batch, outputs\], got \(4, 3\); .*pass outputs\[None\]",
        ),
        (GOOD[None], "score", None, r"\[members, batch, classes\], got \(1, 2, 4, 3\)$"),
        (GOOD.numpy(), "score", None, "got ndarray; pass torch.as_tensor"),
        (GOOD[:, :0], "score", None, r"\[members, batch, classes\], got \(2, 0, 3\)"),
        (GOOD[:0], "mean", None, r"\[members, batch, outputs\], got \(0, 4, 3\)"),
        (GOOD.long(), "score", None, r"floating point, got torch.int64; .* by .float\(\)"),
        (GOOD[..., :1], "score", None, r"two classes or more, .* torch.cat\(\[torch.zeros_like"),
        (GOOD / 0, "score", None, "must be finite, got 24 NaN or infinite of 24 values"),
        (GOOD, "average", None, "how must be one of probability, score, mean, got 'average'"),
        (GOOD, "score", [0.5, 0.5], "weights must be a torch.Tensor, got list"),
        (GOOD, "score", torch.ones(2), r"sum to 1, .* a sum of 2; pass weights / weights.sum\(\)"),
        (GOOD, "score", torch.tensor([1, 0]), "weights must be floating point, got torch.int64"),
        (GOOD, "mean", torch.tensor([1.5, -0.5]), "not be negative .* a smallest of -0.5"),
        (GOOD, "mean", torch.tensor([1.0, math.nan]), "weights must be finite"),
    ],
)
def test_combine_says_what_is_wrong(
    logits: Tensor, how: str, weights: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        out.combine(logits, how, weights)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0, 1], "targets must be a torch.Tensor, got list"),
        (torch.tensor([0, 1, 2]), r"integer targets must be \[batch\] = \(2,\), got \(3,\)"),
        (torch.tensor([0, 3]), r"labels must lie in \[0, 3\), got values from 0 to 3"),
        (torch.tensor([-1, 2]), r"labels must lie in \[0, 3\), got values from -1 to 2"),
        (torch.tensor([True, False]), r"got torch.bool; pass targets.long\(\)"),
        (torch.tensor([0.0, 1.0]), r"= \(2, 3\), got \(2,\); .* pass targets.long\(\)"),
        (torch.full((2, 3), 0.5), "sum to 1, .* sums from 1.5 to 1.5"),
        (torch.tensor([[1.5, -0.5, 0.0]] * 2), "a smallest of -0.5"),
        (torch.full((2, 3), math.inf), "soft targets must be finite"),
    ],
)
def test_check_targets_says_what_is_wrong(targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        out.check_targets(targets, batch=2, classes=3)


def test_check_targets_takes_what_rounding_leaves() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out.check_targets(torch.randn(20, 1000).softmax(-1).to(dtype), batch=20, classes=1000)
    out.check_targets(torch.tensor([0, 2]), batch=2, classes=3)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(4), r"\[batch, outputs\] = \(4, 1\), got \(4,\); pass targets\[:, None\]"),
        (torch.zeros(4, 2), r"\[batch, outputs\] = \(4, 1\), got \(4, 2\)$"),
        (torch.zeros(4, 1).long(), r"got torch.int64; convert by .float\(\)"),
        (torch.full((4, 1), math.nan), "targets must be finite, got 4 NaN"),
        (np.zeros((4, 1)), "targets must be a torch.Tensor, got ndarray"),
    ],
)
def test_check_regression_targets_says_what_is_wrong(targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        out.check_regression_targets(targets, torch.zeros(2, 4, 1))

"""Tuned members: a copy of an estimator's members that disagrees on strangers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from dissensus.data.strangers import Strangers
from dissensus.ensemble import Ensemble
from dissensus.sklearn.rows import Rows, Standard
from dissensus.training.tuning import tune


def tuned_members(
    ens: Ensemble,
    rows: Rows,
    standard: Standard,
    groups: Sequence[int],
    seed: int,
    batch_size: int | str,
) -> Ensemble:
    """``ens`` tuned on ``rows``; ``groups`` number the column that each one's inputs come from.

    All inputs of a column, its piecewise-linear ones and the levels of a category, move together.
    """
    x, y, *_ = standard.tensors(rows)  # a term on strangers takes no example weights
    if len(x) < 2:
        raise ValueError(f"strangers=True needs at least 2 different rows, got {len(x)}")
    if standard.y is not None and ens(x[:1].double()).shape[-1] != y.shape[1]:
        raise ValueError("strangers=True does not go with loss='gaussian'; use loss='mse'")
    strangers = Strangers(groups=tuple(np.repeat(groups, standard.x.widths).tolist()))
    settings: dict[str, Any] = {} if isinstance(batch_size, str) else {"batch_size": batch_size}
    start = copy.deepcopy(ens).float().requires_grad_(True)
    tuned, _ = tune(start, (x, y), strangers=strangers, seed=seed, progress=False, **settings)
    return tuned.double().eval().requires_grad_(False)

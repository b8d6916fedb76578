"""Rows of a table as tensors: a canonical order, weights, and splits.

A training set with weights is a measure: what a weight of 2 says, two equal rows say too, and the
order of rows says nothing. :meth:`Rows.merge` leaves out rows of weight 0, merges equal rows
(inputs and target alike) into one with the sum of their weights and sorts the rest. Whatever is
then split, shuffled and trained on is the same for all ways of writing the same measure, so that a
weight *is* a repetition, bit by bit, and a row's copies never stand on both sides of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from torch import Tensor

from dissensus.data.encoder import Standard
from dissensus.ensemble import Ensemble
from dissensus.tools.guards import check_row_weights

Floats = NDArray[np.float64]
Index = NDArray[np.int64]

#: Rows that networks get at once: their inputs are much larger than the rows.
ROWS_AT_ONCE = 1024
#: Rows that are compared at once.
_CHUNK = 4096


def check_weights(sample_weight: Any, rows: int) -> Floats:
    """``sample_weight`` as floats ``[rows]``; ones where there are none."""
    if sample_weight is None:
        return np.ones(rows)
    weights = np.asarray(sample_weight, dtype=np.float64)
    check_row_weights(weights, rows, name="sample_weight")
    return weights


# ---- canonical rows ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs ``[rows, columns]``, labels ``[rows]`` or targets ``[rows, outputs]``, weights."""

    x: Floats
    y: NDArray[Any]
    weights: Floats

    def __len__(self) -> int:
        return len(self.x)

    def merge(self) -> Rows:
        """Rows without those of weight 0, equal ones merged, in an order that is always the same.

        >>> x = np.array([[2.0], [1.0], [2.0], [0.0]])
        >>> rows = Rows(x, np.array([1, 0, 1, 1]), np.array([1.0, 3.0, 1.0, 0.0])).merge()
        >>> sorted(zip(rows.x.ravel().tolist(), rows.y.tolist(), rows.weights.tolist()))
        [(1.0, 0, 3.0), (2.0, 1, 2.0)]
        """
        if not self.weights.all():
            return self.pick(np.flatnonzero(self.weights)).merge()
        both = np.column_stack([self.x, self.y.reshape(len(self), -1)])
        both += 0.0  # makes −0 a 0: rows are compared byte by byte, and sorted by that
        keys = both.view(np.dtype((np.void, both.itemsize * both.shape[1]))).ravel()
        place = np.argsort(keys, kind="stable")
        new = np.ones(len(place), bool)
        for begin in range(0, len(place), _CHUNK):  # np.unique would copy all rows
            own = keys[place[begin : begin + _CHUNK + 1]]
            new[begin + 1 : begin + len(own)] = own[1:] != own[:-1]
        del both, keys  # as large as the table
        first, group = place[new], np.cumsum(new) - 1
        # Sorted, so that a sum does not depend on the order of its terms.
        weights = self.weights[place]
        order = np.lexsort((weights, group))
        total: Floats = np.bincount(group[order], weights[order]).astype(np.float64)
        return replace(self.pick(first), weights=total)

    def pick(self, index: NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        return Rows(self.x[index], self.y[index], self.weights[index])


def tensors(standard: Standard, rows: Rows, *, packed: bool = False) -> tuple[Tensor, ...]:
    """``(x, y)``, or ``(x, y, weights)`` of mean 1 where the weights are not all equal.

    With ``packed`` x is for :meth:`.Standard.unpack`.
    """
    encode = standard.x.pack if packed else standard.x
    parts = torch.from_numpy(encode(rows.x, np.float32)), standard.targets(rows.y)
    if (rows.weights == rows.weights[0]).all():
        return parts
    return *parts, torch.from_numpy(rows.weights / rows.weights.mean()).float()


def pad(parts: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """The same data sets, all of one length: shorter ones are padded with rows of weight 0.

    >>> sets = [(torch.ones(2, 3), torch.ones(2)), (torch.ones(3, 3), torch.ones(3))]
    >>> [weights.tolist() for _, _, weights in pad(sets)]
    [[1.5, 1.5, 0.0], [1.0, 1.0, 1.0]]
    """
    most = max(len(part[0]) for part in parts)
    if all(len(part[0]) == most and len(part) == len(parts[0]) for part in parts):
        return list(parts)
    return [_pad_part(part, most) for part in parts]


def _pad_part(part: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
    x, y = part[:2]
    weights = part[2] if len(part) > 2 else torch.ones(len(x))
    more = rows - len(x)
    index = torch.cat([torch.arange(len(x)), torch.zeros(more, dtype=torch.int64)])
    scaled = weights * (rows / len(x))  # their mean stays 1
    return x[index], y[index], torch.cat([scaled, torch.zeros(more)])


@torch.no_grad()
def member_outputs(ens: Ensemble, x: Tensor) -> Tensor:
    """Every member's outputs ``[members, rows, outputs]``, some rows at a time."""
    return torch.cat([ens(part) for part in x.split(ROWS_AT_ONCE)], 1)


# ---- splits -------------------------------------------------------------------------------------


def common_split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Rows to train on, and a ``share`` of them, at least one, that all members hold out."""
    held = min(max(round(share * len(rows)), 1), len(rows) - 1)
    parts = train_test_split(
        np.arange(len(rows)), test_size=held, random_state=seed, stratify=_strata(rows, held)
    )
    # In the order of all rows, so that training data do not depend on the shuffle.
    train, val = (rows.pick(np.sort(index)) for index in parts)
    return train, val


def _strata(rows: Rows, held: int) -> NDArray[Any] | None:
    """The labels, where every class has rows for both sides of a split."""
    if rows.y.ndim == 2:
        return None
    counts = np.unique(rows.y, return_counts=True)[1]
    fits = counts.min() >= 2 and len(counts) <= min(held, len(rows) - held)
    return rows.y if fits else None


def equal_folds(rows: Rows, count: int, seed: int) -> list[tuple[Index, Index]]:
    """Rows to train on and rows to hold out, shuffled, classes in proportion where they can be."""
    strata = rows.y.ndim == 1 and np.unique(rows.y, return_counts=True)[1].min() >= count
    kind = StratifiedKFold if strata else KFold
    splitter = kind(count, shuffle=True, random_state=seed)
    return list(splitter.split(rows.x, rows.y if strata else None))

"""Rows of a table as tensors: a canonical order, columns encoded, targets standardised.

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
from torch import Tensor

from dissensus.data.column_values import is_frame, raw_columns
from dissensus.data.encoder import Encoder
from dissensus.data.table import Scaler
from dissensus.objectives import gaussian_moments

Floats = NDArray[np.float64]

#: Rows that are compared at once.
_CHUNK = 4096
#: The least standard deviation of a target whose squares are still exact.
_LEAST = 1e-150


def check_weights(sample_weight: Any, rows: int) -> Floats:
    """``sample_weight`` as floats ``[rows]``; ones where there are none."""
    if sample_weight is None:
        return np.ones(rows)
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (rows,):
        raise ValueError(
            f"sample_weight must be one number for each row, ({rows},), got {weights.shape}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            "sample_weight must be finite and at least 0, got "
            f"{weights[~(np.isfinite(weights) & (weights >= 0))][0]}"
        )
    if not weights.any():
        raise ValueError("sample_weight must not be zero for all rows: none is left to learn from")
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


@dataclass(frozen=True, eq=False)
class Standard:
    """How columns become inputs, and targets of a regression are standardised."""

    x: Encoder
    y: Scaler | None

    @classmethod
    def fit(cls, rows: Rows, scaled: NDArray[np.bool_]) -> Standard:
        """Learn it from training rows; labels (integers) stay as they are."""
        targets = _scaler_of(rows.y, rows.weights) if rows.y.ndim == 2 else None
        return cls(Encoder.fit(rows.x, scaled, rows.weights), targets)

    def inputs(self, x: Floats, dtype: Any = np.float32) -> Tensor:
        """Inputs as a tensor."""
        return torch.from_numpy(self.x(x, dtype))

    def unpack(self, packed: Tensor) -> Tensor:
        """Inputs ``[…, inputs]`` from rows as :meth:`.Encoder.pack` writes them, a batch at a time.

        See :attr:`.Encoder.lines` for the formula.
        """
        source, *lines = self.x.lines
        slope, offset, low, high = (torch.from_numpy(line).to(packed) for line in lines)
        inputs = packed.index_select(-1, torch.from_numpy(source).to(packed.device))
        return inputs.mul_(slope).sub_(offset).clamp_(low, high)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Outputs of networks in the units of the target; logits as they are.

        Of Gaussian members, which have two outputs for each target, the means; see :meth:`noise`.
        """
        if self.y is None:
            return outputs
        means = outputs[..., : len(self.y.scale)]
        return means * torch.from_numpy(self.y.scale) + torch.from_numpy(self.y.mean)

    def noise(self, outputs: Tensor) -> Tensor | None:
        """The variances that Gaussian members predict, in units of the target, squared."""
        if self.y is None or outputs.shape[-1] == len(self.y.scale):
            return None
        variances = gaussian_moments(outputs)[1].exp()
        return variances * torch.from_numpy(self.y.scale).square()

    def tensors(self, rows: Rows, *, packed: bool = False) -> tuple[Tensor, ...]:
        """``(x, y)``, or ``(x, y, weights)`` of mean 1 where the weights are not all equal.

        With ``packed`` x is for :meth:`unpack`.
        """
        x = torch.from_numpy(self.x.pack(rows.x, np.float32)) if packed else self.inputs(rows.x)
        y = torch.from_numpy(rows.y.copy())
        if self.y is not None:
            y = torch.from_numpy(self.y(rows.y)).float()
        if (rows.weights == rows.weights[0]).all():
            return x, y
        return x, y, torch.from_numpy(rows.weights / rows.weights.mean()).float()


def _scaler_of(y: Floats, weights: Floats) -> Scaler:
    """Mean and deviation of targets, in whatever units; constant ones have a deviation of 1."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        mean = np.average(y, 0, weights)
        deviation = np.sqrt(np.average((y - mean) ** 2, 0, weights))
        rounding = 1e-12 * np.abs(y).max(0)
        varied = y.max(0) - y.min(0) > rounding
    scale = np.where(varied, deviation, np.maximum(1.0, rounding))
    fits = np.isfinite(mean) & (scale > _LEAST) & (scale < 1 / _LEAST)
    if not fits.all():
        largest = np.abs(y[:, ~fits]).max()
        raise ValueError(f"y holds {largest:g}, whose square is beyond float64; rescale y")
    return Scaler(np.zeros(len(mean), dtype=bool), mean, mean, scale)


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


# ---- columns of a DataFrame --------------------------------------------------------------------


def frame_columns(X: Any) -> dict[str, NDArray[Any]] | None:
    """The raw columns of a DataFrame with text or dates in it; None for numbers alone."""
    if not is_frame(X):
        return None
    raw = raw_columns(X)
    durations = any(getattr(kind, "kind", "") == "m" for kind in getattr(X, "dtypes", ()))
    return raw if durations or any(values.dtype.kind in "OM" for values in raw.values()) else None


def array_columns(x: Any, names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """The columns of an array, sparse or not, by their ``names`` where these are all different."""
    dense = x.toarray() if hasattr(x, "toarray") else x
    if names is None or len(set(names)) < len(names):
        names = [f"x{place}" for place in range(dense.shape[1])]
    return dict(zip(names, dense.T, strict=True))

"""Encoding of a table's columns for networks: standardised, and piecewise linear for numbers.

A network that sees a number once, standardised, learns steps and bends along it slowly; trees cut
it anywhere. So a number also enters as its piecewise-linear encoding (Gorishniy et al. 2022,
Eq. 1): with the edges e_0 < … < e_T at quantiles of the training rows::

    z_t = clip((x − e_{t−1}) / (e_t − e_{t−1}), 0, 1),    t = 1 … T

0 before its bin, 1 behind it and linear inside. The first and the last go on beyond the edges, up
to ``BEYOND`` widths of their bins: members that disagree on their slopes disagree on rows unlike
all that they learnt from, and an outlier still cannot outweigh everything else. A linear layer on z
is a piecewise-linear function of x with a slope of its own in every bin, which makes the first
layer of a network an embedding of each number. One-hot columns of categories come as they are: a
linear layer on them is an embedding of each category.

All inputs are then centred and divided by their deviation, but never by less than ``floor``: a
one-hot column that is nearly always 0 has a tiny deviation, and the first 1 would be an outlier
that outweighs all other columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.data.table import Scaler

__all__ = ["Encoder"]

Floats = NDArray[np.float64]

#: How far the encoding goes on beyond the outermost edges, in widths of the bins there.
BEYOND = 4.0


@dataclass(frozen=True, eq=False)
class Encoder:
    """From columns ``[rows, columns]``, where NaN is missing, to inputs ``[rows, inputs]``.

    >>> column = np.array([[0.0], [1.0], [2.0], [4.0]])
    >>> encoder = Encoder.fit(column, np.array([True]), bins=2)
    >>> encoder.edges[0]
    array([0., 1., 4.])
    >>> (encoder(column) * encoder.scale + encoder.mean)[:, 1:]  # z of each row
    array([[0.        , 0.        ],
           [1.        , 0.        ],
           [1.        , 0.33333333],
           [1.        , 1.        ]])
    """

    scaler: Scaler  # of the columns
    edges: tuple[Floats | None, ...]  # of each column, None where it enters as it is
    mean: Floats  # of the inputs
    scale: Floats
    limit: float = 5.0  # of standardised numbers, in deviations

    @classmethod
    def fit(
        cls,
        x: Floats,
        scaled: NDArray[np.bool_],
        weights: Floats | None = None,
        *,
        bins: int = 16,
        floor: float = 0.1,
    ) -> Encoder:
        """Learn edges, means and deviations from training rows; a weight counts as repetitions.

        ``scaled`` marks the columns of numbers; the others are one-hot or indicators.
        """
        scaler = Scaler.fit(x, scaled, weights=weights)
        filled = np.where(np.isnan(x), scaler.fill, x)
        edges = tuple(
            _edges(column, weights, bins) if number else None
            for column, number in zip(filled.T, scaled, strict=True)
        )
        columns = cls(scaler, edges, np.zeros(0), np.ones(0))._columns(x)
        moments = [_moments(column, weights) for column in columns]
        mean, deviation = (np.concatenate(each) for each in zip(*moments, strict=True))
        return cls(scaler, edges, mean, np.maximum(deviation, floor))

    @property
    def inputs(self) -> int:
        """How many inputs a network gets."""
        return len(self.mean)

    def __call__(self, x: Floats, dtype: Any = np.float64) -> NDArray[Any]:
        """Encode rows; ``dtype`` is that of the inputs."""
        out, begin = np.empty((len(x), self.inputs), dtype), 0
        for column in self._columns(x):
            own = slice(begin, begin + column.shape[1])
            out[:, own] = (column - self.mean[own]) / self.scale[own]
            begin = own.stop
        return out

    def _columns(self, x: Floats) -> Iterator[Floats]:
        """The inputs of one column after the other, ``[rows, 1 + bins]``, before they are scaled.

        One at a time: all of them are many times as large as the table.
        """
        standard = np.clip(self.scaler(x), -self.limit, self.limit)
        for place, edges in enumerate(self.edges):
            parts = [standard[:, place, None]]
            if edges is not None:
                filled = np.where(np.isnan(x[:, place]), self.scaler.fill[place], x[:, place])
                parts.append(_piecewise(filled, edges))
            yield np.concatenate(parts, 1)


def _piecewise(column: Floats, edges: Floats) -> Floats:
    """z of each value, ``[rows, bins]``."""
    lowest, highest = np.zeros(len(edges) - 1), np.ones(len(edges) - 1)
    lowest[0], highest[-1] = -BEYOND, 1 + BEYOND
    with np.errstate(over="ignore"):  # a bin may be tiny, and what is infinite is clipped
        return np.clip((column[:, None] - edges[:-1]) / np.diff(edges), lowest, highest)


def _edges(column: Floats, weights: Floats | None, bins: int) -> Floats | None:
    """Different quantiles of a column, values of it all; None where it has two values or fewer."""
    order = np.argsort(column)
    total = np.cumsum(np.ones(len(column)) if weights is None else weights[order])
    levels = np.linspace(0.0, 1.0, bins + 1) * (1 - 1e-9) * total[-1]  # ties despite rounding
    places = np.minimum(np.searchsorted(total, levels), len(column) - 1)
    edges: Floats = np.unique(column[order[places]])
    return edges if len(edges) > 2 else None


def _moments(column: Floats, weights: Floats | None) -> tuple[Floats, Floats]:
    """Means and standard deviations."""
    mean = np.average(column, 0, weights)
    return mean, np.sqrt(np.average((column - mean) ** 2, 0, weights))

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

The inputs of a table are many times as large as the table. So rows are kept as :meth:`Encoder.pack`
writes them, with two numbers for a number, the standardised one and its place among the edges,
u = t − 1 + (x − e_{t−1}) / (e_t − e_{t−1}) in bin t, and a batch at a time becomes inputs by
z_t = clip(u − (t − 1), 0, 1), with u from −``BEYOND`` to T + ``BEYOND`` and the outer bounds of
z_1 and z_T accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus.objectives import gaussian_moments

Floats = NDArray[np.float64]

#: How far the encoding goes on beyond the outermost edges, in widths of the bins there.
BEYOND = 4.0
#: Rows that are encoded at once.
_CHUNK = 256


#: Numbers of a table that are estimated from at once.
_AT_ONCE = 1 << 17
#: The least standard deviation of a target whose squares are still exact.
_LEAST = 1e-150


@dataclass(frozen=True, eq=False)
class Scaler:
    """``(x − mean) / scale`` by column; ``fill`` stands in for missing values.

    Columns that are not scaled (one-hot) keep mean 0 and scale 1; a column that is constant in the
    training rows gets scale 1, because dividing by a deviation near 0 turns the first other value
    into one of 1e5 and more.
    """

    fill: Floats
    mean: Floats
    scale: Floats

    @classmethod
    def fit(cls, x: Floats, scaled: NDArray[np.bool_], weights: Floats | None = None) -> Self:
        """Estimate everything on ``x``, the training rows ``[rows, columns]``.

        With ``weights`` ``[rows]`` means and deviations are weighted.
        """
        if x.size > _AT_ONCE and x.shape[1] > 3:  # every line below copies x: half of it at a time
            middle = x.shape[1] // 2
            halves = [
                cls.fit(x[:, half], scaled[half], weights)
                for half in (slice(middle), slice(middle, None))
            ]
            return cls(*(np.concatenate(each) for each in zip(*map(astuple, halves), strict=True)))
        counts = np.where(np.isnan(x), 0.0, 1.0 if weights is None else weights[:, None])
        fill = (np.nan_to_num(x) * counts).sum(0) / np.maximum(counts.sum(0), 1e-300)
        mean, scale = _moments(np.where(np.isnan(x), fill, x), weights)
        constant = scale <= 1e-8 * np.maximum(1.0, np.abs(mean))
        return cls(fill, np.where(scaled, mean, 0.0), np.where(scaled & ~constant, scale, 1.0))

    @classmethod
    def of_targets(cls, y: Floats, weights: Floats) -> Self:
        """Of targets ``[rows, outputs]`` in whatever units; constant ones have a deviation of 1."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            mean, deviation = _moments(y, weights)
            rounding = 1e-12 * np.abs(y).max(0)
            varied = y.max(0) - y.min(0) > rounding
        scale = np.where(varied, deviation, np.maximum(1.0, rounding))
        fits = np.isfinite(mean) & (scale > _LEAST) & (scale < 1 / _LEAST)
        if not fits.all():
            largest = np.abs(y[:, ~fits]).max()
            raise ValueError(f"y holds {largest:g}, whose square is beyond float64; rescale y")
        return cls(mean, mean, scale)

    def __call__(self, x: Floats) -> Floats:
        """Transform rows ``[rows, columns]``; training rows or others."""
        scaled: Floats = (np.where(np.isnan(x), self.fill, x) - self.mean) / self.scale
        return scaled


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
    ) -> Self:
        """Learn edges, means and deviations from training rows; a weight counts as repetitions.

        ``scaled`` marks the columns of numbers; the others are one-hot or indicators.
        """
        scaler = Scaler.fit(x, scaled, weights=weights)
        edges = tuple(
            _edges(_filled(column, fill), weights, bins) if number else None
            for column, fill, number in zip(x.T, scaler.fill, scaled, strict=True)
        )
        plain = cls(scaler, edges, np.zeros(0), np.ones(0))
        moments = []
        for place, column_edges in enumerate(edges):
            standard, *position = plain._pack_column(x[:, place], place)
            moments.append(_moments(standard[:, None], weights))
            if column_edges is not None:
                low, high = _bounds(len(column_edges) - 1).T
                z = np.clip(position[0][:, None] - np.arange(len(low)), low, high)
                moments.append(_moments(z, weights))
        mean, deviation = (np.concatenate(each) for each in zip(*moments, strict=True))
        return cls(scaler, edges, mean, np.maximum(deviation, floor))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        edges = [None if own is None else own.tolist() for own in self.edges]
        columns = {name: values.tolist() for name, values in asdict(self.scaler).items()}
        inputs = {"mean": self.mean.tolist(), "scale": self.scale.tolist()}
        return {"columns": columns, "edges": edges, "inputs": inputs, "limit": self.limit}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` gave."""
        scaler = Scaler(**{name: np.array(own) for name, own in values["columns"].items()})
        edges = tuple(None if own is None else np.array(own) for own in values["edges"])
        inputs = {name: np.array(own) for name, own in values["inputs"].items()}
        return cls(scaler, edges, **inputs, limit=values["limit"])

    @property
    def inputs(self) -> int:
        """How many inputs a network gets."""
        return len(self.mean)

    @property
    def widths(self) -> list[int]:
        """How many inputs each column becomes: itself, and one for each of its bins."""
        return [1 if edges is None else len(edges) for edges in self.edges]

    def pack(self, x: Floats, dtype: Any = np.float64) -> NDArray[Any]:
        """Rows as two numbers for each that has edges, and one for others; see the module."""
        out = np.empty((len(x), sum(1 if e is None else 2 for e in self.edges)), dtype)
        begin = 0
        for place in range(len(self.edges)):
            for part in self._pack_column(x[:, place], place):
                out[:, begin] = part
                begin += 1
        return out

    @cached_property
    def lines(self) -> tuple[NDArray[np.int64], Floats, Floats, Floats, Floats]:
        """``source, slope, offset, low, high`` of each input: how packed rows p become inputs.

        ``clip(p[source] · slope − offset, low, high)``; with slope = 1 / scale and offset =
        (start + mean) / scale it is (clip(p[source] − start, …) − mean) / scale.
        """
        source, start, bounds, place = [], [], [], 0
        for edges in self.edges:
            source.append(place)
            start.append(0)
            bounds.append(np.array([[-np.inf, np.inf]]))  # pack has clipped it
            if edges is not None:
                bins = len(edges) - 1
                source += [place + 1] * bins
                start += range(bins)
                bounds.append(_bounds(bins))
            place += 1 if edges is None else 2
        low, high = ((ends - self.mean) / self.scale for ends in np.concatenate(bounds).T)
        return np.array(source), 1 / self.scale, (start + self.mean) / self.scale, low, high

    @property
    def pieces(self) -> tuple[NDArray[np.int64], Floats, Floats, Floats, Floats]:
        """``column, start, width, low, high`` of each input: how filled columns x become inputs.

        ``(clip((x[column] − start) / width, low, high) − mean) / scale``, the same in one step, for
        an exported graph.
        """
        column = np.repeat(np.arange(len(self.edges)), self.widths)
        rows: list[Any] = []
        for place, edges in enumerate(self.edges):
            mean, scale = self.scaler.mean[place], self.scaler.scale[place]
            rows.append([[mean], [scale], [-self.limit], [self.limit]])
            if edges is not None:
                rows.append([edges[:-1], np.diff(edges), *_bounds(len(edges) - 1).T])
        start, width, low, high = np.concatenate(rows, 1)
        return column, start, width, low, high

    def __call__(self, x: Floats, dtype: Any = np.float64) -> NDArray[Any]:
        """Encode rows; ``dtype`` is that of the inputs."""
        source, slope, offset, low, high = self.lines
        out = np.empty((len(x), self.inputs), dtype)
        for begin in range(0, len(x), _CHUNK):
            rows = slice(begin, begin + _CHUNK)
            out[rows] = np.clip(self.pack(x[rows])[:, source] * slope - offset, low, high)
        return out

    def _pack_column(self, column: Floats, place: int) -> tuple[Floats, ...]:
        """A column standardised, and where it has edges the place of each value among them."""
        scaler, edges = self.scaler, self.edges[place]
        filled = _filled(column, scaler.fill[place])
        standard = (filled - scaler.mean[place]) / scaler.scale[place]
        clipped = np.clip(standard, -self.limit, self.limit)
        if edges is None:
            return (clipped,)
        ends = BEYOND * (edges[1] - edges[0]), BEYOND * (edges[-1] - edges[-2])
        wider = np.concatenate([[edges[0] - ends[0]], edges, [edges[-1] + ends[1]]])
        places = np.concatenate([[-BEYOND], np.arange(len(edges)), [len(edges) - 1 + BEYOND]])
        return clipped, np.interp(filled, wider, places)


def _filled(column: Floats, fill: float) -> Floats:
    return np.where(np.isnan(column), fill, column)


def _bounds(bins: int) -> Floats:
    """The smallest and largest z of each bin, ``[bins, 2]``."""
    bounds = np.tile([0.0, 1.0], (bins, 1))
    bounds[0, 0], bounds[-1, 1] = -BEYOND, 1 + BEYOND
    return bounds


def _edges(column: Floats, weights: Floats | None, bins: int) -> Floats | None:
    """Values between which there are bins; None where a column has two values or fewer.

    All values, if they are few. Else those that more than 1 of ``bins`` rows have, such as the 0 of
    a column that is mostly 0, and quantiles of the other rows.
    """
    values, place = np.unique(column, return_inverse=True)
    if len(values) > bins + 1:
        counts = np.bincount(place, weights)
        chosen = counts > counts.sum() / bins * (1 + 1e-9)  # the same despite rounding, as below
        total = np.cumsum(np.where(chosen, 0.0, counts))
        levels = np.linspace(0.0, 1.0, bins + 1 - chosen.sum()) * (1 - 1e-9)
        chosen[np.searchsorted(total, np.maximum(levels, 1e-9) * total[-1])] = True
        chosen[[0, -1]] = True
        values = values[chosen]
    return values if len(values) > 2 else None


def _moments(columns: Floats, weights: Floats | None) -> tuple[Floats, Floats]:
    """Means and standard deviations."""
    mean = np.average(columns, 0, weights)
    return mean, np.sqrt(np.average((columns - mean) ** 2, 0, weights))


@dataclass(frozen=True, eq=False)
class Standard:
    """How columns become the inputs of networks, and targets of a regression are standardised."""

    x: Encoder
    y: Scaler | None  # None for labels

    @classmethod
    def fit(
        cls, x: Floats, y: NDArray[Any], scaled: NDArray[np.bool_], weights: Floats | None = None
    ) -> Self:
        """Learn it from training rows; labels ``[rows]`` stay as they are."""
        weights = np.ones(len(x)) if weights is None else weights
        targets = Scaler.of_targets(y, weights) if y.ndim == 2 else None
        return cls(Encoder.fit(x, scaled, weights), targets)

    def inputs(self, x: Floats, dtype: Any = np.float32) -> Tensor:
        """Inputs as a tensor."""
        return torch.from_numpy(self.x(x, dtype))

    def targets(self, y: NDArray[Any]) -> Tensor:
        """Targets standardised, in float32; labels as they are."""
        return torch.from_numpy(y.copy() if self.y is None else self.y(y).astype(np.float32))

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

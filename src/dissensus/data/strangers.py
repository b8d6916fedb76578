"""Strangers: inputs made from a training batch that are like nothing in it.

A stranger keeps what every input of the data has in common (strokes and textures, the spectrum, the
values of each column) and destroys what makes it one of a class. Members that learn to *disagree*
on strangers (``A2D``, ``DivDis``) also disagree on unknown inputs that nobody has seen yet, and no
foreign data are needed. A family of strangers is a function ``(x, generator) -> x'`` of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from dissensus.data.augmentations import check_images
from dissensus.tools.specs import check_name, check_number, join_spec, split_spec

__all__ = ["STRANGERS", "Strangers", "mosaic", "permuted_columns", "phase_noise"]

TILES = 4  # on each side of a mosaic


def mosaic(x: Tensor, generator: Generator) -> Tensor:
    """4 × 4 tiles, each from a random image of the batch and a place of its own in it.

    Strokes and textures stay, objects do not. Pixels at the right and lower edge that no whole tile
    covers stay as they are.

    >>> x = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 8, 8)    # a black and a white image
    >>> mosaic(x, torch.Generator().manual_seed(0))[0, 0, ::2, ::2]
    tensor([[0., 1., 1., 0.],
            [1., 1., 1., 1.],
            [1., 1., 1., 0.],
            [0., 1., 0., 0.]])
    """
    check_images(x)
    batch, channels, height, width = x.shape
    h, w = height // TILES, width // TILES
    if h == 0 or w == 0:
        raise ValueError(f"a mosaic needs {TILES} × {TILES} pixels or more, got {height} × {width}")
    tiled = x[..., : h * TILES, : w * TILES].reshape(batch, channels, TILES, h, TILES, w)
    tiles = tiled.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [image, place, channels, h, w]
    image = torch.randint(batch, (batch, TILES**2), generator=generator).to(x.device)
    place = torch.rand(batch, TILES**2, generator=generator).argsort(-1).to(x.device)
    shuffled = tiles[image, place].unflatten(1, (TILES, TILES)).permute(0, 3, 1, 4, 2, 5)
    strangers = x.clone()
    strangers[..., : h * TILES, : w * TILES] = shuffled.flatten(4, 5).flatten(2, 3)
    return strangers


def phase_noise(x: Tensor, generator: Generator) -> Tensor:
    """Each image's Fourier amplitudes with the phases of uniform noise: its texture, no shapes.

    ``x' = F⁻¹(|F x| · F u / |F u|)`` with u uniform in [0, 1). The mean of each channel stays, and
    values stay within those of the batch.

    >>> x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> strangers = phase_noise(x, torch.Generator().manual_seed(1))
    >>> bool(strangers.min() >= x.min()), bool((strangers - x).abs().max() > 0.1)
    (True, True)
    """
    check_images(x)
    spectrum = torch.fft.rfft2(x)
    phases = torch.fft.rfft2(torch.rand(x.shape, generator=generator).to(x)).sgn()
    phases[..., 0, 0] = spectrum[..., 0, 0].sgn()
    strangers: Tensor = torch.fft.irfft2(spectrum.abs() * phases, s=x.shape[-2:])
    return strangers.clamp(x.amin(), x.amax())


def permuted_columns(
    x: Tensor, generator: Generator, groups: Sequence[int] | None = None
) -> Tensor:
    """Each column in an order of its own over the batch: every value is real, no row is.

    ``groups`` ``[columns]`` gives columns that belong together the same number, such as those of
    one category: they move together, so that each row still has one level of it. Without it, every
    column moves by itself.

    >>> x = torch.tensor([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]])
    >>> permuted_columns(x, torch.Generator().manual_seed(5))
    tensor([[ 2., 10.],
            [ 0., 11.],
            [ 1., 12.]])
    >>> town = torch.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, 6.0], [0.0, 1.0, 7.0]])   # one-hot, number
    >>> permuted_columns(town, torch.Generator().manual_seed(5), groups=(0, 0, 1)).sum(0)
    tensor([ 1.,  2., 18.])
    """
    if len(x) < 2:
        raise ValueError(f"to permute columns, a batch needs 2 rows, got {len(x)}")
    columns = x[0].numel()
    if groups is not None and len(groups) != columns:
        raise ValueError(f"groups must number each of {columns} columns, got {len(groups)} numbers")
    numbers = torch.arange(columns) if groups is None else torch.tensor(groups)
    seed = int(torch.randint(2**62, (), generator=generator))
    orders = np.tile(np.arange(len(x)), (int(numbers.max()) + 1, 1))
    np.random.default_rng(seed).permuted(orders, axis=1, out=orders)  # torch would have to sort
    order = torch.from_numpy(orders)[numbers].T.reshape(x.shape).to(x.device)
    return x.gather(0, order)


#: Families of strangers by name.
STRANGERS: dict[str, Callable[..., Tensor]] = {
    "mosaic": mosaic,
    "phase": phase_noise,
    "permute": permuted_columns,
}


@dataclass(frozen=True)
class Strangers:
    """A mix of families: each row of a batch becomes a stranger of one family.

    ``shares`` says how many rows each family makes, in proportion; without any, images get mosaics
    and phase noise in equal parts (those of fewer than 4 pixels on a side phase noise alone), and
    rows of numbers permuted columns, of which ``groups`` says which belong together. Other kinds of
    input need families by name, or a function of your own wherever disagreement data are asked for.

    >>> Strangers.parse("strangers:mosaic=3,phase=1").shares
    (('mosaic', 3.0), ('phase', 1.0))
    >>> Strangers()(torch.rand(6, 3, 8, 8), torch.Generator()).shape
    torch.Size([6, 3, 8, 8])
    """

    shares: tuple[tuple[str, float], ...] = ()
    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, share in self.shares:
            check_name(name, STRANGERS, "family of strangers")
            check_number(f"strangers: {name}", share, above=0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Build a mix from ``strangers`` or ``strangers:mosaic=3,phase=1``."""
        name, settings = split_spec(text)
        check_name(name, ["strangers"], "kind of disagreement data")
        return cls(tuple((family, _share(family, value)) for family, value in settings.items()))

    def spec(self) -> str:
        """The string that :meth:`parse` turns back into this mix."""
        return join_spec("strangers", dict(self.shares))

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """As many strangers as ``x`` has rows."""
        shares = dict(self.shares or _default_shares(x))
        total, done, before = sum(shares.values()), 0.0, 0
        parts = []
        for name, share in shares.items():
            done += share
            after = round(len(x) * done / total)
            if after > before:
                more = {"groups": self.groups} if name == "permute" and self.groups else {}
                parts.append(STRANGERS[name](x[before:after], generator, **more))
            before = after
        return torch.cat(parts)


def _default_shares(x: Tensor) -> tuple[tuple[str, float], ...]:
    if x.ndim == 4:
        small = min(x.shape[-2:]) < TILES
        return (("phase", 1.0),) if small else (("mosaic", 1.0), ("phase", 1.0))
    if x.ndim == 2:
        return (("permute", 1.0),)
    got = f"images [batch, channels, height, width] or rows [batch, columns], got {tuple(x.shape)}"
    raise ValueError(f"strangers need {got}; name a family, as in strangers:permute=1")


def _share(family: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"strangers: {family} must be a number, got {text!r}") from None

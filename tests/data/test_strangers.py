"""Strangers: made of what the batch holds, like none of its rows, and drawn by the seed alone."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from dissensus.data.strangers import STRANGERS, Strangers, mosaic, permuted_columns, phase_noise


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int = 6, height: int = 8, width: int = 12) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=seeded(9), dtype=torch.float64)


@pytest.mark.parametrize("name", STRANGERS)
def test_shape_type_range_and_seed(name: str) -> None:
    x = images()
    before = x.clone()
    strangers = STRANGERS[name](x, seeded(1))
    assert torch.equal(x, before)
    assert strangers.shape == x.shape
    assert strangers.dtype == x.dtype
    assert float(x.min()) <= float(strangers.min())
    assert float(strangers.max()) <= float(x.max())
    assert torch.equal(strangers, STRANGERS[name](x, seeded(1)))
    assert not torch.equal(strangers, STRANGERS[name](x, seeded(2)))
    distances = torch.cdist(strangers.flatten(1), x.flatten(1))
    assert float(distances.min()) > 0.2 * float(torch.cdist(x.flatten(1), x.flatten(1)).max())


def test_a_mosaic_is_sixteen_tiles_each_from_a_place_of_its_own() -> None:
    # Every pixel says which image and which tile it belongs to.
    batch, side = 5, 8
    tile = torch.arange(16.0).reshape(4, 4).repeat_interleave(2, 0).repeat_interleave(2, 1)
    x = torch.stack([100.0 * n + tile for n in range(batch)])[:, None]
    made = mosaic(x, seeded(3))[:, 0]
    for stranger in made:
        blocks = stranger.reshape(4, 2, 4, 2)
        assert bool((blocks == blocks[:, :1, :, :1]).all())  # tiles stay whole
        places = (blocks[:, 0, :, 0] % 100).flatten()
        assert sorted(places.tolist()) == list(range(16))  # each place once
    sources = (made.reshape(batch, -1) // 100).unique()
    assert sources.tolist() == list(range(batch))
    assert side == made.shape[-1]


def test_edges_that_no_tile_covers_stay() -> None:
    x = images(height=10, width=9)
    made = mosaic(x, seeded())
    assert torch.equal(made[..., 8:, :], x[..., 8:, :])
    assert torch.equal(made[..., 8:], x[..., 8:])
    assert not torch.equal(made[..., :8, :8], x[..., :8, :8])


@pytest.mark.parametrize("shift", [0.0, -5.0], ids=["pixels", "standardised"])
def test_phase_noise_keeps_amplitudes_and_means(shift: float) -> None:
    """Against NumPy's complex transform, where no value had to be clipped."""
    x = images() + shift
    x[0, 0, 0, 0], x[0, 0, 0, 1] = shift - 50.0, shift + 50.0  # so wide that nothing is clipped
    made = phase_noise(x, seeded(4))
    amplitudes = np.abs(np.fft.fft2(x.numpy()))
    np.testing.assert_allclose(np.abs(np.fft.fft2(made.numpy())), amplitudes, atol=1e-9)
    np.testing.assert_allclose(made.mean((2, 3)).numpy(), x.mean((2, 3)).numpy(), atol=1e-12)
    noise = torch.rand(x.shape, generator=seeded(4)).double().numpy()
    phases = np.exp(1j * np.angle(np.fft.fft2(noise)))
    phases[..., 0, 0] = np.sign(shift) or 1.0
    np.testing.assert_allclose(made.numpy(), np.fft.ifft2(amplitudes * phases).real, atol=1e-9)


def test_permuted_columns_keep_each_column_and_no_row() -> None:
    x = torch.rand(50, 7, generator=seeded(1))
    made = permuted_columns(x, seeded(2))
    assert torch.equal(made.sort(0).values, x.sort(0).values)
    assert not any(bool((x == row).all(1).any()) for row in made)
    assert abs(float(torch.corrcoef(torch.stack([made[:, 0], made[:, 1]]))[0, 1])) < 0.5


def test_inputs_of_one_column_of_a_table_move_together() -> None:
    """A category of three levels and a number with a mark for gaps: both stay what they are."""
    level = torch.randint(3, (40,), generator=seeded(1))
    number = torch.randn(40, generator=seeded(2))
    gap = (number > 1).float()
    x = torch.cat([torch.eye(3)[level], number[:, None], gap[:, None]], 1)
    groups = (0, 0, 0, 1, 1)
    made = Strangers(groups=groups)(x, seeded(3))
    assert torch.equal(made[:, :3].sum(1), torch.ones(40))
    assert torch.equal(made[:, 4], (made[:, 3] > 1).float())
    assert torch.equal(made.sort(0).values, x.sort(0).values)
    pairs = [
        {(int(row[:3].argmax()), round(float(row[3]), 6)) for row in rows} for rows in (x, made)
    ]
    assert len(pairs[0] & pairs[1]) < 25  # which level goes with which number is another matter
    alone = Strangers()(x, seeded(3))
    assert set(alone[:, :3].sum(1).tolist()) > {1.0}  # without groups: rows of no level, or of two


def test_a_mix_gives_each_family_its_share() -> None:
    x = images(batch=9)
    made = Strangers((("mosaic", 2.0), ("permute", 1.0)))(x, seeded(5))
    generator = seeded(5)
    assert torch.equal(made[:6], mosaic(x[:6], generator))
    assert torch.equal(made[6:], permuted_columns(x[6:], generator))


@pytest.mark.parametrize(
    ("shape", "names"),
    [((4, 1, 8, 8), "mosaic phase"), ((4, 1, 3, 8), "phase"), ((4, 3), "permute")],
)
def test_the_default_suits_the_inputs(shape: tuple[int, ...], names: str) -> None:
    x = torch.rand(shape, generator=seeded())
    named = Strangers(tuple((name, 1.0) for name in names.split()))
    assert torch.equal(Strangers()(x, seeded(1)), named(x, seeded(1)))


@pytest.mark.parametrize("text", ["strangers", "strangers:mosaic=3,phase=0.5"])
def test_specs_survive_the_round_trip(text: str) -> None:
    assert Strangers.parse(Strangers.parse(text).spec()) == Strangers.parse(text)


@pytest.mark.parametrize("name", ["mosaic", "phase"])
def test_a_batch_of_one_image_still_makes_a_stranger(name: str) -> None:
    x = images(batch=1)
    assert float((STRANGERS[name](x, seeded()) - x).abs().max()) > 0.1
    assert Strangers()(x, seeded()).shape == x.shape


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (mosaic, (2, 1, 3, 8), r"4 × 4 pixels or more, got 3 × 8"),
        (permuted_columns, (1, 3), r"a batch needs 2 rows, got 1"),
        (Strangers(groups=(0, 1)), (4, 3), "groups must number each of 3 columns, got 2 numbers"),
        (Strangers(), (2, 3, 4), r"got \(2, 3, 4\); name a family, as in strangers:perm"),
        (phase_noise, (2, 8, 8), r"images must be floats \[batch, channels"),
    ],
)
def test_inputs_that_give_no_strangers(make: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(torch.rand(shape), seeded())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mosaics=1", "no family of strangers 'mosaics'; did you mean 'mosaic'"),
        ("mosaic=0", "mosaic must be a finite number greater than 0, got 0"),
        ("mosaic=all", "mosaic must be a number, got 'all'"),
    ],
)
def test_wrong_mixes(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Strangers.parse(f"strangers:{text}")

"""Corruptions: in range, the same for the same seed, worse from level to level."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from torch import Tensor

from dissensus.data import CORRUPTIONS, corrupt, corrupt_mixture, load, load_ood
from dissensus.data.corruptions import smooth, warp

DIGITS = load("digits").test[0][:120]


def distances(x: Tensor, kind: str) -> list[float]:
    """Mean root-mean-square distance from the original at each severity."""
    return [
        float((corrupt(x, kind, level) - x).square().mean((1, 2, 3)).sqrt().mean())
        for level in range(1, 6)
    ]


def assert_rising(values: list[float]) -> None:
    assert values[0] > 0.001
    assert all(later > earlier for earlier, later in pairwise(values)), values


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_range_shape_and_seed(kind: str) -> None:
    for shape in ((3, 1, 8, 8), (2, 3, 28, 21), (2, 2, 9, 33), (1, 4, 32, 32)):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
        before, state = x.clone(), torch.get_rng_state()
        for level in (1, 5):
            out = corrupt(x, kind, level, seed=3)
            assert out.shape == x.shape
            assert out.dtype == x.dtype
            assert 0 <= float(out.min()) <= float(out.max()) <= 1
            assert torch.equal(out, corrupt(x, kind, level, seed=3))
            assert not torch.equal(out, x)
        assert torch.equal(x, before)
        assert torch.equal(state, torch.get_rng_state())
    black_and_white = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)]).double()
    assert torch.isfinite(corrupt(black_and_white, kind, 5)).all()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_digits_get_worse_from_level_to_level(kind: str) -> None:
    assert_rising(distances(DIGITS, kind))


def test_clothes_and_colours_get_worse_from_level_to_level(shared_data: Path) -> None:
    pytest.importorskip("PIL")
    clothes = load_ood("fashion_mnist", data_dir=shared_data, limit=60)
    colours = load_ood("svhn", data_dir=shared_data, limit=40)
    for kind in CORRUPTIONS:
        assert_rising(distances(clothes, kind))
        assert_rising(distances(colours, kind))


@pytest.mark.parametrize(
    "kind",
    [
        *["gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur"],
        *["snow", "frost", "fog", "elastic_transform"],
    ],
)
def test_random_kinds_depend_on_the_seed_and_differ_between_images(kind: str) -> None:
    x = DIGITS[:1].expand(4, 1, 8, 8)
    out = corrupt(x, kind, 5)
    assert not torch.equal(out, corrupt(x, kind, 5, seed=1))
    assert len(out.flatten(1).unique(dim=0)) == 4


def test_a_mixture_goes_round_the_kinds() -> None:
    x = DIGITS[:32]
    mixed = corrupt_mixture(x, 3, seed=2)
    for number, kind in enumerate(CORRUPTIONS):
        torch.testing.assert_close(mixed[number::15], corrupt(x[number::15], kind, 3, seed=2))
    assert corrupt_mixture(x[:4], 1).shape == (4, 1, 8, 8)


def test_many_images_are_worked_in_parts() -> None:
    x = DIGITS[:1].expand(520, 1, 8, 8)
    out = corrupt(x, "gaussian_noise", 2)
    assert out.shape == x.shape
    assert len(out.flatten(1).unique(dim=0)) == 520


# ---- single kinds against what they claim -------------------------------------------------------


def test_noise_has_the_stated_statistics() -> None:
    x = torch.full((40, 1, 32, 32), 0.5)
    assert float((corrupt(x, "gaussian_noise", 2) - x).std()) == pytest.approx(0.12, rel=0.03)
    hit = corrupt(x, "impulse_noise", 4) != x
    assert float(hit.float().mean()) == pytest.approx(0.17, abs=0.01)
    shot = corrupt(x, "shot_noise", 1)
    assert float(shot.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(shot.std()) == pytest.approx((0.5 / 60) ** 0.5, rel=0.03)
    assert torch.equal(corrupt(torch.zeros_like(x), "shot_noise", 5), torch.zeros_like(x))


def test_contrast_and_brightness_by_hand() -> None:
    x = torch.tensor([0.2, 0.4]).repeat(32).reshape(1, 1, 8, 8)
    torch.testing.assert_close(corrupt(x, "contrast", 3), 0.3 + 0.2 * (x - 0.3))
    torch.testing.assert_close(corrupt(x, "brightness", 3), x + 0.3)
    colour = torch.tensor([0.4, 0.2, 0.0])[None, :, None, None].expand(1, 3, 8, 8)
    bright = corrupt(colour, "brightness", 4)[0, :, 0, 0]
    torch.testing.assert_close(bright, torch.tensor([0.8, 0.4, 0.0]))  # hue and saturation stay


def test_pixelate_by_hand() -> None:
    x = torch.rand(2, 1, 8, 8)
    blocks = x.reshape(2, 1, 4, 2, 4, 2).mean((3, 5))
    expected = blocks.repeat_interleave(2, -1).repeat_interleave(2, -2)
    torch.testing.assert_close(corrupt(x, "pixelate", 3), expected)


def test_jpeg_rounds_the_cosine_coefficients() -> None:
    """Against SciPy's transform, with clipping out of the way."""
    x = 0.4 + 0.2 * torch.rand(1, 1, 8, 8, dtype=torch.float64)
    out = corrupt(x, "jpeg_compression", 3)
    before, after = (dctn((v[0, 0].numpy() - 0.5) * 255, norm="ortho") for v in (x, out))
    top_row = np.floor(np.array([16, 11, 10, 16, 24, 40, 51, 61]) * 50 / 13 + 0.5).clip(1, 255)
    assert np.allclose(after[0], np.round(before[0] / top_row) * top_row, atol=1e-6)


def test_flat_colours_survive_blur_and_jpeg_nearly() -> None:
    x = torch.tensor([0.8, 0.3, 0.5])[None, :, None, None].expand(2, 3, 16, 16).contiguous()
    for kind in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"):
        torch.testing.assert_close(corrupt(x, kind, 5), x, atol=1e-5, rtol=0)
    torch.testing.assert_close(corrupt(x, "pixelate", 5), x)
    assert float((corrupt(x, "jpeg_compression", 1) - x).abs().max()) < 0.05


def test_warp_moves_and_smooth_keeps_the_sum() -> None:
    x = torch.rand(1, 1, 9, 9)
    one = torch.ones(1, 9, 9)
    torch.testing.assert_close(warp(x, 0 * one, one)[..., :-1], x[..., 1:])
    torch.testing.assert_close(warp(x, -one, 0 * one)[:, :, 1:], x[:, :, :-1])
    dot = torch.zeros(1, 1, 21, 21)
    dot[..., 10, 10] = 1
    assert float(smooth(dot, 1.5).sum()) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    ("x", "kind", "severity", "message"),
    [
        (DIGITS, "gausian_noise", 1, r"no corruption 'gausian_noise'; did you mean 'gaussian_noi"),
        (DIGITS, "fog", 0, "severity must be an integer in .1, 5., got 0"),
        (DIGITS, "fog", 6, "severity must be"),
        (DIGITS[0], "fog", 1, r"\[batch, channels, height, width\], got torch.float32"),
        (DIGITS[:, :, :7], "fog", 1, "at least 8 × 8"),
        (DIGITS[:0], "fog", 1, "and one or more"),
        (DIGITS * 16, "fog", 1, r"must lie in \[0, 1\], got values from 0 to 16"),
        (DIGITS * float("nan"), "fog", 1, "must lie in"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "fog", 1, "must be floats .* got torch.uint8"),
    ],
)
def test_refusals(x: Tensor, kind: str, severity: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corrupt(x, kind, severity)

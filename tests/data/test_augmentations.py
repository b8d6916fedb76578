"""Augmentations: exact where they move pixels, right in distribution, one draw an example."""

import pytest
import torch
from torch import Generator, Tensor

from dissensus.data import (
    AUGMENTATIONS,
    Augment,
    random_crop,
    random_flip,
    random_rotation,
    random_shift,
)


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def marked(batch: int, size: int = 16) -> Tensor:
    """One white pixel at row 8, column 6."""
    x = torch.zeros(batch, 1, size, size)
    x[:, :, 8, 6] = 1
    return x


def place(x: Tensor) -> Tensor:
    """Row and column of the white pixel of each image."""
    flat = x.flatten(1).argmax(1)
    return torch.stack([flat // x.shape[-1], flat % x.shape[-1]], 1)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_shape_type_range_and_seed(name: str) -> None:
    x = torch.rand(9, 3, 12, 10, dtype=torch.float64)
    before = x.clone()
    one, same = AUGMENTATIONS[name](x, seeded(1)), AUGMENTATIONS[name](x, seeded(1))
    assert torch.equal(x, before)
    assert torch.equal(one, same)
    assert one.shape == x.shape
    assert one.dtype == x.dtype
    assert float(one.min()) >= 0
    assert float(one.max()) <= 1 + 1e-12
    if name == "none":
        assert torch.equal(one, x)
    else:
        assert not torch.equal(one, AUGMENTATIONS[name](x, seeded(2)))


def test_about_half_are_flipped_and_a_flip_is_exact() -> None:
    x = torch.rand(2000, 1, 4, 5)
    out = random_flip(x, 0.5, seeded())
    flipped = (out == x.flip(-1)).flatten(1).all(1)
    kept = (out == x).flatten(1).all(1)
    assert bool((flipped ^ kept).all())
    assert 0.45 < float(flipped.float().mean()) < 0.55
    assert torch.equal(random_flip(x, 1.0, seeded()), x.flip(-1))


def test_crops_reach_all_offsets_and_no_other() -> None:
    moved = place(random_crop(marked(4000), 3, seeded())) - torch.tensor([8, 6])
    for axis in (0, 1):
        counts = torch.bincount(moved[:, axis] + 3)
        assert len(counts) == 7
        assert int(counts.min()) > 4000 / 7 * 0.8


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    x = torch.rand(5, 2, 6, 6)
    out = random_crop(x, 2, seeded(3))
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    for image, big in zip(out, padded, strict=True):
        windows = [big[:, i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        assert any(torch.equal(image, window) for window in windows)


def test_shifts_stay_within_their_share_and_repeat_the_border() -> None:
    moved = place(random_shift(marked(4000, 20), 0.1, seeded())) - torch.tensor([8, 6])
    assert moved.min(0).values.tolist() == [-2, -2]
    assert moved.max(0).values.tolist() == [2, 2]
    counts = torch.bincount(moved[:, 0] + 2)
    assert int(counts.min()) > 4000 / 5 * 0.8
    ramp = torch.arange(10.0).expand(8, 1, 10, 10)
    out = random_shift(ramp, 0.3, seeded())
    assert float(out.min()) == 0
    assert bool((out.diff(dim=-1) <= 1).all())
    assert bool((out.diff(dim=-1) >= 0).all())


def test_each_example_has_its_own_draw() -> None:
    x = torch.rand(1, 1, 12, 12).expand(64, 1, 12, 12)
    for augment in (Augment(crop=4), Augment(rotate=15), Augment(shift=0.4)):
        assert len(augment(x, seeded()).flatten(1).unique(dim=0)) > 20


def test_a_quarter_turn_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of 1 and 0 are the largest angle to either side."""
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    draws = torch.tensor([1.0, 0.0])
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: draws)
    out = random_rotation(x, 90.0, seeded())
    turned = {k: torch.rot90(x, k, (-2, -1)) for k in (1, 3)}
    matches = [[torch.allclose(out[i], t[i], atol=1e-6) for t in turned.values()] for i in (0, 1)]
    assert sorted(matches) == [[False, True], [True, False]]


def test_a_picture_that_is_not_square_is_turned_not_sheared() -> None:
    """Distances to the centre stay."""
    x = torch.zeros(500, 1, 21, 41)
    x[:, :, 10, 28] = 1  # 8 pixels right of the centre
    moved = place(random_rotation(x, 60.0, seeded())) - torch.tensor([10, 20])
    distance = moved.float().norm(dim=1)
    assert 7 <= float(distance.min()) <= float(distance.max()) <= 9
    angles = torch.atan2(moved[:, 0].float(), moved[:, 1].float()).rad2deg()
    assert float(angles.abs().max()) <= 65
    assert float(angles.min()) < -50 < 50 < float(angles.max())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": -1}, "crop must be an integer of at least 0, got -1"),
        ({"crop": 1.5}, "crop must be an integer"),
        ({"flip": 2}, "flip must be a finite number in .0, 1., got 2"),
        ({"rotate": 200}, "rotate must be a finite number in .0, 180., got 200"),
        ({"shift": 1.0}, "shift must be .* less than 1, got 1.0"),
    ],
)
def test_settings_are_checked(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augment(**settings)
    for x in (torch.zeros(3, 4), torch.zeros(1, 1, 3, 4, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"floats \[batch, channels, height, width\], got"):
            Augment(flip=0.5)(x, seeded())

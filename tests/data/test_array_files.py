"""Arrays in .npz: parts kept or cut, images recognised, extra sets, never pickle."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.data import load

RNG = np.random.default_rng(0)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_x_and_y_are_split(tmp_path: Path) -> None:
    x = np.arange(20.0).reshape(10, 2)
    path = save(tmp_path / "a.npz", x=x, y=np.array(list("ababababab")))
    data = load(path, seed=1, standardize=False)
    assert data.classes == ("a", "b")
    assert [len(x) for x, _ in data.splits().values()] == [6, 2, 2]
    for part, (inputs, labels) in data.splits().items():
        rows = data.rows[part].numpy()
        assert np.array_equal(inputs, x[rows])
        assert labels.tolist() == (rows % 2).tolist()


def test_parts_of_the_file_are_kept(tmp_path: Path) -> None:
    arrays = {
        f"{part}_{axis}": RNG.normal(size=(n, 3)) if axis == "x" else np.arange(n) % 2 + 5
        for part, n in (("train", 10), ("val", 4), ("test", 6))
        for axis in "xy"
    }
    data = load(save(tmp_path / "a.npz", **arrays), standardize=False)
    offset = {"train": 0, "val": 10, "test": 14}
    for part, (x, y) in data.splits().items():
        rows = data.rows[part].numpy() - offset[part]
        assert sorted(rows) == list(range(len(arrays[f"{part}_x"])))
        assert np.allclose(x, arrays[f"{part}_x"][rows])
        assert np.array_equal(y + 5, arrays[f"{part}_y"][rows])
    assert data.classes == ("5", "6")
    rows = torch.cat([*data.rows.values()])
    assert len(rows.unique()) == 20
    with pytest.raises(ValueError, match="has an official test set, which is kept; leave test out"):
        load(tmp_path / "a.npz", test=0.3)


def test_a_lone_val_part_is_what_the_user_says(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.npz",
        train_x=RNG.normal(size=(10, 3)),
        train_y=np.arange(10) % 2,
        val_x=RNG.normal(size=(4, 3)),
        val_y=np.arange(4) % 2,
    )
    assert [len(x) for x, _ in load(path).splits().values()] == [8, 4, 2]
    assert [len(x) for x, _ in load(path, val_as="test").splits().values()] == [8, 2, 4]


def test_extra_sets_are_scaled_as_train_is(tmp_path: Path) -> None:
    train = RNG.normal(3, 2, size=(50, 2))
    ood = RNG.normal(9, 1, size=(7, 2))
    path = save(
        tmp_path / "a.npz",
        train_x=train.astype(np.float16),
        train_y=RNG.normal(size=50),
        far_x=ood,
        near_x=ood,
        near_y=RNG.normal(size=7),
        note=np.array(["made by hand"]),
    )
    plain = load(path, standardize=False)
    assert plain.task == "regression"
    assert np.allclose(plain.extra["far"][0], ood, atol=1e-5)
    assert plain.extra["far"][1] is None
    assert plain.extra["near"][1].shape == (7, 1)
    assert plain.preprocessing["ignored"] == ["note"]
    data = load(path)
    kept = train.astype(np.float16).astype(np.float64)[data.rows["train"].numpy()]
    expected = (ood - kept.mean(0)) / kept.std(0)
    assert np.allclose(data.extra["far"][0], expected, atol=1e-4)
    assert float(data.train[1].std(correction=0)) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("shape", [(6, 5, 4), (6, 5, 4, 3), (6, 3, 5, 4), (6, 1, 5, 4)])
def test_bytes_are_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RNG.integers(0, 256, size=shape, dtype=np.uint8)
    data = load(save(tmp_path / "a.npz", x=x, y=np.arange(6) % 2), test=1, val=1)
    channels = 3 if 3 in shape else 1
    assert data.input_shape == (channels, 5, 4)
    row = int(data.rows["test"][0])
    image = x[row] / 255
    if shape[-1] == 3:
        image = image.transpose(2, 0, 1)
    assert np.allclose(data.test[0][0], image.reshape(channels, 5, 4), atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"a": np.ones(3)}, {}, "must hold x and y, or train_x and train_y, got a"),
        ({"x": np.ones(3), "y": np.ones(3)}, {}, "train_x must be numbers .* got float64"),
        ({"x": np.full((3, 2), np.nan), "y": np.ones(3)}, {}, "train_x must be finite, got 6 NaN"),
        ({"x": np.ones((3, 2)), "y": np.ones(3)}, {"task": "rank"}, "task must be"),
        ({"x": np.ones((3, 2)), "y": np.array(["a"] * 3)}, {"task": "regression"}, "got text"),
        ({"x": np.ones((9, 2)), "y": np.ones((9, 2), int)}, {}, r"must be labels \[rows\]"),
        (
            {"x": np.ones((9, 2)), "y": np.ones(9, int), "val_x": np.ones((2, 2))},
            {},
            "without val_y",
        ),
        ({"x": np.ones((9, 2)), "y": np.ones(9, int)}, {"val_as": "train"}, "val_as must be"),
        (
            {"x": np.ones((9, 2, 2)), "y": np.ones(9, int)},
            {"standardize": True},
            r"standardize takes \[rows, features\]",
        ),
    ],
)
def test_refusals(
    tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(save(tmp_path / "a.npz", **arrays), **options)


def test_frozen_features(shared_data: Path) -> None:
    data = load("features-effnetlite0", data_dir=shared_data)
    assert data.input_shape == (256,)
    assert data.outputs == 200
    assert [len(x) for x, _ in data.splits().values()] == [8000, 2000, 4000]
    assert set(data.extra) == {"corrupt1", "corrupt5", "svhn", "cifar10"}
    x, y = data.extra["corrupt5"]
    assert x.shape == (2000, 256)
    assert torch.equal(y, data.test[1][:2000])
    assert data.extra["svhn"][1] is None
    # A corrupted picture stays nearer to its original than to the next one.
    own = (data.extra["corrupt1"][0] - data.test[0][:2000]).norm(dim=1)
    next_ = (data.extra["corrupt1"][0][:-1] - data.test[0][1:2000]).norm(dim=1)
    assert float((own[:-1] < next_).float().mean()) > 0.9


def test_features_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no download: put tinyimagenet"):
        load("features_effnetlite0", data_dir=tmp_path)

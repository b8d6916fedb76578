"""Inputs by name: each kind, its labels, and messages about what cannot be found."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.data import Data, Inputs, corrupt, corrupt_mixture, find_inputs, load, load_table


@pytest.fixture(scope="module")
def digits() -> Data:
    data = load("digits")
    extra = {"own": (data.test[0][:5], data.test[1][:5])}
    return Data(**{**vars(data), "extra": extra})


@pytest.fixture(scope="module")
def wine() -> Data:
    return load("wine")


def test_splits_and_extra_sets(digits: Data) -> None:
    for name in ("test", "val"):
        source = find_inputs(name, digits)
        assert source.x is digits.splits()[name][0]
        assert source.y is digits.splits()[name][1]
    assert len(find_inputs("own", digits)) == 5


def test_corrupted_test_images_keep_their_labels(digits: Data) -> None:
    x, y = digits.test
    mixed, fog = find_inputs("corrupt:5", digits), find_inputs("corrupt:fog:2", digits, seed=3)
    assert torch.equal(mixed.x[:], corrupt_mixture(x, 5))
    assert torch.equal(fog.x[:], corrupt(x, "fog", 2, seed=3))
    assert mixed.y is y
    assert fog.name == "corrupt:fog:2"


def test_arrays_with_and_without_labels_and_groups(digits: Data, tmp_path: Path) -> None:
    x, y = (part[:12].numpy() for part in digits.test)
    np.savez(tmp_path / "a.npz", x=x, y=y, where=np.array(["sea", "land"] * 6))
    np.savez(tmp_path / "b.npz", x=x, y=y + 100)
    np.save(tmp_path / "c.npy", x)
    labelled = find_inputs(str(tmp_path / "a.npz"), digits, groups="where")
    assert labelled.name == "a"
    assert torch.equal(labelled.y, torch.from_numpy(y))
    assert labelled.groups.tolist() == [1, 0] * 6
    assert find_inputs(str(tmp_path / "a.npz"), digits).groups is None
    for name in ("b.npz", "c.npy"):  # classes that the run does not know; no classes
        source = find_inputs(str(tmp_path / name), digits, groups="where")
        assert (source.y, source.groups) == (None, None)
        assert np.array_equal(source.x[:].numpy(), x)
    assert torch.equal(find_inputs(str(tmp_path / "a.npz"), digits).y, torch.from_numpy(y))


def test_a_table_is_treated_as_the_training_table_was(wine: Data, tmp_path: Path) -> None:
    table, rows = load_table("wine"), wine.rows["test"].numpy()
    lines = zip(*(values[rows] for values in table.columns.values()), strict=True)
    text = [",".join(table.columns), *(",".join(map(str, line)) for line in lines)]
    (tmp_path / "t.csv").write_text("\n".join(text) + "\n")
    source = find_inputs(str(tmp_path / "t.csv"), wine)
    assert source.y is None
    assert torch.equal(source.x[:], wine.test[0])


def test_a_folder_of_pictures_is_read_as_it_is_needed(digits: Data, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, grey in (("3", 0), ("7", 255)):
        (tmp_path / "by_class" / name).mkdir(parents=True)
        for number in range(2):
            picture = image.new("RGB", (20, 12), (grey, grey, grey))
            picture.save(tmp_path / "by_class" / name / f"{number}.png")
    source = find_inputs(str(tmp_path / "by_class"), digits)
    assert source.x[1:3].shape == (2, 1, 8, 8)
    assert source.x[torch.tensor([3, 0])].flatten(1).mean(1).tolist() == [1.0, 0.0]
    assert source.y.tolist() == [3, 3, 7, 7]
    (tmp_path / "by_class" / "cat").mkdir()
    image.new("L", (9, 9)).save(tmp_path / "by_class" / "cat" / "a.png")
    assert find_inputs(str(tmp_path / "by_class"), digits).y is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no images"):
        find_inputs(str(tmp_path / "empty"), digits)


def test_a_limit_draws_the_same_rows_again() -> None:
    source = Inputs("a", torch.arange(100)[:, None], torch.arange(100), torch.arange(100))
    few = source.limited(7, seed=1)
    assert len(few) == 7
    assert torch.equal(few.x[:, 0], few.y)
    assert torch.equal(few.y, few.groups)
    assert torch.equal(few.y, source.limited(7, seed=1).y)
    assert not torch.equal(few.y, source.limited(7, seed=2).y)
    assert source.limited(100) is source
    assert [len(x) for x, _ in few.batches(3)] == [3, 3, 1]


def test_parts_of_other_data_sets(digits: Data, wine: Data) -> None:
    other = find_inputs("digits", digits, part="val", labelled=True, seed=3)
    assert torch.equal(other.x, load("digits", seed=3).val[0])
    assert torch.equal(other.y, load("digits", seed=3).val[1])
    assert find_inputs("digits", digits, part="train", labelled=False).y is None
    with pytest.raises(ValueError, match=r"digits has inputs of shape \(1, 8, 8\)"):
        find_inputs("digits", wine, part="train", labelled=False)
    with pytest.raises(ValueError, match="wine has no split 'tset'; it has train, val, test"):
        find_inputs("wine", wine, part="tset", labelled=True)


def test_unmatched_inputs_stay_as_they_are(digits: Data, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.full((3, 2, 5, 5), 255, np.uint8))
    assert torch.equal(
        find_inputs(tmp_path / "x.npz", digits, match=False).x, torch.ones(3, 2, 5, 5)
    )
    streamed = find_inputs("corrupt:fog:2", digits, match=False, seed=1)
    assert streamed.name == "fog2"
    wanted = corrupt(digits.test[0][10:20], "fog", 2, seed=1_000_003 + 10)
    assert torch.equal(streamed.x[10:20], wanted)


@pytest.mark.parametrize(
    ("text", "like", "message"),
    [
        ("svnh", "digits", r"there is no set 'svnh'; did you mean 'svhn'\?"),
        ("corrupt:x", "digits", "expected corrupt:SEVERITY or corrupt:KIND:SEVERITY, got"),
        ("corrupt:fogg:2", "digits", "no corruption 'fogg'"),
        ("corrupt:9", "digits", "severity must be an integer in .1, 5., got 9"),
        ("svhn", "wine", "svhn needs a run on images, and wine has none"),
        ("corrupt:5", "wine", "corrupt:5 needs images"),
        ("tset", "wine", "there is no set 'tset'; did you mean 'test'"),
    ],
)
def test_what_cannot_be_found_is_said(text: str, like: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_inputs(text, load(like))

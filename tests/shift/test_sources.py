"""What --ood and --id can name: each kind of source, its labels, and what cannot be found."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dissensus.data import Data, corrupt, corrupt_mixture, load
from dissensus.runs import Facts
from dissensus.shift import Origin, Source, known, unknown
from dissensus.shift.sources import check_names


@pytest.fixture(scope="module")
def digits() -> Origin:
    data = load("digits")
    extra = {"own": (data.test[0][:5], data.test[1][:5])}
    return Origin(Data(**{**vars(data), "extra": extra}), Facts.of(data))


@pytest.fixture(scope="module")
def wine() -> Origin:
    data = load("wine")
    return Origin(data, Facts.of(data))


def test_splits_and_extra_sets(digits: Origin) -> None:
    for name in ("test", "val"):
        source = known(name, digits)
        assert source.x is digits.data.splits()[name][0]
        assert source.y is digits.data.splits()[name][1]
    assert len(unknown("own", digits)) == 5


def test_corrupted_test_images_keep_their_labels(digits: Origin) -> None:
    x, y = digits.data.test
    mixed, fog = unknown("corrupt:5", digits), unknown("corrupt:fog:2", digits, seed=3)
    assert torch.equal(mixed.x[:], corrupt_mixture(x, 5))
    assert torch.equal(fog.x[:], corrupt(x, "fog", 2, seed=3))
    assert mixed.y is y
    assert fog.name == "corrupt:fog:2"


def test_arrays_with_and_without_labels_and_groups(digits: Origin, tmp_path: Path) -> None:
    x, y = (part[:12].numpy() for part in digits.data.test)
    np.savez(tmp_path / "a.npz", x=x, y=y, where=np.array(["sea", "land"] * 6))
    np.savez(tmp_path / "b.npz", x=x, y=y + 100)
    np.save(tmp_path / "c.npy", x)
    labelled = unknown(str(tmp_path / "a.npz"), digits, groups="where")
    assert labelled.name == "a"
    assert torch.equal(labelled.y, torch.from_numpy(y))
    assert labelled.groups.tolist() == [1, 0] * 6
    assert unknown(str(tmp_path / "a.npz"), digits).groups is None
    for name in ("b.npz", "c.npy"):  # classes that the run does not know; no classes
        source = unknown(str(tmp_path / name), digits, groups="where")
        assert (source.y, source.groups) == (None, None)
        assert np.array_equal(source.x[:].numpy(), x)
    assert torch.equal(known(str(tmp_path / "a.npz"), digits).y, torch.from_numpy(y))


def test_a_table_is_treated_as_the_training_table_was(wine: Origin, tmp_path: Path) -> None:
    features = wine.facts.features
    raw = np.array(wine.facts.preprocessing["feature_mean"])
    lines = [",".join(features), ",".join(str(v) for v in raw)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    source = unknown(str(tmp_path / "t.csv"), wine)
    assert source.y is None
    assert source.x[:].abs().max() < 1e-5


def test_a_folder_of_pictures_is_read_as_it_is_needed(digits: Origin, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, grey in (("3", 0), ("7", 255)):
        (tmp_path / "by_class" / name).mkdir(parents=True)
        for number in range(2):
            picture = image.new("RGB", (20, 12), (grey, grey, grey))
            picture.save(tmp_path / "by_class" / name / f"{number}.png")
    source = unknown(str(tmp_path / "by_class"), digits)
    assert source.x[1:3].shape == (2, 1, 8, 8)
    assert source.x[torch.tensor([3, 0])].flatten(1).mean(1).tolist() == [1.0, 0.0]
    assert source.y.tolist() == [3, 3, 7, 7]
    (tmp_path / "by_class" / "cat").mkdir()
    image.new("L", (9, 9)).save(tmp_path / "by_class" / "cat" / "a.png")
    assert unknown(str(tmp_path / "by_class"), digits).y is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        unknown(str(tmp_path / "empty"), digits)


def test_a_limit_draws_the_same_rows_again() -> None:
    source = Source("a", torch.arange(100)[:, None], torch.arange(100), torch.arange(100))
    few = source.limited(7, seed=1)
    assert len(few) == 7
    assert torch.equal(few.x[:, 0], few.y)
    assert torch.equal(few.y, few.groups)
    assert torch.equal(few.y, source.limited(7, seed=1).y)
    assert not torch.equal(few.y, source.limited(7, seed=2).y)
    assert source.limited(100) is source
    assert [len(x) for x, _ in few.batches(3)] == [3, 3, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("svnh", "there is no set 'svnh'; did you mean 'svhn'?"),
        ("corrupt:x", "expected corrupt:SEVERITY or corrupt:KIND:SEVERITY, got 'corrupt:x'"),
        ("corrupt:fogg:2", "no corruption 'fogg'"),
        ("corrupt:9", "severity must be 1, 2, 3, 4 or 5, got 9"),
    ],
)
def test_what_cannot_be_found_is_said(digits: Origin, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("?", r"\?")):
        unknown(text, digits)


def test_images_do_not_fit_a_table(wine: Origin, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"svhn needs a run on images, and wine has inputs"):
        unknown("svhn", wine)
    with pytest.raises(ValueError, match=r"corrupt:5 needs images"):
        unknown("corrupt:5", wine)
    with pytest.raises(ValueError, match="in-distribution data are test, val, train, a file"):
        known("tset", wine)


def test_two_sets_of_one_name_are_refused() -> None:
    source = Source("a", torch.zeros(2, 2))
    with pytest.raises(ValueError, match="two sets are called 'a'"):
        check_names([source, source])

"""Image sets: small files in the official layouts, and the real ones where they are at hand."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from dissensus.data import ImageFolder, fit_images, load, load_ood
from dissensus.data.image_sets import IMAGE_SETS, read_cifar, read_idx
from dissensus.data.images import open_image

RNG = np.random.default_rng(0)
CIFAR = {"cifar10": 1, "cifar100": 2}  # labels before each image


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, size=shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def four_files(name: str) -> dict[str, Any]:
    parts = IMAGE_SETS[name].files
    files = [*parts["train"], *parts["test"]]
    return dict(zip(("train_x", "train_y", "test_x", "test_y"), files, strict=True))


def check_parts(data: Any, train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> None:
    """Pixels and labels are those of the files; the test part is the official one, in order."""
    rows = torch.cat([data.rows["train"], data.rows["val"]]).numpy()
    assert sorted(rows) == list(range(len(train)))
    both = torch.cat([data.train[0], data.val[0]])
    assert np.allclose(both, train[rows] / 255, atol=1e-6)
    assert np.array_equal(torch.cat([data.train[1], data.val[1]]), labels[rows])
    assert np.allclose(data.test[0], test / 255, atol=1e-6)
    assert data.rows["test"].tolist() == [len(train) + i for i in range(len(test))]
    assert data.train[0].dtype == torch.float32


# ---- idx and KMNIST's npz ------------------------------------------------------------------------


def write_digits(
    root: Path, name: str, packed: bool = True, **changed: np.ndarray
) -> dict[str, Any]:
    """20 training and 6 test images in the layout of MNIST or KMNIST."""
    arrays = {"train_x": pixels(20, 28, 28), "train_y": np.arange(20) % 10}
    arrays |= {"test_x": pixels(6, 28, 28), "test_y": np.arange(6)} | changed
    folder = root / IMAGE_SETS[name].folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    for part, file in four_files(name).items():
        if file.name.endswith(".npz"):
            np.savez_compressed(folder / file.name, arrays[part].astype(np.uint8))
            continue
        path = folder / (file.name if packed else file.name.removesuffix(".gz"))
        path.write_bytes(gzip.compress(idx(arrays[part])) if packed else idx(arrays[part]))
    return arrays


@pytest.mark.parametrize(
    ("name", "packed"),
    [("mnist", True), ("mnist", False), ("fashion_mnist", True), ("kmnist", True)],
)
def test_digits_in_the_official_layouts(tmp_path: Path, name: str, packed: bool) -> None:
    arrays = write_digits(tmp_path, name, packed)
    data = load(name, data_dir=tmp_path, verify=False, val=0.25)
    assert len(data.val[0]) == 5
    assert data.input_shape == (1, 28, 28)
    check_parts(data, arrays["train_x"][:, None], arrays["train_y"], arrays["test_x"][:, None])
    folder = tmp_path / IMAGE_SETS[name].folders[0]
    assert load(name, data_dir=folder, verify=False).outputs == 10
    with pytest.raises(ValueError, match=r"is not the official file|must hold .* pixels"):
        load(name, data_dir=tmp_path)


def test_a_part_of_the_rows_can_be_drawn(tmp_path: Path) -> None:
    write_digits(tmp_path, "mnist")
    ask = {"data_dir": tmp_path, "verify": False, "limit": 10, "test_limit": 4}
    one, same, other = (load("mnist", seed=seed, **ask) for seed in (0, 0, 1))
    assert [len(x) for x, _ in one.splits().values()] == [8, 2, 4]
    assert all(torch.equal(one.rows[part], same.rows[part]) for part in one.rows)
    assert not torch.equal(one.rows["train"].sort()[0], other.rows["train"].sort()[0])
    with pytest.raises(ValueError, match=r"limit must be an integer in \[1, 20\], got 21"):
        load("mnist", **ask | {"limit": 21})
    with pytest.raises(ValueError, match="has an official test set, which is kept; leave test out"):
        load("mnist", test=0.2, **ask)
    write_digits(tmp_path, "mnist", train_y=np.array([0, 1, 2, 11] * 5))
    with pytest.raises(ValueError, match="train labels run from 0 to 11"):
        load("mnist", **ask)


@pytest.mark.parametrize(
    ("read", "raw", "message"),
    [
        (read_idx, b"<html>", "is not an idx file of bytes: it starts with"),
        (read_idx, b"", "is not an idx file"),
        (read_idx, idx(np.zeros((3, 2)))[:-1], r"cut short: 5 bytes for the shape \(3, 2\)"),
        (read_idx, bytes([0, 0, 8, 9, 0, 0]), "cut short"),
        (read_cifar, b"\x80\x02}q\x01" * 1000, "not a CIFAR binary file; a pickle is not read"),
        (read_cifar, b"", "not a CIFAR binary file"),
    ],
)
def test_damaged_files(read: Any, raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(raw, "toy")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion_mnist", 0.2860)])
def test_the_real_sets(shared_data: Path, name: str, mean: float) -> None:
    """The known mean of all 60,000 training pixels."""
    data = load(name, data_dir=shared_data, val=0)
    assert float(data.train[0].mean(dtype=torch.float64)) == pytest.approx(mean, abs=5e-5)
    assert [len(x) for x, _ in data.splits().values()] == [60_000, 0, 10_000]
    assert data.test[1].bincount().tolist() == (
        [1000] * 10
        if name == "fashion_mnist"
        else [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    )


# ---- CIFAR --------------------------------------------------------------------------------------


def cifar_files(name: str, rows: int) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    which = IMAGE_SETS[name]
    files, images, labels = {}, [], []
    for file in (*which.files["train"], *which.files["test"]):
        x = pixels(rows, 3, 32, 32)
        y = RNG.integers(0, len(which.classes), size=(rows, CIFAR[name]), dtype=np.uint8)
        files[file.name] = np.concatenate([y, x.reshape(rows, -1)], 1).tobytes()
        images.append(x)
        labels.append(y[:, -1])
    return files, np.concatenate(images), np.concatenate(labels)


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("layout", ["folder", "nested", "archive"])
def test_cifar_binary_batches(tmp_path: Path, name: str, layout: str) -> None:
    files, images, labels = cifar_files(name, rows=3)
    which = IMAGE_SETS[name]
    if layout == "archive":
        with tarfile.open(tmp_path / which.files["test"][0].archive, "w:gz") as archive:
            for file, raw in files.items():
                info = tarfile.TarInfo(f"{which.folders[0]}/{file}")
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
    else:
        folder = tmp_path / which.folders[0 if layout == "folder" else 1]
        folder.mkdir(parents=True)
        for file, raw in files.items():
            (folder / file).write_bytes(raw)
    with pytest.raises(ValueError, match=r"is not the official file|must hold .* pixels"):
        load(name, data_dir=tmp_path)
    data = load(name, data_dir=tmp_path, verify=False)
    check_parts(data, images[:-3], labels[:-3], images[-3:])
    assert data.outputs == {"cifar10": 10, "cifar100": 100}[name]
    assert len(set(data.classes)) == data.outputs


def test_cifar_test_images_alone_as_unknown_inputs(tmp_path: Path) -> None:
    files, images, _ = cifar_files("cifar10", rows=3)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(files["test_batch.bin"])
    x = load_ood("cifar10", data_dir=tmp_path, verify=False)
    assert np.allclose(x, images[-3:] / 255, atol=1e-6)


# ---- SVHN ---------------------------------------------------------------------------------------


def test_svhn_mat_files(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    arrays = {}
    for part, rows in (("train", 7), ("test", 3)):
        x = pixels(rows, 3, 32, 32)
        y = np.arange(rows) % 10 + 4  # 10 stands for the digit 0
        savemat(
            tmp_path / "svhn" / f"{part}_32x32.mat",
            {"X": x.transpose(2, 3, 1, 0), "y": y[:, None].astype(np.uint8)},
        )
        arrays[part] = (x, y % 10)
    data = load("svhn", data_dir=tmp_path, verify=False)
    check_parts(data, *arrays["train"], arrays["test"][0])
    assert load_ood("svhn", data_dir=tmp_path, verify=False).shape == (3, 3, 32, 32)
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"MATLAB nothing")
    with pytest.raises(ValueError, match=r"cannot be read as .mat with X and y"):
        load("svhn", data_dir=tmp_path, verify=False)


def test_the_recut_strip_of_svhn(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "svhn").mkdir()
    strip = pixels(4 * 32, 32, 3)
    image.fromarray(strip).save(tmp_path / "svhn" / "svhn_test_5k_reconstructed.png")
    np.savez(tmp_path / "svhn" / "svhn_test_5k_labels.npz", y=np.arange(4, dtype=np.uint8))
    x = load_ood("svhn", data_dir=tmp_path)
    expected = strip.reshape(4, 32, 32, 3).transpose(0, 3, 1, 2) / 255
    assert np.allclose(x, expected, atol=1e-6)


# ---- folders ------------------------------------------------------------------------------------


def fill(root: Path, counts: dict[str, int], size: tuple[int, int] = (20, 16)) -> None:
    """Images of one colour a class, so that a label can be read off the pixels."""
    image = pytest.importorskip("PIL.Image")
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            picture = image.new("RGB", size, (50 * number, 100, 200))
            picture.save(root / name / f"{i}.png")


def test_a_folder_of_classes(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    fill(root, {"cat": 6, "dog": 4})
    (root / "cat" / "notes.txt").write_text("not a picture")
    data = load(root, size=8, seed=1)
    assert data.classes == ("cat", "dog")
    assert data.input_shape == (3, 8, 8)
    assert [len(x) for x, _ in data.splits().values()] == [6, 2, 2]
    rows = torch.cat([*data.rows.values()])
    assert sorted(rows.tolist()) == list(range(10))
    for part, (x, y) in data.splits().items():
        assert torch.allclose(x[:, 0, 0, 0] * 255, 50.0 * y, atol=1e-3)
        assert ((data.rows[part] >= 6).long() == y).all()


def test_a_folder_with_official_parts(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"cat": 6, "dog": 4})
    fill(tmp_path / "val", {"cat": 1, "dog": 2})
    data = load(tmp_path, size=8)
    assert [len(x) for x, _ in data.splits().values()] == [8, 2, 3]
    assert data.test[1].tolist() == [0, 1, 1]
    fill(tmp_path / "test", {"dog": 2})
    data = load(tmp_path, size=8)  # with a test folder, val is validation
    assert [y.tolist() for _, y in (data.val, data.test)] == [[0, 1, 1], [1, 1]]
    rows = data.rows
    assert [rows[part].tolist() for part in ("test", "val")] == [[10, 11], [12, 13, 14]]
    fill(tmp_path / "test", {"owl": 1})
    with pytest.raises(ValueError, match="has classes that train has not: owl"):
        load(tmp_path, size=8)


def test_image_folder_one_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path, {"cat": 2, "dog": 1}, size=(40, 30))
    images = ImageFolder(tmp_path, size=16)
    assert len(images) == 3
    x, y = images[2]
    assert (tuple(x.shape), y) == ((3, 16, 16), 1)
    batches = torch.utils.data.DataLoader(images, batch_size=2)
    assert [tuple(x.shape) for x, _ in batches] == [(2, 3, 16, 16), (1, 3, 16, 16)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"[xyz].jpg cannot be read as an image"),
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"size": 30_000, "stream": False}, r"GiB of memory.* set stream=True"),
    ],
)
def test_refusals_of_folders(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    for name in "xyz":
        (tmp_path / "bad" / "cat" / f"{name}.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "bad", test=1, val=1, **options)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no images; the layout is class/picture.jpg"):
        load(tmp_path / "empty")


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    levels = np.array([0, 257, 30 * 257, 65535], np.uint16)
    file = tmp_path / "deep.png"
    image.fromarray(np.tile(np.repeat(levels, 4), (16, 1))).save(file)
    assert np.asarray(open_image(file, "deep"))[0, ::4, 1].tolist() == [0, 1, 30, 255]
    image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match=r"float\.tif .*mode F has no range; save it with 8 or 16"):
        open_image(tmp_path / "float.tif", "float.tif")


# ---- unknown inputs -----------------------------------------------------------------------------


def test_fit_images() -> None:
    x = torch.rand(2, 3, 4, 4)
    small = fit_images(x, (1, 2, 2))
    torch.testing.assert_close(small[0, 0, 0, 0], x[0, :, :2, :2].mean())
    grey = fit_images(x[:, :1], (3, 4, 4))
    assert torch.equal(grey[:, 0], grey[:, 2])
    assert fit_images(x, (3, 8, 8)).shape == (2, 3, 8, 8)
    assert torch.equal(fit_images(x, (3, 4, 4)), x)
    with pytest.raises(ValueError, match="images must be"):
        fit_images(x[0], (1, 2, 2))

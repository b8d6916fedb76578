"""Scores on features against NumPy, SciPy and scikit-learn; their direction, files and edges."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors

from dissensus.detection import Mahalanobis, NearestNeighbours, distances, evaluate
from dissensus.tools.files import replace_atomically

CLASSES = 4


def blobs(rows: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes around means of their own, with one covariance that is not the identity."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(9).normal(size=(width, width)) / np.sqrt(width)
    means = np.random.default_rng(8).normal(size=(CLASSES, width)) * 3
    labels = rng.integers(CLASSES, size=rows)
    x = means[labels] + rng.normal(size=(rows, width)) @ mix.T + 5
    return torch.from_numpy(x), torch.from_numpy(labels)


def mahalanobis_by_numpy(
    x: np.ndarray, y: np.ndarray, queries: np.ndarray, shrinkage: float | None, relative: bool
) -> np.ndarray:
    means = np.stack([x[y == c].mean(0) for c in np.unique(y)])
    places = np.searchsorted(np.unique(y), y)
    apart = x - means[places]
    if shrinkage is None:
        covariance = ledoit_wolf(apart, assume_centered=True)[0]
    else:
        empirical = apart.T @ apart / len(x)
        scale = np.trace(empirical) / x.shape[1]
        covariance = (1 - shrinkage) * empirical + shrinkage * scale * np.eye(x.shape[1])
    inverse = np.linalg.inv(covariance)
    nearest = (cdist(queries, means, "mahalanobis", VI=inverse) ** 2).min(1)
    if not relative:
        return nearest
    between = np.cov(means[places].T, bias=True)  # each row at the mean of its class
    inverse = np.linalg.inv(covariance + between)
    return nearest - cdist(queries, x.mean(0)[None], "mahalanobis", VI=inverse)[:, 0] ** 2


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3])
def test_mahalanobis_agrees_with_numpy(
    shrinkage: float | None, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "_PIECE", 100)  # many pieces, the last one shorter
    (x, y), (queries, _) = blobs(203, 7), blobs(31, 7, seed=1)
    distance = Mahalanobis.fit(x, y + 5, shrinkage=shrinkage, relative=relative)
    expected = mahalanobis_by_numpy(x.numpy(), y.numpy(), queries.numpy(), shrinkage, relative)
    np.testing.assert_allclose(distance(queries), expected, rtol=1e-9, atol=1e-9)


def test_a_relative_distance_never_falls_far_away() -> None:
    """Most features hardly vary: shrunk by itself, the background would be the narrower one."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = torch.randn(120, 40, generator=generator, dtype=torch.float64)
    x = x / torch.arange(1, 41) + 30.0 * y[:, None] * torch.eye(40)[0]
    distance = Mahalanobis.fit(x, y, relative=True)
    alone = Mahalanobis.fit(x, torch.zeros_like(y))  # one Gaussian with a shrinkage of its own
    far = x.mean(0) + 100.0 * torch.eye(40, dtype=x.dtype)
    assert float((Mahalanobis.fit(x, y)(far) - alone(far)).min()) < -1e4
    assert float(distance(far).min()) > -10.0  # 0 far away in directions that all classes share


@pytest.mark.parametrize("rows", [20, 60, 61])
def test_mahalanobis_with_as_few_rows_as_features(rows: int) -> None:
    x, y = blobs(rows, 60)
    distance = Mahalanobis.fit(x, y)
    apart = x.numpy() - np.stack([x.numpy()[y == c].mean(0) for c in range(CLASSES)])[y]
    assert distance.shrinkage == pytest.approx(ledoit_wolf(apart, assume_centered=True)[1])
    assert 0 < distance.shrinkage < 1
    strange = x + 10
    found = evaluate(distance(blobs(200, 60, seed=2)[0]), distance(strange), bootstrap=0)
    assert found.auroc == 1.0
    with pytest.raises(ValueError, match=r"cannot be inverted with shrinkage=0; raise it"):
        Mahalanobis.fit(x, y, shrinkage=0.0)


def test_mahalanobis_is_the_euclidean_distance_when_shrunk_wholly() -> None:
    (x, y), (queries, _) = blobs(100, 5), blobs(10, 5, seed=1)
    means = torch.stack([x[y == c].mean(0) for c in range(CLASSES)])
    ratio = Mahalanobis.fit(x, y, shrinkage=1.0)(queries) / torch.cdist(queries, means).amin(1) ** 2
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 7, 203])
def test_neighbours_agree_with_scikit_learn(
    k: int, normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "_PIECE", 400)
    monkeypatch.setattr("dissensus.detection.distances._QUERIES", 10)
    x, queries = blobs(203, 7)[0].float(), blobs(31, 7, seed=1)[0].float()
    found = NearestNeighbours.fit(x, k=k, normalize=normalize)(queries)
    a, b = x.double().numpy(), queries.double().numpy()
    if normalize:
        a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (a, b))
    expected = NearestNeighbors(n_neighbors=k).fit(a).kneighbors(b)[0][:, -1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_training_row_is_its_own_neighbour() -> None:
    x = blobs(50, 6)[0] + 1000
    assert NearestNeighbours.fit(x, k=1)(x).abs().max() < 1e-3
    assert NearestNeighbours.fit(x[:1], k=1, normalize=False)(x[:1]) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_strange_features_score_higher(dtype: torch.dtype) -> None:
    x, y = blobs(400, 12)
    known, strange = blobs(200, 12, seed=1)[0], blobs(200, 12, seed=2)[0].flip(1)
    for distance in (
        Mahalanobis.fit(x.to(dtype), y),
        Mahalanobis.fit(x.to(dtype), y, relative=True),
        NearestNeighbours.fit(x.to(dtype), k=10),
    ):
        found = evaluate(distance(known.to(dtype)), distance(strange.to(dtype)), bootstrap=0)
        assert found.auroc > 0.95, distance


@pytest.mark.parametrize("relative", [False, True])
def test_mahalanobis_comes_back_from_its_file(relative: bool, tmp_path: Path) -> None:
    x, y = blobs(100, 5)
    distance = Mahalanobis.fit(x, y, relative=relative)
    distance.save(tmp_path / "a.safetensors")
    again = Mahalanobis.load(tmp_path / "a.safetensors")
    assert torch.equal(again(x), distance(x))
    assert repr(again) == repr(distance)


def test_neighbours_come_back_from_their_file(tmp_path: Path) -> None:
    x = blobs(100, 5)[0]
    distance = NearestNeighbours.fit(x, k=3, normalize=False)
    distance.save(tmp_path / "a.safetensors")
    again = NearestNeighbours.load(tmp_path / "a.safetensors")
    assert torch.equal(again(x), distance(x))
    assert repr(again) == repr(distance)
    with pytest.raises(ValueError, match="is not a mahalanobis of a known format"):
        Mahalanobis.load(tmp_path / "a.safetensors")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match="there is no file"):
        Mahalanobis.load(path)
    replace_atomically(path, lambda part: part.write_bytes(b"no"))
    with pytest.raises(ValueError, match=r"a\.safetensors cannot be read as safetensors"):
        NearestNeighbours.load(path)


X, Y = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Mahalanobis.fit(X.numpy(), Y), "features must be a torch.Tensor"),
        (lambda: Mahalanobis.fit(X[:, :, None], Y), r"got \(9, 3, 1\); pass features.flatten\(1\)"),
        (lambda: Mahalanobis.fit(X[:0], Y[:0]), "at least one row and one feature"),
        (lambda: Mahalanobis.fit(X.long(), Y), "floating point, got torch.int64"),
        (lambda: Mahalanobis.fit(X / 0, Y), "features must be finite, got 27 NaN or infinite"),
        (lambda: Mahalanobis.fit(X, Y[:5]), r"labels \[rows\] = \(9,\), got \(5,\)"),
        (lambda: Mahalanobis.fit(X, Y.double()), "integer labels, got torch.float64"),
        (lambda: Mahalanobis.fit(X, Y, shrinkage=2), "from 0 to 1, or be None, got 2"),
        (lambda: Mahalanobis.fit(X, torch.arange(9)), "do not differ within any class"),
        (lambda: Mahalanobis.fit(X, Y)(X[:, :2]), r"3 wide, as those fitted on were, got \(9, 2\)"),
        (lambda: NearestNeighbours.fit(X), "from 1 to the 9 rows, got 50"),
        (lambda: NearestNeighbours.fit(X, k=0), "from 1 to the 9 rows, got 0"),
        (lambda: NearestNeighbours.fit(X, k=1)(X[:, :2]), "3 wide"),
        (lambda: NearestNeighbours.fit(X, k=1)(X * torch.nan), "must be finite"),
    ],
)
def test_what_cannot_be_scored_says_why(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]

"""Scores of features against NumPy, SciPy and scikit-learn: values, direction and edges."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from dissensus.detection import (
    LastLayers,
    Mahalanobis,
    MemberFeatures,
    NearestNeighbours,
    ReAct,
    RelativeMahalanobis,
    ViM,
    evaluate,
)
from dissensus.ensemble import Ensemble

CLASSES = 4


def blobs(rows: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Classes around means of their own, with one covariance that is not the identity."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(9).normal(size=(width, width)) / np.sqrt(width)
    means = np.random.default_rng(8).normal(size=(CLASSES, width)) * 3
    labels = rng.integers(CLASSES, size=rows)
    x = means[labels] + rng.normal(size=(rows, width)) @ mix.T + 5
    return torch.from_numpy(x), torch.from_numpy(labels)


# ---- distances ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", [Mahalanobis, RelativeMahalanobis])
@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3])
def test_mahalanobis_agrees_with_numpy(
    shrinkage: float | None, kind: type[Mahalanobis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.detection.distances._PIECE", 100)  # many pieces
    (x, y), (queries, _) = blobs(203, 7), blobs(31, 7, seed=1)
    distance, relative = kind(shrinkage=shrinkage).fit(x, y + 5), kind is RelativeMahalanobis
    expected = mahalanobis_by_numpy(x.numpy(), y.numpy(), queries.numpy(), shrinkage, relative)
    np.testing.assert_allclose(distance(queries), expected, rtol=1e-9, atol=1e-9)


def test_a_relative_distance_never_falls_far_away() -> None:
    """Most features hardly vary: shrunk by itself, the background would be the narrower one."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 2
    x = torch.randn(120, 40, generator=generator, dtype=torch.float64)
    x = x / torch.arange(1, 41) + 30.0 * y[:, None] * torch.eye(40)[0]
    alone = Mahalanobis().fit(x, torch.zeros_like(y))  # one Gaussian with a shrinkage of its own
    far = x.mean(0) + 100.0 * torch.eye(40, dtype=x.dtype)
    assert float((Mahalanobis().fit(x, y)(far) - alone(far)).min()) < -1e4
    # It is 0 far away in directions that all classes share.
    assert float(RelativeMahalanobis().fit(x, y)(far).min()) > -10.0


@pytest.mark.parametrize("rows", [20, 61])
def test_mahalanobis_with_as_few_rows_as_features(rows: int) -> None:
    x, y = blobs(rows, 60)
    distance = Mahalanobis().fit(x, y)
    apart = x.numpy() - np.stack([x.numpy()[y == c].mean(0) for c in range(CLASSES)])[y]
    assert float(distance.shrunk) == pytest.approx(ledoit_wolf(apart, assume_centered=True)[1])
    found = evaluate(distance(blobs(200, 60, seed=2)[0]), distance(x + 10), bootstrap=0)
    assert found.auroc == 1.0
    with pytest.raises(ValueError, match=r"be inverted with shrinkage=0; raise it"):
        Mahalanobis(shrinkage=0.0).fit(x, y)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 7, 203])
def test_neighbours_agree_with_scikit_learn(
    k: int, normalize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dissensus.detection.distances._PIECE", 400)
    monkeypatch.setattr("dissensus.detection.distances._QUERIES", 10)
    x, queries = blobs(203, 7)[0].float(), blobs(31, 7, seed=1)[0].float()
    found = NearestNeighbours(k=k, normalize=normalize).fit(x)(queries)
    a, b = x.double().numpy(), queries.double().numpy()
    if normalize:
        a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (a, b))
    expected = NearestNeighbors(n_neighbors=k).fit(a).kneighbors(b)[0][:, -1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    far = blobs(50, 6)[0] + 1000  # where the square of a difference loses its digits
    assert NearestNeighbours(k=1).fit(far)(far).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_strange_features_score_higher(dtype: torch.dtype) -> None:
    x, y = blobs(400, 12)
    known, strange = blobs(200, 12, seed=1)[0], blobs(200, 12, seed=2)[0].flip(1)
    for distance in (Mahalanobis(), RelativeMahalanobis(), NearestNeighbours(k=10)):
        distance.fit(x.to(dtype), y)
        found = evaluate(distance(known.to(dtype)), distance(strange.to(dtype)), bootstrap=0)
        assert found.auroc > 0.95, distance


X, Y = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Mahalanobis().fit(X.numpy(), Y), "features must be a torch.Tensor"),
        (lambda: Mahalanobis().fit(X[:, :, None], Y), r"got \(9, 3, 1\); pass features.flatten"),
        (lambda: Mahalanobis().fit(X[:0], Y[:0]), r"one or more, got \(0, 3\)"),
        (lambda: Mahalanobis().fit(X.long(), Y), "floating point, got torch.int64"),
        (lambda: Mahalanobis().fit(X / 0, Y), "features must be finite, got 27 NaN or infinite"),
        (lambda: Mahalanobis().fit(X), "mahalanobis needs labels"),
        (lambda: Mahalanobis().fit(X, Y[:5]), r"labels \[rows\] = \(9,\), got \(5,\)"),
        (lambda: Mahalanobis().fit(X, Y.double()), "integer labels, got torch.float64"),
        (lambda: Mahalanobis(shrinkage=2), r"shrinkage must be .* in \[0, 1\], got 2"),
        (lambda: Mahalanobis().fit(X, torch.arange(9)), "do not differ within any class"),
        (lambda: Mahalanobis().fit(X, Y)(X[:, :2]), r"3 wide, as those fitted on were"),
        (lambda: NearestNeighbours(k=10).fit(X), "at most the number of rows, 9, got 10"),
        (lambda: NearestNeighbours(k=0), "at least 1, got 0"),
        (lambda: NearestNeighbours().fit(X)(X * torch.nan), "must be finite"),
    ],
)
def test_features_that_cannot_be_scored_say_why(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


# ---- features with last layers ------------------------------------------------------------------

MEMBERS, WIDTH = 3, 6


def layers(bias: bool = True) -> LastLayers:
    torch.manual_seed(0)
    return LastLayers.of([nn.Linear(WIDTH, CLASSES, bias=bias) for _ in range(MEMBERS)])


def rows(count: int, seed: int, members: int = MEMBERS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, members * WIDTH, generator=generator).relu() * 3


def vim_by_numpy(train: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One network, in the order of the paper's text, by singular vectors and one row at a time."""
    origin = -np.linalg.pinv(w) @ b
    _, _, right = np.linalg.svd(train - origin, full_matrices=True)
    null = right[train.shape[1] // 2 :].T
    logits = train @ w.T + b
    residuals = [np.linalg.norm(null.T @ (row - origin)) for row in train]
    alpha = logits.max(1).sum() / np.sum(residuals)
    scores = []
    for row in x:
        virtual = alpha * np.linalg.norm(null.T @ (row - origin))
        share = np.exp(virtual) / (np.exp(virtual) + np.exp(w @ row + b).sum())
        scores.append(np.log(share / (1 - share)))
    return np.array(scores)


def react_by_numpy(train: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    logits = np.minimum(x, np.quantile(train, 0.8)) @ w.T + b
    return -np.log(np.exp(logits).sum(1))


@pytest.mark.parametrize(
    ("score", "slow"), [(ViM(), vim_by_numpy), (ReAct(quantile=0.8), react_by_numpy)]
)
def test_the_score_is_the_mean_of_the_members_scores(score: ViM | ReAct, slow: object) -> None:
    last, train, x = layers(), rows(80, 1), rows(9, 2) / 3
    parts = [
        [v[:, m * WIDTH : (m + 1) * WIDTH].double().numpy() for v in (train, x)]
        for m in range(MEMBERS)
    ]
    expected = [
        slow(*parts[m], last.weight[m].numpy(), last.bias[m].numpy())  # type: ignore[operator]
        for m in range(MEMBERS)
    ]
    found = score.fit(train, layers=last)(x)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, np.mean(expected, 0), rtol=1e-8, atol=1e-8)
    assert torch.isfinite(score(x * 1e6)).all()


@pytest.mark.parametrize("kind", [ViM, ReAct])
def test_shared_features_are_those_of_every_member(kind: type[ViM | ReAct]) -> None:
    last, train, x = layers(), rows(50, 1, members=1), rows(7, 2, members=1)
    apart = kind().fit(train.repeat(1, MEMBERS), layers=last)(x.repeat(1, MEMBERS))
    torch.testing.assert_close(kind().fit(train, layers=last)(x), apart)


def test_vim_of_features_that_span_little() -> None:
    train = rows(50, 1, members=1)
    train[:, 2:] = 0  # dead units: two dimensions are left of six, fewer than the rule's three
    last = LastLayers(layers().weight[:1], layers(bias=False).bias[:1])
    vim = ViM().fit(train, layers=last)
    assert vim.principal.shape == (1, WIDTH, 1)
    revived = train.clone()
    revived[:, 4] = 5
    assert evaluate(vim(train), vim(revived), bootstrap=0).auroc > 0.9
    with pytest.raises(ValueError, match="from 1 to 1, got 2"):
        ViM(dimension=2).fit(train, layers=last)


def test_features_and_last_layers_of_members() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES, bias=False))

    ens, x = Ensemble(make, members=2, seed=0), torch.randn(9, 4)
    features = MemberFeatures(ens)
    torch.testing.assert_close(MemberFeatures(ens, "1")(x), features(x))
    last = features.last_layers(x)
    for member in range(2):
        own = features(x)[:, member * WIDTH : (member + 1) * WIDTH].double()
        torch.testing.assert_close(last.logits(member, own).float(), ens(x)[member].detach())


def test_linear_heads_share_the_features_of_their_backbone() -> None:
    backbone = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
    ens = Ensemble.on_features(backbone, lambda: nn.Linear(WIDTH, CLASSES), members=3, seed=0)
    features, x = MemberFeatures(ens), torch.randn(9, 4)
    torch.testing.assert_close(features(x), backbone(x))
    assert ReAct().fit(features(x), layers=features.last_layers(x))(features(x)).shape == (9,)
    deep = Ensemble.on_features(
        backbone, lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Linear(5, 2)), members=3, seed=0
    )
    assert MemberFeatures(deep)(x).shape == (9, 15)


class Doubled(nn.Sequential):
    """A network whose last linear layer does not give its outputs."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def last_layers(make: object, **how: str) -> LastLayers:
    ens = Ensemble(make, 2, **how)  # type: ignore[arg-type]
    return MemberFeatures(ens).last_layers(torch.ones(2, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ViM().fit(rows(9, 1)[:, :5], layers=layers()), "18 wide, or 6 if shared"),
        (lambda: ViM().fit(rows(9, 1)), "need penultimate features"),
        (
            lambda: ViM().fit(
                rows(9, 1), layers=LastLayers(-layers().weight.abs(), layers(False).bias)
            ),
            "logits that rise above 0",
        ),
        (lambda: ViM().fit(rows(9, 1) * 0, layers=layers(False)), "all the same point"),
        (lambda: ReAct(quantile=0.0), "greater than 0"),
        (lambda: last_layers(lambda: Doubled(nn.Linear(4, 3))), "does not give its outputs"),
        (lambda: last_layers(lambda: nn.Linear(4, 1), combine="mean"), "got a regression"),
        (lambda: MemberFeatures(nn.Linear(4, 3)), "need an Ensemble, got Linear"),
        (
            lambda: MemberFeatures(Ensemble(lambda: nn.Linear(4, 3), 2), "7"),
            "no module '7'",
        ),
    ],
)
def test_members_without_such_layers_say_why(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]

"""ViM and ReAct against slow NumPy loops and values worked by hand; files, members and edges."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dissensus.detection import LastLayer, MemberFeatures, ReAct, ViM, evaluate
from dissensus.ensemble import Ensemble

MEMBERS, CLASSES, WIDTH = 3, 4, 6


def layer(seed: int = 0) -> LastLayer:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(MEMBERS, CLASSES, WIDTH, generator=generator)
    return LastLayer.of(weight, torch.randn(MEMBERS, CLASSES, generator=generator))


def rows(count: int, seed: int, members: int = MEMBERS) -> torch.Tensor:
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


def by_member(features: torch.Tensor, member: int) -> np.ndarray:
    return features[:, member * WIDTH : (member + 1) * WIDTH].double().numpy()


def test_vim_is_the_mean_of_the_members_scores() -> None:
    last, train, x = layer(), rows(80, 1), rows(9, 2) / 3
    expected = [
        vim_by_numpy(
            by_member(train, m),
            by_member(x, m),
            last.weight[m].double().numpy(),
            last.bias[m].double().numpy(),
        )
        for m in range(MEMBERS)
    ]
    found = ViM.fit(train, last)(x)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, np.mean(expected, 0), rtol=1e-8, atol=1e-8)


def test_react_clips_each_member_at_its_own_quantile() -> None:
    last, train, x = layer(), rows(80, 1), rows(9, 2)
    expected = []
    for m in range(MEMBERS):
        clip = np.quantile(by_member(train, m), 0.8)
        weight, bias = last.weight[m].double().numpy(), last.bias[m].double().numpy()
        logits = np.minimum(by_member(x, m), clip) @ weight.T + bias
        expected.append(-np.log(np.exp(logits).sum(1)))
    found = ReAct.fit(train, last, quantile=0.8)(x)
    np.testing.assert_allclose(found, np.mean(expected, 0), rtol=1e-9)


@pytest.mark.parametrize("kind", [ViM, ReAct])
def test_shared_features_are_those_of_every_member(kind: type) -> None:
    last, train, x = layer(), rows(50, 1, members=1), rows(7, 2, members=1)
    apart = kind.fit(train.repeat(1, MEMBERS), last)(x.repeat(1, MEMBERS))
    torch.testing.assert_close(kind.fit(train, last)(x), apart)


@pytest.mark.parametrize("kind", [ViM, ReAct])
def test_they_come_back_from_their_files(kind: type, tmp_path: Path) -> None:
    score, x = kind.fit(rows(50, 1), layer()), rows(9, 2)
    score.save(tmp_path / "a.safetensors")
    again = kind.load(tmp_path / "a.safetensors")
    assert torch.equal(again(x), score(x))
    assert repr(again) == repr(score)
    with pytest.raises(ValueError, match="of a known format"):
        (ReAct if kind is ViM else ViM).load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("width", "dimension"), [(5, 2), (767, 383), (768, 512), (2047, 512), (2048, 1000)]
)
def test_the_authors_rule_for_the_dimension(width: int, dimension: int) -> None:
    from dissensus.detection.vim import _choose_dimension

    assert _choose_dimension(width, width, None) == dimension


def test_vim_of_features_that_span_little() -> None:
    train = rows(50, 1, members=1)
    train[:, 2:] = 0  # dead units: two dimensions are left of six, fewer than the rule's three
    last = LastLayer.of(layer().weight[0])
    vim = ViM.fit(train, last)
    assert vim.principal.shape == (1, WIDTH, 1)
    revived = train.clone()
    revived[:, 4] = 5
    assert evaluate(vim(train), vim(revived), bootstrap=0).auroc > 0.9
    with pytest.raises(ValueError, match="from 1 to 1, got 2"):
        ViM.fit(train, last, dimension=2)
    few = ViM.fit(rows(4, 1), layer())  # fewer rows than features
    assert torch.isfinite(few(rows(9, 2))).all()


def test_scores_of_huge_features_are_finite() -> None:
    for score in (ViM.fit(rows(50, 1), layer()), ReAct.fit(rows(50, 1), layer())):
        assert torch.isfinite(score(rows(9, 2) * 1e6)).all()


def test_last_layers_of_members() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES, bias=False))

    ens, x = Ensemble(make, members=2, seed=0), torch.randn(9, 4)
    features = MemberFeatures(ens)
    last = features.last_layer(x)
    for member in range(2):
        own = features(x)[:, member * WIDTH : (member + 1) * WIDTH]
        torch.testing.assert_close(last.logits(member, own), ens(x)[member].detach())


def test_linear_heads_share_the_features_of_their_backbone() -> None:
    backbone = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
    ens = Ensemble.on_features(backbone, lambda: nn.Linear(WIDTH, CLASSES), members=3, seed=0)
    features, x = MemberFeatures(ens), torch.randn(9, 4)
    torch.testing.assert_close(features(x), backbone(x))
    assert ReAct.fit(features(x), features.last_layer(x))(features(x)).shape == (9,)
    deep = Ensemble.on_features(
        backbone, lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Linear(5, 2)), members=3, seed=0
    )
    assert MemberFeatures(deep)(x).shape == (9, 15)


class Doubled(nn.Sequential):
    """A network whose last linear layer does not give its outputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


FLAT = rows(20, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ViM.fit(FLAT[:, :5], layer()), "18 wide, the inputs of 3 last .* or 6 if members"),
        (lambda: ViM.fit(FLAT * torch.nan, layer()), "features must be finite"),
        (lambda: ViM.fit(FLAT, LastLayer.of(-layer().weight.abs())), "are -.* on average; ViM"),
        (lambda: ViM.fit(FLAT * 0, LastLayer.of(layer().weight)), "are all the same point"),
        (lambda: ReAct.fit(FLAT, layer(), quantile=0.0), "above 0 and at most 1, got 0.0"),
        (lambda: LastLayer.of(torch.ones(2, 3), torch.ones(3)), r"got \(1, 2, 3\) and \(1, 3\)"),
        (
            lambda: MemberFeatures(Ensemble(lambda: Doubled(nn.Linear(4, 3)), 2)).last_layer(
                torch.ones(2, 4)
            ),
            "does not give its outputs",
        ),
        (
            lambda: MemberFeatures(Ensemble(lambda: nn.Linear(4, 1), 2, combine="mean")).last_layer(
                torch.ones(2, 4)
            ),
            "a regression cannot be scored by vim or react",
        ),
        (lambda: MemberFeatures(nn.Linear(4, 3)), "need an Ensemble, got Linear"),
    ],
)
def test_what_cannot_be_scored_says_why(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]

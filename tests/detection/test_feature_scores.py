"""Scores that are fitted to training data, by name: as detectors, combined, saved and refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.detection import FITTED_SCORES, Detector, MemberFeatures, TailScale, ViM, evaluate
from dissensus.detection.feature_scores import combine_tails, parse_score, score_spec
from dissensus.ensemble import Ensemble
from dissensus.tools.specs import split_specs


def make_member() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def ens() -> Ensemble:
    return Ensemble(make_member, members=3, seed=0)


def data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    return x, torch.randint(3, (rows,), generator=generator)


TRAIN, VAL, (X, _) = data(120, 1), data(60, 2), data(30, 3)


@pytest.mark.parametrize("name", [*FITTED_SCORES, "knn:k=7", "combined:score=bma,distance=react"])
def test_a_detector_by_name_is_fitted_saved_and_loaded(
    name: str, ens: Ensemble, tmp_path: Path
) -> None:
    detector = Detector(ens, name, batch_size=32).fit(VAL, accept=0.9, train=TRAIN)
    scores = detector.score(X)
    assert float((~detector.is_ood(VAL)).double().mean()) >= 0.9
    detector.save(tmp_path / "detector.json")
    record = json.loads((tmp_path / "detector.json").read_text())
    assert record["features"] == "penultimate"
    again = Detector.load(tmp_path / "detector.json", ens)
    assert repr(again) == repr(detector)
    torch.testing.assert_close(again.score(X), scores)
    assert torch.equal(again.is_ood(X), detector.is_ood(X))


def test_a_file_of_another_detector_is_refused(ens: Ensemble, tmp_path: Path) -> None:
    for name in ("a", "b"):
        Detector(ens, "vim").fit(VAL, train=data(99, ord(name))).save(tmp_path / f"{name}.json")
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=f"{name}.safetensors do not belong together"):
            Detector.load(tmp_path / f"{name}.json", ens)


def test_a_name_gives_what_the_parts_give(ens: Ensemble) -> None:
    features = MemberFeatures(ens)
    vim = ViM.fit(features(TRAIN[0]), features.last_layer(X))
    by_name = Detector(ens, "vim").fit(VAL, train=[TRAIN])
    torch.testing.assert_close(by_name.score(X), vim(features(X)))
    by_module = Detector(ens, "mahalanobis", features="0").fit(VAL, train=TRAIN)
    assert by_module.distance is not None
    assert by_module.distance.means.shape == (3, 24)  # type: ignore[union-attr]


def test_the_weights_are_those_of_the_moment_of_fitting(ens: Ensemble) -> None:
    detector = Detector(ens, "react")
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.mul_(2)
    expected = Detector(ens, "react").fit(VAL, train=TRAIN).score(X)
    torch.testing.assert_close(detector.fit(VAL, train=TRAIN).score(X), expected)


def test_a_combination_finds_what_either_of_its_scores_finds(ens: Ensemble) -> None:
    """Planted: one kind of unknown that only the score sees, one that only the distance sees."""
    rng = np.random.default_rng(0)
    known, val = (rng.exponential(size=(400, 2)) * [1.0, 1e6] for _ in range(2))
    kinds = rng.exponential(size=(2, 400, 2))
    kinds[0, :, 0] += 8
    kinds[1, :, 1] += 8
    kinds *= [1.0, 1e6]
    first, second = (TailScale.fit(torch.from_numpy(val[:, i])) for i in range(2))

    def combined(x: np.ndarray) -> Tensor:
        score, distance = torch.from_numpy(x).T
        return combine_tails([score, distance], (first, second))

    for kind in range(2):
        auroc = evaluate(combined(known), combined(kinds[kind]), bootstrap=0).auroc
        blind = evaluate(*map(torch.from_numpy, (known[:, 1 - kind], kinds[kind, :, 1 - kind])))
        assert auroc > 0.99
        assert blind.auroc < 0.6


def slow_combination(parts: np.ndarray, val: np.ndarray) -> list[float]:
    """Row by row: p below the 90% quantile by interpolation, beyond it by an exponential tail."""
    weights = [0.25, 0.5, 0.25]
    levels = np.linspace(0, 0.9, 91)
    combined = []
    for row in parts.T:
        total = 0.0
        for value, known, weight in zip(row, val, weights, strict=True):
            edges = np.quantile(known, levels)
            p = 1 - np.interp(value, edges, levels)
            if value > edges[-1]:
                excess = known[known > edges[-1]].mean() - edges[-1]
                p = 0.1 * np.exp(-(value - edges[-1]) / excess)
            total += weight / p
        combined.append(np.log(total))
    return combined


def test_a_combination_agrees_with_a_slow_loop_and_rises_with_each_part() -> None:
    rng = np.random.default_rng(0)
    val, parts = rng.gamma(2.0, size=(3, 200)), 3 * rng.gamma(2.0, size=(3, 50))
    scales = [TailScale.fit(torch.from_numpy(each)) for each in val]
    combined = combine_tails(list(torch.from_numpy(parts)), scales)
    np.testing.assert_allclose(combined, slow_combination(parts, val), rtol=1e-9)
    for part in range(3):
        more = torch.from_numpy(parts).clone()
        more[part] += 0.5
        assert (combine_tails(list(more), scales) > combined).all()


@pytest.mark.parametrize("useless", [0, 1, 2])
def test_a_useless_part_does_little_harm(useless: int) -> None:
    """Planted: one part is noise, the others see the unknown rows."""
    rng = np.random.default_rng(useless)
    known, val, unknown = torch.from_numpy(rng.exponential(size=(3, 3, 800)))
    unknown += 5.0
    unknown[useless] -= 5.0
    scales = [TailScale.fit(each) for each in val]
    both, alone = (
        evaluate(*(combine_tails([x[i] for i in kept], [scales[i] for i in kept])
                   for x in (known, unknown)), bootstrap=0).auroc.value
        for kept in ([0, 1, 2], [i for i in range(3) if i != useless])
    )  # fmt: skip
    assert alone > 0.95
    assert both > alone - 0.01


def test_a_file_that_lacks_a_distance_of_its_score_is_refused(
    ens: Ensemble, tmp_path: Path
) -> None:
    one = Detector(ens, "combined:distance=relative_mahalanobis").fit(VAL, train=TRAIN)
    one.score_name = "combined:score=mutual_information"  # whose distances are two
    one.save(tmp_path / "one.json")
    with pytest.raises(ValueError, match=r"mahalanobis and knn, and its file .* holds 1 of 2; fit"):
        Detector.load(tmp_path / "one.json", ens)


def test_known_inputs_have_exponential_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    for power in (1, 4):  # the second is nearly 0 for most, as mutual information is
        draws = torch.rand(2, 4000, generator=generator).log().neg().pow(power)
        tails = TailScale.fit(draws[0])(draws[1])
        for level in (0.5, 0.1, 0.01)[: 3 if power == 1 else 2]:
            share = float((tails > -np.log(level)).double().mean())
            assert share == pytest.approx(level, rel=0.25)


@pytest.mark.parametrize("ties", [False, True])
def test_a_scale_is_monotone_continues_beyond_the_data_and_comes_back(ties: bool) -> None:
    known = torch.linspace(0, 1, 101).pow(3)
    known = (known * 4).round() / 4 if ties else known
    scale = TailScale.fit(known)
    tails = scale(torch.linspace(-1, 9, 2001))
    assert (tails.diff() >= 0).all()
    assert tails[0] == 0
    assert (tails[-100:].diff() > 0).all()
    assert TailScale.from_dict(json.loads(json.dumps(scale.to_dict()))) == scale


def test_specs() -> None:
    for text in ("knn:k=5", "vim:dimension=3", "combined:score=pds,distance=knn:k=5", "bma"):
        assert score_spec(parse_score(text)) == text
    assert split_specs("pds, combined:score=pds,distance=vim,knn") == [
        "pds",
        "combined:score=pds,distance=vim",
        "knn",
    ]


ONE = Ensemble(make_member, members=1, seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: Detector(e, "vin"), "no score 'vin'; did you mean 'vim'"),
        (lambda e: Detector(e, "vim:dim=3"), "vim has no setting 'dim'; did you mean 'dimension'"),
        (lambda e: Detector(e, "knn:k=0"), "k must be an integer of at least 1, got 0"),
        (lambda e: Detector(e, "combined:distance=pds"), "distance must be one of mahalanobis, "),
        (lambda e: Detector(e, "combined:score=knn"), "there is no score 'knn'"),
        (lambda e: Detector(e, "pds").fit(VAL, train=TRAIN), "train= is for a score of features"),
        (lambda e: Detector(e, "mahalanobis").fit(VAL, train=TRAIN[0]), "mahalanobis needs labels"),
        (lambda e: Detector(e, "vim", temperature=2.0), "has no temperature"),
        (lambda e: Detector(e, "vim").fit(VAL, train=[]), "nothing to fit to"),
        (lambda e: Detector(lambda x: x[None], "knn").fit(VAL, train=TRAIN), "need an Ensemble"),
        (
            lambda e: Detector(e, "vim", features=lambda x: x).fit(VAL, train=TRAIN),
            "vim needs the last linear layer",
        ),
        (lambda e: Detector(e, "combined").fit(X[:9], train=TRAIN), "at least 20 validation rows"),
        (
            lambda e: Detector(ONE, "combined:score=pds").fit(VAL, train=TRAIN),
            "pds is 0 or constant for one member",
        ),
        (lambda e: TailScale.fit(torch.ones(50), "pds"), "pds is 1 for all validation rows"),
        (lambda e: TailScale.from_dict({"quantiles": [1.0]}), "holds 91 rising quantiles"),
    ],
)
def test_what_cannot_be_fitted_says_why(ens: Ensemble, call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(ens)  # type: ignore[operator]


def test_use_before_fitting_says_what_to_do(ens: Ensemble) -> None:
    for use in (lambda d: d.score(X), lambda d: d.fit(VAL)):
        with pytest.raises(ValueError, match=r"not fitted to training data yet; call \.fit\(val"):
            use(Detector(ens, "vim"))

"""A Detector from end to end, alone and with others: fitted, saved, loaded and refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dissensus.detection import (
    FITTED_SCORES,
    Detector,
    Mahalanobis,
    MemberFeatures,
    NearestNeighbours,
    TailScale,
    ViM,
    compare,
    detection_rows,
    evaluate,
    fit_together,
    group_means,
    score_together,
)
from dissensus.ensemble import Ensemble
from dissensus.scores import SCORES


class BusyMembers(nn.Module):
    """Three small members with layers that behave differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
            for _ in range(3)
        )
        self.batches: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert not any(module.training for module in self.modules())
        self.batches.append(len(x))
        return torch.stack([net(x) for net in self.nets])


@pytest.fixture
def busy() -> BusyMembers:
    return BusyMembers()


@pytest.fixture
def ens() -> Ensemble:
    make = lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))  # noqa: E731
    return Ensemble(make, members=3, seed=0)


def data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    return x, torch.randint(6, (rows,), generator=generator)


TRAIN, VAL, (X, _) = data(120, 1), data(60, 2), data(30, 3)


# ---- scores of outputs --------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_the_fitted_detector_accepts_enough_of_its_validation_data(
    busy: BusyMembers, score: str
) -> None:
    val = torch.randn(203, 4)
    for accept in (0.5, 0.95, 1.0):
        detector = Detector(busy, score=score, batch_size=50).fit(val, accept=accept)
        scores = detector.score(val)
        assert torch.equal(detector.is_ood(val), scores > detector.threshold)
        assert float((~detector.is_ood(val)).double().mean()) >= accept
        assert float((scores < detector.threshold).double().mean()) < accept
        assert (detector.count, detector.accept) == (203, accept)
        assert detector.quantiles["1"] == float(scores.max())
    assert max(busy.batches) == 50
    with torch.no_grad():
        logits = copy.deepcopy(busy).eval()(val)
    torch.testing.assert_close(scores, SCORES[score](logits))


def test_each_submodule_gets_its_own_mode_back(busy: BusyMembers) -> None:
    busy.train()
    busy.nets[1].eval()  # a frozen member inside a training ensemble
    before = [module.training for module in busy.modules()]
    Detector(busy).fit(torch.randn(20, 4))
    assert [module.training for module in busy.modules()] == before
    with pytest.raises(RuntimeError):  # and after a failure too
        Detector(busy).score(torch.randn(20, 5))
    assert [module.training for module in busy.modules()] == before


def test_every_form_of_validation_data_gives_the_same_threshold(busy: BusyMembers) -> None:
    x, y = torch.randn(60, 4), torch.zeros(60, dtype=torch.long)
    forms = [
        x,
        (x, y),
        DataLoader(TensorDataset(x, y), batch_size=20),
        DataLoader(x, batch_size=20),  # type: ignore[arg-type]
        [x[:20], x[20:40], x[40:]],
        ((part, None) for part in x.split(20)),
    ]
    thresholds = [Detector(busy, batch_size=20).fit(form).threshold for form in forms]
    assert len(set(thresholds)) == 1


def test_a_temperature_is_part_of_the_saved_score(busy: BusyMembers, tmp_path: Path) -> None:
    x = torch.randn(50, 4)
    detector = Detector(busy, "bma", temperature=torch.tensor(2.5)).fit(x)
    plain = Detector(busy, lambda logits: SCORES["bma"](logits / 2.5))
    torch.testing.assert_close(detector.score(x), plain.score(x))
    detector.save(tmp_path / "warm.json")
    assert json.loads((tmp_path / "warm.json").read_text())["score"] == "bma:temperature=2.5"
    assert torch.equal(Detector.load(tmp_path / "warm.json", busy).score(x), detector.score(x))
    each = Detector(busy, "bma", temperature=torch.full((3,), 2.5)).score(x)
    torch.testing.assert_close(each, detector.score(x))


def test_a_score_of_ones_own_is_passed_again_on_loading(busy: BusyMembers, tmp_path: Path) -> None:
    def spread(logits: Tensor) -> Tensor:
        return logits.std(0).sum(-1)

    own = Detector(busy, score=spread).fit(torch.randn(50, 4))
    own.save(tmp_path / "own.json")
    assert Detector.load(tmp_path / "own.json", busy, score=spread).threshold == own.threshold
    with pytest.raises(ValueError, match="fitted with a function: pass it as score="):
        Detector.load(tmp_path / "own.json", busy)
    Detector(busy, score="pds").fit(torch.randn(50, 4)).save(tmp_path / "named.json")
    with pytest.raises(ValueError, match="fitted with a named score: leave out score="):
        Detector.load(tmp_path / "named.json", busy, score=spread)


# ---- scores of features -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FITTED_SCORES, "knn:k=7", "combined:score=bma,distance=react"])
def test_a_detector_by_name_is_fitted_saved_and_loaded(
    name: str, ens: Ensemble, tmp_path: Path
) -> None:
    detector = Detector(ens, name, batch_size=32).fit(VAL, accept=0.9, train=TRAIN)
    assert float((~detector.is_ood(VAL)).double().mean()) >= 0.9
    detector.save(tmp_path / "detector.json")
    assert {path.name for path in tmp_path.iterdir()} == {"detector.json", "detector.safetensors"}
    assert json.loads((tmp_path / "detector.json").read_text())["features"] == "penultimate"
    again = Detector.load(tmp_path / "detector.json", ens)
    assert repr(again) == repr(detector)
    torch.testing.assert_close(again.score(X), detector.score(X))
    assert torch.equal(again.is_ood(X), detector.is_ood(X))


def test_the_parts_of_two_detectors_are_not_mixed(ens: Ensemble, tmp_path: Path) -> None:
    for name in ("a", "b"):
        Detector(ens, "vim").fit(VAL, train=data(99, ord(name))).save(tmp_path / f"{name}.json")
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match=f"{name}.safetensors do not belong together"):
            Detector.load(tmp_path / f"{name}.json", ens)


def test_a_fitted_score_of_own_features_needs_no_ensemble(tmp_path: Path) -> None:
    def features(inputs: Tensor) -> Tensor:
        return torch.cat([inputs, inputs.square()], -1)

    def never(inputs: Tensor) -> Tensor:
        raise AssertionError("the ensemble is not needed")

    distance = NearestNeighbours(k=5, normalize=False).fit(features(X))
    detector = Detector(never, distance, features=features, batch_size=7).fit(X)
    torch.testing.assert_close(detector.score(X), distance(features(X)))
    assert detector.is_ood(X + 9).all()
    detector.save(tmp_path / "far.json")
    with pytest.raises(ValueError, match="with a function of features: pass it as features="):
        Detector.load(tmp_path / "far.json", never)
    twin = Detector.load(tmp_path / "far.json", never, features=features)
    assert torch.equal(twin.is_ood(X), detector.is_ood(X))
    plain = Detector(never, Mahalanobis()).fit(VAL, train=TRAIN)  # of the inputs themselves
    torch.testing.assert_close(plain.score(X[:, :, None]), Mahalanobis().fit(*TRAIN)(X))


def test_features_are_those_of_the_moment_of_fitting(ens: Ensemble) -> None:
    detector = Detector(ens, "vim")
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.mul_(2)
    features = MemberFeatures(ens)
    vim = ViM().fit(features(TRAIN[0]), layers=features.last_layers(X))
    torch.testing.assert_close(detector.fit(VAL, train=[TRAIN]).score(X), vim(features(X)))
    by_module = Detector(ens, "mahalanobis", features="0").fit(VAL, train=TRAIN)
    assert by_module.distances[0].means.shape == (6, 24)  # type: ignore[attr-defined]


# ---- several at once ----------------------------------------------------------------------------


def test_several_detectors_give_what_each_gives_alone(ens: Ensemble) -> None:
    names = [*SCORES, *FITTED_SCORES, "bma:temperature=2", "combined:score=pds,distance=knn"]
    names.remove("variance")
    together = [Detector(ens, name, batch_size=7) for name in names]
    fit_together(together, VAL, 0.9, train=TRAIN)
    rows: list[int] = []
    found = score_together(together, X, watch=lambda forward: rows.append(len(forward.x)))
    assert rows == [7, 7, 7, 7, 2]
    for name, detector, scores in zip(names, together, found, strict=True):
        fitted = {"train": TRAIN} if detector.distances else {}
        alone = Detector(ens, name).fit(VAL, 0.9, **fitted)  # type: ignore[arg-type]
        torch.testing.assert_close(alone.score(X), scores, rtol=1e-4, atol=1e-5)
        assert detector.threshold == pytest.approx(alone.threshold, rel=1e-4, abs=1e-5)


def test_members_and_distances_run_once_for_several_detectors(
    busy: BusyMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_together([Detector(busy, name) for name in ("pds", "entropy", "energy")], X)
    assert busy.batches == [30]
    calls: list[int] = []
    knn, fit = NearestNeighbours.__call__, NearestNeighbours.fit
    monkeypatch.setattr(
        NearestNeighbours, "__call__", lambda s, x: calls.append(len(x)) or knn(s, x)
    )
    monkeypatch.setattr(NearestNeighbours, "fit", lambda s, *a: calls.append(0) or fit(s, *a))
    named = ("knn", "combined:score=pds,distance=knn", "combined:score=bma,distance=knn")
    several = [Detector(busy, name, features=torch.relu) for name in named]
    fit_together(several, VAL, train=TRAIN)
    score_together(several, X)
    assert calls == [0, 60, 30]


def test_a_combination_is_the_harmonic_mean_of_its_parts(ens: Ensemble) -> None:
    """log (½/p + ¼/q + ¼/r) of the three scores of the default combination."""
    total = torch.zeros(len(X), dtype=torch.float64)
    for name, share in {"mutual_information": 0.25, "mahalanobis": 0.5, "knn": 0.25}.items():
        part = Detector(ens, name)
        part.fit(VAL, train=TRAIN if part.distances else None)
        total += share * TailScale.fit(part.score(VAL))(part.score(X)).exp()
    combined = Detector(ens, "combined").fit(VAL, train=TRAIN)
    torch.testing.assert_close(combined.score(X), total.log(), rtol=1e-4, atol=1e-5)


def test_a_study_measures_detection_and_shares_above_a_threshold() -> None:
    rng = np.random.default_rng(0)
    sets = {
        name: {"pds": torch.from_numpy(rng.normal(shift, size=rows))}
        for name, rows, shift in (("test", 70, 0), ("far", 40, 3), ("near", 30, 1))
    }
    done: list[int] = []
    study = compare(sets, "test", thresholds={"pds": 1.5}, bootstrap=20, progress=done.append)
    assert sum(done) == 2
    expected = evaluate(sets["test"]["pds"], sets["far"]["pds"], bootstrap=20)
    assert study.detection["pds"]["far"] == expected
    row = detection_rows(study)[0]
    assert (row["score"], row["set"], row["auroc"]) == ("pds", "far", expected.auroc.value)
    assert row["flagged"] == pytest.approx(float((sets["far"]["pds"] > 1.5).double().mean()))
    assert row["flagged_id"] == pytest.approx(float((sets["test"]["pds"] > 1.5).double().mean()))
    means = group_means(study.detection["pds"], {"all": ["far", "near"], "none": []})
    assert set(means) == {"all"}
    near = study.detection["pds"]["near"]
    assert means["all"]["auroc"] == pytest.approx((expected.auroc + near.auroc) / 2)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read as JSON: it is damaged, cut short"),
        (lambda text: text.replace("detector/1", "detector/9"), "got 'dissensus.detector/9'"),
        (lambda text: "[1, 2]", "not a detector.* got None"),
        (lambda text: text.replace('"accept"', '"share"'), "accept must be a number, got nothing"),
        (lambda text: text.replace('"threshold": ', '"threshold": NaN, "was": '), "the number nan"),
        (lambda text: text.replace("mutual_inf", "mutal_inf"), "does not match its checksum"),
    ],
)
def test_a_spoiled_file_is_refused(
    busy: BusyMembers, tmp_path: Path, spoil: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "detector.json"
    Detector(busy).fit(torch.randn(9, 4)).save(path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ValueError, match=message):
        Detector.load(path, busy)
    with pytest.raises(ValueError, match="there is no such file"):
        Detector.load(tmp_path / "none.json", busy)


ENS = Ensemble(lambda: nn.Linear(4, 6), members=3)
ONE = Ensemble(lambda: nn.Linear(4, 3), members=1)
REGRESSION = Ensemble(lambda: nn.Linear(4, 1), members=2, combine="mean")
Calls = list[tuple[Callable[[], Any], str]]

BAD_SCORES: Calls = [
    (lambda: Detector(ENS, "mean_entropi"), "no score 'mean_entropi'; did you mean 'mean_entropy'"),
    (lambda: Detector(ENS, "bma:temperature=-1"), "greater than 0, got -1"),
    (lambda: Detector(ENS, "vim", temperature=2.0), "has no temperature"),
    (lambda: Detector(ENS, features=abs), "features= is for a score of features"),
    (lambda: Detector(ENS, batch_size=0), "batch_size must be a whole number above 0, got 0"),
    (lambda: Detector(REGRESSION, "pds"), "regressors have the score variance alone, got 'pds'"),
    (lambda: Detector(ENS, "variance"), "variance is a score of regressors"),
    (lambda: Detector(ONE, "pds").fit(VAL), "pds is constant for one member.*'energy'"),
    (
        lambda: Detector(ENS, lambda logits: logits.sum(-1)).score(X),
        r"must return \[batch\] = \(30,\), got \(3, 30\)",
    ),
]
BAD_FITS: Calls = [
    (lambda: Detector(ENS).is_ood(X), r"no threshold yet; call \.fit\(val\) first"),
    (lambda: Detector(ENS).save("x"), r"no threshold yet; call \.fit\(val\) first"),
    (lambda: Detector(ENS, "vim").score(X), r"not fitted yet; call \.fit\(val"),
    (lambda: Detector(ENS, "pds").fit(VAL, train=TRAIN), "train= is for a score of features"),
    (lambda: Detector(ENS, "mahalanobis").fit(VAL, train=TRAIN[0]), "mahalanobis needs labels"),
    (lambda: Detector(ENS, "vim").fit(VAL, train=[]), "nothing to fit to"),
    (lambda: Detector(lambda x: x[None], "knn").fit(VAL, train=TRAIN), "need an Ensemble"),
    (
        lambda: Detector(ENS, "vim", features=lambda x: x).fit(VAL, train=TRAIN),
        "need penultimate features",
    ),
    (lambda: Detector(ENS, "combined").fit(X[:9], train=TRAIN), "needs 20 validation rows"),
]
BAD_DATA: Calls = [
    (lambda: Detector(lambda x: x).fit(X), r"must be \[members, batch, outputs\], got \(30, 4\)"),
    (
        lambda: Detector(lambda x: torch.zeros(5, 2, 3)).fit(X),
        r"must return \[members, 30, outputs\], got \(5, 2, 3\)",
    ),
    (lambda: Detector(lambda x: x[None] / 0).fit(X), "must be finite, got 120 NaN or infinite"),
    (lambda: Detector(ENS).fit([]), "the data held no batches"),
    (lambda: Detector(ENS).fit(TensorDataset(X)), r"pass DataLoader\(data, "),
    (lambda: Detector(ENS).fit(["text"]), r"a tensor, \(x, y\) or batches, got str"),
]


@pytest.mark.parametrize(("call", "message"), [*BAD_SCORES, *BAD_FITS, *BAD_DATA])
def test_what_cannot_be_done_says_why(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

"""One pass gives every score, batch by batch; studies measure what they say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.calibration import fit_temperature
from dissensus.data import Inputs
from dissensus.detection import (
    ALL_SCORES,
    Mahalanobis,
    MemberFeatures,
    NearestNeighbours,
    ReAct,
    TailScale,
    ViM,
    compare,
    detection_rows,
    evaluate,
    group_means,
    threshold_at,
)
from dissensus.ensemble import Ensemble
from dissensus.outputs import Predictions
from dissensus.runs import Candidates, Scorer, detect
from dissensus.scores import SCORES


def make_member() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))


@pytest.fixture
def ens() -> Ensemble:
    return Ensemble(make_member, members=3, seed=0)


def data(rows: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator) + shift
    return x, torch.randint(6, (rows,), generator=generator)


def test_features_are_the_inputs_of_the_last_layer_side_by_side(ens: Ensemble) -> None:
    x = data(9, 0)[0]
    expected = torch.cat([nn.Sequential(*list(ens.member(j))[:2])(x) for j in range(3)], 1)
    torch.testing.assert_close(MemberFeatures(ens)(x), expected.detach())
    torch.testing.assert_close(MemberFeatures(ens, "1")(x), expected.detach())
    with pytest.raises(ValueError, match="no module '7'; known are 0, 1, 2"):
        MemberFeatures(ens, "7")


@pytest.mark.parametrize("features", ["inputs", None])
def test_a_scan_gives_what_the_scores_give_one_by_one(ens: Ensemble, features: str | None) -> None:
    train, val, (x, y) = data(90, 1), data(50, 2), data(31, 3)
    last = {"vim", "react"}  # which need the penultimate layer
    names = [name for name in ALL_SCORES if features is None or name not in last]
    scorer = Scorer(
        ens,
        names,
        train=train,
        val=val,
        features=features,
        k=5,
        candidates=Candidates.of(ens, val),
        batch_size=7,
    )
    seen: list[int] = []
    scan = scorer.scan(Inputs("test", x, y), seen.append)
    assert (sum(seen), len(seen)) == (31, 5)
    assert set(scan.scores) == set(names)
    logits = ens(x).detach()
    temperature = float(fit_temperature(ens(val[0]).detach(), val[1]))
    assert scorer.temperature == pytest.approx(temperature)
    for name, scores in scan.scores.items():
        if name in SCORES:
            expected = SCORES[name](logits)
        elif name.endswith("temperature=fit"):
            bare = name.partition(":")[0]
            scale = temperature if bare == "energy" else 1
            expected = scale * SCORES[bare](logits / temperature)
        else:
            see = (lambda v: v) if features == "inputs" else MemberFeatures(ens)
            layer = MemberFeatures(ens).last_layer(x)
            distance = {
                "mahalanobis": lambda see=see: Mahalanobis.fit(see(train[0]), train[1]),
                "relative_mahalanobis": lambda see=see: Mahalanobis.fit(
                    see(train[0]), train[1], relative=True
                ),
                "knn": lambda see=see: NearestNeighbours.fit(see(train[0]), k=5),
                "vim": lambda see=see, layer=layer: ViM.fit(see(train[0]), layer),
                "react": lambda see=see, layer=layer: ReAct.fit(see(train[0]), layer),
                "combined": lambda: lambda _: combined_by_hand(scorer, x, val[0]),
            }[name]()
            expected = distance(see(x))
        torch.testing.assert_close(scores, expected.double(), rtol=1e-4, atol=1e-5)
        by_detector = scorer.detector(name).fit(val).score(x)
        torch.testing.assert_close(scores, by_detector.double(), rtol=1e-4, atol=1e-5)
    assert torch.equal(scan.correct["members"], logits.argmax(-1) == y)


def combined_by_hand(scorer: Scorer, x: Tensor, val: Tensor) -> Tensor:
    """log (½/p + ¼/q + ¼/r) of the three scores of the combination."""
    shares = {"mutual_information": 0.25, "mahalanobis": 0.5, "knn": 0.25}
    total = torch.zeros(len(x), dtype=torch.float64)
    for name, share in shares.items():
        detector = scorer.detector(name)
        total += share * TailScale.fit(detector.score(val))(detector.score(x)).exp()
    return total.log()


def test_distances_are_fitted_to_some_rows_of_train(ens: Ensemble) -> None:
    scorer = Scorer(ens, ["knn"], train=data(90, 1), rows=20, k=50)
    assert isinstance(scorer.distances["knn"], NearestNeighbours)
    assert tuple(scorer.distances["knn"].features.shape) == (20, 3 * 8)
    assert scorer.distances["knn"].k == 20
    with pytest.raises(ValueError, match="knn must be fitted to training data; there are none"):
        Scorer(ens, ["knn"])
    with pytest.raises(ValueError, match="temperature=fit needs validation data"):
        Scorer(ens, ["bma:temperature=fit"])
    with pytest.raises(ValueError, match="combined needs validation data; there are none"):
        Scorer(ens, ["combined"], train=data(90, 1))
    with pytest.raises(ValueError, match=r"vim needs the last linear layer .*--features"):
        Scorer(ens, ["vim"], train=data(90, 1), features="inputs")


def test_a_study_measures_detection_thresholds_and_shares(ens: Ensemble) -> None:
    scorer = Scorer(ens, ["pds", "knn"], train=data(200, 1))
    known, far = Inputs("test", *data(70, 3)), Inputs("far", data(40, 4, shift=9.0)[0])
    scores = {source.name: scorer.scan(source).scores for source in (known, far)}
    validation = scorer.scan(Inputs("val", *data(80, 2))).scores
    done: list[int] = []
    study = compare(
        scores, "test", validation=validation, accept=0.9, bootstrap=20, progress=done.append
    )
    assert sum(done) == 2
    for name in scorer.names:
        inliers, outliers = scores["test"][name], scores["far"][name]
        assert study.detection[name]["far"] == evaluate(inliers, outliers, bootstrap=20)
        limit = threshold_at(validation[name], 0.9)
        assert study.thresholds[name] == limit
        share = np.mean([score > limit for score in outliers.tolist()])
        assert study.flagged[name]["far"] == pytest.approx(share)
        assert study.flagged[name]["test"] < 0.35
    rows = detection_rows(study)
    assert [(row["score"], row["set"]) for row in rows] == [("pds", "far"), ("knn", "far")]
    assert rows[1]["auroc"] == study.detection["knn"]["far"].auroc
    assert rows[1]["flagged"] == study.flagged["knn"]["far"]
    assert rows[1]["flagged_id"] == study.flagged["knn"]["test"]


def test_group_means() -> None:
    a, b = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])
    sets = {"x": evaluate(a, b, bootstrap=0), "y": evaluate(a, b + 2, bootstrap=0)}
    means = group_means(sets, {"near": ["x", "y"], "far": ["y"], "none": []})
    assert set(means) == {"near", "far"}
    assert means["near"]["auroc"] == pytest.approx((0.75 + 1) / 2)
    assert means["far"]["fpr95"] == 0


def test_files_of_predictions_are_studied_without_a_model(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(3, 50, 6, generator=generator) + 4 * torch.eye(6)[0]
    strange = torch.randn(3, 40, 6, generator=generator)
    files = [tmp_path / "known.safetensors", tmp_path / "strange.safetensors"]
    for file, logits in zip(files, (known, strange), strict=True):
        Predictions(logits).save(file)
    detections = detect(files[0], unknown=[files[1]], scores=["bma"], bootstrap=0)
    expected = evaluate(SCORES["bma"](known), SCORES["bma"](strange), bootstrap=0)
    assert detections.to_rows()[0]["auroc"] == expected.auroc
    with pytest.raises(ValueError, match="knn cannot be computed from predictions alone"):
        detect(files[0], unknown=[files[1]], scores=["bma", "knn"])
    with pytest.raises(ValueError, match="two files have the same name"):
        detect(files[0], unknown=[files[0]], scores=["bma"])


def test_a_regression_has_its_variance() -> None:
    ens = Ensemble(lambda: nn.Linear(4, 2), members=3, combine="mean")
    x = data(20, 1)[0]
    scan = Scorer(ens, ["variance"]).scan(Inputs("test", x))
    torch.testing.assert_close(scan.scores["variance"], SCORES["variance"](ens(x)).double())

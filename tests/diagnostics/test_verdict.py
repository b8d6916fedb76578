"""The verdict: its calibration on planted and on trained ensembles, and its edge cases."""

import json
import math

import numpy as np
import pytest
import torch

import dissensus as ds
from dissensus.diagnostics import COLLUDING, INDEPENDENT, calibrate

#: Independent members that are each biased far more than they err otherwise: what a constant
#: offset means cannot be seen from one number a member, so these are mostly called suspicious.
BIASED = {"members each biased", "classes, members each biased"}

#: Collusion that predictions do not show in full; see ``judge``.
HIDDEN = {"by example, 4", "scores by example, 10"}


def test_planted_ensembles_are_told_apart() -> None:
    """False positives and detections; ``python -m dissensus.diagnostics`` prints the rates."""
    independent = calibrate(INDEPENDENT, repeats=4, members=(3, 5, 20))
    colluding = calibrate(COLLUDING, repeats=4, members=(3, 5, 20))
    for name, rates in independent.items():
        if name not in BIASED:
            assert rates.healthy >= 0.9, (name, rates)
            assert rates.colluding == 0, (name, rates)
    assert independent["members each biased"].colluding <= 0.4
    assert independent["classes, members each biased"].colluding <= 0.1
    for name, rates in colluding.items():
        if name not in HIDDEN:
            assert rates.colluding >= 0.75, (name, rates)
            assert rates.healthy == 0, (name, rates)
    assert colluding["by example, 4"].healthy <= 0.4
    assert colluding["scores by example, 10"].colluding == 0


def trained(
    data: str, objective: str, way: str, seed: int, epochs: int, members: int = 5, rows: int = 9999
) -> ds.diagnostics.Diagnosis:
    """Diagnose a small ensemble trained with ``ds.fit``."""
    found = ds.data.load(data, seed=seed)
    make = ds.models.make_factory("mlp", found.input_shape, found.outputs, hidden=[24])
    ens = ds.Ensemble(make, members=members, seed=seed, combine=way)
    train = found.train[0][:rows], found.train[1][:rows]
    settings = {"optimizer": "adam:lr=0.01", "batch_size": 64, "seed": seed, "progress": False}
    ds.fit(ens, train, objective, epochs=epochs, **settings)
    predictions = ds.predict(ens, train), ds.predict(ens, found.test)
    return ds.diagnose(*predictions, combine=way)


@pytest.mark.parametrize("seed", [0, 1])
def test_trained_regressions_are_told_apart(seed: int) -> None:
    independent = trained("diabetes", "independent:loss=mse", "mean", seed, 40)
    joint = trained("diabetes", "joint:loss=mse", "mean", seed, 40)
    assert independent.verdict.word == "healthy"
    assert joint.verdict.word == ("colluding" if seed == 0 else "suspicious")
    assert joint.explosion["test"].ratio > 10 * independent.explosion["test"].ratio
    assert joint.shares["test"]["outputs"].share > 2 * independent.shares["test"]["outputs"].share
    assert joint.codependence.drops[1].relative > 10 * independent.codependence.drops[1].relative


def test_trained_classifiers_are_told_apart() -> None:
    assert trained("digits", "independent", "score", 0, 8).verdict.word == "healthy"
    joint = trained("digits", "joint:combine=score", "score", 0, 8)
    assert joint.verdict.word == "colluding"
    assert "Retrain the members independently" in joint.report()


def test_poor_and_overfit_independent_members_are_healthy() -> None:
    assert trained("digits", "independent", "probability", 0, 1, rows=200).verdict.word == "healthy"
    overfit = trained("diabetes", "independent:loss=mse", "mean", 0, 300, rows=40)
    assert overfit.verdict.word == "healthy"
    assert overfit.explosion["train"].ensemble_error < 0.05


def noisy(members: int = 4, batch: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    truth = torch.randn(batch, 1, generator=random)
    return truth + torch.randn(members, batch, 1, generator=random), truth


def test_one_member_is_not_judged() -> None:
    found = ds.diagnose(noisy(members=1), noisy(members=1, seed=1))
    assert found.verdict.word == "not judged"
    assert "collusion takes two" in found.report()
    assert math.isnan(found.codependence.index)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("classes", [False, True])
def test_a_batch_of_one_is_not_judged(classes: bool) -> None:
    pair = (torch.randn(3, 1, 4), torch.tensor([2])) if classes else noisy(batch=1)
    found = ds.diagnose(None, pair)
    assert found.verdict.word == "not judged"
    assert "20 examples at least, got 1" in found.report()
    json.dumps(found.to_dict(), allow_nan=False)


def test_identical_members_are_suspicious_and_said_to_be_copies() -> None:
    outputs, truth = noisy()
    found = ds.diagnose((outputs[[0, 0, 0]], truth))
    assert found.verdict.word == "suspicious"
    assert "as copies do" in found.report()


def test_no_error_at_all() -> None:
    _, truth = noisy()
    offsets = torch.tensor([-1.0, 0.25, 0.75])[:, None, None]
    found = ds.diagnose((truth.round() + offsets, truth.round()))  # exact: ERR = 0, DIV > 0
    assert found.explosion["train"].ensemble_error == 0
    assert found.verdict.word == "colluding"
    assert "ERR is 0" in found.report()
    assert found.to_dict()["explosion"]["train"]["ratio"] is None
    almost = truth.double() * (1 + 1e-13 * torch.arange(3.0).double()[:, None, None])
    assert ds.diagnose((almost, truth.double())).verdict.word == "healthy"


def test_what_cannot_be_judged_is_said() -> None:
    pair = noisy()
    assert "Without test predictions" in ds.diagnose(pair).report()
    only_test = ds.diagnose(None, pair)
    assert (only_test.judged_on, only_test.gap) == ("test", None)
    assert "Without training predictions" in only_test.report()
    assert ds.diagnose(pair, pair).notes == ()


def test_accuracy_alone_changes_nothing() -> None:
    """The same collusion around a perfect and around a useless prediction."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (200,), generator=random)
    offsets = torch.randn(4, 1, 5, generator=random) * 9
    for margin in (6.0, 0.0):
        logits = margin * torch.nn.functional.one_hot(labels, 5) + torch.randn(
            200, 5, generator=random
        )
        assert ds.diagnose((logits.expand(4, -1, -1), labels)).verdict.word == "suspicious"
        own = logits + 0.1 * torch.randn(4, 200, 5, generator=random)
        assert ds.diagnose((own, labels)).verdict.word == "healthy"
        found = ds.diagnose((own + offsets - offsets.mean(0), labels), combine="score")
        assert found.verdict.word == "colluding"


def test_weights_soft_labels_and_losses_of_ones_own() -> None:
    outputs, truth = noisy(members=3)
    weighted = ds.diagnose((outputs, truth), weights=torch.tensor([0.0, 0.5, 0.5]))
    fewer = ds.diagnose((outputs[1:], truth))
    assert weighted.explosion["train"] == fewer.explosion["train"]
    assert "Members of weight 0 are left out: 1." in weighted.report()
    absolute = ds.diagnose((outputs, truth), loss=lambda p, t: (p - t).abs().sum(-1))
    expected = (outputs.double().mean(0) - truth.double()).abs().mean()
    assert absolute.explosion["train"].ensemble_error == pytest.approx(float(expected))
    logits, soft = torch.randn(3, 30, 4), torch.randn(30, 4).softmax(-1)
    for loss in ("cross_entropy", "brier", "zero_one"):
        found = ds.diagnose((logits, soft), loss=loss)
        assert found.verdict.word == "healthy"
        terms = ds.decompose(logits.double(), soft.double(), loss)
        assert found.explosion["train"].diversity == pytest.approx(float(terms.diversity))


def test_the_record_is_plain_and_complete() -> None:
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(3, 40, 4, generator=random), torch.arange(40) % 4
    found = ds.diagnose((logits, labels), (logits, labels))
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["verdict"] == found.verdict.word
    assert record["sentences"][-1] == found.verdict.advice
    assert set(record["debiased_share"]["test"]) == {"score", "probability"}
    assert np.array(record["pairwise"]["q_statistic"]).shape == (3, 3)
    assert record["generalization_gap"]["gap"] == 0
    assert str(found).splitlines()[0].startswith(found.verdict.word.upper())


@pytest.mark.parametrize(
    ("pair", "options", "sentence"),
    [
        ((torch.full((2, 3, 1), math.nan), torch.zeros(3, 1)), {}, "must be finite, got 6 NaN"),
        ((torch.zeros(2, 3, 1), torch.full((3, 1), math.nan)), {}, "targets must be finite"),
        ((torch.zeros(2, 3, 4), torch.zeros(3)), {}, "class labels must be integers"),
        ((torch.zeros(2, 3, 4), torch.zeros(3)), {"loss": "brier"}, "class labels must be integ"),
        ((torch.zeros(2, 3, 1), torch.zeros(3).long()), {}, "for a regression pass loss='mse'"),
        ((torch.zeros(2, 3, 4), None), {}, "a diagnosis needs the targets as a tensor, got none"),
        (torch.zeros(2, 3, 4), {}, "ds.Predictions or a pair"),
        (None, {}, "train or test data, got neither"),
    ],
)
def test_mistakes(pair: object, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ds.diagnose(pair, **options)  # type: ignore[arg-type]


def test_train_and_test_of_different_ensembles() -> None:
    with pytest.raises(ValueError, match="4 members with 1 outputs in train and 3 members"):
        ds.diagnose(noisy(), noisy(members=3))

"""The verdict: what it finds, and its edge cases."""

import json
import math

import numpy as np
import pytest
import torch

import dissensus as ds
from reproductions.diagnosis.planted_ensembles import COLLUDING, INDEPENDENT


def fitted(objective: str, way: str, epochs: int, seed: int = 0) -> ds.diagnostics.Diagnosis:
    """Diagnose five networks trained on digits with ``ds.fit``."""
    found = ds.data.load("digits", seed=seed)
    make = ds.models.make_factory("mlp", found.input_shape, found.outputs, hidden=[32])
    ens = ds.Ensemble(make, members=5, seed=seed, combine=way)
    settings = {"optimizer": "adam:lr=0.01", "batch_size": 64, "seed": seed, "progress": False}
    ds.fit(ens, found.train, objective, epochs=epochs, **settings)
    predictions = ds.predict(ens, found.train), ds.predict(ens, found.test)
    return ds.diagnose(*predictions, combine=way)


def test_members_pushed_apart_by_design_do_not_collude() -> None:
    """ADP shifts scores of wrong classes; where probabilities are averaged nothing cancels."""
    adp = fitted("adp:alpha=2,beta=0.5", "probability", 12)
    assert adp.shares["test"]["score"].share > 0.3
    assert adp.verdict.word == "healthy"
    joint = fitted("joint:combine=score", "score", 8)
    assert joint.verdict.word == "colluding"
    assert "Retrain the members independently" in joint.report()
    assert "lower β" in joint.report()


def shifted(size: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of six members that are shifted against each other; their labels."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (400,), generator=random)
    offsets = size * torch.randn(6, 1, 5, generator=random)
    logits = 3.0 * torch.nn.functional.one_hot(labels, 5) + torch.randn(400, 5, generator=random)
    logits = logits + 0.3 * torch.randn(6, 400, 5, generator=random) + offsets - offsets.mean(0)
    return logits, labels


def test_members_made_for_another_average_are_found() -> None:
    """Shifts that cancel as scores: whatever is averaged, where only scores are right; else not."""
    for way in ("score", "probability", "vote"):
        verdict = ds.diagnose(shifted(6.0), combine=way).verdict
        assert verdict.word == "colluding"
        assert "members' scores" in verdict.sentence
        assert ("This is in the average of scores" in verdict.sentence) == (way != "score")
    mild = {way: ds.diagnose(shifted(1.0), combine=way).verdict for way in ("score", "probability")}
    assert mild["score"].word == "colluding"
    assert (
        mild["probability"].word != "colluding"
    )  # there the two averages are about as often right


def test_what_members_need_each_other_for_takes_both_splits() -> None:
    random = torch.Generator().manual_seed(0)
    train, test = COLLUDING["examples left to one member"](random, 5, 400)
    both = ds.diagnose((train.outputs, train.targets), (test.outputs, test.targets))
    assert both.verdict.word == "suspicious"
    assert "Members need each other on the data they were trained on: without 1 of 5" in str(both)
    assert ds.diagnose(None, (test.outputs, test.targets)).verdict.word == "healthy"
    bagged = INDEPENDENT["classes, bagged"](random, 5, 400)
    pairs = [(part.outputs, part.targets) for part in bagged]
    assert ds.diagnose(*pairs).verdict.word == "healthy"


def test_the_order_of_members_and_equal_weights_do_not_matter() -> None:
    random = torch.Generator().manual_seed(0)
    for plant in (COLLUDING["offsets, 4"], INDEPENDENT["members each biased"]):
        train, test = plant(random, 5, 200)
        pairs = [(part.outputs, part.targets) for part in (train, test)]
        turned = [(outputs.flip(0), targets) for outputs, targets in pairs]
        whole = ds.diagnose(*pairs)
        for other in (ds.diagnose(*turned), ds.diagnose(*pairs, weights=torch.full((5,), 0.2))):
            assert other.verdict.word == whole.verdict.word
            assert other.leftover["train"].chance == pytest.approx(whole.leftover["train"].chance)


def noisy(members: int = 4, batch: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    truth = torch.randn(batch, 1, generator=random)
    return truth + torch.randn(members, batch, 1, generator=random), truth


def test_one_member_or_one_example_is_not_judged() -> None:
    found = ds.diagnose(noisy(members=1), noisy(members=1, seed=1))
    assert found.verdict.word == "not judged"
    assert "collusion takes two" in found.report()
    assert math.isnan(found.codependence.index)
    json.dumps(found.to_dict(), allow_nan=False)
    few = ds.diagnose(None, (torch.randn(3, 1, 4), torch.tensor([2])))
    assert few.verdict.word == "not judged"
    assert "20 examples or more, got 1" in few.report()
    json.dumps(few.to_dict(), allow_nan=False)


def test_identical_members_are_suspicious_and_said_to_be_copies() -> None:
    outputs, truth = noisy()
    found = ds.diagnose((outputs[[0, 0, 0]], truth))
    assert found.verdict.word == "suspicious"
    assert "as copies do" in found.report()


def test_no_error_at_all() -> None:
    _, truth = noisy()
    offsets = torch.tensor([-1.0, 0.25, 0.75])[:, None, None]
    found = ds.diagnose((truth.round() + offsets, truth.round()))  # exact: ERR = 0, DIV > 0
    assert found.explosion["test"].ensemble_error == 0
    assert found.verdict.word == "colluding"
    assert "ERR is 0" in found.report()
    assert found.to_dict()["explosion"]["test"]["ratio"] is None
    almost = truth.double() * (1 + 1e-13 * torch.arange(3.0).double()[:, None, None])
    assert ds.diagnose((almost, truth.double())).verdict.word == "healthy"


def test_what_cannot_be_judged_is_said() -> None:
    pair = noisy()
    only_train = ds.diagnose(pair, None)
    assert (only_train.judged_on, only_train.gap) == ("train", None)
    assert "Without test predictions" in only_train.report()
    for only_test in (ds.diagnose(pair), ds.diagnose(None, pair)):  # a lone argument is held out
        assert (only_test.judged_on, only_test.gap) == ("test", None)
        assert "Without training predictions" in only_test.report()
    assert ds.diagnose(pair, pair).notes == ()
    with pytest.raises(ValueError, match="4 members with 1 outputs in train and 3 members"):
        ds.diagnose(noisy(), noisy(members=3))


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
    assert weighted.explosion["test"] == fewer.explosion["test"]
    assert "Members of weight 0 are left out: 1." in weighted.report()
    absolute = ds.diagnose((outputs, truth), loss=lambda p, t: (p - t).abs().sum(-1))
    expected = (outputs.double().mean(0) - truth.double()).abs().mean()
    assert absolute.explosion["test"].ensemble_error == pytest.approx(float(expected))
    logits, soft = torch.randn(3, 30, 4), torch.randn(30, 4).softmax(-1)
    for loss in ("cross_entropy", "brier", "zero_one"):
        found = ds.diagnose((logits, soft), loss=loss)
        assert found.verdict.word == "healthy"
        terms = ds.decompose(logits.double(), soft.double(), loss)
        assert found.explosion["test"].diversity == pytest.approx(float(terms.diversity))


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
        ((torch.zeros(2, 3, 1), torch.zeros(3).long()), {}, "for a regression pass loss='mse'"),
        ((torch.zeros(2, 3, 4), None), {}, "a diagnosis needs the targets, got None"),
        (torch.zeros(2, 3, 4), {}, "ds.Predictions or a pair"),
        (None, {}, r"pass diagnose\(pred_test\) or diagnose\(pred_train, pred_test\)"),
    ],
)
def test_mistakes(pair: object, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ds.diagnose(pair, **options)  # type: ignore[arg-type]

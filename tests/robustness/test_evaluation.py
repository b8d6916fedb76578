"""The worst case for each example, curves without new runs, flags that fire when they should."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dissensus.ensemble import Ensemble
from dissensus.robustness import (
    Protocol,
    Robustness,
    attack,
    curve_over_eps,
    evaluate,
    paper,
    parse,
    standard,
)

from .conftest import Problem
from .networks import NoSlope, Ripple, behind, quantised, scaled

STRONG = [
    "noise:eps=0.1",
    "fgsm:eps=0.1",
    "pgd:eps=0.1,steps=40,restarts=2",
    "square:eps=0.1,queries=50",
]


def names(found: Robustness) -> set[str]:
    return {flag.name for flag in found.flags}


@pytest.fixture(scope="module")
def ordinary(trained: Problem) -> Robustness:
    return evaluate(*trained, STRONG, curve=(0.05, 0.2), progress=False)


def test_the_headline_is_the_worst_case_for_each_example(
    trained: Problem, ordinary: Robustness
) -> None:
    alone = [attack(*trained, text, progress=False).broken for text in STRONG]
    broken = torch.stack(alone).any(0)
    assert torch.equal(ordinary.broken, broken)
    assert ordinary.accuracy.value == pytest.approx(1 - float(broken.float().mean()))
    assert all(ordinary.accuracy <= row.outcome.accuracy for row in ordinary.rows)
    (worst,) = ordinary.worst
    assert (worst.norm, worst.eps) == ("linf", 0.1)
    assert torch.equal(worst.broken, broken)
    assert ordinary.flags == ()
    assert "No sign of masked gradients was found" in ordinary.report()


def test_budgets_are_kept_apart(trained: Problem) -> None:
    """A change of 0.05 counts at 0.1 too, and one without a budget where it came near enough."""
    texts = ["pgd:eps=0.05", "pgd:eps=0.1", "cw:steps=40,searches=3,c=1,lr=0.1"]
    texts.append("fgsm:eps=1,norm=l2")
    small = Problem(trained.ens, trained.x[:40], trained.y[:40])
    found = evaluate(*small, texts, checks=False, progress=False)
    assert [(w.norm, w.eps) for w in found.worst] == [("l2", 1.0), ("linf", 0.05), ("linf", 0.1)]
    for worst in found.worst:
        by_hand = torch.zeros(40, dtype=torch.bool)
        for row in found.rows:
            near = row.outcome.distances[worst.norm] <= worst.eps + 1e-5
            by_hand |= row.outcome.broken & near
        assert torch.equal(worst.broken, by_hand)
    tight, loose = found.worst[1], found.worst[2]
    assert bool((loose.broken | ~tight.broken).all())


@pytest.mark.parametrize(("hide", "by"), [(scaled, 400), (quantised, 8)])
def test_masked_gradients_are_found(
    trained: Problem, hide: Callable[[Ensemble, int], Ensemble], by: int
) -> None:
    texts = ["pgd:eps=0.2,steps=20", "square:eps=0.2,queries=100", "noise:eps=0.2"]
    x, y = trained.x[:60], trained.y[:60]
    found = evaluate(hide(trained.ens, by), x, y, texts, progress=False)
    assert names(found) >= {"zero gradients", "gradient-free", "large ε"}
    text = found.report()
    assert "Do not trust these numbers yet" in text
    row = next(line for line in text.splitlines() if line.startswith("pgd:eps=0.2"))
    assert row.endswith(f"{found.rows[0].outcome.zero_share:.0%}")


def test_rounding_that_hides_gradients_is_found(trained: Problem) -> None:
    """In float32 the loss of members sixty times as sure is flat; in float64 it is not."""
    masked = scaled(trained.ens, 60.0)
    found = evaluate(masked, trained.x, trained.y, ["pgd:eps=0.15,steps=20"], progress=False)
    assert "float64" in names(found)
    margin = evaluate(
        masked, trained.x, trained.y, ["pgd:eps=0.15,steps=20,loss=margin"], progress=False
    )
    assert "float64" not in names(margin)
    assert margin.accuracy < found.accuracy - 0.2


def test_a_single_step_that_beats_many_is_found(trained: Problem) -> None:
    """Gradients are right at the example alone; PGD follows wrong ones from its random start."""
    texts = ["fgsm:eps=0.125", "pgd:eps=0.125,steps=20"]
    x, y = trained.x, trained.y
    found = evaluate(behind(trained.ens, Ripple()), x, y, texts, checks=False, progress=False)
    assert "one step" in names(found)
    healthy = evaluate(trained.ens, x, y, texts, checks=False, progress=False)
    assert names(healthy) == set()


def test_gradients_that_are_no_numbers_are_found(trained: Problem) -> None:
    masked = behind(trained.ens, NoSlope())
    found = evaluate(masked, trained.x[:20], trained.y[:20], ["bim:eps=0.2"], progress=False)
    assert "NaN gradients" in names(found)
    assert found.accuracy == found.clean_accuracy


def test_attacks_that_have_not_converged_are_found(trained: Problem) -> None:
    slow = evaluate(*trained, ["pgd:eps=0.15,steps=20,step=0.05"], checks=False, progress=False)
    assert names(slow) == {"more steps"}
    lucky = evaluate(
        *trained, ["pgd:eps=0.15,steps=2,step=0.1,restarts=2"], checks=False, progress=False
    )
    assert "more restarts" in names(lucky)


def test_transfer_from_a_surrogate(trained: Problem) -> None:
    """On a model without gradients, examples made on its twin break what PGD cannot."""
    masked = quantised(trained.ens, 8)
    options = {"surrogates": {"its twin": trained.ens}, "checks": False, "progress": False}
    x, y = trained.x[:60], trained.y[:60]
    found = evaluate(masked, x, y, ["pgd:eps=0.2,steps=20"], **options)  # type: ignore[arg-type]
    assert found.rows[1].label.endswith("on its twin, transferred")
    assert found.rows[1].outcome.accuracy < found.rows[0].outcome.accuracy - 0.3
    assert "gradient-free" in names(found)
    after = masked.predict(found.rows[1].outcome.adversarial).argmax(1)
    assert torch.equal(after, found.rows[1].outcome.predictions)


def test_curves(trained: Problem, ordinary: Robustness) -> None:
    by_over = {(curve.attack, curve.over): curve for curve in ordinary.curves}
    pgd = "pgd:eps=0.1,restarts=2"
    steps, restarts = by_over[pgd, "steps"], by_over[pgd, "restarts"]
    # The curve over steps is what shorter walks with the same step would have found.
    for value, accuracy in zip(steps.values, steps.accuracy, strict=True):
        if value in (4, 16):
            text = f"pgd:eps=0.1,steps={int(value)},step={2.5 / 40}"
            assert float(attack(*trained, text, progress=False).accuracy) == pytest.approx(accuracy)
    assert steps.values[0] == 0
    assert list(steps.accuracy) == sorted(steps.accuracy, reverse=True)
    assert restarts.accuracy[0] == steps.accuracy[-1]
    assert restarts.accuracy[-1] == float(ordinary.rows[2].outcome.accuracy)
    eps = by_over[pgd, "eps"]
    assert eps.values == (0.05, 0.2)
    assert eps.accuracy[0] > restarts.accuracy[-1] > eps.accuracy[1]


def test_a_curve_over_eps_never_rises(trained: Problem) -> None:
    values = (0.2, 0.02, 0.08, 0.5)
    found = curve_over_eps(*trained, "pgd:steps=10", values)
    ordered = [found.accuracy[values.index(value)] for value in sorted(values)]
    assert ordered == sorted(ordered, reverse=True)
    with pytest.raises(ValueError, match="has no ε to vary"):
        curve_over_eps(*trained, "cw", values)


def test_the_record_is_plain_json(ordinary: Robustness) -> None:
    record = json.loads(json.dumps(ordinary.to_dict(), allow_nan=False))
    assert record["examples"] == 100
    assert record["worst_case"]["accuracy"] == ordinary.accuracy.value
    assert record["budgets"][0]["eps"] == 0.1
    assert [parse(row["attack"]).spec() for row in record["attacks"]] == [
        row.outcome.attack.spec() for row in ordinary.rows
    ]
    assert record["attacks"][2]["gradients"] > 0
    assert record["members"] == 3


def test_the_paper_protocol_is_the_papers() -> None:
    specs = [attack.spec() for attack in paper("mnist").attacks]
    assert len(specs) == 15  # the rows of Table 2, MNIST
    assert "pgd:eps=0.15,steps=10,step=0.1,early=false" in specs
    assert "jsma:theta=0.2,gamma=0.6,variant=original,early=false" in specs
    assert "cw:c=10,searches=1,confidence=0.1" in specs
    assert "ead:c=5,searches=1,confidence=0.1" in specs
    assert "historical, weak" in paper("cifar10").label
    assert len(paper("cifar10").attacks) == 15
    assert len(paper("cifar100").attacks) == 6  # Table 3
    with pytest.raises(ValueError, match="like must be one of mnist, cifar10, cifar100"):
        paper("svhn")


def test_protocols_and_attacks_are_joined(trained: Problem) -> None:
    mine = Protocol("mine", "two quick ones", (parse("fgsm:eps=0.1"), parse("noise:eps=0.1")))
    options = {"protocol": mine, "checks": False, "progress": False}
    found = evaluate(*trained, ["fgsm:eps=0.1", "bim:eps=0.1"], **options)  # type: ignore[arg-type]
    specs = [row.outcome.attack.spec() for row in found.rows]
    assert specs == ["fgsm:eps=0.1", "noise:eps=0.1", "bim:eps=0.1"]
    assert "95% interval" in found.report()
    assert found.label == "two quick ones; attacks as asked for"
    assert found.to_dict()["protocol"] == "mine + own"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_changed_inputs_are_kept(ordinary: Robustness, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"found{suffix}"
    ordinary.save(path)
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            kept = {name: file[name] for name in file.files}
        assert kept.pop("attacks").tolist() == [row.label for row in ordinary.rows]
        tensors = {name: torch.from_numpy(array) for name, array in kept.items()}
    else:
        tensors = load_file(path)
    assert torch.equal(tensors["original"], ordinary.inputs)
    for number, row in enumerate(ordinary.rows):
        assert torch.equal(tensors["adversarial"][number], row.outcome.adversarial)
        assert torch.equal(tensors["predictions"][number], row.outcome.predictions)
    for example, by in enumerate(tensors["broken_by"].tolist()):
        assert (by >= 0) == bool(ordinary.broken[example])
        changed = tensors["adversarial"][by, example] if by >= 0 else tensors["original"][example]
        assert torch.equal(tensors["x"][example], changed)
    with pytest.raises(ValueError, match=r"go to \.npz or \.safetensors, got found\.pkl"):
        ordinary.save(tmp_path / "found.pkl")


def test_the_standard_protocol_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dissensus.robustness.attacks.is_installed", lambda: True)
    chosen = standard(0.1)
    pgd = [a for a in chosen.attacks if a.spec().startswith("pgd")]
    assert all(a.steps >= 100 and a.restarts >= 5 for a in pgd)  # type: ignore[attr-defined]
    assert {a.loss for a in pgd} == {"ce", "margin"}  # type: ignore[attr-defined]
    assert len({a.step for a in pgd}) >= 3  # type: ignore[attr-defined]
    kinds = {a.spec().partition(":")[0] for a in chosen.attacks}
    assert {"autoattack", "reweighted", "square", "fgsm", "noise"} <= kinds
    assert all(a.budget() == ("linf", 0.1) for a in chosen.attacks)
    assert chosen.notes == ()
    monkeypatch.setattr("dissensus.robustness.attacks.is_installed", lambda: False)
    assert "pip install 'dissensus[robustness]'" in standard(0.1).notes[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "evaluate needs attacks="),
        ({"protocol": "standard"}, "protocol must be one such as .* got 'standard'"),
        ({"protocol": Protocol("empty", "none", ())}, "evaluate needs attacks="),
        ({"attacks": ["fgsm", "fgsm:eps=0.1"]}, "given twice"),
        ({"attacks": ["fsgm"]}, "did you mean 'fgsm'"),
    ],
)
def test_mistakes(trained: Problem, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        evaluate(*trained, **options, progress=False)  # type: ignore[arg-type]

"""Probabilities in place of logits: refused, or taken for what they are said to be, everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds

LOGITS = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(5))
PROBS = LOGITS.softmax(-1)
LABELS = torch.arange(40) % 4

#: Every public function that takes logits: a number, or a tensor, of outputs in a space.
DOORS: dict[str, Callable[..., Any]] = {
    "combine": lambda x, **how: ds.combine(x, "score", **how),
    "decompose": lambda x, **how: ds.decompose(x, LABELS, **how).diversity,
    "decompose, own loss": lambda x, **how: (
        ds.decompose(x, LABELS, lambda p, t: p.square().sum(-1), "probability", **how).diversity
    ),
    "nll": lambda x, **how: ds.calibration.nll(x, LABELS, **how),
    "brier": lambda x, **how: ds.calibration.brier_score(x, LABELS, **how),
    "calibration": lambda x, **how: ds.calibration.calibration(x, LABELS, **how).ece_mass,
    "temperature": lambda x, **how: ds.calibration.fit_temperature(x, LABELS, **how),
    "apply": lambda x, **how: ds.calibration.apply_temperature(x, 2.0, **how).softmax(-1),
    "diagnose": lambda x, **how: ds.diagnose((x, LABELS), **how).explosion["test"].diversity,
    "score_all": lambda x, **how: ds.scores.score_all(x, **how)["entropy"],
    "tempered": lambda x, **how: ds.scores.parse("bma:temperature=2")(x, **how),
    "detector": lambda x, **how: ds.Detector(lambda _: x, "pds", **how).score(torch.zeros(40, 1)),
    **{
        name: lambda x, score=score, **how: score(x, **how)
        for name, score in ds.scores.SCORES.items()
        if name not in ("variance", "energy", "max_logit")
    },
}


@pytest.mark.parametrize("door", DOORS)
def test_probabilities_are_refused_unless_they_are_said_to_be_such(door: str) -> None:
    measure, expected = DOORS[door], DOORS[door](LOGITS)
    with pytest.raises(ValueError, match=r'look like probabilities.* space="probs" \(--probs'):
        measure(PROBS)
    for space, values in (("probs", PROBS), ("log_probs", PROBS.log())):
        found = torch.as_tensor(measure(values, space=space), dtype=torch.float64)
        torch.testing.assert_close(
            found, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5
        )
    with pytest.raises(ValueError, match="needs rows of probabilities"):
        measure(LOGITS, space="probs")


@pytest.mark.parametrize("door", [name for name in DOORS if not name.startswith("temperature")])
def test_a_probability_of_zero_stays_finite(door: str) -> None:
    votes = torch.eye(4)[torch.stack([LABELS, LABELS.flip(0), LABELS.roll(1)])]
    for space, values in (("probs", votes), ("log_probs", votes.log()), ("probs", votes.half())):
        found = torch.as_tensor(DOORS[door](values, space=space))
        assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("score", ["energy", "max_logit", "energy:temperature=2"])
def test_scores_of_logits_say_that_probabilities_have_none(score: str) -> None:
    with pytest.raises(ValueError, match="needs logits, and the outputs are probs; use entropy"):
        ds.scores.parse(score)(PROBS, space="probs")
    with pytest.raises(ValueError, match="needs logits"):
        ds.scores.score_all(PROBS, [score], space="probs")
    assert "energy" not in ds.scores.score_all(PROBS, space="probs")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_says_what_it_holds(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"p.{suffix}"
    if suffix == "npz":
        np.savez(file, outputs=PROBS.numpy(), targets=LABELS.numpy(), space="probs")
    else:
        ds.Predictions(PROBS, LABELS, {"space": "probs"}).save(file)
    saved = ds.Predictions.load(file)
    assert saved.space == "probs"
    expected = ds.diagnose((LOGITS, LABELS)).explosion["test"].diversity
    assert ds.diagnose(saved).explosion["test"].diversity == pytest.approx(expected, rel=1e-4)
    entropy = ds.scores.score_file(file, ["entropy"])["entropy"]
    torch.testing.assert_close(entropy, ds.scores.entropy(LOGITS), rtol=1e-4, atol=1e-5)


def test_spaces_are_for_classes_and_known() -> None:
    with pytest.raises(ValueError, match="space must be one of logits, log_probs, probs, go"):
        ds.decompose(PROBS, LABELS, space="probabilities")
    with pytest.raises(ValueError, match="is for class probabilities"):
        ds.decompose(PROBS, PROBS[0], "mse", space="probs")
    with pytest.raises(ValueError, match="is for classes, and this is a regression"):
        ds.diagnose((PROBS, PROBS[0]), loss="mse", space="probs")
    assert ds.decompose(PROBS, PROBS[0], "mse").member_error >= 0  # values may lie on a simplex


def test_a_detector_keeps_its_space(tmp_path: Path) -> None:
    def members(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.softmax(-1), x.roll(1).softmax(-1)])

    x = LOGITS[0]
    detector = ds.Detector(members, space="probs").fit(x)
    detector.save(tmp_path / "d.json")
    loaded = ds.Detector.load(tmp_path / "d.json", members)
    assert (loaded.space, loaded.threshold) == ("probs", detector.threshold)
    assert torch.equal(loaded.is_ood(x), detector.is_ood(x))
    assert ds.detection.default_score("ldr", space="probs") == "entropy"

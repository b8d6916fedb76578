"""``dissensus diagnose``: a run, files of any framework, and mistakes made with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dissensus as ds


def test_a_run_is_judged_on_its_train_and_test_data(
    dissensus: Callable[..., Any], digits_run: Path
) -> None:
    answer = dissensus("diagnose", digits_run, "--json")
    assert answer.status == 0
    printed = json.loads(answer.out)
    saved = ds.Predictions.load(digits_run / "predictions" / "test.safetensors")
    assert saved.targets is not None
    terms = ds.decompose(saved.outputs.double(), saved.targets)
    assert printed["explosion"]["test"]["diversity"] == pytest.approx(float(terms.diversity))
    assert printed["examples"] == {"train": 1150, "test": 359}
    assert printed["verdict"] == "healthy"
    record = json.loads((digits_run / "diagnosis.json").read_text())
    assert record["format"] == "dissensus.diagnosis/1"
    assert {name: record[name] for name in printed} == printed
    out = dissensus("diagnose", digits_run).out
    assert "healthy" in out.lower()
    for text in ("DIV / ERR", "offsets explain (score)", "From train to test"):
        assert text in out


def test_planted_collusion_in_foreign_files(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 9, 100)  # whole numbers: --regression says what is meant
    outputs = truth[:, None] + rng.normal(0, 0.3, (100, 1)) + rng.normal(0, 0.1, (5, 100, 1))
    np.savez(tmp_path / "a.npz", outputs=outputs, targets=truth)
    offsets = np.array([-4.0, -1, 1, 1.5, 2.5])[:, None, None]
    np.savez(tmp_path / "b.npz", outputs=outputs + offsets, targets=truth)
    for name, word in (("a.npz", "healthy"), ("b.npz", "colluding")):
        answer = dissensus("diagnose", tmp_path / name, "--regression")
        assert answer.status == 0
        assert f"Verdict: {word}." in answer.out
    assert "lower β" in answer.out
    both = [tmp_path / "a.npz", "--train", tmp_path / "a.npz", "--regression", "--json"]
    assert json.loads(dissensus("diagnose", *both).out)["generalization_gap"]["gap"] == 0


def test_mistakes(mistake: Callable[..., str], tmp_path: Path, digits_run: Path) -> None:
    rng = np.random.default_rng(0)
    logits, file = rng.normal(size=(4, 80, 3)), tmp_path / "logits.npz"
    np.savez(file, outputs=logits, targets=rng.integers(0, 3, 80))
    for words, sentence in [
        (["--probs"], "needs rows of probabilities"),
        (["--loss", "hinge"], "loss must be one of"),
        (["--loss", "brier", "--regression"], "leave one out"),
        ([file], "or two .npy"),
    ]:
        assert sentence in mistake("diagnose", file, *words), words
    assert "is not a run" in mistake("diagnose", tmp_path)
    assert "out --train" in mistake("diagnose", digits_run, "--train", file)

"""``dissensus attack``: the table, the record, and mistakes before any work."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds


@pytest.mark.slow
def test_the_table_the_record_and_the_figures(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    answer = dissensus(
        *(
            "attack",
            digits_run,
            "--limit",
            40,
            "--attacks",
            "fgsm:eps=0.1 pgd:eps=0.1,steps=5,restarts=2",
        ),
        *("--attacks", "noise:eps=0.1", "--out", out, "--save", "npz"),
    )
    assert answer.status == 0, answer
    for text in ("the first 40 of test of digits", "fgsm:eps=0.1", "95% interval", "L∞"):
        assert text in answer.out
    assert "Worst case for each example, linf ε = 0.1:" in answer.out
    assert f"Written to {out}: record.json" in answer.out
    record = json.loads((out / "record.json").read_text())
    assert record["format"] == "dissensus.robustness/1"
    texts = ["fgsm:eps=0.1", "pgd:eps=0.1,steps=5,restarts=2", "noise:eps=0.1"]
    assert [row["attack"] for row in record["attacks"]] == texts
    x, y = ds.data.load("digits").test
    ens = ds.load(digits_run)
    expected = ds.robustness.evaluate(ens, x[:40], y[:40], texts, checks=False, progress=False)
    assert record["worst_case"]["accuracy"] == expected.accuracy.value
    assert record["environment"]["dissensus"] == ds.__version__
    curve = next(curve for curve in record["curves"] if curve["over"] == "eps")
    assert curve["values"] == [0.025, 0.05, 0.075, 0.1, 0.15, 0.2]
    assert curve["accuracy"] == sorted(curve["accuracy"], reverse=True)
    with np.load(out / "adversarial.npz", allow_pickle=False) as saved:
        wrong = ens.predict(torch.from_numpy(saved["x"])).argmax(1).numpy() != saved["y"]
        assert wrong.mean() == pytest.approx(1 - expected.accuracy.value)
    assert record["run"] == str(digits_run)
    moved = record["transfer"]
    assert (moved["attack"], moved["targeted"]) == ("pgd:eps=0.1,steps=10", False)
    matrix = ds.robustness.transfer(ens, x[:40], y[:40], moved["attack"], progress=False)
    assert moved["accuracy"] == matrix.tolist()
    with np.load(out / "examples.npz", allow_pickle=False) as saved:
        assert saved["adversarial"].shape == (3, *saved["original"].shape)
        changed = torch.from_numpy(saved["adversarial"][1]).float() / 255
        assert (saved["predictions"] != saved["labels"]).any()
        assert ens.predict(changed).argmax(1).tolist() == saved["predictions"][1].tolist()
    for name in ("accuracy", "examples"):
        assert f"{name}.svg, {name}.png" in answer.out
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()[:1000]


def test_without_matplotlib_the_numbers_are_kept(
    dissensus: Callable[..., Any],
    digits_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ("--attacks", "bim:eps=0.2,steps=2", "--limit", 5, "--no-checks", "--curve", "none")
    answer = dissensus("attack", digits_run, *options, "--out", tmp_path)
    assert answer.status == 0
    assert "pip install 'dissensus[plots]'" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["examples.npz", "record.json"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say how to attack: --standard, --paper or --attacks pgd:eps=0.1"),
        (["--attacks", "fgsm pgd:step_size=3"], "pgd has no setting 'step_size'; did you mean"),
        (["--attacks", "fgsm", "--split", "tset"], "digits has no split 'tset'"),
        (["--attacks", "fgsm", "--eps", "0.1"], "--eps and --norm are those of --standard"),
        (["--attacks", "fgsm", "--save", "zip"], "--save must be npz or safetensors, got 'zip'"),
        (["--attacks", "fgsm", "--curve", "a,b"], "--curve must be ε above 0"),
        (["--standard", "--norm", "l7"], "standard: norm must be one of linf, l2, got 'l7'"),
    ],
)
def test_mistakes(
    mistake: Callable[..., str], digits_run: Path, arguments: list[str], sentence: str
) -> None:
    assert sentence in mistake("attack", digits_run, *arguments)


def test_adversarial_training(
    dissensus: Callable[..., Any], mistake: Callable[..., str], tmp_path: Path
) -> None:
    """The run of the command is the run of the library, and goes on to the same numbers."""
    small = ("--model-option", "hidden=16", "--members", 2, "--batch-size", 256, "--quiet")
    wanted = ("--data", "digits", "--adversarial", "fgsm:eps=0.1/0.3", *small)
    for name, epochs in (("whole", 2), ("parts", 1)):
        dissensus("train", *wanted, "--epochs", epochs, "--out", tmp_path / name)
    dissensus("train", "--resume", "--out", tmp_path / "parts", "--epochs", 2, "--quiet")
    data = ds.data.load("digits")
    make = ds.models.make_factory("mlp", data.input_shape, 10, hidden=16)
    ens = ds.Ensemble(make, members=2, seed=0)
    batches = ds.robustness.AdversarialBatches(ens, "fgsm", eps=(0.1, 0.3))
    ds.fit(ens, data.train, val=data.val, augment=batches, epochs=2, batch_size=256, progress=False)
    for name in ("whole", "parts"):
        for own, saved in zip(ens.parameters(), ds.load(tmp_path / name).parameters(), strict=True):
            assert torch.equal(own, saved)
    table = ("--data", "wine", "--adversarial", "fgsm", "--out", tmp_path / "table")
    assert "attacks live in [0, 1]" in mistake("train", *table)
    assert not (tmp_path / "table").exists()
    assert "untargeted gradient attack, got cw" in mistake("train", *table[:3], "cw")
    values = ("--data", "diabetes", "--adversarial", "fgsm")
    assert "attacks live in [0, 1]" in mistake("train", *values)

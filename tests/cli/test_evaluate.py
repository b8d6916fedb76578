"""``dissensus evaluate``: the numbers, as a table and as JSON, on the run's data and on others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds


def test_numbers_are_those_of_the_saved_outputs(
    dissensus: Callable[..., Any], digits_run: Path
) -> None:
    answer = dissensus("evaluate", digits_run, "--json")
    assert answer.status == 0
    found = json.loads(answer.out)
    kept = ds.Predictions.load(digits_run / "predictions" / "test.safetensors")
    assert kept.targets is not None
    outputs = kept.outputs.double()
    terms = ds.decompose(outputs, kept.targets)
    judged = ds.calibration.calibration(outputs, kept.targets)
    assert found["examples"] == 359
    assert found["state"] == "finished"
    assert found["evaluated_on"] == "test of digits"
    assert found["ensemble_error"] == pytest.approx(float(terms.ensemble_error))
    assert found["diversity"] == pytest.approx(float(terms.diversity))
    assert found["per_member_error"] == pytest.approx(terms.per_member.tolist())
    for key in ("accuracy", "nll", "brier", "ece_width", "ece_mass"):
        assert found[key] == pytest.approx(getattr(judged, key))
    zero_one = found["zero_one"]
    assert zero_one["ensemble_error"] == pytest.approx(1 - found["accuracy"])
    mean = sum(found["per_member_accuracy"]) / 3
    assert zero_one["member_error"] == pytest.approx(1 - mean)


def test_the_same_from_python(dissensus: Callable[..., Any], digits_run: Path) -> None:
    evaluation = ds.runs.evaluate(digits_run, split="val")
    assert isinstance(evaluation, ds.runs.RunEvaluation)
    answer = dissensus("evaluate", digits_run, "--split", "val", "--json")
    assert evaluation.to_dict() == json.loads(answer.out)
    rows = evaluation.to_rows()
    assert [row["member"] for row in rows] == ["ensemble", 0, 1, 2]
    assert rows[0]["accuracy"] == evaluation.metrics["accuracy"]
    assert "288 examples: val of digits" in str(evaluation)


def test_a_regression(dissensus: Callable[..., Any], diabetes_run: Path) -> None:
    found = json.loads(dissensus("evaluate", diabetes_run, "--json").out)
    data = ds.data.load("diabetes")
    x, y = data.test
    prediction = data.original(ds.load(diabetes_run).predict(x))
    rmse = (prediction - data.original(y)).square().mean().sqrt()
    assert found["rmse"] == pytest.approx(float(rmse), rel=1e-5)
    assert "RMSE" in dissensus("evaluate", diabetes_run).out


def test_a_file_is_treated_as_the_training_table_was(
    dissensus: Callable[..., Any], flats_run: Path, tmp_path: Path
) -> None:
    """All rows of the file itself: the mean of the three splits, weighted by their rows."""
    parts = [
        json.loads(dissensus("evaluate", flats_run, "--split", split, "--json").out)
        for split in ("train", "val", "test")
    ]
    table = flats_run.parent / "flats.csv"
    found = json.loads(dissensus("evaluate", flats_run, "--data", table, "--json").out)
    assert found["examples"] == 60
    for key in ("ensemble_error", "member_error", "diversity"):
        whole = sum(part[key] * part["examples"] for part in parts) / 60
        assert found[key] == pytest.approx(whole, rel=1e-4)


def test_labels_in_an_npz_are_matched_by_name(
    dissensus: Callable[..., Any], mistake: Callable[..., str], digits_run: Path, tmp_path: Path
) -> None:
    x, y = ds.data.load("digits").test
    np.savez(tmp_path / "t.npz", x=x.numpy(), y=y.numpy())
    found = json.loads(
        dissensus("evaluate", digits_run, "--data", tmp_path / "t.npz", "--json").out
    )
    own = json.loads(dissensus("evaluate", digits_run, "--json").out)
    assert found["accuracy"] == own["accuracy"]
    np.savez(tmp_path / "t.npz", x=x.numpy(), y=y.numpy() + 7)
    error = mistake("evaluate", digits_run, "--data", tmp_path / "t.npz")
    assert "holds the class '10'; the run knows" in error
    np.savez(tmp_path / "t.npz", x=x.numpy())
    assert "must hold x and y, got x" in mistake(
        "evaluate", digits_run, "--data", tmp_path / "t.npz"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--split", "tset"], "digits has no split 'tset'; it has train, val, test"),
        (["--data", "wine"], "wine has inputs of shape (221,) and 3 outputs, the run takes (1, 8"),
        (["--data", "nothing"], "there is no set 'nothing'"),
    ],
)
def test_mistakes(
    arguments: list[str], sentence: str, mistake: Callable[..., str], digits_run: Path
) -> None:
    assert sentence in mistake("evaluate", digits_run, *arguments)


def test_saved_predictions_under_any_name(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 50, 3)), rng.integers(0, 3, 50)
    names = np.array(["cat", "dog", "owl"])  # what else is in a file does not matter
    np.savez(tmp_path / "p.npz", logits=logits, y=labels, names=names)
    keys = ["--key", "outputs=logits", "--key", "targets=y"]
    found = json.loads(dissensus("evaluate", tmp_path / "p.npz", *keys, "--json").out)
    saved = ds.Predictions(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found["diversity"] == float(ds.decompose(saved.outputs, labels_of(saved)).diversity)
    assert (found["examples"], len(found["per_member_accuracy"])) == (50, 4)
    saved.save(tmp_path / "p.safetensors")
    again = ds.runs.evaluate(tmp_path / "p.safetensors")
    assert again.metrics == {key: found[key] for key in again.metrics}
    as_probs = {"p": saved.outputs.softmax(-1).numpy(), "targets": labels}
    np.savez(tmp_path / "q.npz", **as_probs)
    probs = ds.runs.evaluate(tmp_path / "q.npz", keys={"outputs": "p"}, probs=True)
    assert probs.metrics["nll"] == pytest.approx(found["nll"])
    assert "50 examples: " in dissensus("evaluate", tmp_path / "p.npz", *keys).out


def labels_of(predictions: ds.Predictions) -> torch.Tensor:
    assert predictions.targets is not None
    return predictions.targets


def test_saved_predictions_of_a_regression(tmp_path: Path) -> None:
    outputs, truth = np.array([[[1.0], [2.0]], [[3.0], [2.0]]]), np.array([2.0, 5.0])
    np.save(tmp_path / "o.npy", outputs)
    np.save(tmp_path / "t.npy", truth)
    metrics = ds.runs.evaluate([tmp_path / "o.npy", tmp_path / "t.npy"]).metrics
    assert metrics["ensemble_error"] == 4.5  # of the means 2 and 2: (0 + 9) / 2
    assert metrics["diversity"] == 0.5  # spread 1 at the first example, none at the second
    assert metrics["rmse"] == pytest.approx(4.5**0.5)


def test_mistakes_with_saved_predictions(
    mistake: Callable[..., str], digits_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "p.npz"
    np.savez(file, logits=np.zeros((2, 4, 3)), y=np.zeros(4, int))
    for words, sentence in [
        ([], "pass --key outputs=NAME"),
        (["--key", "outputs=logits"], "got no targets; pass --key"),
        (["--key", "outputs=logits", "--key", "targets=labels"], "must hold 'labels', got logits"),
        (["--key", "logits"], "such as outputs=logits or targets=y, got 'logits'"),
        (["--data", "digits"], "--data is for a run"),
    ]:
        assert sentence in mistake("evaluate", file, *words), words
    assert "--key" in mistake("evaluate", digits_run, "--key", "outputs=logits")
    assert "is a folder" in mistake("evaluate", digits_run, file)
    assert "must be .npz" in mistake("evaluate", digits_run / "config.toml")
    assert "there is no run and no file" in mistake("evaluate", tmp_path / "absent.npz")
    np.save(tmp_path / "o.npy", np.zeros((2, 4, 3)))
    assert "needs the targets beside it" in mistake("evaluate", tmp_path / "o.npy")

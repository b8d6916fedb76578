"""``dissensus ood``: the table, the record, the detector and the figures, on digits."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dissensus as ds

FEW = ["--no-plots", "--bootstrap", "20"]


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test digits turned on their side, with their labels and a group for odd and even rows."""
    x, y = ds.data.load("digits").test
    path = tmp_path_factory.mktemp("turned") / "turned.npz"
    sides = np.arange(len(y)) % 2
    np.savez(path, x=x.transpose(2, 3).numpy(), y=y.numpy(), side=sides)
    return path


def test_the_record_holds_what_the_library_finds(
    dissensus: Callable[..., Any], digits_run: Path, turned: Path, tmp_path: Path
) -> None:
    words = ["--ood", "corrupt:5", "--far", turned, "--scores", "pds,bma:temperature=fit,knn"]
    table = tmp_path / "table.csv"
    answer = dissensus(
        *("ood", digits_run, *words, *FEW, "--groups", "side", "--json"),
        *("--out", tmp_path / "out", "--csv", table),
    )
    assert answer.status == 0, answer.err
    record = json.loads(answer.out)
    assert json.loads((tmp_path / "out" / "ood.json").read_text()) == record
    rows = {(row["score"], row["set"]): row for row in record["detection"]}
    assert set(rows) == {
        (score, name)
        for score in ("pds", "bma:temperature=fit", "knn")
        for name in ("corrupt:5", "turned")
    }
    ens, data = ds.load(digits_run), ds.data.load("digits")
    pds = ds.scores.SCORES["pds"]
    strange = ds.data.corrupt_mixture(data.test[0], 5)
    known, far, val = (pds(ens(x).detach()) for x in (data.test[0], strange, data.val[0]))
    expected = ds.detection.evaluate(known, far, bootstrap=20)
    row = rows["pds", "corrupt:5"]
    assert row["auroc"] == pytest.approx(expected.auroc, abs=1e-4)
    assert row["auroc_low"] == pytest.approx(expected.auroc.low, abs=1e-3)
    threshold = ds.detection.threshold_at(val)  # of validation data, not of what is tested on
    assert row["threshold"] == pytest.approx(threshold, rel=1e-5)
    assert row["flagged"] == pytest.approx(float((far > threshold).double().mean()), abs=0.01)
    assert row["flagged_id"] == pytest.approx(float((known > threshold).double().mean()), abs=0.01)
    assert record["groups"] == {"far": ["turned"]}
    means = {(m["score"], m["group"]): m["auroc"] for m in record["group_means"]}
    assert means["knn", "far"] == rows["knn", "turned"]["auroc"]
    logits = ens(data.val[0]).detach()
    temperature = float(ds.calibration.fit_temperature(logits, data.val[1]))
    assert record["temperatures"]["run"] == pytest.approx(temperature, rel=1e-3)
    turned_right = record["accuracy"]["run"]["turned"]
    right = ens.predict(data.test[0].transpose(2, 3)).argmax(-1) == data.test[1]
    assert turned_right["overall"]["ensemble"]["value"] == pytest.approx(
        float(right.double().mean()), abs=0.01
    )
    sides = [float(right[start::2].double().mean()) for start in (0, 1)]
    assert turned_right["worst_group"]["ensemble"]["value"] == pytest.approx(min(sides), abs=0.01)
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["set"] for line in lines] == [row["set"] for row in record["detection"]]
    assert float(lines[0]["fpr95"]) == record["detection"][0]["fpr95"]


def test_two_runs_are_two_methods(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(digits_run, tmp_path / "twin")
    words = ["--ood", "corrupt:5", "--scores", "pds", "--id", "val", "--no-accuracy", *FEW]
    answer = dissensus("ood", digits_run, tmp_path / "twin", *words, "--out", tmp_path / "out")
    assert answer.status == 0, answer.err
    first, second = json.loads((tmp_path / "out" / "ood.json").read_text())["detection"]
    assert (first.pop("method"), second.pop("method")) == ("run", "twin")
    assert first == second
    assert first["id_examples"] == 288


def test_one_table_leads_and_all_prints_the_rest(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    words = ["ood", digits_run, "--near", "corrupt:3", "--limit", 60, "--out", tmp_path]
    lead = dissensus(*words, *FEW).out
    rows = json.loads((tmp_path / "ood.json").read_text())["detection"]
    (line,) = (line for line in map(str.split, lead.splitlines()) if line[:1] == [digits_run.name])
    assert (line[1], line[2]) == (rows[0]["score"], f"{rows[0]['auroc']:.3f}")
    every = dissensus(*words, "--all", "--bootstrap", 0).out
    for text in ("FPR95", "AUPR, OOD positive", "mean near", "Flagged", "upper bound"):
        assert text in every
    assert "Flagged" not in lead
    assert all(score in every for score in ds.detection.DEFAULT_SCORES)
    run = digits_run.name
    assert {path.name for path in tmp_path.iterdir()} == {
        "ood.json",
        *(f"{kind}-{run}.png" for kind in ("roc", "histograms")),
        *(f"examples-{run}-{name}.png" for name in ("test", "corrupt-3")),
        f"examples-{run}.npz",
    }


def test_curves_histograms_and_images_are_kept_for_figures(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    words = ["--ood", "corrupt:5", "--scores", "pds", *FEW, "--out", tmp_path]
    assert dissensus("ood", digits_run, *words).status == 0
    record = json.loads((tmp_path / "ood.json").read_text())
    (curve,), (histogram,) = record["curves"], record["histograms"]
    assert len(curve["fpr"]) == len(curve["tpr"]) <= 102
    area = np.sum(np.diff(curve["fpr"]) * (np.add(curve["tpr"][1:], curve["tpr"][:-1]) / 2))
    assert area == pytest.approx(record["detection"][0]["auroc"], abs=0.005)
    assert histogram["threshold"] == record["detection"][0]["threshold"]
    ens, data = ds.load(digits_run), ds.data.load("digits")
    scores = ds.scores.SCORES["pds"](ens(data.test[0]).detach()).numpy()
    edges = np.array(histogram["edges"])
    counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)
    np.testing.assert_allclose(histogram["share"]["test"], counts / len(scores), atol=0.006)
    assert sum(histogram["share"]["corrupt:5"]) == pytest.approx(1, abs=1e-3)
    rows = [row for row in record["examples"] if row["set"] == "test"]
    assert [row["kind"] for row in rows] == ["most"] * 5 + ["least"] * 5
    with np.load(tmp_path / rows[0]["file"], allow_pickle=False) as saved:
        image = saved["images"][rows[0]["image"]]
    most = data.test[0][int(scores.argmax())]
    np.testing.assert_array_equal(image, np.rint(most.numpy() * 255))
    assert rows[0]["value"] == pytest.approx(float(scores.max()), rel=1e-4)


@pytest.mark.parametrize(
    "score", ["energy:temperature=fit", "mahalanobis", "combined:score=energy,distance=vim"]
)
def test_a_saved_detector_is_the_one_of_the_table(
    score: str, dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "detector.json"
    words = ["--ood", "corrupt:5", "--scores", f"{score},pds", "--accept", 0.9]
    answer = dissensus(
        "ood", digits_run, *words, *FEW, "--save-detector", file, "--out", tmp_path, "--no-accuracy"
    )
    assert answer.status == 0, answer.err
    ens = ds.load(digits_run)
    detector = ds.Detector.load(file, ens)
    row = json.loads((tmp_path / "ood.json").read_text())["detection"][0]
    assert (row["score"], row["threshold"]) == (score, pytest.approx(detector.threshold, rel=1e-5))
    strange = ds.data.corrupt_mixture(ds.data.load("digits").test[0], 5)
    share = float(detector.is_ood(strange).double().mean())
    assert row["flagged"] == pytest.approx(share, abs=0.01)


def test_tuned_members_are_scored_beside_the_run(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "detector.json", tmp_path / "out"
    words = ["--ood", "corrupt:5", "--tune", "--tune-epochs", 2, "--scores", "pds,combined,knn"]
    words += ["--no-accuracy", "--save-detector", file, "--out", out, *FEW]
    printed = dissensus("ood", digits_run, *words).out
    record = json.loads((out / "ood.json").read_text())
    scores = [row["score"] for row in record["detection"]]
    assert scores == ["pds (tuned)", "combined (tuned)", "pds", "combined", "knn"]
    assert "trained for 2 more epochs (a2d, strangers)" in printed
    ens, data = ds.load(digits_run), ds.data.load("digits")
    strange = ds.data.corrupt_mixture(data.test[0], 5)
    plain = ds.Detector(ens, "pds")
    again = ds.Detector(ens, "pds").tune(data.train, epochs=2, progress=False).fit(data.val)
    for row, detector in zip((record["detection"][i] for i in (0, 2)), (again, plain), strict=True):
        auroc = ds.detection.evaluate(detector.score(data.test[0]), detector.score(strange)).auroc
        assert row["auroc"] == pytest.approx(auroc, abs=1e-4)
    kinds = [row["kind"] for row in record["strangers"]]
    assert kinds == ["known"] * 8 + ["stranger"] * 8
    with np.load(out / record["strangers"][0]["file"], allow_pickle=False) as known:
        first = np.rint(255 * data.train[0][0].numpy())
        np.testing.assert_array_equal(known["images"][0], first)
    saved = ds.Detector.load(file, ens)
    torch.testing.assert_close(saved.score(strange), again.score(strange))
    assert record["detection"][0]["threshold"] == pytest.approx(saved.threshold, rel=1e-4)


def test_a_regression(dissensus: Callable[..., Any], diabetes_run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "far.npy", np.full((20, 10), 1e3))
    words = ["--ood", tmp_path / "far.npy", "--out", tmp_path, "--json", *FEW]
    record = json.loads(dissensus("ood", diabetes_run, *words).out)
    assert [row["score"] for row in record["detection"]] == ["variance", "knn"]
    assert record["detection"][0]["auroc"] == 1.0
    assert record["accuracy"] == {"run": {}}


def test_mistakes_are_one_sentence(
    mistake: Callable[..., str], digits_run: Path, tmp_path: Path
) -> None:
    out = ["--out", tmp_path]
    assert "name at least one set of unknown inputs" in mistake("ood", digits_run, *out)
    assert "did you mean 'svhn'?" in mistake("ood", digits_run, "--ood", "svhm", *out)
    assert "there is no run folder" in mistake("ood", tmp_path / "no", "--ood", "svhn", *out)
    words = ["--ood", "corrupt:1", *out]
    assert "did you mean 'pds'?" in mistake("ood", digits_run, *words, "--scores", "pdz")
    assert "the same one twice" in mistake("ood", digits_run, digits_run, *words)
    both = mistake("ood", digits_run, tmp_path, *words, "--save-detector", "d.json")
    assert "--save-detector is for one run" in both
    for flags in (["--key", "outputs=x"], ["--probs"]):
        assert f"{flags[0]} is for files of pred" in mistake("ood", digits_run, *words, *flags)
    assert "no module 'x'" in mistake("ood", digits_run, *words, "--features", "x")

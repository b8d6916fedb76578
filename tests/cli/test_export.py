"""``dissensus export``: runs as files for a runtime, and as folders to hand on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml

import dissensus as ds
from dissensus.tools.records import read_record, write_record


def load_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.slow
def test_an_onnx_of_a_table_takes_raw_rows(
    dissensus: Callable[..., Any], flats_run: Path, tmp_path: Path
) -> None:
    """The same numbers as `dissensus predict` from the same rows, in the units of the table."""
    answer = dissensus("export", flats_run, "--out", tmp_path / "flats.onnx")
    assert answer.status == 0, answer.err
    (tmp_path / "new.csv").write_text("rooms,town\n2,Ulm\n5,Bonn\n3,Trier\n")
    wanted = ["--input", tmp_path / "new.csv", "--output", tmp_path / "p.npz"]
    dissensus("predict", flats_run, *wanted, "--members", "--score", "variance")
    session = onnxruntime.InferenceSession(tmp_path / "flats.onnx")
    told = session.get_modelmeta().custom_metadata_map
    rows = np.array([[2.0, 0, 0, 1], [5, 1, 0, 0], [3, 0, 1, 0]])
    preparation = ds.data.Preparation.from_dict(json.loads(told["preparation"]))
    columns = {"rooms": [2, 5, 3], "town": ["Ulm", "Bonn", "Trier"]}
    np.testing.assert_array_equal(preparation.encode(columns), rows)
    names = [output.name for output in session.get_outputs()]
    got = dict(zip(names, session.run(names, {"x": rows}), strict=True))
    expected = load_npz(tmp_path / "p.npz")
    assert names == list(expected) == ["mean", "members", "score_variance"]
    for name in names:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5)
    assert got["mean"].min() > 50, "prices, not standardised ones"


def test_a_pt2_of_images_with_a_detector(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    ens, data = ds.load(digits_run), ds.data.load("digits")
    ds.Detector(ens, "entropy").fit(data.val, accept=0.6).save(tmp_path / "detector.json")
    out = tmp_path / "digits.pt2"
    wanted = ["--format", "pt2", "--out", out, "--bytes", "--name", "mine"]
    answer = dissensus("export", digits_run, *wanted, "--detector", tmp_path / "detector.json")
    assert answer.status == 0, answer.err
    pixels = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8)
    extra = {"dissensus.json": ""}
    found = torch.export.load(out, extra_files=extra).module()(pixels)
    assert json.loads(extra["dissensus.json"])["classes"] == [str(digit) for digit in range(10)]
    assert json.loads(extra["dissensus.json"])["run"] == "mine"
    x = pixels.float() / 255
    torch.testing.assert_close(found["probs"], ens.predict(x))
    detector = ds.Detector.load(tmp_path / "detector.json", ens)
    assert found["is_ood"].tolist() == detector.is_ood(x).tolist()


def test_a_folder_predicts_as_its_run(
    dissensus: Callable[..., Any], flats_run: Path, tmp_path: Path
) -> None:
    answer = dissensus("export", flats_run, "--format", "hub", "--out", tmp_path / "hub")
    assert answer.status == 0, answer.err
    assert "No license is chosen" in answer.out
    run, back = ds.load(flats_run), ds.load(tmp_path / "hub")
    x = torch.randn(7, 8)  # rooms, their four bins, and three towns
    assert torch.equal(back(x), run(x))
    (tmp_path / "new.csv").write_text("rooms,town\n2,Ulm\n5,Bonn\n")
    for source in (flats_run, tmp_path / "hub"):
        wanted = ["--input", tmp_path / "new.csv", "--output", tmp_path / f"{source.name}.csv"]
        assert dissensus("predict", source, *wanted).status == 0
    assert (tmp_path / "hub.csv").read_text() == (tmp_path / "run.csv").read_text()
    text = "".join((tmp_path / "hub" / name).read_text() for name in ("README.md", "config.json"))
    assert str(flats_run.parent) not in text, "paths of a machine are nobody's business"
    assert "`x` is encoded and standardised as `config.json` says" in text
    assert "missing=fill" in text


OOD = {
    "format": "dissensus.ood/1",
    "id": {"run": "test"},
    "detection": [
        {"method": "run", "score": "pds", "set": "moon", "auroc": 0.8125, "auroc_low": 0.75}
        | {"auroc_high": 0.9, "fpr95": 0.25, "fpr95_low": None, "flagged": 0.625}
    ],
}
ATTACKS = {
    "format": "dissensus.robustness/1",
    "evaluated_on": "the first 40 of test of digits",
    "examples": 40,
    "clean_accuracy": {"accuracy": 0.9, "low": 0.77, "high": 0.96},
    "worst_case": {"accuracy": 0.175, "low": 0.09, "high": 0.32},
    "attacks": [{"source": None, "attack": "pgd:eps=0.1", "accuracy": 0.2, "interval": [0.1, 0.3]}],
    "flags": [{"name": "masked", "text": "gradients vanish."}],
}


def test_a_card_says_what_the_records_say(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    run, detector = tmp_path / "run", tmp_path / "d.json"
    shutil.copytree(digits_run, run)
    later = {"environment": {"written": "2999-01-01T00:00:00+00:00"}}
    write_record(run / "ood" / "ood.json", OOD | later)
    write_record(run / "robustness" / "record.json", ATTACKS | later)
    ens = ds.load(run)
    ds.Detector(ens, "bma").fit(ds.data.load("digits").val).save(detector)
    wanted = ["--out", tmp_path / "hub", "--license", "apache-2.0", "--detector", detector]
    answer = dissensus("export", run, "--format", "hub", *wanted)
    assert answer.status == 0, answer.err
    _, front, body = (tmp_path / "hub" / "README.md").read_text().split("---\n", 2)
    record, facts = read_record(run / "record.json"), yaml.safe_load(front)
    assert (facts["license"], facts["pipeline_tag"]) == ("apache-2.0", "image-classification")
    (result,) = facts["model-index"][0]["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == pytest.approx(
        {key: record["test"][key] for key in ("accuracy", "nll", "brier")}, abs=1e-12
    )
    verdict = ds.runs.diagnose(run).to_dict()
    for text in (
        f"| accuracy | {record['test']['accuracy']:.2%} | {record['val']['accuracy']:.2%} |",
        f"**{verdict['verdict']}**, judged on 1150 train and 359 test examples. "
        + " ".join(verdict["reasons"]),
        "| moon | pds | 0.812 [0.750, 0.900] | 0.250 | 62.5% |",
        "| `pgd:eps=0.1` | 20.0% [10.0%, 30.0%] |",
        "| **worst case for each example** | 17.5% [9.0%, 32.0%] |",
        "masked: gradients vanish.",
        "1150 train, 288 val, 359 test",
        "`detector.json` flags inputs whose score `bma` is above",
    ):
        assert text in body
    assert "not measured" not in body
    back = ds.Detector.load(tmp_path / "hub" / "detector.json", ds.load(tmp_path / "hub"))
    x = torch.rand(9, 1, 8, 8)
    assert back.score(x).tolist() == ds.Detector(ens, "bma").score(x).tolist()


def test_without_its_data_a_run_is_diagnosed_on_what_it_saved(
    dissensus: Callable[..., Any], flats_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(flats_run, tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_text()
    moved = config.replace(str(flats_run.parent / "flats.csv"), str(tmp_path / "gone.csv"))
    (tmp_path / "run" / "config.toml").write_text(moved)
    answer = dissensus("export", tmp_path / "run", "--format", "hub", "--out", tmp_path / "hub")
    assert answer.status == 0, answer.err
    assert "diagnosed on saved test predictions alone" in answer.err
    assert "judged on 12 test examples" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--out", "a.bin"], "say --format onnx, pt2 or hub, got no --format and --out a.bin"),
        (["--out", "a.pt2", "--format", "onnx"], "--out must end in .onnx for --format onnx"),
        (["--out", "a", "--format", "zip"], "got --format zip"),
        (["--out", "a.pt2", "--license", "mit"], "--license is for the card"),
        (["--out", "a", "--format", "hub", "--bytes"], "--score and --bytes are for onnx and pt2"),
        (["--out", "a.pt2", "--detector", "none.json"], "no detector at none.json"),
        (["--out", ".", "--format", "hub"], "is not empty; choose a new folder"),
    ],
)
def test_mistakes(
    arguments: list[str],
    sentence: str,
    mistake: Callable[..., str],
    digits_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("")
    assert sentence in mistake("export", digits_run, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_bytes_are_for_images(mistake: Callable[..., str], flats_run: Path, tmp_path: Path) -> None:
    told = mistake("export", flats_run, "--out", tmp_path / "a.pt2", "--bytes")
    assert "bytes are for images, got examples (8,)" in told

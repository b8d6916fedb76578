"""Reading: what the files say, what is left out, and why."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dissensus as ds
from dissensus.show.contents import Contents, Record
from dissensus.show.reader import read


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a JSON file."""
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def test_methods_come_in_the_order_given_with_the_numbers_of_their_records(
    folders: Path, runs: list[Path]
) -> None:
    found = read([*runs, folders / "sweeps" / "beta"])
    assert [method.name for method in found.methods] == ["independent", "joint", "half", "adp"]
    assert [method.beta for method in found.methods] == [0.0, 1.0, 0.5, None]
    for method, run in zip(found.methods, runs, strict=True):
        test = json.loads((run / "record.json").read_text())["test"]
        assert method.numbers["accuracy"].value == test["accuracy"]
        assert method.numbers["ece_width"].source.key == "test.ece_width"
        assert [record.at("epoch") for record in method.epochs] == [1, 2, 3]
    joint, adp = found.methods[1], found.methods[3]
    assert joint.detection is not None
    assert joint.attacks is not None
    assert adp.detection is None
    assert adp.attacks is None
    assert found.notes == []


def test_a_folder_stands_for_all_that_is_in_it(folders: Path) -> None:
    found = read([folders, folders / "runs" / "adp"])
    assert [method.name for method in found.methods] == ["adp", "half", "independent", "joint"]
    assert [line.name.partition(" ")[0] for line in found.sweeps] == ["beta"]


def test_a_run_without_a_diagnosis_is_diagnosed_from_its_test_predictions(runs: list[Path]) -> None:
    (method,) = read([runs[3]]).methods
    file = runs[3] / "predictions" / "test.safetensors"
    expected = ds.diagnose(None, ds.Predictions.load(file)).to_dict()
    assert method.diagnosis is not None
    assert method.diagnosis.file == file
    assert method.diagnosis.values == expected


def test_the_sweep_has_means_deviations_and_held_out_outputs(folders: Path) -> None:
    (line,) = read([folders / "sweeps" / "beta"]).sweeps
    assert [point.x for point in line.points] == [0.0, 0.5, 1.0]
    cells = folders / "sweeps" / "beta" / "cells"
    files = sorted(cells.glob("beta=1*.json"))
    errors = [json.loads(file.read_text())["result"]["test"] for file in files]
    assert len(errors) == 2
    values = [test["ensemble_error"] for test in errors]
    number = line.points[-1].numbers["ensemble_error"]
    assert number.value == pytest.approx(np.mean(values))
    assert number.high == pytest.approx(np.mean(values) + np.std(values, ddof=1))
    assert sorted(line.held_out) == [0.0, 0.5, 1.0]
    assert line.held_out[1.0].outputs.shape == (3, 40, 10)
    assert (line.held_out[0.0].targets == line.held_out[1.0].targets).all()
    assert line.held_out[0.0].classes == tuple("0123456789")


def test_one_record_of_several_runs_is_divided_among_them(runs: list[Path], tmp_path: Path) -> None:
    record = json.loads((runs[0] / "ood" / "ood.json").read_text())
    for key in ("detection", "curves", "histograms"):
        record[key] = [{**row, "method": name} for row in record[key] for name in ("a", "b", "c")]
    record |= {"id": {"a": "test", "b": "test", "c": "test"}, "examples": []}
    record["runs"] = [str(runs[3]), "elsewhere/gone", str(runs[1])]
    record["detection"][0]["auroc"] = 0.125
    file = tmp_path / "ood.json"
    file.write_text(json.dumps(record))
    found = read([runs[3], file])
    (method,) = found.methods
    assert method.detection is not None
    auroc = method.detection.rows("detection")[0].number("auroc")
    assert auroc is not None
    assert (auroc.value, auroc.source.key) == (0.125, "detection[0].auroc")
    assert [note.rpartition(" has results of ")[2][0] for note in found.notes] == ["b", "c"]


def test_records_of_earlier_weights_are_left_out(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[1], tmp_path / "joint")
    later = "2999-01-01T00:00:00+00:00"
    changed(run / "record.json", lambda values: values["environment"].update(written=later))
    found = read([run])
    (method,) = found.methods
    assert method.detection is None
    assert method.attacks is None
    assert method.diagnosis is not None
    assert method.diagnosis.file.suffix == ".safetensors"
    assert len(found.notes) == 3
    assert "older than the run's last training" in found.notes[0]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("ood/ood.json", lambda values: values["curves"][0].update(fpr=[0.0, "x"])),
        ("ood/ood.json", lambda values: values["histograms"][0]["edges"].pop()),
        ("robustness/record.json", lambda values: values["curves"][0]["values"].pop()),
        ("robustness/record.json", lambda values: values.update(transfer={"accuracy": [1, 2]})),
    ],
)
def test_a_damaged_record_is_told_and_does_not_stop_the_report(
    file: str, change: Callable[[dict[str, Any]], object], runs: list[Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs[0], tmp_path / "damaged")
    changed(run / file, change)
    found = read([run, runs[1]])
    assert [method.name for method in found.methods] == ["damaged", "joint"]
    assert (found.methods[0].detection is None) == file.startswith("ood")
    (note,) = found.notes
    assert Path(file).name in note


def test_what_is_no_run_is_an_error_that_says_so(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file or folder"):
        read([tmp_path / "gone"])
    with pytest.raises(ValueError, match="neither a run nor a sweep"):
        read([tmp_path])
    with pytest.raises(
        ValueError, match="a report does not read this record by itself; give its folder"
    ):
        read([runs[0] / "record.json"])
    broken = shutil.copytree(runs[3], tmp_path / "broken")
    (broken / "checkpoint.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"nothing to report .* is not a checkpoint"):
        read([broken])
    assert [method.name for method in read([broken, runs[0]]).methods] == ["independent"]


def test_runs_of_one_name_go_by_their_paths(runs: list[Path], tmp_path: Path) -> None:
    twin = shutil.copytree(runs[0], tmp_path / "independent")
    assert [method.name for method in read([runs[0], twin]).methods] == [str(runs[0]), str(twin)]


def test_records_are_asked_for_by_keys_that_may_not_be_there() -> None:
    record = Record(Path("r.json"), {"a": [{"b": 1}, {"b": True}, {"b": "x"}], "c": None})
    assert [record.at(f"a[{place}].b") for place in range(4)] == [1, True, "x", None]
    assert record.number("a[1].b") is None  # truth is no number
    assert record.number("a[0].b.c") is None
    assert record.rows("c") == []


def test_contents_of_a_regression(tmp_path: Path) -> None:
    from tests.show.conftest import command

    run = tmp_path / "values"
    words = ["--data", "diabetes", "--model-option", "hidden=8", "--members", 3, "--epochs", 2]
    command("train", *words, "--quiet", "--threads", 1, "--out", run)
    found: Contents = read([run])
    (method,) = found.methods
    assert set(method.numbers) == {"rmse", "ensemble_error", "member_error", "diversity"}
    assert method.log_diversity is None
    assert method.held_out is not None
    assert method.held_out.regression


def test_a_closed_folder_is_a_note_of_the_report(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs[0], tmp_path / "good")
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed")
    contents = read([tmp_path])
    assert [method.name for method in contents.methods] == ["good"]
    assert list(contents.notes) == [f"{tmp_path / 'closed'} is left out: it cannot be opened"]

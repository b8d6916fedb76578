"""Verbs in Python: train, predict and sweep as their commands do, with results as objects."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dissensus as ds

SMALL = {"members": 2, "epochs": 1, "model_options": {"hidden": 4}, "quiet": True}


def test_train_writes_a_run_and_returns_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ds.runs.train(data="wine", out=tmp_path / "run", **SMALL)
    assert capsys.readouterr() == ("", "")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert run.metrics["test"] == record["test"]
    assert [row["split"] for row in run.to_rows()] == ["test", "val"]
    assert run.to_rows()[0]["accuracy"] == record["test"]["accuracy"]
    assert "dissensus evaluate" in str(run)
    again = ds.runs.train(out=tmp_path / "run", resume=True, epochs=2, quiet=True)
    assert len(again.history.epochs) == 2


def test_sweep_returns_its_summary(tmp_path: Path) -> None:
    grid = {"beta": [0.0, 1.0]}
    asked = {"data": "wine", "objective": "augmented", "out": tmp_path, **SMALL}
    summary = ds.sweeps.sweep(**asked, grid=grid, repeats=2)
    assert (summary.done, summary.total, summary.path) == (4, 4, tmp_path)
    assert [row["beta"] for row in summary.to_rows()] == [0.0, 1.0]
    assert summary.to_dict() == json.loads((tmp_path / "summary.json").read_text())
    assert "Best by validation (*)" in str(summary)
    loaded = ds.sweeps.load(tmp_path)
    assert loaded.to_dict() == summary.to_dict()
    assert str(loaded) == str(summary)
    next((tmp_path / "cells").glob("*.json")).unlink()
    assert (ds.sweeps.load(tmp_path).done, ds.sweeps.load(tmp_path).total) == (3, 4)
    with pytest.raises(ValueError, match=r"no sweep at .*name the folder that `dissensus sweep`"):
        ds.sweeps.load(tmp_path / "cells")


def test_a_table_with_gaps_dates_and_names_trains_predicts_and_is_evaluated(
    tmp_path: Path,
) -> None:
    """New rows are filled, encoded and scaled as the run did it, from data.json alone."""
    rows = [
        f"{'' if i % 9 == 0 else i % 5},{'NA' if i % 11 == 0 else 'ab'[i % 2]},flat {i},"
        f"2024-{1 + i % 12:02}-05,{i % 5 + i % 2}.5"
        for i in range(60)
    ]
    file = tmp_path / "flats.csv"
    file.write_text("rooms,kind,name,sold,price\n" + "\n".join(rows) + "\n")
    run = ds.runs.train(data=str(file), target="price", out=tmp_path / "run", **SMALL)
    assert run.prepared == (
        "4 columns: 1 number, 1 category, 1 date; filled 1 (rooms); missing is a level of 1 "
        "(kind); dropped 1: name (id-like: 38 different values in 38 rows)"
    )
    assert "Prepared: 4 columns" in " ".join(str(run).split())
    data = ds.data.load(file, target="price")
    expected = data.original(ds.load(tmp_path / "run").predict(data.test[0]))
    new = tmp_path / "new.csv"
    chosen = [rows[number].rpartition(",")[0] for number in data.rows["test"].tolist()]
    new.write_text("rooms,kind,name,sold\n" + "\n".join(chosen) + "\n")
    predictions = ds.runs.predict(tmp_path / "run", new)
    np.testing.assert_allclose(predictions.arrays["mean"], expected, rtol=1e-5)
    found = ds.runs.evaluate(tmp_path / "run", data=str(file))
    assert found.metrics["examples"] == 60
    columns = {"rooms": [3, None], "kind": ["c", "b"], "sold": ["2024-01-05", "2030-01-05"]}
    strange = ds.runs.predict(tmp_path / "run", columns)
    assert np.isfinite(strange.arrays["mean"]).all()
    (remark,) = strange.remarks
    assert remark.startswith("kind: 1 of 2 rows hold none of its levels, such as c")


def test_results_of_verbs_have_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = tmp_path / "run"
    trained = ds.runs.train(data="digits", hold_out="8,9", out=run, **SMALL)
    assert trained.plot().axes[0].get_ylabel() == "ERR"
    evaluation = ds.runs.evaluate(run)
    heights = [bar.get_height() for bar in evaluation.plot().axes[0].patches]
    assert heights == pytest.approx(evaluation.metrics["per_member_error"])
    assert repr(evaluation).startswith(f"<RunEvaluation: {run}: ")
    assert len(ds.runs.diagnose(run).plot().axes) == 2
    options = {"unknown": ["held_out"], "scores": ["pds", "entropy"], "bootstrap": 0}
    shutil.copytree(run, tmp_path / "other")
    detections = ds.runs.detect([run, tmp_path / "other"], **options)
    titles = [axes.get_title(loc="left") for axes in detections.plot().axes]
    assert titles == ["run: held_out", "other: held_out"]
    assert "<td>entropy</td>" in detections._repr_html_()

"""Data of a run: their summary on disk, and new inputs treated as the training inputs were."""

from pathlib import Path

import numpy as np
import pytest
import torch

import dissensus as ds
from dissensus.runs import DataSummary, Settings, complete_config, load_data, resolve


def test_load_data_needs_a_name() -> None:
    with pytest.raises(ValueError, match="does not say what its data are"):
        load_data({"ensemble": {}, "training": {}})


def test_a_summary_survives_the_disk_and_names_its_damage(tmp_path: Path) -> None:
    summary = DataSummary.of(ds.data.load("diabetes"), channels=True)
    summary.write(tmp_path)
    assert DataSummary.read(tmp_path) == summary
    (tmp_path / "data.json").write_text('{"name": "diabetes"}')
    with pytest.raises(ValueError, match=r"data.json is not the summary of data: it"):
        DataSummary.read(tmp_path)


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_raw_rows_become_what_training_saw(name: str, tmp_path: Path) -> None:
    data, table = ds.data.load(name, seed=3), ds.data.load_table(name)
    x, y = data.test
    raw = np.stack(list(table.columns.values()), 1)[data.rows["test"].numpy()]
    targets = table.y[data.rows["test"].numpy()]
    if data.task == "classification":
        targets = np.array(data.classes)[targets]
    np.savez(tmp_path / "raw.npz", x=raw, y=targets)
    inputs = ds.data.read_inputs(tmp_path / "raw.npz", DataSummary.of(data), labelled=True)
    assert inputs.y is not None
    assert torch.allclose(inputs.x, x, atol=1e-6)
    assert torch.allclose(inputs.y.double(), y.double(), atol=1e-6)


def test_a_level_with_an_equals_sign_keeps_its_column(tmp_path: Path) -> None:
    rows = [f"{'x=1' if i % 2 else 'y'},{i % 3},{i}.5" for i in range(30)]
    file = tmp_path / "t.csv"
    file.write_text("a,a=b,goal\n" + "\n".join(rows) + "\n")
    data = ds.data.load(file, target="goal")
    inputs = ds.data.read_inputs(file, DataSummary.of(data), target="goal")
    assert torch.allclose(inputs.x[data.rows["test"]], data.test[0], atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "combine", "objective", "combined"),
    [
        ("augmented", None, "augmented", "probability"),
        ("augmented:combine=score", None, "augmented:combine=score", "score"),
        ("augmented", "score", "augmented:combine=score", "score"),
        ("jsd", "score", "jsd", "score"),
        ("learner_dropout/joint", "score", "learner_dropout/joint:combine=score", "score"),
    ],
)
def test_the_objective_averages_as_the_ensemble_does(
    asked: str, combine: str | None, objective: str, combined: str
) -> None:
    sections = resolve(Settings(data="wine", objective=asked, combine=combine))
    config, made = complete_config(sections, "classification")
    assert (config["training"]["objective"], made.spec()) == (objective, objective)
    assert config["ensemble"]["combine"] == combined

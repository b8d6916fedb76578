"""Run folders read back: descriptions, ensembles with their best weights, inputs, data."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.runs import DataSummary, describe, find_runs, load_data, read_config
from dissensus.training.run_folder import read_checkpoint


def make_member() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def toy(seed: int = 0, rows: int = 60) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(-1)


def trained(out: Path, epochs: int = 3, **settings: Any) -> ds.Ensemble:
    ens = ds.Ensemble(make_member, members=3, seed=1)
    ds.fit(
        ens,
        toy(),
        val=toy(1),
        epochs=epochs,
        out=out,
        progress=False,
        **{"batch_size": 16, "optimizer": "adam:lr=0.5", **settings},
    )
    return ens


# ---- load ---------------------------------------------------------------------------------------


def test_load_gives_the_best_epoch_in_evaluation_mode(tmp_path: Path) -> None:
    ens = trained(tmp_path, epochs=6)
    best = describe(tmp_path).best_epoch
    assert best < 6  # else the best weights would be the last ones
    loaded, x = ds.load(tmp_path, make_member=make_member), toy(2)[0]
    assert not loaded.training
    assert torch.equal(loaded(x), ens(x))
    found = read_checkpoint(tmp_path)
    assert found is not None
    last = ds.Ensemble(make_member, members=3)
    last.load_state_dict(
        {n.removeprefix("model."): t for n, t in found[0].items() if n.startswith("model.")}
    )
    assert not torch.equal(last.eval()(x), loaded(x))


def test_without_selection_the_last_epoch_is_loaded(tmp_path: Path) -> None:
    ens = trained(tmp_path, select_by="last")
    x = toy(2)[0]
    assert torch.equal(ds.load(tmp_path, make_member=make_member)(x), ens.eval()(x))


def test_a_run_that_does_not_know_its_model_says_so(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(ValueError, match=r"does not say how its members are made.*make_member="):
        ds.load(tmp_path)


def test_another_network_does_not_fit(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(ValueError, match=r"do not fit this ensemble of 3 members.*Missing key"):
        ds.load(tmp_path, make_member=lambda: nn.Linear(4, 3))


def test_unlike_members_are_loaded_into_their_like(tmp_path: Path) -> None:
    def build() -> ds.Ensemble:
        return ds.Ensemble.from_members([nn.Linear(4, 3), make_member()])

    ens, x = build(), toy(2)[0]
    ds.fit(ens, toy(), epochs=1, out=tmp_path, progress=False)
    assert torch.equal(ds.load(tmp_path, into=build())(x), ens(x))


def test_member_weights_come_back(tmp_path: Path) -> None:
    ens, x = ds.Ensemble(make_member, members=3), toy(2)[0]
    ens.set_weights(torch.tensor([0.5, 0.25, 0.25]))
    ds.fit(ens, toy(), epochs=1, out=tmp_path, progress=False)
    assert torch.equal(ds.load(tmp_path, make_member=make_member).predict(x), ens.predict(x))


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path, epochs=1)
    (tmp_path / "checkpoint.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no checkpoint yet.*--resume"):
        ds.load(tmp_path, make_member=make_member)


def test_code_named_by_a_stranger_is_not_run(tmp_path: Path) -> None:
    """A run folder may come from anywhere: loading it must not run what it names."""
    trained(tmp_path / "run", epochs=1)
    x, y = toy()
    data = ds.data.Data("toy", "classification", (x, y), (x[:0], y[:0]), (x[:0], y[:0]), ("a",) * 3)
    DataSummary.of(data).write(tmp_path / "run")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nmake = int")
    with (tmp_path / "run" / "config.toml").open("a") as file:
        file.write(f'\n[model]\nname = "{tmp_path}/evil.py:make"\n')
    with pytest.raises(ValueError, match=r"evil.py:make.*if you trust it"):
        ds.load(tmp_path / "run")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_device(tmp_path: Path) -> None:
    trained(tmp_path, epochs=1)
    with pytest.raises(ValueError, match="there is no device 'toaster'"):
        ds.load(tmp_path, make_member=make_member, device="toaster")


# ---- describe -----------------------------------------------------------------------------------


def test_describe_a_finished_run(tmp_path: Path) -> None:
    trained(tmp_path, epochs=2)
    run = describe(tmp_path)
    assert (run.state, run.epochs, run.ended) == ("finished", 2, "epochs")
    assert run.asked("ensemble", "members") == 3
    assert run.asked("data", "name") is None
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert run.val == json.loads(lines[run.best_epoch - 1])["val"]
    assert run.standing() == "finished after 2 of 2 epochs"


def test_test_figures_of_other_weights_are_not_shown(tmp_path: Path) -> None:
    """A record from before a run was resumed does not describe the weights that are there now."""
    trained(tmp_path, epochs=1)
    record = json.loads((tmp_path / "record.json").read_text()) | {"test": {"accuracy": 0.5}}
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert describe(tmp_path).test == {"accuracy": 0.5}
    (tmp_path / "record.json").write_text(json.dumps(record | {"epochs": 7}))
    assert describe(tmp_path).test == {}


def test_patience_is_told(tmp_path: Path) -> None:
    trained(tmp_path, epochs=200, patience=1)
    assert describe(tmp_path).standing().endswith("of 200 epochs, ended by patience")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.toml", b"\xff\xfe", "cannot be read"),
        ("config.toml", b"a = 1", "is not the config of a run"),
        ("checkpoint.safetensors", b"", "not a checkpoint"),
        ("checkpoint.safetensors", b"\x02\0\0\0\0\0\0\0{}", "not a checkpoint"),
        ("checkpoint.safetensors", b"\xff" * 64, "not a checkpoint"),
        ("record.json", b"[]", "is not a record"),
    ],
)
def test_damage_is_named_and_never_fatal_in_a_list(
    name: str, content: bytes, problem: str, tmp_path: Path
) -> None:
    trained(tmp_path / "run", epochs=1)
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        describe(tmp_path / "run")
    (found,) = find_runs(tmp_path)
    assert found.state == "unreadable"
    assert problem.removeprefix("is ") in found.problem


def test_metrics_cut_short_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    trained(tmp_path, epochs=1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "val": {"accu')
    assert describe(tmp_path).val["accuracy"] <= 1


def test_runs_are_found_newest_first_and_links_are_not_followed(tmp_path: Path) -> None:
    trained(tmp_path / "old", epochs=1)
    trained(tmp_path / "new", epochs=1)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "new" / "config.toml").touch()
    assert [run.path.name for run in find_runs(tmp_path)] == ["new", "old"]


# ---- data and inputs ----------------------------------------------------------------------------


def test_load_data_needs_a_name() -> None:
    with pytest.raises(ValueError, match="does not say what its data are"):
        load_data({"ensemble": {}, "training": {}})


def test_facts_survive_the_disk_and_name_their_damage(tmp_path: Path) -> None:
    facts = DataSummary.of(ds.data.load("diabetes"), channels=True)
    facts.write(tmp_path)
    assert DataSummary.read(tmp_path) == facts
    (tmp_path / "data.json").write_text('{"name": "diabetes"}')
    with pytest.raises(ValueError, match=r"data.json cannot be read: KeyError"):
        DataSummary.read(tmp_path)


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_raw_rows_become_what_training_saw(name: str, tmp_path: Path) -> None:
    data, table = ds.data.load(name, seed=3), ds.data.load_table(name)
    x, y = data.test
    raw = table.x[data.rows["test"].numpy()]
    targets = table.y[data.rows["test"].numpy()]
    if data.task == "classification":
        targets = np.array(data.classes)[targets]
    np.savez(tmp_path / "raw.npz", x=raw, y=targets)
    inputs = ds.data.read_inputs(tmp_path / "raw.npz", DataSummary.of(data), labelled=True)
    assert inputs.y is not None
    assert torch.allclose(inputs.x, x, atol=1e-6)
    assert torch.allclose(inputs.y.double(), y.double(), atol=1e-6)


def test_columns_that_were_logged_are_logged_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a:.6f},{b:.6f},{c}" for a, b, c in zip(*skewed(rng), strict=True)]
    file = tmp_path / "t.csv"
    file.write_text("calm,wild,kind\n" + "\n".join(rows) + "\n")
    data = ds.data.load(file, target="kind", log_skew=2.0)
    assert data.preprocessing["log_features"] == ["wild"]
    inputs = ds.data.read_inputs(file, DataSummary.of(data), target="kind", labelled=True)
    assert torch.allclose(inputs.x[data.rows["val"]], data.val[0], atol=1e-6)
    assert inputs.y is not None
    assert torch.equal(inputs.y[data.rows["val"]], data.val[1])


def skewed(rng: np.random.Generator) -> tuple[Any, Any, list[str]]:
    return rng.normal(size=80), np.exp(3 * rng.normal(size=80)), ["ab"[i % 2] for i in range(80)]


def test_a_level_with_an_equals_sign_keeps_its_column(tmp_path: Path) -> None:
    rows = [f"{'x=1' if i % 2 else 'y'},{i % 3},{i}.5" for i in range(30)]
    file = tmp_path / "t.csv"
    file.write_text("a,a=b,goal\n" + "\n".join(rows) + "\n")
    data = ds.data.load(file, target="goal")
    inputs = ds.data.read_inputs(file, DataSummary.of(data), target="goal")
    assert torch.allclose(inputs.x[data.rows["test"]], data.test[0], atol=1e-6)


def test_config_of_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run folder"):
        read_config(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.toml"):
        read_config(tmp_path)
    trained(tmp_path / "run", epochs=1)
    shutil.copy(tmp_path / "run" / "config.toml", tmp_path)
    assert read_config(tmp_path)["training"]["epochs"] == 1

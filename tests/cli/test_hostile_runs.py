"""Command lines on hostile runs and settings: each is answered by one sentence."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from dissensus.cli.app import app
from dissensus.runs import train
from dissensus.show.reader import read
from tools.fuzz.command_lines import failure, make_good_run


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run, to be copied and spoilt."""
    return make_good_run(tmp_path_factory.mktemp("good"))


def test_a_spoilt_run_hides_no_other(good_run: Path, tmp_path: Path) -> None:
    shutil.copytree(good_run, tmp_path / "runs" / "good")
    files = {
        "config.toml": b"a = " + b"[" * 9999,
        "record.json": b"[" * 200_000,
        "metrics.jsonl": b"[]\n5\nNaN\n",
        "checkpoint.safetensors": b"hello",
    }
    for number, (name, content) in enumerate(files.items()):
        shutil.copytree(good_run, tmp_path / "runs" / str(number))
        (tmp_path / "runs" / str(number) / name).write_bytes(content)
    text = (good_run / "config.toml").read_text().replace("members = 2", 'members = "[/b]"')
    (tmp_path / "runs" / "0" / "config.toml").write_text(text)
    listed = CliRunner().invoke(app, ["runs", str(tmp_path / "runs")], env={"COLUMNS": "200"})
    assert listed.exit_code == 0, listed.output
    rows = {line.split()[0]: line for line in listed.output.splitlines() if line.strip()}
    assert "finished" in rows["good"]
    assert "must be a whole number, got '[/b]'" in rows["0"]
    page = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "p")])
    assert page.exit_code == 0, page.output


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("data.name", "5", "name must be text, got 5"),
        ("ensemble.combine", "[1]", "combine must be text"),
        ("ensemble.members", '"[/b]"', "members must be a whole number, got '[/b]'"),
        ("ensemble.members", "10000000", "members must be at most 10000, got 10000000"),
    ],
)
def test_a_setting_of_another_type(
    key: str, value: str, sentence: str, good_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(good_run, tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    name = key.partition(".")[2]
    lines = [
        f"{name} = {value}" if line.startswith(f"{name} = ") else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines))
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert sentence in result.output
    assert result.output.count("\n") == 1


def test_a_hub_folder_of_a_stranger(tmp_path: Path) -> None:
    config = {
        "format": "dissensus.model/1",
        "task": "classification",
        "ensemble": {"members": 2, "combine": ["probability"], "execution": "auto"},
        "model": {"name": "mlp", "input_shape": [4], "outputs": 2},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert not failure(["evaluate", tmp_path])
    assert not failure(["predict", tmp_path, "--input", tmp_path / "x.csv", "--output", "p.csv"])


def test_a_closed_folder_is_a_note_of_the_report(
    good_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(good_run, tmp_path / "good")
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed")
    contents = read([tmp_path])
    assert [method.name for method in contents.methods] == ["good"]
    assert list(contents.notes) == [f"{tmp_path / 'closed'} is left out: it cannot be opened"]


def test_a_sweep_of_too_many_cells_is_refused(tmp_path: Path) -> None:
    grids = ["--grid", "beta=0:1:0.001", "--grid", "lr=0.001:1:0.001"]
    for words in (grids, ["--grid", "beta=0,1", "--repeats", 10**9]):
        command = ["sweep", "--data", "wine", "--objective", "augmented", *words]
        result = CliRunner().invoke(app, [str(word) for word in [*command, "--out", tmp_path]])
        assert result.exit_code == 2
        assert "cells; 100000 are the most" in result.output


def test_a_backbone_with_other_channels(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Conv2d(3, 4, 3)\n"
    )
    x, y = np.zeros((12, 8, 8), np.uint8), np.arange(12) % 2
    np.savez(tmp_path / "images.npz", x=x, y=y)
    data = str(tmp_path / "images.npz")
    words = ["--data", data, "--backbone", f"{tmp_path / 'net.py'}:make"]
    result = CliRunner().invoke(app, ["features", *words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "net.py:make cannot take inputs [batch, …] =" in result.output


def test_numbers_of_a_config_have_limits(tmp_path: Path) -> None:
    config, table = tmp_path / "config.toml", tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "1,2,x\n2,1,z\n" * 10)
    limits = {
        "members = 10000000": "members must be .*10000",
        "threads = 1000000": "threads must be .*1024",
        "model_options = {hidden = 1000000000000}": "cannot be built|parameters",
        "model_options = {hidden = [100000, 100000]}": "would have 100",
        "model_options = {hidden = 0.5}": "mlp cannot be built with these options",
    }
    for text, sentence in limits.items():
        config.write_text(f'data = "{table}"\ntarget = "y"\n{text}\n')
        with pytest.raises(ValueError, match=sentence):
            train(config=config, out=str(tmp_path / "run"), quiet=True)

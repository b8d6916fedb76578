"""Command lines on hostile files and folders: an answer or one sentence, never a traceback."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from dissensus.cli.app import app
from dissensus.runs import train
from dissensus.show.reader import read
from tests.hardening import hostile

TINY = {"members": 2, "epochs": 1, "threads": 1, "quiet": True, "model_options": {"hidden": 8}}


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run, to be copied and spoilt."""
    return make_good_run(tmp_path_factory.mktemp("good"))


def make_good_run(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "table.csv").write_text("a,b,y\n" + "1,2,x\n2,1,z\n3,5,x\n4,4,z\n" * 15)
    train(data=str(folder / "table.csv"), target="y", out=str(folder / "run"), **TINY)
    return folder / "run"


def problem(*words: object) -> str:
    """How a command line failed to answer as it must; empty if it did."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    line = " ".join(map(str, words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{line}: {result.exception!r}"
    if (
        result.exit_code == 2
        and "Usage:" not in result.output
        and "dissensus: " not in result.output
    ):
        return f"{line}: no sentence: {result.output}"
    if result.exit_code not in (0, 2):
        return f"{line}: exit status {result.exit_code}"
    for words_of_a_bug in ("or this is a bug", "Traceback"):
        if words_of_a_bug in result.output:
            return f"{line}: {result.output}"
    return ""


def commands(run: Path) -> list[list[object]]:
    """Every command that reads a run folder."""
    table = run.parent / "table.csv"
    return [
        ["runs", run.parent],
        ["report", run, "--out", run.parent / "page"],
        ["evaluate", run],
        ["diagnose", run],
        ["ood", run, "--ood", table],
        ["predict", run, "--input", table, "--output", run.parent / "p.csv"],
        ["export", run, "--format", "hub", "--out", run.parent / "hub"],
        ["train", "--resume", "--quiet", "--out", run],
        ["train", "--quiet", "--config", run / "config.toml", "--out", run.parent / "again"],
    ]


def spoilt_runs(good: Path, folder: Path, seed: int = 0) -> Iterator[tuple[str, Path]]:
    """Endlessly many copies of a run in which one file is damaged or replaced by a hostile one."""
    rng = random.Random(seed)
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    texts = [*hostile.json_files(), *hostile.toml_files()]
    for number in range(10**6):
        place = folder / str(number)
        shutil.copytree(good, place / "run")
        shutil.copy(good.parent / "table.csv", place)
        file = rng.choice(files)
        content = (good / file).read_bytes()
        kind = rng.choice(["damage", "replace", "type", "folder"])
        if kind == "damage" and content:
            _, spoilt = next(islice(hostile.damage("a", content, rng), rng.randrange(1, 4), None))
            (place / "run" / file).write_bytes(spoilt)
        elif kind == "type" and file.suffix in (".json", ".toml", ".jsonl"):
            (place / "run" / file).write_bytes(hostile.other_type(file.suffix, content, rng))
        elif kind == "folder":
            (place / "run" / file).unlink()
            (place / "run" / file).mkdir()
        else:
            (place / "run" / file).write_bytes(rng.choice(texts)[1])
        yield f"{kind} of {file}", place / "run"
        shutil.rmtree(place)


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
    assert not problem("evaluate", tmp_path)
    assert not problem("predict", tmp_path, "--input", tmp_path / "x.csv", "--output", "p.csv")


def test_a_closed_folder_is_a_note_of_the_report(
    good_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(good_run, tmp_path / "good")
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed")
    contents = read([tmp_path])
    assert [method.name for method in contents.methods] == ["good"]
    assert contents.notes == (f"{tmp_path / 'closed'} is left out: it cannot be opened",)


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


@pytest.mark.fuzz
def test_a_full_disk_is_one_sentence_and_the_run_goes_on(good_run: Path, tmp_path: Path) -> None:
    """Files of at most so many bytes stand for a disk that is full at that moment."""
    pytest.importorskip("resource")
    script = """
import resource, sys
from dissensus.cli import main
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for most in map(int, sys.argv.pop(1).split(",")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        main()
    except SystemExit as stop:
        print(most, stop.code)
"""
    limits = [0, 100, 400, 700, 1000, 2000, 1 << 30]
    config, out = good_run / "config.toml", tmp_path / "run"
    settings = ["--config", str(config), "--out", str(out), "--overwrite", "--quiet"]
    words = ["-c", script, ",".join(map(str, limits)), "train", *settings]
    command = [sys.executable, *words]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    ends = [line.split() for line in answer.stdout.splitlines()]
    assert [int(most) for most, _ in ends] == limits, answer.stderr
    assert [code for _, code in ends] == ["2"] * (len(limits) - 1) + ["0"], answer.stderr
    errors = answer.stderr.splitlines()
    assert len(errors) == len(limits) - 1
    assert all(re.match("dissensus: .*(too large|written|[Ff]ull)", line) for line in errors), (
        errors
    )
    assert not list(out.rglob("*.part"))


def commands_on(file: Path, run: Path) -> list[list[object]]:
    """Every command that takes a file of inputs, predictions, data or settings."""
    train = ["train", "--quiet", "--epochs", 1, "--threads", 1, "--out", file.with_suffix(".run")]
    if file.suffix == ".toml":
        return [[*train, "--config", file]]
    return [
        ["predict", run, "--input", file, "--output", file.with_suffix(".out.csv")],
        ["ood", run, "--ood", file],
        ["evaluate", file],
        ["diagnose", file],
        [*train, "--data", file, "--target", "y"],
    ]


def hostile_commands(folder: Path, count: int) -> Iterator[list[object]]:
    """``count`` command lines: half on spoilt runs, half on hostile files."""
    rng = random.Random(1)
    good = make_good_run(folder / "good")
    for _, run in islice(spoilt_runs(good, folder / "spoilt"), count // 4):
        yield from rng.sample(commands(run), 2)
    yield from islice(commands_on_files(good, folder, rng), count - 2 * (count // 4))


def commands_on_files(good_run: Path, folder: Path, rng: random.Random) -> Iterator[list[object]]:
    """Endlessly many command lines on files made by hand and on damaged ones."""
    good = hostile.good_files(folder)
    for round_number in range(10**6):
        for kind in ("npz", "npy", "csv", "parquet", "safetensors", "toml"):
            by_hand = hostile.GENERATORS[kind]() if kind in hostile.GENERATORS else ()
            damaged = islice(hostile.damage("damaged", good[kind], rng), 12)
            files = [*(() if round_number else by_hand), *damaged]
            for number, (name, content) in enumerate(files):
                file = folder / f"{round_number}-{number}-{name}.{kind}"
                file.write_bytes(content)
                every = commands_on(file, good_run)
                yield from rng.sample(every, min(2, len(every)))


@pytest.mark.fuzz
def test_command_lines_on_hostile_files(tmp_path: Path) -> None:
    failures = [problem(*words) for words in hostile_commands(tmp_path, 40)]
    assert not list(filter(None, failures))

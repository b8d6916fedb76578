"""``dissensus train``: what it writes, going on, stopping, and mistakes in one sentence."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dissensus as ds
from dissensus import training
from dissensus.runs import describe, read_config
from dissensus.training.run_folder import read_checkpoint

SMALL = ["--model-option", "hidden=16", "--members", "3", "--batch-size", "256", "--threads", "1"]
WINE = ["--data", "wine", *SMALL]


def same_weights(one: Path, other: Path) -> bool:
    """Whether weights, best weights and moments agree bit for bit."""
    found = [read_checkpoint(run) for run in (one, other)]
    assert found[0] is not None
    assert found[1] is not None
    a, b = found[0][0], found[1][0]
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_is_trained_judged_and_kept(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "a run"
    wanted = ["--data", "digits", "--objective", "ldr:strength=0.1", "--epochs", 2, *SMALL]
    answer = dissensus("train", *wanted, "--out", out)
    assert answer.status == 0
    for text in ("accuracy", "members", "mean ERR", "DIV", "NLL", "ECE", "test", "val"):
        assert text in answer.out
    assert f"dissensus evaluate '{out}'" in answer.out
    assert "epoch 2/2" in answer.err

    config, record = read_config(out), json.loads((out / "record.json").read_text())
    assert config["data"] == {"name": "digits", "val": 0.2, "seed": 0}
    assert config["model"]["name"] == "mlp"
    assert config["model_options"] == {"hidden": 16}
    assert config["ensemble"]["combine"] == "probability"
    assert record["data"]["rows"] == {"train": 1150, "val": 288, "test": 359}
    assert record["val"]["accuracy"] == pytest.approx(record["best"]["val"]["accuracy"])
    assert record["val"]["diversity"] == pytest.approx(record["best"]["val"]["diversity"], rel=1e-4)

    kept = ds.Predictions.load(out / "predictions" / "test.safetensors")
    assert kept.targets is not None
    assert (kept.meta["split"], kept.meta["combine"]) == ("test", "probability")
    hits = ds.combine(kept.outputs).argmax(-1) == kept.targets
    assert record["test"]["accuracy"] == pytest.approx(float(hits.float().mean()))


def test_going_on_ends_with_the_same_bits(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    wanted = [*WINE, "--objective", "ldr:strength=0.1", "--model-option", "dropout=0.2"]
    assert dissensus("train", *wanted, "--epochs", 2, "--out", short).status == 0
    assert dissensus("train", *wanted, "--epochs", 4, "--out", long).status == 0
    assert not same_weights(short, long)
    assert dissensus("train", "--resume", "--out", short, "--epochs", 4).status == 0
    assert same_weights(short, long)
    assert (short / "metrics.jsonl").read_text() == (long / "metrics.jsonl").read_text()
    records = [json.loads((run / "record.json").read_text()) for run in (short, long)]
    assert records[0]["test"] == records[1]["test"]
    assert read_config(short) == read_config(long)


def test_a_regression_trains_with_squared_error(diabetes_run: Path) -> None:
    config = read_config(diabetes_run)
    assert config["training"]["objective"] == "independent:loss=mse,combine=mean"
    assert config["ensemble"]["combine"] == "mean"
    test = json.loads((diabetes_run / "record.json").read_text())["test"]
    assert test["diversity"] == pytest.approx(test["member_error"] - test["ensemble_error"])
    assert test["rmse"] > 10  # in the units of the target, not standardised
    assert "accuracy" not in test


def test_a_model_from_a_file(
    dissensus: Callable[..., Any],
    mistake: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_file.py").write_text(
        "from torch import nn\n"
        "def make_member(input_shape, outputs, width=4):\n"
        "    first = nn.Linear(*input_shape, width)\n"
        "    return nn.Sequential(first, nn.ReLU(), nn.Linear(width, outputs))\n"
    )
    wanted = ["--data", "wine", "--model", "my_file.py:make_member", "--model-option", "width=8"]
    answer = dissensus("train", *wanted, "--members", 2, "--epochs", 1, "--out", "run")
    assert answer.status == 0
    assert "dissensus evaluate run --trust" in answer.out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "if you trust it" in mistake("evaluate", "../run")
    assert "if you trust it" in mistake("train", "--resume", "--out", "../run")
    assert dissensus("evaluate", "../run", "--trust").status == 0
    assert dissensus("train", "--resume", "--out", "../run", "--epochs", 2, "--trust").status == 0


# ---- stopping -----------------------------------------------------------------------------------


def test_an_interrupt_says_how_to_go_on(
    dissensus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, out = training.fit, tmp_path / "my run"

    def stop(record: dict[str, Any], ens: object) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", lambda *a, **k: real(*a, **k | {"callbacks": [stop]}))
    answer = dissensus("train", *WINE, "--epochs", 3, "--out", out)
    assert answer.status == 130
    sentence = f"dissensus: stopped; go on with: dissensus train --resume --out '{out}'\n"
    assert answer.err.endswith(sentence)
    assert (describe(out).state, describe(out).epochs) == ("stopped", 1)
    judged = dissensus("evaluate", out)
    assert judged.status == 0
    assert "stopped after 1 of 3 epochs" in judged.out

    monkeypatch.setattr(training, "fit", real)
    assert dissensus("train", "--resume", "--out", out).status == 0
    assert dissensus("train", *WINE, "--epochs", 3, "--out", tmp_path / "whole").status == 0
    assert same_weights(out, tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    wanted = ["train", *WINE, "--epochs", "1000000", "--out", str(out), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dissensus", *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        wait_for_epochs(process, out / "metrics.jsonl")
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, printed) == (130, "")
    assert said == f"dissensus: stopped; go on with: dissensus train --resume --out {out}\n"
    run = describe(out)
    assert run.state == "stopped"
    answer = dissensus("train", "--resume", "--out", out, "--epochs", run.epochs + 1)
    assert answer.status == 0
    assert (describe(out).state, describe(out).epochs) == ("finished", run.epochs + 1)


def wait_for_epochs(process: "subprocess.Popen[str]", metrics: Path) -> None:
    deadline = time.monotonic() + 60
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say what to train on"),
        (["--data", "digit"], "no data set 'digit'; did you mean 'digits'?"),
        (["--data", "wine", "--objective", "ldrr"], "no objective 'ldrr'; did you mean 'ldr'?"),
        (["--data", "wine", "--model", "mpl"], "no model 'mpl'; did you mean 'mlp'"),
        (["--data", "wine", "--optimizer", "adan"], "no optimizer 'adan'; did you mean 'adam'?"),
        (["--data", "wine", "--schedule", "cosin"], "no schedule 'cosin'; did you mean 'cosine'?"),
        (["--data", "wine", "--model-option", "widths=3"], "no option 'widths'"),
        (["--data", "wine", "--data-option", "missing=drop"], "no option 'missing'"),
        (["--data", "wine", "--val", "half"], "--val must be a share below 1 or a whole number"),
        (["--data", "wine", "--epochs", "0"], "epochs must be an integer of at least 1"),
        (["--data", "wine", "--threads", "0"], "threads must be from 1 to 1024"),
        (["--data", "wine", "--device", "tpu9"], "there is no device 'tpu9'"),
        (["--data", "wine", "--augment", "adp"], "images must be"),
        (["--data", "wine", "--combine", "vote"], "combine"),
        (["--data", "wine", "--val", "0", "--patience", "2"], "need validation data"),
        (["--data", "diabetes", "--objective", "adp"], "classes"),
        (["--data", "digits", "--optimizer", "adam:lr=1e30"], "the loss of Independent is nan"),
        (["--config", "absent.toml"], "there is no file absent.toml"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, mistake: Callable[..., str], tmp_path: Path
) -> None:
    assert sentence in mistake("train", *arguments, "--quiet", "--out", tmp_path / "run")


def test_a_run_in_the_way_is_kept(mistake: Callable[..., str], digits_run: Path) -> None:
    before = (digits_run / "data.json").read_bytes()
    error = mistake("train", "--data", "wine", "--out", digits_run)
    assert "there is a run in" in error
    assert "--resume, replace it with --overwrite" in error
    assert (digits_run / "data.json").read_bytes() == before


def test_overwrite_replaces_a_run_and_nothing_else(
    dissensus: Callable[..., Any], mistake: Callable[..., str], digits_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(digits_run, out)
    for name in ("ood/ood.json", "ood/mine.txt", "robustness/record.json", "diagnosis.json"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("{}")
    (out / "notes.txt").write_text("mine")
    wanted = ["--data", "wine", "--epochs", 1, "--out", out, *SMALL, "--quiet"]
    assert "leave one out" in mistake("train", *wanted, "--overwrite", "--resume")
    assert "has no option" in mistake("train", *wanted, "--overwrite", "--model-option", "x=1")
    assert ds.runs.read_config(out)["data"]["name"] == "digits"  # a mistake costs nothing
    assert dissensus("train", *wanted, "--overwrite").status == 0
    assert ds.runs.read_config(out)["data"]["name"] == "wine"
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    kept = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    new = {"config.toml", "data.json", "metrics.jsonl", "record.json", "state.json"}
    new |= {"checkpoint.safetensors", *(f"predictions/{n}.safetensors" for n in ("val", "test"))}
    assert kept == {"ood/mine.txt", "notes.txt", *new}
    assert not (out / "robustness").exists()
    (out / "config.toml").write_text("mine = true\n")
    assert "is not the config of a run" in mistake("train", *wanted, "--overwrite")
    assert (out / "config.toml").read_text() == "mine = true\n"


def test_a_table_that_changed_is_noticed(
    dissensus: Callable[..., Any], mistake: Callable[..., str], tmp_path: Path
) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "run"
    rows = [f"{i},{i * 7 % 11},{'ab'[i % 2]}" for i in range(40)]
    table.write_text("u,v,kind\n" + "\n".join(rows) + "\n")
    wanted = ["--data", table, "--target", "kind", "--epochs", 1, *SMALL]
    assert dissensus("train", *wanted, "--out", out).status == 0
    table.write_text("u,v,kind\n" + "\n".join(reversed(rows)) + "\n")
    for arguments in (["train", "--resume", "--out", out], ["evaluate", out]):
        assert "is not what" in mistake(*arguments)

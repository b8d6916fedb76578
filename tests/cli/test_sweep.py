"""``dissensus sweep``: a grid in, records and a table out."""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dissensus.sweeps import CellFolder, run
from tests.markdown import SHELLS, dissensus_arguments, fenced_blocks, shell_commands

README = Path(__file__).parents[2] / "README.md"

DIABETES = [
    *("--data", "diabetes", "--objective", "augmented", "--members", 3, "--batch-size", 64),
    *("--model-option", "hidden=8", "--optimizer", "adam:lr=0.01", "--threads", 1),
]
GRID = ["--grid", "beta=0:1:0.5"]
STOPPED = "dissensus: stopped; finished cells are kept, go on with:"


def test_a_cell_is_what_train_makes_of_its_settings(
    dissensus: Callable[..., Any], tmp_path: Path
) -> None:
    out, run_folder = tmp_path / "sweep", tmp_path / "run"
    answer = dissensus(
        "sweep", *DIABETES, *GRID, "--repeats", 2, "--epochs", 6, "--patience", 2, "--out", out
    )
    assert answer.status == 0, answer.err
    for text in ("beta", "val ERR", "test ERR", "test DIV", "2/2", "±", "Best by validation (*)"):
        assert text in answer.out
    assert f"Written to {out}: sweep.toml, summary.json, 6 records in cells/" in answer.out
    assert "cells" in answer.err
    assert {path.name for path in out.iterdir()} >= {"sweep.toml", "summary.json", "cells"}

    words = [*DIABETES, "--objective", "augmented:beta=0.5", "--seed", 1, "--split-seed", 1]
    words += ["--epochs", 6, "--patience", 2, "--out", run_folder, "--quiet"]
    assert dissensus("train", *words).status == 0
    record = json.loads((run_folder / "record.json").read_text())
    cell = CellFolder(out / "cells").done()["beta=0.5+repeat=1"]["result"]
    assert cell["best_epoch"] == record["best_epoch"]
    for part in ("val", "test"):
        for key in ("ensemble_error", "member_error", "diversity"):
            assert cell[part][key] == pytest.approx(record[part][key], rel=1e-3, abs=1e-6)

    first = CellFolder(out / "cells").done()["beta=0.5+repeat=0"]["result"]
    assert "held_out" not in cell
    kept = first["held_out"]
    outputs, targets = torch.tensor(kept["outputs"]), torch.tensor(kept["targets"])
    assert outputs.shape[1:] == (40, 1) == targets.shape
    error = float((outputs.mean(0) - targets).square().mean())
    assert 0.3 < error / first["test"]["ensemble_error"] < 3  # of 40 of the 89 rows

    summary = json.loads((out / "summary.json").read_text())
    assert [row["point"]["beta"] for row in summary["rows"]] == [0.0, 0.5, 1.0]
    assert summary["chosen_by"] in answer.out

    again = dissensus("sweep", "--resume", "--out", out)
    assert again.status == 0
    assert "6 of 6 cells are done already" in again.err
    assert again.out == answer.out


def test_failures_are_told_and_tried_again(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    words = [*DIABETES, "--epochs", 1, "--grid", "lr=0.01,1e30", "--out", tmp_path]
    answer = dissensus("sweep", *words)
    assert answer.status == 1
    assert "lr=1e+30, repeat 0 failed: NonFiniteLoss" in answer.err
    assert "1 of 2 cells failed" in answer.err
    assert "the same command tries them again" in answer.err
    assert "0/1 (1 failed)" in answer.out
    assert "Best by validation (*): lr=0.01" in answer.out
    assert "1 of 2 cells are done already" in dissensus("sweep", *words).err


def test_an_interrupt_says_how_to_go_on(
    dissensus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "my sweep"
    real = run.SweepProgress.record

    def stop(shown: Any, record: dict[str, Any]) -> None:
        real(shown, record)
        if len(shown.records) == 2:
            raise KeyboardInterrupt

    words = [*DIABETES, *GRID, "--epochs", 1, "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr(run.SweepProgress, "record", stop)
        answer = dissensus("sweep", *words)
    assert answer.status == 130
    told = f"{STOPPED} dissensus sweep --resume --out '{out}'\n"
    assert answer.err.endswith(told)
    assert json.loads((out / "summary.json").read_text())["done"] == 2
    resumed = dissensus(*shlex.split(told.partition(": dissensus ")[2]))
    assert resumed.status == 0
    assert "2 of 3 cells are done already" in resumed.err

    def early(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_check_plan", early)
    answer = dissensus("sweep", *DIABETES, *GRID, "--out", tmp_path / "none")
    assert answer.status == 130
    assert answer.err == "dissensus: stopped before training began; nothing was written\n"
    assert not (tmp_path / "none").exists()


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [[], ["--jobs", "2"]], ids=["here", "processes"])
def test_ctrl_c_keeps_what_is_done(jobs: list[str], tmp_path: Path) -> None:
    words = [*DIABETES, *jobs, "--grid", "batch_size=8,9,10,11,12", "--repeats", "2"]
    words += ["--epochs", "60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dissensus", "sweep", *map(str, words), "--out", "s", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # Where a script runs the tests in the background, Ctrl-C is ignored from the start.
        preexec_fn=_heed_ctrl_c,
    )
    try:
        deadline = time.monotonic() + 600  # a busy machine is no failure
        while not list((tmp_path / "s" / "cells").glob("[!.]*.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, printed) == (130, "")
    assert said == " ".join([STOPPED, "dissensus sweep --resume --out s", *jobs]) + "\n"
    kept = CellFolder(tmp_path / "s" / "cells").done()
    assert 0 < len(kept) < 10
    assert json.loads((tmp_path / "s" / "summary.json").read_text())["done"] == len(kept)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "say what to train on"),
        ([*DIABETES, "--grid", "beta"], "--grid must be key=value"),
        ([*DIABETES, "--search", "lrr=0,1"], "--search cannot vary 'lrr'; did you mean 'lr'?"),
        ([*DIABETES, *GRID, "--repeats", 10**9], "cells; 100000 are the most"),
        ([*DIABETES, "--repeats", "0"], "repeats must be an integer of at least 1"),
        ([*DIABETES, "--jobs", "0"], "jobs must be an integer of at least 1"),
        ([*DIABETES, "--gpus-per-run", 1], "--ray-address need --engine ray"),
        ([*DIABETES, "--engine", "rai"], "engine must be one of local, ray, got 'rai'"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, mistake: Callable[..., str], tmp_path: Path
) -> None:
    assert sentence in mistake("sweep", *arguments, "--quiet", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_sweep_in_the_same_folder_is_refused(
    dissensus: Callable[..., Any], mistake: Callable[..., str], tmp_path: Path
) -> None:
    words = ["sweep", *DIABETES, "--epochs", 1, "--out", tmp_path]
    assert dissensus(*words, *GRID, "--quiet").status == 0
    told = mistake("sweep", "--resume", "--out", tmp_path, "--epochs", 2, "--quiet")
    assert (
        "holds a sweep with other settings (training.epochs was 1, now 2); choose another --out"
        in told
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_what_one_engine_began_the_other_goes_on_with(
    dissensus: Callable[..., Any], tmp_path: Path
) -> None:
    words = ["sweep", *DIABETES, *GRID, "--epochs", 1, "--out", tmp_path]
    there = dissensus(*words, "--engine", "ray", "--cpus-per-run", 1)
    assert there.status == 0, there.err
    assert "Best by validation (*)" in there.out
    here = dissensus("sweep", "--resume", "--repeats", 2, "--out", tmp_path)
    assert here.status == 0, here.err
    assert "3 of 6 cells are done already" in here.err


@pytest.mark.skipif(not README.exists(), reason="there is no README.md beside tests/")
def test_the_readme_command_runs(
    dissensus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in fenced_blocks(README.read_text()) if block.language in SHELLS]
    words = [dissensus_arguments(w) for block in blocks for w in shell_commands(block.code)]
    (command,) = [w for w in words if w and w[0] == "sweep"]
    answer = dissensus(*command, "--epochs", 1, "--threads", 1)
    assert answer.status == 0, answer.err
    assert "Best by validation" in answer.out

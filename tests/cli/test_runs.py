"""``dissensus runs``: one row a run, and one for whatever else lies there."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_runs_and_what_is_none(
    dissensus: Callable[..., Any], digits_run: Path, diabetes_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(digits_run, tmp_path / "images")
    shutil.copytree(diabetes_run, tmp_path / "deeper" / "still" / "table")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("hello")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_text("[training\n")
    shutil.copytree(digits_run, tmp_path / "cut")
    checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    shutil.copytree(digits_run, tmp_path / "begun")
    (tmp_path / "begun" / "checkpoint.safetensors").unlink()

    answer = dissensus("runs", tmp_path)
    assert answer.status == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line.strip()}
    for text in ("independent", "digits", "3", "2/2", "finished", "%"):
        assert text in rows["images"]
    assert "ERR" in rows["deeper/still/table"]
    assert "not a run: it has no config.toml" in rows["foreign"]
    assert "cannot be read" in rows["half"]
    assert "not a checkpoint that can be read" in rows["cut"]
    assert "begun" in rows["begun"]
    assert {"images", "foreign", "half", "cut", "begun"} < rows.keys()


def test_an_empty_and_a_missing_folder(
    dissensus: Callable[..., Any], mistake: Callable[..., str], tmp_path: Path
) -> None:
    answer = dissensus("runs", tmp_path)
    assert answer.status == 0
    assert "There are no runs in" in answer.out
    assert "there is no folder" in mistake("runs", tmp_path / "absent")


def test_the_list_appears_without_torch(digits_run: Path) -> None:
    program = (
        f"import sys; sys.argv = ['dissensus', 'runs', {str(digits_run)!r}]\n"
        "import atexit; atexit.register(lambda: print('torch' in sys.modules))\n"
        "from dissensus.cli import main; main()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=digits_run,
    )
    assert run.stdout.splitlines()[-1] == "False"

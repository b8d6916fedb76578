"""One writer to a folder: the second gets one sentence and touches nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from dissensus.cli import main
from dissensus.runs import find_runs
from dissensus.tools.files import lock, lock_folder
from dissensus.tools.records import read_metrics
from tests.runs.small_runs import trained


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--resume"],
        ["train", "--data", "wine", "--overwrite"],
        ["sweep", "--data", "wine", "--grid", "lr=0.1"],
    ],
    ids=["resume", "overwrite", "sweep"],
)
def test_the_second_touches_nothing(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The lock is held by another process, whose file it is about to rename."""
    trained(tmp_path / "run")
    part = tmp_path / "run" / ".checkpoint.safetensors.0123456789abcdef.part"
    part.write_text("half")
    code = (
        "import sys; from dissensus.tools.files import lock_folder\n"
        "with lock_folder(sys.argv[1]):\n"
        "    print('ready', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    before = contents(tmp_path)
    monkeypatch.setattr(lock, "_SECONDS_TO_DIE", 0.0)
    monkeypatch.setattr(sys, "argv", ["dissensus", *words, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith(f"dissensus: process {holder.pid} on ")
    assert sentence.endswith("/run; wait, or choose another folder\n")
    assert contents(tmp_path) == before
    holder.kill()
    holder.communicate()
    with lock_folder(tmp_path / "run"):  # a kill leaves no lock
        pass


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("lines", "text"),
    [([0, 1, 1, 2], "it has epoch 2 twice"), ([0, 2], "it has no epoch 2")],
    ids=["twice", "missing"],
)
def test_an_epoch_that_is_there_twice_or_missing_is_noticed(
    lines: list[int], text: str, tmp_path: Path
) -> None:
    trained(tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[line] for line in lines))
    with pytest.raises(ValueError, match=rf"metrics\.jsonl is damaged: {text}"):
        read_metrics(tmp_path / "run")
    with pytest.raises(ValueError, match=text):
        trained(tmp_path / "run", epochs=5, resume=True)
    (found,) = find_runs(tmp_path)
    assert found.state == "unreadable"
    assert text in found.problem


def test_a_run_that_died_before_its_config_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.json").write_text("{}\n")
    words = ["dissensus", "train", "--resume", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    assert "begin anew with --data" in capsys.readouterr().err
    small = ["--data", "wine", "--epochs", "1", "--members", "2", "--quiet"]
    monkeypatch.setattr(sys, "argv", words + small)
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert len(read_metrics(tmp_path)) == 1

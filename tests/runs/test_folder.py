"""Run folders: what their files say, and damage that is named."""

import json
from pathlib import Path

import pytest

from dissensus.runs import describe, find_runs
from tests.runs.small_runs import trained


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


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.toml", b"\xff\xfe", "cannot be read"),
        ("config.toml", b"a = 1", "is not the config of a run"),
        ("config.toml", b"a = " + b"[" * 9999, "cannot be read"),
        (
            "config.toml",
            b"[training]\n[ensemble]\nmembers = '[/b]'",
            "members must be a whole number",
        ),
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

"""Run folders that are not what they should be, and what is said about them before any work."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.tools.files import replace_atomically
from dissensus.training import NonFiniteLoss, fit
from dissensus.training.run_folder import read_checkpoint
from tests.training.problems import blobs, dense_mlp, norm_mlp, same_bits, state


def train(out: Path, **options: Any) -> tuple[Ensemble, Any]:
    ens = options.pop("ens", None) or Ensemble(norm_mlp, members=options.pop("members", 2))
    train_data = options.pop("train", blobs(40))
    settings = {"epochs": 2, "batch_size": 16, "progress": False} | options
    return ens, fit(ens, train_data, out=out, **settings)


def never(x: Tensor, generator: torch.Generator) -> Tensor:
    raise AssertionError("training began")


def test_a_run_is_never_overwritten_by_mistake(tmp_path: Path) -> None:
    train(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"there is a run in .* pass resume=True \(--resume\)"):
        train(tmp_path, augment=never)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 8}, "training.batch_size was 16, now 8"),
        ({"objective": "ldr"}, "training.objective was 'independent', now 'ldr'"),
        ({"optimizer": "adam:lr=0.5"}, "training.optimizer was 'adam:lr=0.001,.*now 'adam:lr=0.5"),
        ({"seed": 1}, "training.seed was 0, now 1"),
        ({"clip": None}, "training.clip was 1.0, now 'not set'"),
        ({"members": 3}, "ensemble.members was 2, now 3"),
        ({"config": {"data": {"name": "b"}}}, "data.name was 'a', now 'b'"),
        ({"seed": 1, "batch_size": 8}, "batch_size was 16, now 8; training.seed was 0, now 1"),
        ({"ens": Ensemble(dense_mlp, members=2)}, "is of another ensemble"),
    ],
)
def test_a_run_goes_on_with_the_settings_it_began_with(
    changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    settings = {"clip": 1.0, "config": {"data": {"name": "a"}}}
    train(tmp_path, **settings)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    config = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(ValueError, match=text.replace(".", r"\.").replace(r"\.*", ".*")):
        train(tmp_path, resume=True, epochs=3, augment=never, **settings | changes)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    if "ens" not in changes:
        assert (tmp_path / "config.toml").read_bytes() == config


# ---- damaged and foreign files ------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    save_file({"x": torch.zeros(2)}, path)


def of_another_version(path: Path) -> None:
    save_file(load_file(path), path, metadata={"format": "dissensus.checkpoint/99", "values": "{}"})


def without_values(path: Path) -> None:
    save_file(load_file(path), path, metadata={"format": "dissensus.checkpoint/1"})


def broken_values(path: Path) -> None:
    header = {"format": "dissensus.checkpoint/1", "values": "{"}
    save_file(load_file(path), path, metadata=header)


@pytest.mark.parametrize(
    "damage", [cut, emptied, foreign, of_another_version, without_values, broken_values]
)
def test_a_damaged_checkpoint_is_named(damage: Any, tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "checkpoint.previous.safetensors").unlink()
    damage(tmp_path / "checkpoint.safetensors")
    text = "checkpoint.safetensors is not a checkpoint that can be read: "
    with pytest.raises(ValueError, match=text):
        train(tmp_path, resume=True, epochs=3, augment=never)
    with pytest.raises(ValueError, match=text):
        read_checkpoint(tmp_path)


def test_damaged_neighbours_are_named(tmp_path: Path) -> None:
    train(tmp_path)
    config = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text("members = ")
    with pytest.raises(ValueError, match=r"config\.toml cannot be read as TOML: "):
        train(tmp_path, resume=True, epochs=3, augment=never)
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "state.json").write_text("{")  # for people only
    lines = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(lines[: len(lines) // 2])
    with pytest.raises(ValueError, match=r"metrics\.jsonl has \d epochs, the checkpoint beside it"):
        train(tmp_path, resume=True, epochs=3, augment=never)
    (tmp_path / "metrics.jsonl").write_text(lines + '{"epoch": 3, "tr')
    _, history = train(tmp_path, resume=True, epochs=3)
    assert len(history.epochs) == 3
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_what_kills_leave_behind_is_cleared_away(tmp_path: Path) -> None:
    for name in (".config.toml.0123456789abcdef.part", ".writable", ".keep"):
        (tmp_path / name).write_text("half")
    train(tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [".keep"]


# ---- folders that cannot be written -------------------------------------------------------------


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_bavail, f_frsize = 3, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Full)
    with pytest.raises(ValueError, match=r"has 0 MiB free, a run of this size needs about \d+ MiB"):
        train(tmp_path, augment=never)


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def half(part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        replace = "dissensus.tools.files.tensors.replace_atomically"
        patch.setattr(replace, lambda path, write: replace_atomically(path, half))
        with pytest.raises(OSError, match="No space left"):
            train(tmp_path, resume=True, epochs=3)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*"))
    ens, _ = train(tmp_path, resume=True, epochs=3)
    whole, _ = train(tmp_path / "whole", epochs=3)
    assert same_bits(state(ens), state(whole))


# ---- numbers that are none ----------------------------------------------------------------------


def test_the_last_good_checkpoint_outlives_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    x, y = blobs(40)
    steps = []

    def poisoned(x: Tensor, generator: torch.Generator) -> Tensor:
        steps.append(len(x))
        return x * float("nan") if len(steps) == 8 else x  # epoch 3, batch 2

    with pytest.raises(NonFiniteLoss, match=r"epoch 3, batch 2 \(not finite: member_error"):
        train(tmp_path, train=(x, y), epochs=5, augment=poisoned)
    tensors, values = read_checkpoint(tmp_path)
    assert values["epoch"] == 2
    assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
    ens, _ = train(tmp_path, train=(x, y), epochs=5, resume=True)
    whole, _ = train(tmp_path / "whole", train=(x, y), epochs=5)
    assert same_bits(state(ens), state(whole))


# ---- growth -------------------------------------------------------------------------------------

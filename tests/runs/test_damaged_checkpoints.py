"""Damaged checkpoints: a run goes back to the checkpoint before, or touches nothing."""

import json
from pathlib import Path

import pytest

import dissensus as ds
from dissensus.training.run_folder import read_checkpoint
from tests.runs.small_runs import make_member, trained
from tests.training.problems import same_bits, state


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.mark.parametrize("bit", [5, 8 * 400, -8 * 3])
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(bit: int, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", epochs=5)
    trained(tmp_path / "run", epochs=3)
    file = tmp_path / "run" / "checkpoint.safetensors"
    flip(file, bit % (8 * file.stat().st_size))
    with pytest.raises(ValueError, match="resume the run, to go back to the checkpoint before it"):
        ds.load(tmp_path / "run", make_member=make_member)
    with pytest.warns(UserWarning, match=r"ckpoint\.safetensors .*; going on from the checkpoint"):
        ens = trained(tmp_path / "run", epochs=5, resume=True)
    assert same_bits(state(ens), state(whole))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("run", "whole")]
    assert metrics[0] == metrics[1]
    names = [sorted(p.name for p in (tmp_path / name).iterdir()) for name in ("run", "whole")]
    assert names[0] == names[1]


def test_where_both_checkpoints_are_damaged_nothing_is_touched(tmp_path: Path) -> None:
    trained(tmp_path)
    files = [tmp_path / f"checkpoint.{name}safetensors" for name in ("", "previous.")]
    for file in files:
        flip(file, 8 * file.stat().st_size - 40)
    before = [file.read_bytes() for file in files]
    with pytest.raises(ValueError, match="does not match its checksum"):
        trained(tmp_path, epochs=5, resume=True)
    assert [file.read_bytes() for file in files] == before


def test_a_checkpoint_that_lacks_a_tensor_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    trained(tmp_path)
    tensors, values = read_checkpoint(tmp_path) or ({}, {})
    tensors = {name.replace("optimizer.", "optimized."): t for name, t in tensors.items()}
    header = {"format": "dissensus.checkpoint/1", "values": json.dumps(values)}
    save_file(tensors, tmp_path / "checkpoint.safetensors", header)
    with pytest.raises(ValueError, match="lacks the tensor"):
        trained(tmp_path, epochs=5, resume=True)

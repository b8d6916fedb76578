"""Any number of processes trains an ensemble to the same end as one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dissensus.training.distributed.ranks import Layout
from tests.training.distributed.cases import CASES, Case, data, make, train
from tests.training.distributed.stories import EPOCHS, PASSED_ON, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]
ROOT = Path(__file__).parents[3]
RUNS = [(case, ranks) for case in CASES for ranks in case.meshes]


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ranks have left what they came to; all of them were started by one program."""
    folder = tmp_path_factory.mktemp("ranks")
    x, y = data(0, 90, regression=False)
    np.savez(folder / "digits.npz", x=x.float().numpy(), y=y.numpy())
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.training.distributed.ranks", str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one process comes to, found once for each case."""
    return {}


def seen(top: Path, name: str, ranks: int) -> list[dict[str, Any]]:
    """What each rank has left under a name."""
    return [json.loads((top / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]


def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest difference of two states with the same tensors."""
    assert a.keys() == b.keys()
    assert all(a[name].shape == b[name].shape for name in a)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def numbers(value: Any) -> list[float]:
    """All numbers of a record, in their order."""
    if isinstance(value, dict):
        return [n for name in sorted(value) for n in numbers(value[name])]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [] if value is None else [float(value)]


@pytest.mark.parametrize(("case", "ranks"), RUNS, ids=[f"{c.name}-{ranks}" for c, ranks in RUNS])
def test_ranks_come_to_the_weights_and_losses_of_one_process(
    case: Case, ranks: int, top: Path, alone: dict[str, Any]
) -> None:
    name = f"{ranks}-{case.name.replace('/', '-')}"
    states = [load_file(top / f"{name}-{rank}.safetensors") for rank in range(ranks)]
    records = seen(top, name, ranks)
    for state, record in zip(states[1:], records[1:], strict=True):
        assert apart(state, states[0]) == 0.0
        assert record["epochs"] == records[0]["epochs"]
    if case.name not in alone:
        alone[case.name] = train(case)
    ens, history = alone[case.name]
    assert apart(states[0], make(case).state_dict()) > 1e-3  # something was learnt
    distance = apart(states[0], ens.state_dict())
    figures = torch.tensor(numbers(records[0]["epochs"])), torch.tensor(numbers(history.epochs))
    if not case.exact:
        assert 1e-6 < distance < 0.5
        return
    assert distance < 1e-9
    torch.testing.assert_close(*figures, rtol=1e-6, atol=1e-9)
    assert (records[0]["best"], records[0]["ended"]) == (history.best_epoch, history.ended)


def test_decisions_were_put_to_the_test(alone: dict[str, Any], top: Path) -> None:
    case = next(case for case in CASES if case.name == "decisions")
    (record, *_) = seen(top, "2-decisions", 2)
    assert record["ended"] == "patience"
    assert len(record["epochs"]) < case.settings["epochs"]


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_run_changes_hands_amid_an_epoch_and_goes_on_to_the_same_numbers(
    name: str, top: Path, tmp_path: Path
) -> None:
    """Begun by two ranks, stopped amid an epoch, gone on with by four, ended by one."""
    case, folder = PASSED_ON[name], top / "passed_on" / name
    # The others hear of the wish to stop in the next exchange: in the fourth step, or, where steps
    # exchange nothing, at the end of the epoch.
    (amid, *_), (later, *_) = seen(top, "2-pass_on", 2), seen(top, "4-pass_on", 4)
    assert amid[name] == ([2, 1] if "independent" in name else [1, 4])
    assert later[name] == [3, 0]
    ens, history = train(case, out=folder, resume=True, epochs=EPOCHS)
    whole, expected = train(case, out=tmp_path / "run", epochs=EPOCHS)
    assert apart(ens.state_dict(), whole.state_dict()) < 1e-9
    torch.testing.assert_close(
        torch.tensor(numbers(history.epochs)), torch.tensor(numbers(expected.epochs))
    )
    files = [load_file(path / "checkpoint.safetensors") for path in (folder, tmp_path / "run")]
    assert apart(*files) < 1e-9  # moments and step counts are in there
    names = [sorted(file.name for file in path.iterdir()) for path in (folder, tmp_path / "run")]
    assert names[0] == names[1]


def test_the_command_line_trains_in_several_processes_and_goes_on_in_others(
    top: Path, tmp_path: Path
) -> None:
    """Two along members, along data, and anew; the first shows and writes, all have errors."""
    first, second = (found["shown"] for found in seen(top, "2-command", 2))
    assert "2 epochs" in first[0]
    assert "3 epochs" in first[1]
    assert "4 epochs" in first[3]
    assert [second[0], second[1], second[3]] == ["exit 0"] * 3
    assert all(
        "there is a run in" in shown[2] and "exit 2" in shown[2] for shown in (first, second)
    )
    (tmp_path / "digits.npz").write_bytes((top / "digits.npz").read_bytes())
    run_command("--out", str(tmp_path / "command"), "--epochs", "4")
    figures = []
    for folder in (top / "command", tmp_path / "command"):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        figures.append(torch.tensor([n for line in lines for n in numbers(json.loads(line))]))
    torch.testing.assert_close(*figures, rtol=1e-4, atol=1e-6)
    names = [
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        for folder in (top / "command", tmp_path / "command")
    ]
    assert names[0] == names[1]
    record = json.loads((top / "command" / "record.json").read_text())
    assert record["distributed"] == {"members": 2, "data": 1}
    assert record["members"] == 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_exchanges_outputs_alone(ranks: int, top: Path) -> None:
    """Bytes by hand: 4 members × 32 rows × 10 classes of 4 bytes, 3 numbers in front, 3 steps."""
    head, parameters = 3 * 4, 4 * (6 * 10 + 10) * 4
    for sent in seen(top, f"{ranks}-traffic", ranks):
        assert {k for k, n in sent["independent members"].items() if n} == set()
        assert sent["independent data"]["gradients"] == 3 * parameters
        assert "outputs" not in sent["independent data"]
        for name in ("adp", "ldr:active=4"):
            assert sent[f"{name} members"]["outputs"] == 3 * (4 * 32 * 10 * 4 // ranks + head)
            assert "gradients" not in sent[f"{name} members"]
            assert sent[f"{name} data"]["gradients"] == 3 * parameters


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_first_rank_calls_back_with_all_members(ranks: int, top: Path) -> None:
    first, *others = seen(top, f"{ranks}-called_back", ranks)
    assert first["calls"] == [[5, 9, 7], [5, 9, 7]]
    assert all(other["calls"] == [] for other in others)
    assert {(o["ended"], o["epochs"]) for o in (first, *others)} == {("callback", 2)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_holds_its_own_members_only(ranks: int, top: Path) -> None:
    each = 4 * 7 + 7
    layout = Layout(5, ranks, 1)
    for rank, found in enumerate(seen(top, f"{ranks}-held", ranks)):
        assert found.pop("held") == len(layout.own(rank)) * each
        assert found == {"refused": 5 * each, "after": 5 * each, "stopped": 5 * each}


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_wrong_is_said_on_all_ranks_and_the_group_goes_on(ranks: int, top: Path) -> None:
    for found in seen(top, f"{ranks}-refused", ranks):
        assert f"a mesh of 3 × 1 (members × data) needs 3 ranks, got {ranks}" in found["mesh"]
        assert "sync_batchnorm needs execution='looped'" in found["stacked"]
        assert "there is a run in" in found["folder"]
        assert "the validation data are empty" in found["empty"]
        if ranks == 4:
            assert "4 ranks cannot share 2 members" in found["members"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other_batches", "rank 1 has another batch than rank 0"),
        ("poisoned", "the loss of Joint is nan at epoch 1, batch 1"),
        ("hanging", "one of them ended, or did not answer for 2 s"),
    ],
)
def test_an_error_ends_all_ranks_in_time(name: str, text: str, top: Path) -> None:
    for found in seen(top, name, 2):
        assert text in found["message"]
        assert found["seconds"] < 15

"""Cells: one record each, whole or not there; what is done is never done again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dissensus.sweeps import Cell, CellFolder, run_cells
from tests.sweeps.cell_runs import deadly, slow, slow_cells, sometimes, square, threads

ROOT = Path(__file__).parents[2]


def cells(count: int = 4, **settings: Any) -> list[Cell]:
    return [{"name": f"x={x}", "x": x, **settings} for x in range(count)]


def quietly(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return run_cells(*arguments, progress=False, **options)


@pytest.mark.parametrize("jobs", [1, 2])
def test_records_come_in_order_and_say_what_made_them(jobs: int, tmp_path: Path) -> None:
    seen: list[str] = []
    made = quietly(cells(), square, tmp_path, jobs=jobs, on_record=lambda r: seen.append(r["name"]))
    assert [record["result"] for record in made] == [{"square": x**2} for x in range(4)]
    assert [record["cell"] for record in made] == cells()
    assert sorted(seen) == [f"x={x}" for x in range(4)]
    on_disk = CellFolder(tmp_path).done()
    assert list(on_disk.values()) == made
    facts = made[0]["facts"]
    assert facts["packages"]["torch"]
    assert facts["written"].endswith("+00:00")
    assert made[0]["seconds"] >= 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_cell_is_recorded_the_rest_goes_on_and_it_is_run_again(
    jobs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = cells(4, allowed=str(tmp_path / "allowed"))
    made = run_cells(wanted, sometimes, tmp_path / "cells", jobs=jobs, title="study")
    told = capsys.readouterr().err
    assert "study: x=1 failed: RuntimeError: 1 is odd" in told
    assert "study: 2 of 4 cells done, 2 failed" in told
    odd = [None, "RuntimeError: 1 is odd", None, "RuntimeError: 3 is odd"]
    assert [record.get("error") for record in made] == odd
    assert any("sometimes" in line for line in made[1]["traceback"])
    assert set(CellFolder(tmp_path / "cells").done()) == {"x=0", "x=2"}
    (tmp_path / "allowed").touch()
    again = quietly(wanted, sometimes, tmp_path / "cells", jobs=jobs)
    assert [record["result"]["square"] for record in again] == [0, 1, 4, 9]
    assert (again[0], again[2]) == (made[0], made[2])


def test_a_result_that_json_cannot_hold_is_a_failure(tmp_path: Path) -> None:
    (made,) = quietly(cells(1), lambda cell: {"loss": float("nan")}, tmp_path)
    assert "finite, plain JSON values" in made["error"]


def test_a_record_of_other_settings_is_refused_or_replaced(tmp_path: Path) -> None:
    quietly(cells(2, beta=0.1), square, tmp_path)
    with pytest.raises(ValueError, match=r"x=0\.json was made with other settings \(beta 0.1, not"):
        quietly(cells(2, beta=0.2), square, tmp_path)
    made = quietly(cells(2, beta=0.2), square, tmp_path, again=True)
    assert [record["cell"]["beta"] for record in made] == [0.2, 0.2]
    assert list(CellFolder(tmp_path).done().values()) == made


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "é", None, "x" * 200])
def test_a_name_that_is_no_safe_file_name_is_refused(name: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a cell needs a name of letters"):
        quietly([{"name": name}], square, tmp_path)


def test_a_foreign_or_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x=0.json").write_text('{"name": "x=0"')
    with pytest.raises(ValueError, match=r"x=0\.json is not a record that can be read"):
        quietly(cells(1), square, tmp_path)
    (tmp_path / "x=0.json").write_text('{"name": "another"}')
    with pytest.raises(ValueError, match=r"x=0\.json is not the record of a cell of that name"):
        quietly(cells(1), square, tmp_path)


def test_a_process_that_dies_costs_one_cell(tmp_path: Path) -> None:
    made = quietly(cells(5), deadly, tmp_path, jobs=2)
    assert "3 workers died (BrokenProcessPool), perhaps for lack of memory" in made[1]["error"]
    assert [record["result"]["square"] for record in made if "result" in record] == [0, 4, 9, 16]
    assert "error" in CellFolder(tmp_path).records()["x=1"]


@pytest.mark.slow
def test_processes_have_one_thread_and_leave_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    made = quietly(cells(2), threads, tmp_path, jobs=2)
    assert [record["result"] for record in made] == [{"torch": 1, "variable": "1"}] * 2
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_done(tmp_path: Path) -> None:
    """Here and with processes, which are ended."""
    for jobs in (1, 2):
        place = tmp_path / str(jobs)
        place.mkdir()
        wanted = slow_cells(place)

        def stop(record: dict[str, Any]) -> None:
            if record["name"] == "c3":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            quietly(wanted, slow, place / "cells", jobs=jobs, on_record=stop)
        done = CellFolder(place / "cells").done()
        assert "c3" in done
        assert len(done) < len(wanted)
        for line in (place / "log").read_text().splitlines():
            process = int(line.split()[1])
            assert process == os.getpid() or not alive(process)
        quietly(wanted, slow, place / "cells", jobs=jobs)
        begun = Counter(line.split()[0] for line in (place / "log").read_text().splitlines())
        assert all(begun[name] == 1 for name in done)
        assert set(begun) == {cell["name"] for cell in wanted}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kill_costs_at_most_the_running_cells(jobs: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.sweeps.cell_runs", str(tmp_path), str(jobs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    log, kills = tmp_path / "log", 3
    for number in range(1, kills + 1):
        program = subprocess.Popen(words, cwd=ROOT, env=environment)
        wait_until(lambda n=number: log.exists() and len(log.read_text().split("\n")) > 3 * n)
        program.kill()
        program.wait()
        for path in (tmp_path / "cells").glob("[!.]*.json"):
            assert json.loads(path.read_text())["result"]  # whole, whenever the kill came
    assert len(CellFolder(tmp_path / "cells").done()) >= kills
    # Processes that lost their parent end by themselves.
    mine = {int(line.split()[1]) for line in log.read_text().splitlines()}
    wait_until(lambda: not any(alive(process) for process in mine))

    made = quietly(slow_cells(tmp_path), slow, tmp_path / "cells", jobs=1)
    assert [record["result"]["square"] for record in made] == [x**2 for x in range(12)]
    begun = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert sum(begun.values()) <= 12 + kills * jobs


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_busy_workers_end_with_their_parent(number: int, tmp_path: Path) -> None:
    """Whatever ends it, and although their Python code never pauses."""
    words = [sys.executable, "-m", "tests.sweeps.cell_runs", str(tmp_path), "2", "busy"]
    program, log = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL), tmp_path / "log"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2)
    workers = [int(line.split()[1]) for line in log.read_text().splitlines()]
    assert all(map(alive, workers))
    program.send_signal(number)
    program.wait(timeout=30)
    wait_until(lambda: not any(map(alive, workers)), seconds=10)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A process that ended stays in the table until its parent asks; that is not alive.
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)

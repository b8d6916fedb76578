"""Cells on Ray: a real cluster of this machine, workers killed, programs stopped and killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dissensus.sweeps import CellFolder, EngineOptions, Plan, RayEngine, Watcher, run_sweep
from dissensus.sweeps import ray as ray_engine
from tests.sweeps.cell_runs import deadly, slow_cells, sometimes
from tests.sweeps.ray_runs import deadly_once, surroundings
from tests.sweeps.sweep_runs import BETAS, sections
from tests.sweeps.test_pool import alive, cells, quietly, wait_until

ROOT = Path(__file__).parents[2]
RAY = RayEngine()

needs_ray = pytest.mark.usefixtures("ray_cluster")
pytestmark = pytest.mark.slow


def start(place: Path, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    """A program of ``tests.sweeps.ray_runs``, in the middle of its cells."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.ray_runs", str(place), *words],
        cwd=ROOT,
        env=os.environ | environment,
        start_new_session=True,
    )
    wait_until(lambda: (place / "ready").exists() or program.poll() is not None, 120)
    (place / "go").touch()
    wait_until(lambda: len(list((place / "cells").glob("[!.]*.json"))) >= 3)
    return program


def begun(place: Path) -> dict[str, int]:
    """The cells that were begun, and by which process."""
    lines = (place / "log").read_text().splitlines()
    return {line.split()[0]: int(line.split()[1]) for line in lines}


def children(process: int) -> set[int]:
    """``process`` and all processes below it."""
    words = ["ps", "-e", "-o", "pid=,ppid="]
    table = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    found = {process}
    while more := {pid for pid, parent in pairs if parent in found and pid not in found}:
        found |= more
    return found


# ---- records ------------------------------------------------------------------------------------


@needs_ray
def test_records_are_those_of_the_local_engine_and_failed_cells_run_again(tmp_path: Path) -> None:
    wanted = cells(4, allowed=str(tmp_path / "allowed"))
    local = quietly(wanted, sometimes, tmp_path / "local")
    seen: list[str] = []
    made = quietly(
        wanted, sometimes, tmp_path / "ray", engine=RAY, on_record=lambda r: seen.append(r["name"])
    )
    assert sorted(seen) == [f"x={x}" for x in range(4)]
    for one, other in zip(made, local, strict=True):
        assert list(one) == list(other)
        for key in ("name", "cell", "result", "error"):
            assert one.get(key) == other.get(key)
        for key in ("dissensus", "python", "packages", "system", "commit"):
            assert one["facts"][key] == other["facts"][key]
    assert any("sometimes" in line for line in made[1]["traceback"])
    (tmp_path / "allowed").touch()
    again = quietly(wanted, sometimes, tmp_path / "ray", engine=RAY)
    assert [record["result"]["square"] for record in again] == [0, 1, 4, 9]
    assert (again[0], again[2]) == (made[0], made[2])
    assert list(CellFolder(tmp_path / "ray").done().values()) == again


@needs_ray
def test_workers_have_the_cores_of_a_run_the_data_folder_and_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISSENSUS_DATA", "/data/there")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    (made,) = quietly(cells(1), surroundings, tmp_path, engine=RayEngine(cpus=2))
    assert made["result"] == {
        "threads": 2,
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "DISSENSUS_DATA": "/data/there",
    }
    assert made["facts"]["threads"] == 2


@needs_ray
def test_a_sweep_and_its_search_give_the_records_of_two_local_processes(tmp_path: Path) -> None:
    space = {"lr": [1e-3, 0.003, 0.03], "batch_size": [32, 64]}
    plan = Plan(sections(epochs=2), {"beta": BETAS}, repeats=2, space=space, trials=4, batch=2)
    local = run_sweep(plan, tmp_path / "local", jobs=2)
    assert run_sweep(plan, tmp_path / "ray", engine=RAY).to_dict() == local.to_dict()
    for folder in ("search", "cells"):
        one, two = (CellFolder(tmp_path / name / folder).done() for name in ("local", "ray"))
        assert one
        assert {n: (r["cell"], r["result"], r["facts"]["threads"]) for n, r in one.items()} == {
            n: (r["cell"], r["result"], r["facts"]["threads"]) for n, r in two.items()
        }


@needs_ray
def test_another_file_of_that_name_is_noticed_by_the_worker(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = [f"{i},{i * 7 % 11},{'ab'[i % 2]}" for i in range(60)]
    table.write_text("u,v,kind\n" + "\n".join(rows) + "\n")

    class Changer(Watcher):
        """Changes the file after the driver has read it, and before a worker does."""

        def begin(self, *_: Any) -> None:
            table.write_text("u,v,kind\n" + "\n".join(reversed(rows)) + "\n")

    plan = Plan(sections(data=str(table), target="kind", epochs=1), {"beta": [0.0, 1.0]})
    summary = run_sweep(plan, tmp_path / "out", engine=RAY, watcher=Changer())
    assert (summary.done, len(summary.failures)) == (0, 2)
    for error in summary.failures.values():
        assert "is not the file that the sweep began with" in error


# ---- what is killed and stopped -----------------------------------------------------------------


@needs_ray
def test_a_cell_that_kills_every_worker_costs_itself_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = quietly(cells(4), deadly, tmp_path, engine=RAY)
    assert "".join(capfd.readouterr()) == ""
    assert "3 workers died (WorkerCrashedError)" in made[1]["error"]
    assert [record["result"]["square"] for record in made if "result" in record] == [0, 4, 9]
    assert CellFolder(tmp_path).records()["x=1"]["error"] == made[1]["error"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_program_with_its_own_ray_leaves_no_process_behind(number: int, tmp_path: Path) -> None:
    """Ctrl-C goes to all processes, and also removes the files of Ray."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as short:
        program = start(tmp_path, TMPDIR=short, RAY_ADDRESS="", HOME=str(tmp_path / "home"))
        mine = children(program.pid)
        assert len(mine) > 5
        if number == signal.SIGINT:
            os.killpg(program.pid, number)
            assert program.wait(timeout=60) == 130
            assert not list(Path(short).iterdir())
        else:
            program.kill()
            program.wait()
        wait_until(lambda: not any(map(alive, mine)), seconds=15)
    assert not (tmp_path / "home").exists()
    assert {path.suffix for path in (tmp_path / "cells").iterdir()} == {".json"}
    assert 3 <= len(CellFolder(tmp_path / "cells").done()) < 12


@needs_ray
def test_a_killed_program_on_a_cluster_costs_at_most_the_running_cells(
    tmp_path: Path, ray_cluster: str
) -> None:
    program = start(tmp_path, ray_cluster)
    program.kill()
    program.wait()
    done = CellFolder(tmp_path / "cells").done()
    assert 3 <= len(done) < 12
    wait_until(lambda: not any(map(alive, begun(tmp_path).values())))
    # The second start loses a worker, too.
    wanted, place = [{**cell, "pause": 0.3} for cell in slow_cells(tmp_path)], tmp_path / "cells"
    made = quietly(wanted, deadly_once, place, engine=RAY)
    assert all(made[int(name[1:])] == record for name, record in done.items())
    assert [record["result"]["square"] for record in made] == [x**2 for x in range(12)]


# ---- mistakes -----------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize("settings", [{"cpus": 64}, {"gpus": 0.5, "jobs": 2}])
def test_more_than_there_is_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no machine of Ray has"):
        quietly(cells(1), deadly, tmp_path, engine=RayEngine(**settings))


@needs_ray
def test_a_worker_with_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "__version__", "9.9")
    with pytest.raises(ValueError, match=r"the worker has dissensus .*, not 9\.9"):
        quietly(cells(1), deadly, tmp_path, engine=RAY)


def test_cuda_without_a_gpu_for_each_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--device cuda on Ray needs a GPU for each run"):
        run_sweep(Plan(sections(device="cuda")), tmp_path, engine=RAY)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"jobs": 0}, "jobs must be an integer of at least 1, got 0"),
        ({"cpus_per_run": 0}, "cpus must be an integer of at least 1, got 0"),
        ({"gpus_per_run": float("nan")}, "gpus must be a finite number of at least 0, got nan"),
        ({"engine": "local", "cpus_per_run": 2}, "need --engine ray"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EngineOptions(**{"engine": "ray", **settings}).make_engine()


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    """In a process of its own: this one may have a Ray already."""
    pytest.importorskip("ray")
    words = [sys.executable, "-m", "tests.sweeps.ray_runs", str(tmp_path), "127.0.0.1:1"]
    program = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "ValueError: there is no Ray cluster at 127.0.0.1:1: " in program.stderr


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'needs Ray: pip install "dissensus\[ray\]"'):
        quietly(cells(1), deadly, tmp_path, engine=RAY)

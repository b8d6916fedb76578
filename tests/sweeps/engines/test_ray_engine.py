"""Cells on Ray: a real cluster of this machine, workers killed, programs stopped and killed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dissensus.sweeps import Plan, Watcher, run_sweep
from dissensus.sweeps.engines import CellFolder, RayEngine, Record, engine_named, ray_engine
from tests.sweeps.engines.cell_runs import deadly, slow_cells, sometimes, square
from tests.sweeps.engines.ray_runs import deadly_once, surroundings
from tests.sweeps.engines.test_cells import alive, cells, quietly, wait_until
from tests.sweeps.sweep_runs import BETAS, sections

ROOT = Path(__file__).parents[3]
RAY = RayEngine()

needs_ray = pytest.mark.usefixtures("ray_cluster")
pytestmark = pytest.mark.slow


def same(one: dict[str, Record], two: dict[str, Record]) -> bool:
    """Whether two folders hold the same cells with the same results."""
    return {n: (r["cell"], r["result"]) for n, r in one.items()} == {
        n: (r["cell"], r["result"]) for n, r in two.items()
    }


def start(place: Path, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    """A program of ``tests.sweeps.engines.ray_runs`` that is ready and waits for ``go``."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.engines.ray_runs", str(place), *words],
        cwd=ROOT,
        env=os.environ | environment,
        start_new_session=True,
    )
    wait_until(lambda: (place / f"{words[0]}.ready").exists() or program.poll() is not None, 120)
    return program


def begun(place: Path) -> list[tuple[str, int]]:
    """The cells that were begun, and by which process."""
    log = place / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def debris(place: Path) -> list[Path]:
    return [path for path in (place / "cells").iterdir() if path.suffix != ".json"]


# ---- records ------------------------------------------------------------------------------------


@needs_ray
def test_records_are_those_of_the_local_engine(tmp_path: Path) -> None:
    local = quietly(cells(6), square, tmp_path / "local")
    seen: list[str] = []
    made = quietly(
        cells(6), square, tmp_path / "ray", engine=RAY, on_record=lambda r: seen.append(r["name"])
    )
    assert [list(record) for record in made] == [list(record) for record in local]
    assert [(r["name"], r["cell"], r["result"]) for r in made] == [
        (r["name"], r["cell"], r["result"]) for r in local
    ]
    for key in ("dissensus", "python", "packages", "system", "commit"):
        assert made[0]["facts"][key] == local[0]["facts"][key]
    assert sorted(seen) == [f"x={x}" for x in range(6)]
    assert list(CellFolder(tmp_path / "ray").done().values()) == made


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
def test_a_failing_cell_is_recorded_the_rest_goes_on_and_it_is_run_again(tmp_path: Path) -> None:
    wanted = cells(4, allowed=str(tmp_path / "allowed"))
    made = quietly(wanted, sometimes, tmp_path / "cells", engine=RAY)
    errors = [None, "RuntimeError: 1 is odd", None, "RuntimeError: 3 is odd"]
    assert [record.get("error") for record in made] == errors
    assert any("sometimes" in line for line in made[1]["traceback"])
    (tmp_path / "allowed").touch()
    new: list[str] = []
    again = quietly(
        wanted, sometimes, tmp_path / "cells", engine=RAY, on_record=lambda r: new.append(r["name"])
    )
    assert [record["result"]["square"] for record in again] == [0, 1, 4, 9]
    assert sorted(new) == ["x=1", "x=3"]
    assert (again[0], again[2]) == (made[0], made[2])


@needs_ray
def test_a_sweep_and_its_search_give_the_records_of_two_local_processes(tmp_path: Path) -> None:
    space = {"lr": [1e-3, 0.003, 0.03], "batch_size": [32, 64]}
    plan = Plan(sections(epochs=2), {"beta": BETAS}, repeats=2, space=space, trials=4, batch=2)
    local = run_sweep(plan, tmp_path / "local", jobs=2)
    assert run_sweep(plan, tmp_path / "ray", engine=RAY).to_dict() == local.to_dict()
    for folder in ("search", "cells"):
        one, two = (CellFolder(tmp_path / name / folder).done() for name in ("local", "ray"))
        assert one
        assert same(one, two)
    assert {record["facts"]["threads"] for record in two.values()} == {1}


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
    assert summary.done == 0
    errors = list(summary.failures.values())
    assert len(errors) == 2
    assert all("is not the file that the sweep began with" in error for error in errors)


# ---- workers that die ---------------------------------------------------------------------------


@needs_ray
def test_of_a_fleet_whose_worker_is_killed_only_what_is_left_is_trained_again(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    asked = sections(model=f"{ROOT}/tests/sweeps/engines/ray_runs.py:logged_member", batch_size=16)
    asked["model_options"] = {"log": str(log)}
    plan = Plan(asked, {"epochs": [1, 60], "beta": BETAS})

    class Killer(Watcher):
        """Kills the workers as soon as the first record is there."""

        def __init__(self) -> None:
            self.names: list[str] = []
            self.before: set[str] = set()

        def record(self, record: Record) -> None:
            if not self.names:
                self.before = set(CellFolder(tmp_path / "out" / "cells").done())
                for process in {int(line) for line in log.read_text().splitlines()}:
                    if process != os.getpid():
                        os.kill(process, signal.SIGKILL)
            self.names.append(record["name"])

    killer = Killer()
    summary = run_sweep(
        plan, tmp_path / "out", engine=RayEngine(jobs=1), trust=True, watcher=killer
    )
    assert (summary.done, summary.failures) == (6, {})
    assert sorted(killer.names) == sorted(set(killer.names))
    records = CellFolder(tmp_path / "out" / "cells").done()
    again = {name for name, record in records.items() if record.get("attempts") == 2}
    assert again
    assert not again & killer.before
    run_sweep(plan, tmp_path / "whole", trust=True)
    for name, record in CellFolder(tmp_path / "whole" / "cells").done().items():
        close = pytest.approx(record["result"]["test"], rel=1e-3)
        assert records[name]["result"]["test"] == close


@needs_ray
def test_a_worker_that_is_killed_is_replaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = quietly(slow_cells(tmp_path, 4), deadly_once, tmp_path / "cells", engine=RAY)
    assert [record["result"]["square"] for record in made] == [0, 1, 4, 9]
    assert [record.get("attempts") for record in made] == [None, 2, None, None]
    assert Counter(name for name, _ in begun(tmp_path)) == Counter(["c0", "c1", "c2", "c3"])
    assert "A worker died" not in "".join(capfd.readouterr())


@needs_ray
def test_a_cell_that_kills_every_worker_costs_itself_alone(tmp_path: Path) -> None:
    made = quietly(cells(4), deadly, tmp_path, engine=RayEngine(attempts=2))
    assert "the worker that ran the cell died 2 times (WorkerCrashedError" in made[1]["error"]
    assert made[1]["attempts"] == 2
    assert [record["result"]["square"] for record in made if "result" in record] == [0, 4, 9]
    assert (CellFolder(tmp_path).read("x=1") or {})["error"] == made[1]["error"]


# ---- programs that stop, die, or share a folder -------------------------------------------------


def test_an_interrupt_keeps_what_was_done_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """With a Ray of its own: started, stopped, its files gone. Ctrl-C goes to all processes."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:
        program = start(tmp_path, "ray", TMPDIR=short, RAY_ADDRESS="", HOME=str(tmp_path / "home"))
        mine = children(program.pid)
        (tmp_path / "go").touch()
        wait_until(lambda: len(list((tmp_path / "cells").glob("[!.]*.json"))) >= 3)
        mine |= children(program.pid)
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(timeout=60) == 130
        wait_until(lambda: not any(alive(process) for process in mine))
        assert not list(Path(short).iterdir())
    assert not (tmp_path / "home").exists()
    assert not debris(tmp_path)
    done = CellFolder(tmp_path / "cells").done()
    assert 3 <= len(done) < 12


@needs_ray
def test_a_killed_program_costs_at_most_the_running_cells(tmp_path: Path, ray_cluster: str) -> None:
    program = start(tmp_path, "ray", ray_cluster)
    (tmp_path / "go").touch()
    wait_until(lambda: len(list((tmp_path / "cells").glob("[!.]*.json"))) >= 3)
    program.kill()
    program.wait()
    done = CellFolder(tmp_path / "cells").done()
    assert 3 <= len(done) < 12
    wait_until(lambda: not any(alive(process) for _, process in begun(tmp_path)))
    wanted = [{**cell, "pause": 0.3} for cell in slow_cells(tmp_path)]
    new: list[str] = []
    made = quietly(
        wanted, square, tmp_path / "cells", engine=RAY, on_record=lambda r: new.append(r["name"])
    )
    assert [record["result"]["square"] for record in made] == [x**2 for x in range(12)]
    assert sorted(new) == sorted({cell["name"] for cell in wanted} - done.keys())
    assert not debris(tmp_path)


@needs_ray
def test_two_engines_share_a_folder_and_no_cell_is_run_twice(
    tmp_path: Path, ray_cluster: str
) -> None:
    programs = [start(tmp_path, "ray", ray_cluster), start(tmp_path, "local")]
    (tmp_path / "go").touch()
    assert [program.wait(timeout=120) for program in programs] == [0, 0]
    done = CellFolder(tmp_path / "cells").done()
    assert {name: record["result"]["square"] for name, record in done.items()} == {
        f"c{x}": x**2 for x in range(12)
    }
    assert Counter(name for name, _ in begun(tmp_path)) == Counter(done.keys())
    assert not debris(tmp_path)


def children(process: int) -> set[int]:
    """All processes below ``process``."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    found = {process}
    while more := {pid for pid, parent in pairs if parent in found and pid not in found}:
        found |= more
    return found


# ---- mistakes -----------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"cpus": 64},
            "no machine of Ray has 64 CPUs for a run; the largest has 2 CPUs and 0 GPUs",
        ),
        ({"gpus": 0.5, "jobs": 2}, "no machine of Ray has 1 CPUs and 0.5 GPUs for a run"),
    ],
)
def test_more_than_there_is_is_refused(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        quietly(cells(1), square, tmp_path, engine=RayEngine(**settings))


@needs_ray
def test_a_worker_with_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "__version__", "9.9")
    with pytest.raises(ValueError, match=r"the worker has dissensus .*, not 9\.9\); every machine"):
        quietly(cells(1), square, tmp_path, engine=RAY)


@needs_ray
def test_cuda_without_a_gpu_for_each_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--device cuda on Ray needs a GPU for each run"):
        run_sweep(Plan(sections(device="cuda")), tmp_path, engine=RAY)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"jobs": 0}, "jobs must be an integer of at least 1, got 0"),
        ({"cpus": 0}, "cpus must be an integer of at least 1, got 0"),
        ({"gpus": 1.5}, "gpus must be a share of one GPU or a whole number, got 1.5"),
        ({"gpus": float("nan")}, "gpus must be a share of one GPU or a whole number, got nan"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        engine_named("ray", **settings)


def test_what_only_ray_can_do_is_not_asked_of_the_local_engine() -> None:
    with pytest.raises(ValueError, match="--ray-address are for --engine ray"):
        engine_named("local", cpus=2)


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    """In a process of its own: this one may have a Ray already."""
    pytest.importorskip("ray")
    program = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.sweeps.engines.ray_runs",
            str(tmp_path),
            "ray",
            "127.0.0.1:1",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "ValueError: there is no Ray cluster at 127.0.0.1:1: " in program.stderr


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'needs Ray: pip install "dissensus\[ray\]"'):
        quietly(cells(1), square, tmp_path, engine=RAY)

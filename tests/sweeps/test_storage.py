"""Optuna's storage: it follows the search, and changes nothing of it."""

import shutil
from pathlib import Path

import pytest

from dissensus.sweeps import CellFolder, Plan, SharedStudy, propose, run_sweep
from tests.sweeps.sweep_runs import sections

optuna = pytest.importorskip("optuna")

SPACE = {"lr": [1e-5, 0.003, 0.03], "batch_size": [32, 64]}


def plan() -> Plan:
    asked = sections(epochs=1, val=0.3)
    return Plan(asked, {"beta": [0.0, 1.0]}, repeats=2, space=SPACE, trials=6, batch=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_every_trial_is_there_with_its_value_and_records_are_the_same(
    kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "studies"
    storage = f"sqlite:///{file}" if kind == "sqlite" else str(file)
    without = run_sweep(plan(), tmp_path / "a")
    assert run_sweep(plan(), tmp_path / "b", storage=storage).to_dict() == without.to_dict()
    one, two = (CellFolder(tmp_path / name / "search").done() for name in ("a", "b"))
    assert {n: r["result"] for n, r in one.items()} == {n: r["result"] for n, r in two.items()}

    for repeat in range(2):
        study = SharedStudy(storage, plan().study_name(tmp_path / "b", repeat)).study
        trials = study.get_trials()
        assert len(trials) == 6
        for trial in trials:
            assert trial.state.name == "COMPLETE"
            choice = trial.user_attrs["choice"]
            assert [SPACE[name][place] for name, place in trial.params.items()] == [
                *choice.values()
            ]
            (record,) = [
                record
                for record in two.values()
                if record["cell"]["point"] == choice and record["cell"]["repeat"] == repeat
            ]
            assert trial.value == record["result"]["val"]["ensemble_error"]

    # Cut off and begun again: the same trials, none of them twice.
    shutil.rmtree(tmp_path / "b" / "cells")
    for path in sorted((tmp_path / "b" / "search").glob("*.json"))[:2]:
        path.unlink()
    assert run_sweep(plan(), tmp_path / "b", storage=storage).to_dict() == without.to_dict()
    assert len(SharedStudy(storage, plan().study_name(tmp_path / "b", 0)).study.get_trials()) == 6


def test_trials_are_seen_while_they_run_and_failures_are_failures(tmp_path: Path) -> None:
    storage = str(tmp_path / "journal")
    space = {"x": list(range(50))}
    asking = propose(space, trials=2, batch=2, shared=SharedStudy(storage, "s"))
    assert len(next(asking)) == 2

    def states() -> list[str]:
        return [trial.state.name for trial in SharedStudy(storage, "s").study.get_trials()]

    assert states() == ["RUNNING", "RUNNING"]
    with pytest.raises(StopIteration):
        asking.send([float("nan"), 1.0])
    assert states() == ["FAIL", "COMPLETE"]


def test_another_search_of_that_name_is_refused(tmp_path: Path) -> None:
    storage = str(tmp_path / "journal")
    for _ in propose({"x": list(range(50))}, trials=1, seed=0, shared=SharedStudy(storage, "s")):
        break
    with pytest.raises(ValueError, match="holds another search named s: its trial 0 is not"):
        next(propose({"x": list(range(50))}, trials=1, seed=1, shared=SharedStudy(storage, "s")))


def test_a_storage_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--storage nonsense://x cannot be used: "):
        SharedStudy("nonsense://x", "s")


def test_the_name_follows_the_settings_not_the_machine(tmp_path: Path) -> None:
    def name(**changes: object) -> str:
        made = Plan(sections(**changes), space=SPACE)
        return made.study_name(tmp_path, 0)

    assert name() == name(threads=1, data_dir="elsewhere")
    assert name() != name(epochs=5)

"""Optuna's storage: it follows the search, and changes nothing of it."""

from pathlib import Path

import pytest

from dissensus.sweeps import CellFolder, Plan, SharedStudy, propose, run_sweep
from tests.sweeps.sweep_runs import sections

pytest.importorskip("optuna")

SPACE = {"lr": [1e-5, 0.003, 0.03], "batch_size": [32, 64]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_every_trial_is_there_with_its_value_and_records_are_the_same(
    kind: str, tmp_path: Path
) -> None:
    plan = Plan(sections(epochs=1, val=0.3), repeats=2, space=SPACE, trials=6, batch=3)
    file = tmp_path / "studies"
    storage = f"sqlite:///{file}" if kind == "sqlite" else str(file)
    without = run_sweep(plan, tmp_path / "a")
    assert run_sweep(plan, tmp_path / "b", storage=storage).to_dict() == without.to_dict()
    one, two = (CellFolder(tmp_path / name / "search").done() for name in ("a", "b"))
    assert {n: r["result"] for n, r in one.items()} == {n: r["result"] for n, r in two.items()}
    errors = {
        (record["cell"]["repeat"], *record["cell"]["point"].values()): record["result"]["val"]
        for record in two.values()
    }
    for repeat in range(2):
        trials = SharedStudy(storage, plan.study_name(tmp_path / "b", repeat)).study.get_trials()
        assert len(trials) == 6
        for trial in trials:
            choice = trial.user_attrs["choice"].values()
            assert trial.value == errors[(repeat, *choice)]["ensemble_error"]

    # Cut off and begun again: the same trials, none of them twice.
    for path in sorted((tmp_path / "b" / "search").glob("*.json"))[:2]:
        path.unlink()
    assert run_sweep(plan, tmp_path / "b", storage=storage).to_dict() == without.to_dict()
    assert len(SharedStudy(storage, plan.study_name(tmp_path / "b", 0)).study.get_trials()) == 6


def test_trials_are_seen_while_they_run_and_failures_are_failures(tmp_path: Path) -> None:
    storage, space = str(tmp_path / "journal"), {"x": list(range(50))}
    asking = propose(space, trials=2, batch=2, shared=SharedStudy(storage, "s"))
    assert len(next(asking)) == 2

    def states() -> list[str]:
        return [trial.state.name for trial in SharedStudy(storage, "s").study.get_trials()]

    assert states() == ["RUNNING", "RUNNING"]
    with pytest.raises(StopIteration):
        asking.send([float("nan"), 1.0])
    assert states() == ["FAIL", "COMPLETE"]
    with pytest.raises(ValueError, match="holds another search named s: its trial 0 is not"):
        next(propose(space, trials=1, seed=1, shared=SharedStudy(storage, "s")))
    with pytest.raises(ValueError, match="--storage nonsense://x cannot be used: "):
        SharedStudy("nonsense://x", "s")


def test_the_name_follows_the_settings_not_the_machine(tmp_path: Path) -> None:
    def name(**changes: object) -> str:
        return Plan(sections(**changes), space=SPACE).study_name(tmp_path, 0)

    assert name() == name(threads=1, data_dir="elsewhere")
    assert name() != name(epochs=5)

"""Sweeps: every cell as if trained alone, nothing done twice, failures kept apart."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dissensus as ds
from dissensus.diagnostics import diagnose
from dissensus.runs import DataSummary, load_data, make_ensemble
from dissensus.sweeps import CellFolder, Plan, Record, Watcher, run_sweep, summarize, trainer
from dissensus.training import Recipe, fit, predict
from tests.sweeps.sweep_runs import BETAS, long_plan, sections
from tests.sweeps.test_pool import wait_until

ROOT = Path(__file__).parents[2]


class Seen(Watcher):
    """Remembers the names of the cells that were trained, and stops after ``stop`` of them."""

    def __init__(self, stop: int = 0) -> None:
        self.names: list[str] = []
        self.kept, self.stop = 0, stop

    def begin(self, cells: Any, records: Any) -> None:
        self.kept = len(records)

    def record(self, record: Record) -> None:
        self.names.append(record["name"])
        if len(self.names) == self.stop:
            raise KeyboardInterrupt


def error_of(predictions: Any, combine: str, rows: slice = slice(None)) -> Any:
    outputs, targets = predictions.outputs[:, rows].double(), predictions.targets[rows]
    if combine == "mean":
        return ds.decompose(outputs, targets.double(), "mse", combine)
    return ds.decompose(outputs, targets, "cross_entropy", combine)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": "digits", "patience": 1, "model_options": ["hidden=16"], "combine": "score"},
    ],
    ids=["regression", "classes"],
)
def test_records_are_those_of_fit_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    plan = Plan(sections(**changes), {"beta": BETAS, "lr": [0.01, 0.03]}, repeats=2)
    summary = run_sweep(plan, tmp_path)
    assert (summary.done, summary.total, summary.failures) == (12, 12, {})
    records = CellFolder(tmp_path / "cells").done()
    assert {record["result"]["together"] for record in records.values()} == {12}
    assert not any("resumed" in record for record in records.values())
    for name in ("beta=0+lr=0.03+repeat=1", "beta=1+lr=0.01+repeat=0"):
        config, result = records[name]["cell"]["config"], records[name]["result"]
        data = load_data(config)
        ens = make_ensemble(config, DataSummary.of(data))
        settings = {k: v for k, v in config["training"].items() if k != "objective"}
        objective, recipe = config["training"]["objective"], Recipe.of(settings)
        history = fit(ens, data.train, objective, val=data.val, recipe=recipe, progress=False)
        assert result["best_epoch"] == history.best_epoch
        assert (result["epochs"], result["ended"]) == (len(history.epochs), history.ended)
        pairs = {part: predict(ens, data.splits()[part]) for part in ("train", "val", "test")}
        for part in ("val", "test"):
            wanted = error_of(pairs[part], ens.combine)
            for key in ("ensemble_error", "member_error", "diversity"):
                close = pytest.approx(float(getattr(wanted, key)), rel=1e-3, abs=1e-6)
                assert result[part][key] == close
        best = history.epochs[history.best_epoch - 1]["val"]
        assert result["val"]["ensemble_error"] == pytest.approx(best["ensemble_error"], rel=1e-3)
        kept = result["selection"]
        blocks = [
            float(error_of(pairs["val"], ens.combine, slice(first, None, 20)).ensemble_error)
            for first in (0, 19)
        ]
        assert [kept["errors"][0], kept["errors"][19]] == pytest.approx(blocks, rel=1e-3)
        assert kept["train_examples"] == len(pairs["train"])
        on_val = diagnose(pairs["train"], pairs["val"], combine=ens.combine)
        on_test = diagnose(pairs["train"], pairs["test"], combine=ens.combine)
        assert kept["verdict"] == on_val.verdict.word
        assert result["diagnosis"]["verdict"] == on_test.verdict.word
        ratio = pytest.approx(on_test.explosion["test"].ratio, rel=1e-2)
        assert result["diagnosis"]["div_to_err"] == ratio


@pytest.mark.parametrize(
    "changes",
    [
        {"model_options": ["hidden=8", "dropout=0.3"]},
        {"data": "digits", "model": "small_cnn", "model_options": ["width=2"], "epochs": 1},
        {"objective": "learner_dropout:drop=0.4/augmented", "epochs": 2},
        {"data": "digits", "augment": "adp", "epochs": 1},
        {"data": "digits", "adversarial": "fgsm", "epochs": 1},
    ],
    ids=["dropout", "convolutions", "drawn members", "augmentation", "adversarial"],
)
def test_what_cannot_be_batched_goes_through_fit(changes: dict[str, Any], tmp_path: Path) -> None:
    summary = run_sweep(Plan(sections(**changes), {"beta": [0.1, 0.9]}), tmp_path)
    assert summary.done == 2
    records = CellFolder(tmp_path / "cells").done()
    assert all(record["result"]["together"] == 1 for record in records.values())


@pytest.mark.slow
def test_processes_give_the_same_records(tmp_path: Path) -> None:
    plan = Plan(sections(), {"beta": BETAS, "members": [2, 3]}, repeats=2)
    seen = Seen()
    best = [run_sweep(plan, tmp_path / "one").to_dict()["best"]]
    best += [run_sweep(plan, tmp_path / "two", jobs=2, watcher=seen).to_dict()["best"]]
    assert best[0] == best[1]
    one, two = (CellFolder(tmp_path / name / "cells").done() for name in ("one", "two"))
    assert sorted(seen.names) == sorted(one) == sorted(two)
    for name, record in one.items():
        other = two[name]
        assert other["cell"] == record["cell"]
        assert other["facts"]["threads"] == 1
        for part in ("val", "test"):
            assert other["result"][part] == pytest.approx(record["result"][part], rel=1e-3)


# ---- stopping, failing, going on ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_sweep_goes_on_where_it_was(jobs: int, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.sweeps.sweep_runs", str(tmp_path), str(jobs)]
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    cells = tmp_path / "cells"
    try:
        wait_until(lambda: len(list(cells.glob("[!.]*.json"))) >= 3 or process.poll(), 600)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = {path: path.read_bytes() for path in cells.glob("[!.]*.json")}
    assert 3 <= len(before) < 18, "it was to be killed in the middle"
    seen = Seen()
    summary = run_sweep(long_plan(), tmp_path, watcher=seen)
    assert (summary.done, summary.total, seen.kept) == (18, 18, len(before))
    assert not {path.stem for path in before} & set(seen.names)
    assert len(seen.names) == 18 - len(before)
    assert {path: path.read_bytes() for path in before} == before
    records = CellFolder(cells).done()
    assert {name for name, record in records.items() if record.get("resumed")} == set(seen.names)
    # A third start has nothing to do.
    again = Seen()
    assert run_sweep(long_plan(), tmp_path, watcher=again).to_dict() == summary.to_dict()
    assert again.names == []


def test_a_stopped_sweep_ends_with_the_numbers_of_a_whole_one(tmp_path: Path) -> None:
    """The rest of a fleet trains as another fleet, and its records say so."""
    plan = Plan(sections(patience=1), {"beta": BETAS}, repeats=3)
    run_sweep(plan, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, tmp_path / "cut", watcher=Seen(stop=2))
    run_sweep(plan, tmp_path / "cut")
    whole, cut = (CellFolder(tmp_path / name / "cells").done() for name in ("whole", "cut"))
    assert sum(record.get("resumed", False) for record in cut.values()) == 7
    assert {r["result"]["together"] for r in cut.values() if "resumed" in r} == {7}
    for name, record in whole.items():
        assert cut[name]["result"]["test"] == pytest.approx(record["result"]["test"], rel=1e-3)


def test_a_cell_that_diverges_is_recorded_and_tried_again(tmp_path: Path) -> None:
    plan = Plan(sections(), {"lr": [0.01, 1e30]}, repeats=2)
    summary = run_sweep(plan, tmp_path)
    assert [(row.done, row.failed) for row in summary.rows] == [(2, 0), (0, 2)]
    assert summary.best is summary.rows[0]
    assert set(summary.failures) == {"lr=1e+30+repeat=0", "lr=1e+30+repeat=1"}
    assert all("NonFiniteLoss: the loss is" in error for error in summary.failures.values())
    again = Seen()
    run_sweep(plan, tmp_path, watcher=again)
    assert sorted(again.names) == sorted(summary.failures)


def test_an_error_of_the_fleet_leaves_every_cell_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trainer.CellTraining.fit

    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    def unlucky(job: trainer.CellTraining) -> Any:
        if job.cell["point"] == {"beta": 0.3}:
            raise RuntimeError("no luck")
        return real(job)

    monkeypatch.setattr(trainer, "fit_fleet", broken)
    monkeypatch.setattr(trainer.CellTraining, "fit", unlucky)
    summary = run_sweep(Plan(sections(), {"beta": BETAS}), tmp_path)
    assert summary.failures == {"beta=0.3+repeat=0": "RuntimeError: no luck"}
    assert summary.done == 2


@pytest.mark.slow
def test_a_process_that_dies_costs_its_own_cells(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import multiprocessing, os\n"
        "from torch import nn\n"
        "def make(outputs, deadly=False):\n"
        "    if deadly and multiprocessing.parent_process():\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    asked = sections(data="digits", model=f"{tmp_path}/mine.py:make", epochs=1)
    del asked["model_options"]
    plan = Plan(asked, {"model.deadly": [False, True]}, repeats=2)
    with pytest.raises(ValueError, match="if you trust it"):
        run_sweep(plan, tmp_path / "out")
    summary = run_sweep(plan, tmp_path / "out", jobs=2, trust=True)
    assert [(row.done, row.failed) for row in summary.rows] == [(2, 0), (0, 2)]
    assert all("3 workers died" in error for error in summary.failures.values())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep, to be read only."""
    out = tmp_path_factory.mktemp("done")
    run_sweep(Plan(sections(), {"beta": BETAS}, repeats=2), out)
    return out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sections": {"members": 4, "clip": 1.0}}, "ensemble.members was 3, now 4; training.clip"),
        ({"grid": {"beta": [0.0, 0.5]}}, "grid.beta was [0.0, 0.3, 1.0], now [0.0, 0.5]"),
        ({"repeats": 1}, "sweep.repeats was 2, now 1"),
        ({"space": {"lr": [0.1, 0.2]}}, "search.lr was unset, now [0.1, 0.2]"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    changes: dict[str, Any], sentence: str, done: Path
) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}

    before = content()
    wanted = {"grid": {"beta": BETAS}, "repeats": 2, **changes}
    plan = Plan(sections(**wanted.pop("sections", {})), **wanted)
    with pytest.raises(ValueError, match="holds a sweep with other settings") as caught:
        run_sweep(plan, done)
    assert sentence in str(caught.value)
    assert content() == before


def test_repeats_can_be_added_and_the_machine_may_change(tmp_path: Path) -> None:
    grid, seen = {"beta": BETAS}, Seen()
    run_sweep(Plan(sections(), grid), tmp_path)
    plan = Plan(sections(threads=1, data_dir="elsewhere"), grid, repeats=2)
    assert run_sweep(plan, tmp_path, watcher=seen).done == 6
    assert sorted(seen.names) == [f"beta={beta}+repeat=1" for beta in ("0", "0.3", "1")]
    read = Plan.read(tmp_path)
    assert read is not None
    assert (read.repeats, read.grid) == (2, grid)


def test_a_table_that_changed_is_noticed(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = [f"{i},{i * 7 % 11},{'ab'[i % 2]}" for i in range(60)]
    table.write_text("u,v,kind\n" + "\n".join(rows) + "\n")
    plan = Plan(sections(data=str(table), target="kind"), {"beta": [0.0, 1.0]})
    run_sweep(plan, tmp_path / "out")
    table.write_text("u,v,kind\n" + "\n".join(reversed(rows)) + "\n")
    with pytest.raises(ValueError, match=r"is not what .* was trained on"):
        run_sweep(plan, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        ({}, {"grid": {"members": [3, 0]}}, "--grid members=0: members must be an integer"),
        ({}, {"grid": {"model.hidden": [8, -1]}}, "--grid model.hidden=-1: "),
        ({"objective": "a2d", "data": "wine"}, {}, "needs unlabelled data"),
        ({}, {"grid": {"objective": ["adp"]}}, "--grid objective=adp: "),
        ({"val": 0}, {"space": {"lr": [0.1, 0.2]}}, "needs --val above 0"),
    ],
)
def test_what_cannot_work_is_told_before_any_training(
    changes: dict[str, Any], settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (compared below)
        run_sweep(Plan(sections(**changes), **settings), tmp_path / "out")
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


# ---- the search, and the table ------------------------------------------------------------------


@pytest.mark.slow
def test_the_search_chooses_by_validation_for_each_repeat(tmp_path: Path) -> None:
    space = {"lr": [1e-5, 0.003, 0.03], "batch_size": [32, 64]}
    plan = Plan(sections(), {"beta": [0.0, 1.0]}, repeats=2, space=space, trials=8, batch=4)
    summary = run_sweep(plan, tmp_path)
    assert summary.done == 4
    trials = CellFolder(tmp_path / "search").done()
    assert all("test" not in trial["result"] for trial in trials.values())
    for record in CellFolder(tmp_path / "cells").done().values():
        cell = record["cell"]
        own = [trial for trial in trials.values() if trial["cell"]["repeat"] == cell["repeat"]]
        best = min(own, key=lambda trial: trial["result"]["val"]["ensemble_error"])
        assert cell["chosen"] == best["cell"]["point"]
        assert f"lr={cell['chosen']['lr']}" in cell["config"]["training"]["optimizer"]
        assert cell["config"]["training"]["batch_size"] == cell["chosen"]["batch_size"]
    # The trials were trained with the objective as it was given, not with the grid's.
    objectives = {trial["cell"]["config"]["training"]["objective"] for trial in trials.values()}
    assert objectives == {"augmented:loss=mse,combine=mean"}

    # A search that was cut off proposes the same again, and trains what is missing.
    gone = sorted((tmp_path / "search").glob("*.json"))[:3]
    for path in gone:
        path.unlink()
    kept = {p: p.read_bytes() for p in (tmp_path / "search").glob("*.json")}
    assert run_sweep(plan, tmp_path).to_dict() == summary.to_dict()
    assert {path: path.read_bytes() for path in kept} == kept
    assert all(path.exists() for path in gone)


def made_up(number: int, repeat: int, **figures: Any) -> tuple[dict[str, Any], Record]:
    cell = {"name": f"{number}-{repeat}", "number": number, "repeat": repeat}
    cell["point"] = {"beta": number / 2}
    cell["config"] = {"training": {"objective": f"augmented:beta={number / 2}"}}
    content = figures if "error" in figures else {"result": figures}
    return cell, {"name": cell["name"], "cell": cell, **content}


def test_the_best_is_chosen_by_validation_among_points_that_are_complete() -> None:
    made = [
        made_up(n, r, val={"ensemble_error": val + r}, test={"ensemble_error": test})
        for n, val, test in ((0, 1.5, 0.1), (1, 0.4, 0.9))
        for r in (0, 1)
    ]
    made += [made_up(2, 0, val={"ensemble_error": 0.0}), made_up(2, 1, error="NonFiniteLoss: nan")]
    cells, records = [cell for cell, _ in made], [record for _, record in made]
    summary = summarize(cells, records)
    assert summary.best is summary.rows[1]
    assert summary.best.val["ensemble_error"].mean == pytest.approx(0.9)
    assert summary.best.val["ensemble_error"].sd == pytest.approx(0.5**0.5)
    assert summary.rows[2].val["ensemble_error"].sd is None
    assert (summary.rows[2].done, summary.rows[2].failed) == (1, 1)
    assert summary.failures == {"2-1": "NonFiniteLoss: nan"}
    assert summarize(cells[:2], []).best is None


def summary_of(errors: list[list[float]], verdicts: list[str], **selection: Any) -> Any:
    """The summary of a grid over β with these validation errors ``[β][repeats]``."""
    made = []
    for number, (row, word) in enumerate(zip(errors, verdicts, strict=True)):
        for repeat, error in enumerate(row):
            kept = {"train_examples": 80, "verdict": word, **selection.get(str(number), {})}
            val = {"ensemble_error": error, "examples": 20}
            made.append(made_up(number, repeat, val=val, selection=kept))
    return summarize([cell for cell, _ in made], [record for _, record in made])


def test_a_grid_over_beta_takes_the_smallest_that_is_as_good() -> None:
    sound = ["healthy"] * 3
    noise = summary_of([[0.50, 0.30, 0.4], [0.49, 0.30, 0.4], [0.9, 0.9, 0.9]], sound)
    assert [row.best for row in noise.rows] == [True, False, False]
    assert [row.indistinct for row in noise.rows] == [True, True, False]
    assert "Not distinguishable from the lowest ERR (=): beta=0.5" in str(noise)
    clear = summary_of([[0.9, 0.91, 0.9], [0.5, 0.51, 0.5], [0.3, 0.31, 0.3]], sound)
    assert clear.best.point == {"beta": 1.0}
    errors = [[0.60, 0.62, 0.61], [0.595, 0.56, 0.60]]
    assert summary_of(errors, ["healthy"] * 2).best.point == {"beta": 0.5}
    colludes = summary_of(errors, ["healthy", "colluding"])
    assert colludes.best.point == {"beta": 0.0}
    assert "collude without a clear gain: beta=0.5" in str(colludes)
    # One repeat is judged by blocks of its rows.
    rows = {"0": {"errors": [0.3, 0.5, 0.4]}, "1": {"errors": [0.29, 0.5, 0.4]}}
    assert summary_of([[0.4], [0.397]], ["healthy"] * 2, **rows).best.point == {"beta": 0.0}

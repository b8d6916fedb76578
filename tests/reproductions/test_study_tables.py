"""The comparison on tables: measures, cells, ranks, and the page."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reproductions.tables import cells, measures, sources
from reproductions.tables.cells import Cell, read_records, run_cell, run_cells
from reproductions.tables.contenders import CONTENDERS, Contender, out_of_bag, spread_dates
from reproductions.tables.goals import check_goals, ranked_contenders
from reproductions.tables.page import page_text, write_page
from reproductions.tables.ranking import compare


@pytest.fixture
def table() -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers with gaps, text with gaps, a date, and a target that depends on all."""
    rng = np.random.default_rng(0)
    rows = 80
    number = rng.normal(size=rows)
    text = rng.choice(["a", "b", "c"], rows)
    days = pd.Series(pd.date_range("2024-01-01", periods=rows))
    y = number + (text == "a") + 0.01 * np.arange(rows) + rng.normal(size=rows) / 10
    frame = pd.DataFrame({"number": number, "text": text, "date": days.dt.strftime("%Y-%m-%d")})
    frame.loc[::7, "number"] = np.nan
    frame.loc[::9, "text"] = None
    return frame, y


# ---- measures -----------------------------------------------------------------------------------


def test_crps_of_residuals_is_near_the_exact_one() -> None:
    rng = np.random.default_rng(0)
    residuals, predictions, y = rng.normal(size=400), rng.normal(size=30), rng.normal(size=30)
    found = measures.crps(measures.residual_quantiles(predictions, residuals), y)
    slow = 0.0
    spread = np.mean([abs(a - b) for a in residuals for b in residuals])
    for prediction, target in zip(predictions, y, strict=True):
        # E|X − y| − E|X − X'| / 2, the closed form of an empirical distribution.
        slow += np.mean([abs(prediction + r - target) for r in residuals]) - spread / 2
    assert found == pytest.approx(slow / len(y), rel=0.01)


def test_crps_of_gaussian_quantiles_is_near_the_closed_form() -> None:
    from scipy.stats import norm

    mean, std, y = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 2.0]), np.array([0.3, 1.0, 1.0])
    quantiles = mean[:, None] + std[:, None] * norm.ppf(measures.LEVELS)
    z = (y - mean) / std  # Gneiting and Raftery 2007, Section 4.2
    exact = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert measures.crps(quantiles, y) == pytest.approx(exact.mean(), rel=0.01)


def test_a_certain_mistake_costs_no_more_than_the_clip() -> None:
    probs = np.array([[1.0, 0.0]])
    assert measures.nll(probs, np.array([1])) == pytest.approx(-math.log(1e-7), abs=1e-6)
    assert probs[0, 1] == 0.0  # the argument stays as it was


# ---- contenders ---------------------------------------------------------------------------------


def test_dates_become_numbers() -> None:
    found = spread_dates(pd.DataFrame({"on": ["2024-02-29", "1970-01-02"], "x": ["a", "b"]}))
    assert found["on.day"].tolist() == [19782, 1]
    assert found["on.weekday"].tolist() == [3, 4]
    assert list(found) == ["on.day", "on.month", "on.weekday", "on.dayofyear", "x"]


@pytest.mark.parametrize("name", ["hgb", "forest", "lightgbm", "xgboost", "catboost"])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_contenders_take_gaps_text_and_new_categories(
    name: str, task: str, table: tuple[pd.DataFrame, np.ndarray]
) -> None:
    if CONTENDERS[name].version is None:
        pytest.skip(f"{name} is not installed")
    X, y = table
    targets = (y > y.mean()).astype(int) if task == "classification" else y
    model = CONTENDERS[name].make(task, 0).fit(X, targets)
    new = X.assign(text="never seen")
    found = model.predict_proba(new) if task == "classification" else model.predict(new)
    assert np.isfinite(found).all()


def test_out_of_bag_residuals_are_those_of_scikit_learn(
    table: tuple[pd.DataFrame, np.ndarray],
) -> None:
    X, y = table
    model = CONTENDERS["forest"].make("regression", 0)
    model[-1].set_params(oob_score=True)
    model.fit(X, y)
    np.testing.assert_allclose(out_of_bag(model, X, y), y - model[-1].oob_prediction_)


def test_tabm_learns_numbers_gaps_and_text(table: tuple[pd.DataFrame, np.ndarray]) -> None:
    pytest.importorskip("tabm")
    from reproductions.tables.tabm_reference import TabMReference

    X, y = table
    model = TabMReference("regression", 0, cap=0.4).fit(spread_dates(X), y)
    assert model.capped_
    assert model.gaps_ == ["number"]
    assert measures.rmse(model.predict(spread_dates(X)), y) < y.std()


# ---- cells --------------------------------------------------------------------------------------


class Mean:
    """Predicts the mean, with quantiles of its own if it was told to."""

    def fit(self, X: Any, y: Any) -> "Mean":
        self.y = np.asarray(y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), self.y.mean())


class Distribution(Mean):
    """Predicts the distribution of the training targets."""

    def predict_quantiles(self, X: Any, levels: Any) -> np.ndarray:
        return np.tile(np.quantile(self.y, levels), (len(X), 1))

    def predict_interval(self, X: Any, coverage: float) -> np.ndarray:
        low, high = np.quantile(self.y, [(1 - coverage) / 2, (1 + coverage) / 2])
        return np.tile([low, high], (len(X), 1))


@pytest.mark.parametrize(("kind", "source"), [(Mean, "second fit"), (Distribution, "its own")])
def test_measures_of_a_regressor(
    kind: type[Mean], source: str, table: tuple[pd.DataFrame, np.ndarray]
) -> None:
    X, X_test, y, y_test = sources.split_rows(*table, "regression", 0)
    contender = Contender(lambda task, seed: kind())
    found = cells.measure(contender, X, X_test, y, y_test, "regression", 0)
    assert found["distribution"] == source
    assert found["error"] == pytest.approx(math.sqrt(np.mean((y_test - y.mean()) ** 2)))
    assert found["crps"] < found["error"]
    assert found.get("files_mb", 0.0) >= 0  # there on Linux alone
    if kind is Distribution:
        low, high = np.quantile(y, [0.05, 0.95])
        assert found["width"] == pytest.approx(high - low)
        assert found["coverage"] == np.mean((y_test >= low) & (y_test <= high))


class Busy(Mean):
    """Never ends."""

    def fit(self, X: Any, y: Any) -> "Mean":
        while True:
            pass


class Blank(Mean):
    """Predicts nothing at all."""

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), np.nan)


@pytest.mark.slow
def test_failures_and_limits_are_recorded(table: tuple[pd.DataFrame, np.ndarray]) -> None:
    X, y = table
    failed = run_cell(Cell("ames", "blank", 0), Contender(lambda *_: Blank()), X, y, 10.0)
    assert failed["status"] == "failed"
    assert "not all finite" in failed["message"]
    ended = run_cell(Cell("ames", "busy", 0), Contender(lambda *_: Busy()), X, y, 0.1)
    assert (ended["status"], ended["message"]) == ("limit", "no fit within 0.1 s")


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISSENSUS_DATA", raising=False)
    lines: list[str] = []
    choice: dict[str, Any] = {"tables": ["wine", "ames"], "contenders": ["hgb"]}
    run_cells(tmp_path, **choice, splits=[0], report=lines.append)
    assert lines[0] == "skipped, not in $DISSENSUS_DATA/tables: ames"
    run_cells(tmp_path, **choice, splits=[0, 1], report=lines.append)
    records = read_records(tmp_path)
    assert [cells.cell_of(record) for record in records] == [("wine", "hgb", 0), ("wine", "hgb", 1)]
    assert sum("split 0" in line for line in lines) == 1
    assert records[0]["nll"] < 0.3


# ---- ranks --------------------------------------------------------------------------------------


def record(table: str, contender: str, split: int, error: float, **more: Any) -> dict[str, Any]:
    return {
        "table": table,
        "contender": contender,
        "split": split,
        "task": sources.TABLES[table].task,
        "rows": 500,
        "columns": 5,
        "table_mb": 2.0,
        "status": "done",
        "test_rows": 100,
        "error": error,
        "version": "1",
        "processor": "abacus",
        **more,
    }


def test_ranks_use_common_splits_and_put_the_unfinished_last() -> None:
    records = [
        record("ames", "a", 0, 2.0),
        record("ames", "a", 1, 90.0),  # b has no such split
        record("ames", "b", 0, 4.0),
        record("ames", "c", 0, 0.0, status="limit"),
        record("wine", "a", 0, 0.02),
        record("wine", "b", 0, 0.0),
        record("wine", "c", 0, 0.02),
        record("pima", "a", 0, 0.2),  # the others were not run
    ]
    found = compare(records, "error", ["a", "b", "c"], ["ames", "wine", "pima"])
    assert found.tables == ("ames", "wine")
    assert found.ranks.tolist() == [[1, 2, 3], [2.5, 1, 2.5]]
    assert found.mean_rank("a").mean == 1.75
    # Half a row of 100 is added to rates: 0.025 / 0.005.
    assert found.against_others("a") == [("ames", "b", 0.5), ("wine", "b", pytest.approx(5.0))]


def test_the_parts_are_every_second_table() -> None:
    public = [name for name, one in sources.TABLES.items() if one.part != "scikit-learn"]
    assert len(public) == 26
    assert all(sources.TABLES[name].part == "settling" for name in public[::2])
    assert all(sources.TABLES[name].part == "confirmation" for name in public[1::2])


def test_records_are_json_lines(tmp_path: Path) -> None:
    cells.add_record(tmp_path, record("ames", "a", 0, 2.0))
    cells.add_record(tmp_path, record("ames", "a", 1, 3.0))
    cells.add_record(tmp_path, record("ames", "a", 0, 1.0))  # once more
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["error"] for line in lines] == [3.0, 1.0]


# ---- the page -----------------------------------------------------------------------------------


def results(table: str, contender: str, split: int, error: float, cpu: float) -> dict[str, Any]:
    more: dict[str, Any] = {"fit_cpu": cpu, "fit_wall": cpu, "predict_cpu": cpu, "peak_mb": 8.0}
    if sources.TABLES[table].task == "regression":
        more |= {"crps": error / 2, "coverage": 0.95, "width": 3.0, "distribution": "its own"}
    else:
        more |= {"nll": 2 * error}
    return record(table, contender, split, error, **more)


@pytest.fixture
def made_up() -> list[dict[str, Any]]:
    """Ours is second on ames by 50% and best on wine; tabm has one table."""
    errors = {"ames": {"forest": 2.0, "hgb": 4.0, "dissensus": 3.0, "tabm": 1.0}}
    errors["wine"] = {"forest": 0.2, "hgb": 0.2, "dissensus": 0.1}
    cpu = {"forest": 1.0, "hgb": 0.5, "dissensus": 4.0, "tabm": 50.0}
    return [
        results(table, name, split, error, cpu[name])
        for table, own in errors.items()
        for name, error in own.items()
        for split in ([0] if name == "tabm" else [0, 1])
    ]


def test_again_runs_the_cells_of_these_contenders_and_replaces_their_records(
    made_up: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISSENSUS_DATA", raising=False)
    for one in made_up:
        late = one["table"] == "wine" and one["contender"] == "dissensus"
        cells.add_record(tmp_path, one | ({"status": "limit"} if late else {}))
    ran: list[Cell] = []

    def run(cell: Cell, *_: Any) -> dict[str, Any]:
        ran.append(cell)
        return results(cell.table, cell.contender, cell.split, 0.05, 2.0)

    monkeypatch.setattr(cells, "run_cell", run)
    choice: dict[str, Any] = {"splits": [0, 1], "contenders": ["dissensus"], "tables": ["wine"]}
    run_cells(tmp_path, **choice, report=lambda line: None)
    assert ran == []
    run_cells(tmp_path, **choice, again=True, report=lambda line: None)
    assert ran == [("wine", "dissensus", 0), ("wine", "dissensus", 1)]
    now = {cells.cell_of(one): one["error"] for one in read_records(tmp_path)}
    before = {cells.cell_of(one): one["error"] for one in made_up}
    assert now == before | dict.fromkeys(ran, 0.05)


def test_ranked_is_who_has_half_of_the_tables(made_up: list[dict[str, Any]]) -> None:
    more = [results(table, "forest", 0, 1.0, 1.0) for table in ("pima", "servo", "votes")]
    assert ranked_contenders(made_up) == ["forest", "hgb", "dissensus"]
    assert ranked_contenders(made_up + more) == ["forest"]
    found = page_text(made_up + more[:1])
    assert "Not ranked, because not every contender has them yet: pima." in found


def test_goals_are_checked_on_the_records(made_up: list[dict[str, Any]]) -> None:
    checks = {check.name: check for check in check_goals(made_up)}
    assert checks["mean rank in error minus the best of the others"].value == 1.5 - 1.75
    assert checks["tables lost by more than 5% in NLL or CRPS"].value == 1
    assert not checks["distance of the mean coverage of 90% intervals"].met
    assert checks["largest peak memory of a fit / table, tables of 1 MB or more"].value == 4.0
    others = [one for one in made_up if one["contender"] != "dissensus"]
    assert check_goals(others) == ()


def test_the_page_says_what_the_records_say(made_up: list[dict[str, Any]]) -> None:
    page = page_text(made_up)
    assert "| dissensus | 1 | 1.50 [1.00, 2.00] | 2.00 | 1.00 |" in page  # settling, scikit-learn
    assert "more than 5% behind the best of the others on 1: ames (+50%)." in page
    assert "| ames | settling | random forest | **+50.0%** | 0 of 2 |" in page
    assert "- error, losses by kind of table: 1 of 1 (regression), 0 of 1 (classification)" in page
    assert "| median fit time / that of a random forest of 200 trees | 4 | 3 | **no** |" in page
    assert "| random forest | 2 | 1 / 1 | 1 / 1 | 1 / 1 | 1 / 1 |" in page
    assert "| TabM | 1 | 0 / 1 | 0 / 1 | 0 / 1 | 0 / 1 |" in page
    assert "## TabM, on a part of the tables" in page
    assert "| ames | random forest | -50.0% | random forest | -50.0% |" in page


def test_the_page_says_how_much_memory_is_of_libraries(made_up: list[dict[str, Any]]) -> None:
    assert "pages of libraries" not in page_text(made_up)
    page = page_text([one | {"files_mb": 5.0} for one in made_up])  # of 8 MB, on tables of 2 MB
    assert "5 to 5 MB of each peak are pages of libraries" in page
    assert "2 times the table at most." in page


def test_the_page_names_what_was_not_finished(made_up: list[dict[str, Any]]) -> None:
    limit = {"status": "limit", "message": "no fit within 180 s"}
    bare = {key: value for key, value in record("ames", "mlp", 0, 0.0).items() if key != "error"}
    page = page_text([*made_up, bare | limit, results("wine", "mlp", 0, 0.3, 1.0)])
    assert "- one MLP on ames, split 0: no fit within 180 s." in page
    assert "| ames | settling | 2 | **1** | 2.000 | 1.500 | not finished |" in page


def test_the_committed_page_is_that_of_the_committed_records() -> None:
    folder = Path(__file__).parents[2] / "results"
    assert page_text(read_records(folder / "tables")) == (folder / "tables.md").read_text()


def test_a_page_needs_records(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no records in"):
        write_page(tmp_path)

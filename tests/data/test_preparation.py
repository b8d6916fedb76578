"""Preparation of tables: each kind of column, what later rows may hold, and JSON."""

import json
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.data import load, read_inputs
from dissensus.data.column_values import raw_columns, text_column
from dissensus.data.preparation import Column, Preparation
from dissensus.runs.data import DataSummary

ROWS = 400


def table() -> dict[str, list[Any]]:
    """A column of each kind."""
    rng = np.random.default_rng(0)
    return {
        "size": [None if i % 7 == 0 else float(v) for i, v in enumerate(rng.normal(size=ROWS))],
        "town": ["Bonn" if i % 2 else "Ulm" for i in range(ROWS - 3)] + ["Trier", "Riga", None],
        "open": [None if i == 5 else i % 3 == 0 for i in range(ROWS)],
        "sold": [date(2024, 1 + i % 12, 1 + i % 28) for i in range(ROWS)],
        "seen": [datetime(2024, 2, 29, i % 24, 30) for i in range(ROWS)],
        "name": [f"flat {i}" for i in range(ROWS)],
        "unit": ["m²"] * ROWS,
        "gone": [None] * ROWS,
    }


def test_every_kind_is_found_and_said() -> None:
    preparation = Preparation.fit(table())
    kinds = {column.name: column.kind for column in preparation.columns}
    dropped = dict.fromkeys(["name", "unit", "gone"], "dropped")
    wanted = {"size": "number", "town": "category", "open": "boolean", "sold": "date"}
    assert kinds == {**wanted, "seen": "date", **dropped}
    lines = str(preparation).splitlines()
    assert (
        lines[0] == "size: number as 2 inputs; missing values are filled with the mean and marked"
    )
    assert lines[1] == "town: category as 3 inputs (Bonn, Ulm, other)"
    assert lines[5] == "name: dropped, id-like: 400 different values in 400 rows"
    assert preparation.summary() == (
        "8 columns: 1 number, 1 category, 1 boolean, 2 dates; filled 2 (size, open); dropped 3: "
        "name (id-like: 400 different values in 400 rows), unit (it has one value only), gone (it "
        "is empty)"
    )
    assert preparation.scaled.tolist() == [name in SCALED for name in preparation.features]
    back = Preparation.from_dict(json.loads(json.dumps(preparation.to_dict())))
    assert back == preparation
    np.testing.assert_array_equal(back.encode(table()), preparation.encode(table()))


SCALED = ("size", "open", "sold.days", "seen.days")


def test_dates_are_days_places_on_circles_and_a_calendar() -> None:
    """Worked by hand: 2024-02-29, a Thursday, is 19,782 days after 1970; noon is half a day."""
    raw = {"t": text_column(["2024-02-29 12:00", "2024-02-22T12:00:00+02:00", None])}
    preparation = Preparation.fit(raw)
    names = ("t.days", "t.year_sin", "t.year_cos", "t.day_sin", "t.day_cos")
    weekdays = tuple(f"t.weekday_{number}" for number in range(7))
    assert preparation.features == (*names, *weekdays, "t=missing")
    x = preparation.encode(raw)
    assert x[:2, 0].tolist() == [19782.5, 19775.5]
    angle = 2 * np.pi * 19782.5 / 365.2425
    assert x[0, 1:3] == pytest.approx([np.sin(angle), np.cos(angle)])
    assert x[:2, 3:5] == pytest.approx(np.array([[0, -1], [0, -1]]))  # noon, on the clock
    assert x[:2, 5:12].tolist() == [[0, 0, 0, 1, 0, 0, 0]] * 2  # a week apart
    assert np.isnan(x[2, :12]).all()
    assert x[:, 12].tolist() == [0, 0, 1]
    (column,) = preparation.columns
    before = np.array([np.nextafter(-3.0, -4.0)])  # the last moment of a Sunday
    assert column.encode(before)[0, 5:12].tolist() == [0, 0, 0, 0, 0, 0, 1]
    days = Preparation.fit({"t": [date(2024, 2, 29), date(2024, 3, 1)]})
    assert len(days.features) == 10  # without times of day
    years = Preparation.fit({"t": [date(2021, 12, 25), date(2023, 12, 25)]})
    assert len(years.features) == 10  # a day less than two years
    years = Preparation.fit({"t": [date(2021, 12, 25), date(2023, 12, 26)]})
    weeks = years.encode({"t": [date(2022, 12, 25), date(2023, 12, 25), date(2023, 1, 2)]})[:, 10:]
    assert weeks.shape == (3, 53)
    assert weeks.argmax(1).tolist() == [51, 51, 0]
    assert weeks.sum(1).tolist() == [1, 1, 1]


def test_a_day_of_the_year_has_an_input_where_there_are_four_rows_for_each() -> None:
    """Against the calendar of ``datetime``: the same day of a leap year, whatever the year."""
    every = [date(2020, 1, 1) + timedelta(days=number) for number in range(4 * 366)]
    few = Preparation.fit({"t": every[:-1]})
    weighed = Preparation.fit({"t": every[:-1]}, weights=np.full(len(every) - 1, 2.0))
    preparation = Preparation.fit({"t": every})
    many = Preparation.fit({"t": np.resize(np.array(every), 100_001)})
    assert len(few.features) == len(many.features) == 10 + 53
    assert preparation.features == weighed.features
    assert preparation.features[63:] == tuple(f"t.yearday_{day}" for day in range(366))
    past = [date(1969, 12, 31), date(1900, 3, 1), date(2096, 2, 29)]
    x = preparation.encode({"t": [*every, *past, None]})[:, 63:]
    wanted = [(day.replace(year=2000) - date(2000, 1, 1)).days for day in [*every, *past]]
    assert x[:-1].argmax(1).tolist() == wanted
    assert (x[:-1].sum(1) == 1).all()
    assert np.isnan(x[-1]).all()


def test_rare_levels_and_those_beyond_the_limit_are_pooled() -> None:
    values = ["a"] * 500 + ["b"] * 490 + ["c"] * 6 + ["d"] * 3 + ["e"]
    (column,) = Preparation.fit({"n": values}).columns
    assert column.levels == ("a", "b", "c", "other")  # fewer than 5 of 1,000 rows
    (column,) = Preparation.fit(raw_columns({"n": values}), max_levels=2).columns
    assert column.levels == ("a", "other")
    (column,) = Preparation.fit({"n": ["a"] * 599 + ["b"]}).columns
    assert column.levels == ("a", "b")  # alone it keeps its name
    rows = np.array([1, 1, 1, 1, 1])
    (column,) = Preparation.fit(raw_columns({"n": list("aabcd")}), weights=rows * 400.0).columns
    assert column.levels == ("a", "b", "c", "d")
    weights = np.array([900.0, 900.0, 900.0, 1.0, 1.0])
    (column,) = Preparation.fit(raw_columns({"n": list("aabcd")}), weights=weights).columns
    assert column.levels == ("a", "b", "other")


def test_what_training_did_not_know_has_a_stated_meaning() -> None:
    raw = raw_columns({"size": [1.0, 2.0, 4.0], "town": ["Bonn", "Ulm", "Bonn"]})
    preparation = Preparation.fit(raw)
    new = raw_columns({"size": [None, 3.0], "town": ["Rome", None], "more": [1, 2]})
    x = preparation.encode(new)
    assert np.isnan(x[0, 0])
    assert not x[:, 1:].any()
    assert preparation.remarks(new) == (
        "size: 1 of 2 values are missing, unlike in training; they are filled with the training "
        "mean",
        "town: 2 of 2 rows hold none of its levels, such as Rome; their inputs are all 0",
    )
    assert preparation.remarks(raw) == ()
    pooled = Preparation((Column("town", "category", ("Bonn", "other")),))
    assert pooled.encode(new).tolist() == [[0, 1], [0, 1]]
    assert pooled.remarks(new) == ()


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"size": [1.0]}, "the table lacks the column 'town' of training; it has size"),
        ({"size": ["big"], "town": ["Ulm"]}, "column 'size' must hold numbers: could not convert"),
        ({"size": [date(2024, 1, 1)], "town": ["Ulm"]}, "column 'size' must hold numbers: there a"),
        ({"size": [-np.inf], "town": ["Ulm"]}, "column 'size' holds 1 infinite values"),
        ({"size": [1e39], "town": ["Ulm"]}, r"column 'size' holds 1e\+39, which is beyond float32"),
        ({"size": [1.0], "town": [None]}, "column 'town' lacks 1 of 1 values; fill them, or train"),
    ],
)
def test_other_tables_are_refused(new: dict[str, Any], message: str) -> None:
    raw = raw_columns({"size": [1.0, 2.0], "town": ["Bonn", "Ulm"]})
    preparation = Preparation.fit(raw, missing="error")
    with pytest.raises(ValueError, match=message):
        preparation.encode(raw_columns(new))


def test_constants_alone_stay_and_names_alone_are_refused() -> None:
    assert Preparation.fit({"a": [1, 1], "b": ["x", "x"]}).features == ("a", "b=x")
    with pytest.raises(ValueError, match="the table has no rows to learn from"):
        Preparation.fit({"a": [], "b": []})
    with pytest.raises(ValueError, match="no column is left to learn from: a: dropped, id-like"):
        Preparation.fit(raw_columns({"a": [f"row {i}" for i in range(21)]}))


def test_names_are_told_from_categories_by_weighted_rows() -> None:
    names = {"name": [f"{i}" + "!" for i in range(30)], "x": list(range(30))}
    for weight, kind in ((1.0, "dropped"), (1 / 30, "dropped"), (2.0, "category")):
        column = Preparation.fit(names, weights=np.full(30, weight)).columns[0]
        assert column.kind == kind
    repeated = {name: values * 2 for name, values in names.items()}
    assert Preparation.fit(repeated) == Preparation.fit(names, weights=np.full(30, 2.0))


def test_frames_of_pandas_and_arrow_give_the_same() -> None:
    pd = pytest.importorskip("pandas")
    values = table()
    frame = pd.DataFrame(values)
    plain = Preparation.fit(raw_columns(values))
    typed = frame.assign(
        town=frame["town"].astype("category"),
        open=frame["open"].astype("boolean"),
        sold=pd.to_datetime(frame["sold"]),
        seen=pd.to_datetime(frame["seen"]).dt.tz_localize("Europe/Berlin"),
    )
    frames = [frame, typed]
    if pytest.importorskip("pyarrow"):
        frames.append(typed.drop(columns="town").convert_dtypes(dtype_backend="pyarrow"))
        frames[-1].insert(1, "town", frame["town"].astype("string[pyarrow]"))
    for other in frames:
        raw = raw_columns(other)
        assert Preparation.fit(raw) == plain
        np.testing.assert_array_equal(plain.encode(raw), plain.encode(raw_columns(values)))
    whole = pd.DataFrame({"label": pd.Series([1, 2, 1], dtype="category"), "x": [1, 2, 3]})
    labels = Preparation.fit(raw_columns(whole))
    assert labels.features == ("label=1", "label=2", "x")
    as_numbers = labels.encode(raw_columns(whole.assign(label=[1.0, 2.0, 1.0])))
    np.testing.assert_array_equal(as_numbers, labels.encode(raw_columns(whole)))
    with pytest.raises(ValueError, match="two columns are called 'a'; rename one"):
        raw_columns(pd.DataFrame([[1, 2]], columns=["a", "a"]))


REAL = {
    "ozone": "V4",
    "credit": "Status",
    "pima": "diabetes",
    "soybean": "Class",
    "chicago": "ridership",
}


@pytest.mark.parametrize("name", REAL)
def test_real_tables_are_prepared_again_as_they_were(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    """The file itself, read as new rows, gives the inputs of its splits."""
    pd = pytest.importorskip("pandas")
    source = shared_data / "tables" / f"{name}.csv.gz"
    if not source.is_file():
        pytest.skip(f"{source} is not there")
    frame = pd.read_csv(source)
    file = tmp_path / f"{name}.csv"
    frame.to_csv(file, index=False)
    data = load(file, target=REAL[name], seed=1)
    kept = json.loads(json.dumps(DataSummary.of(data).__dict__))
    again = read_inputs(file, DataSummary(**kept), target=REAL[name], labelled=True)
    for part, (x, y) in data.splits().items():
        np.testing.assert_array_equal(again.x[data.rows[part]], x)
        np.testing.assert_allclose(again.y[data.rows[part]], y, rtol=1e-6)
    assert again.ignored == ()
    assert all("unlike in training" in remark for remark in again.remarks)
    few = read_inputs(frame.head(20).drop(columns=REAL[name]), DataSummary(**kept))
    np.testing.assert_allclose(few.x, again.x[:20], atol=1e-6)

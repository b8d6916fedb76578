"""A user's own table: numbers, text, gaps, targets of either task, and plain refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dissensus.data import load, load_table

FLATS = """rooms,town,floor,price
3,Bonn,1,250.5
4,Köln,2,310.0
2,Bonn,1,190.25
5,Köln,3,420.0
1,Aachen,2,120.0
3,Bonn,2,260.0
"""

GAPS = FLATS.replace("4,Köln,2", "NA,Köln,?").replace("1,Aachen", "1,")


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "flats.csv"
    path.write_text(FLATS)
    return path


def columns_of(path: Path, **options: Any) -> tuple[str, ...]:
    """The columns that a table becomes, learnt from nearly all of its rows."""
    return load(path, test=0, val=1, **options).features


def test_a_file_becomes_numbers_levels_and_a_target_in_units(csv: Path) -> None:
    table = load_table(csv, target="price")
    assert list(table.columns) == ["rooms", "town", "floor"]
    assert table.columns["town"].tolist()[:2] == ["Bonn", "Köln"]
    data = load(csv, target="price", test=2, val=1, seed=1)
    assert set(data.features) <= {"rooms", "town=Aachen", "town=Bonn", "town=Köln", "floor"}
    assert (data.task, data.outputs) == ("regression", 1)
    assert np.allclose(data.original(data.test[1])[:, 0], table.y[data.rows["test"].numpy()])


@pytest.mark.parametrize(
    ("target", "options", "task", "classes"),
    [
        ("town", {}, "classification", ("Aachen", "Bonn", "Köln")),
        ("floor", {}, "classification", ("1", "2", "3")),
        ("floor", {"task": "regression"}, "regression", ()),
        ("price", {}, "regression", ()),
        (-1, {}, "regression", ()),
        (1, {}, "classification", ("Aachen", "Bonn", "Köln")),
    ],
)
def test_the_task_follows_the_target(
    csv: Path, target: str | int, options: dict[str, str], task: str, classes: tuple[str, ...]
) -> None:
    table = load_table(csv, target=target, **options)
    assert (table.task, table.classes) == (task, classes)
    if classes:
        column = [line.split(",") for line in FLATS.splitlines()[1:]]
        index = 1 if classes[0] == "Aachen" else 2
        assert [classes[i] for i in table.y] == [row[index] for row in column]


def test_columns_can_be_dropped_or_taken_for_labels(csv: Path) -> None:
    found = columns_of(csv, target="price", drop=["town"], categorical=["floor"])
    assert found[0] == "rooms"
    assert {name.split("=")[0] for name in found[1:]} == {"floor"}


def test_gaps_are_counted_and_the_ways_out_named(csv: Path) -> None:
    csv.write_text(GAPS)
    message = (
        r"lacks values in 3 of 4 columns \(rooms: 1, town: 1, floor: 1, of 6 rows\); pass "
        r"missing='fill' or missing='drop'"
    )
    with pytest.raises(ValueError, match=message):
        load(csv, target="price", missing="error")


def test_rows_with_gaps_can_be_dropped(csv: Path) -> None:
    csv.write_text(GAPS)
    table = load_table(csv, target="price", missing="drop")
    assert table.ids.tolist() == [0, 2, 3, 5]
    assert len(load_table(csv, target="price", missing="drop", drop=["town"])) == 5


def test_gaps_can_be_filled_from_the_training_rows(csv: Path) -> None:
    csv.write_text(GAPS)
    for seed in range(6):
        data = load(csv, target="price", val=0, test=2, seed=seed)
        for x, _ in data.splits().values():
            assert torch.isfinite(x).all()
        learnt = 1 in data.rows["train"]  # the row with two gaps
        assert ("rooms=missing" in data.features) == learnt


def test_a_target_cannot_be_filled(csv: Path) -> None:
    csv.write_text(FLATS.replace("310.0", ""))
    with pytest.raises(ValueError, match="target 'price' is missing in 1 of 6 rows; remove"):
        load(csv, target="price", missing="fill")
    assert len(load_table(csv, target="price", missing="drop")) == 5


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (FLATS, {}, "say with target= which column of .* to learn: rooms, town, floor, price"),
        (FLATS, {"target": "prize"}, "target: there is no column 'prize'; there are rooms"),
        (FLATS, {"target": 9}, "target=9 is no position among 4 columns"),
        (FLATS, {"target": "price", "drop": ["price"]}, "target 'price' is also in drop"),
        (FLATS, {"target": "price", "drop": ["roof"]}, "drop: there is no column 'roof'"),
        (
            FLATS,
            {"target": "price", "missing": "guess"},
            "missing must be one of error, drop, fill, got",
        ),
        (FLATS, {"target": "price", "task": "rank"}, "task must be one of classification"),
        (FLATS, {"target": "town", "task": "regression"}, "holds text such as 'Bonn'; regress"),
        (FLATS, {"target": "price", "max_levels": 1}, "max_levels must be an integer of at least"),
        (
            "a,b\n" + ",1\n,2\n" * 5,
            {"target": "b"},
            "no column is left to learn from: a: dropped, it is",
        ),
        (FLATS, {"target": "price", "nan": "drop"}, "no option 'nan'; known are target,"),
        ("a,a\n1,2\n", {"target": "a"}, "names columns twice: a"),
        ("a,b\n1\n", {"target": "b"}, "data row 1 has 1 values between ',', the header 2"),
        ("a,b\n", {"target": "b"}, "has a header and no rows"),
        ("", {"target": "b"}, "is empty"),
        ("a,b\n1,inf\n" + "2,3\n4,5\n" * 3, {"target": "a"}, "column 'b' holds 1 infinite values"),
        ("a\n1\n2\n", {"target": "a"}, "has no column besides the target 'a'"),
        ("a,b\n1,x\n2,x\n", {"target": "b"}, "the target has one value only, 'x'"),
        ("a,b\n,1\n,2\n", {"target": "b", "missing": "drop"}, "every row lacks a value"),
    ],
)
def test_refusals(csv: Path, text: str, options: dict[str, Any], message: str) -> None:
    csv.write_text(text)
    with pytest.raises(ValueError, match=message):
        load(csv, **options)


def test_a_table_that_is_not_text_or_not_there(csv: Path) -> None:
    csv.write_bytes(b"a,b\n1,\xff\xfe\n")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        load(csv, target="a")
    with pytest.raises(ValueError, match=r"there is no table .*nowhere.csv"):
        load(csv.parent / "nowhere.csv", target="a")


def test_parquet_gives_the_same_as_csv(csv: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [line.split(",") for line in FLATS.splitlines()[1:]]
    columns = {
        "rooms": [int(row[0]) for row in rows],
        "town": [row[1] for row in rows],
        "floor": [int(row[2]) for row in rows],
        "price": [float(row[3]) for row in rows],
    }
    path = csv.with_suffix(".parquet")
    parquet.write_table(pyarrow.table(columns), path)
    one, other = load_table(csv, target="price"), load_table(path, target="price")
    first, second = one.split(seed=1), other.split(seed=1)
    assert first.features == second.features
    assert torch.equal(first.train[0], second.train[0])
    assert np.array_equal(one.y, other.y)
    columns["rooms"][1] = None
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(ValueError, match="rooms: 1, of 6 rows"):
        load(path, target="price", missing="error")
    path.write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        load(path, target="price")

"""The four UCI tables: columns and rows of the notes, and the traps in the files."""

from pathlib import Path

import pytest
import torch

from dissensus.data import load, load_table
from dissensus.data.table_sets import UCI_TABLES

SHAPES = {
    "abalone": (1000, 8),
    "bioconcentration": (779, 9),
    "facebook": (495, 18),
    "weather": (1000, 22),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_real_tables_have_the_stated_shape(shared_data: Path, name: str) -> None:
    table = load_table(name, data_dir=shared_data)
    n = len(table)
    assert (n, len(table.columns)) == SHAPES[name]
    for seed in range(3):
        data = table.split(seed)
        sizes = [len(data.rows[part]) for part in ("train", "val", "test")]
        assert sizes[2] == round(0.2 * n)
        assert sizes[1] == round(0.2 * (n - sizes[2]))
        assert sum(sizes) == n
        assert all(torch.isfinite(x).all() for x, _ in data.splits().values())
        assert data.train[0].mean(0).abs().max() < 1e-4


def test_abalones_first_row(shared_data: Path) -> None:
    """M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15."""
    table = load_table("abalone", data_dir=shared_data)
    first = [values[0] for values in table.columns.values()]
    assert first == ["M", 0.455, 0.365, 0.095, 0.514, 0.2245, 0.101, 0.15]
    assert table.y[0] == 15
    assert len(load_table("abalone", data_dir=shared_data, limit=None)) == 4177


def test_weathers_last_two_rows_are_no_observations(shared_data: Path) -> None:
    table = load_table("weather", data_dir=shared_data, limit=None)
    assert len(table) == 7588
    assert table.ids.max() < 7750
    assert not {"Date", "Next_Tmin", "Next_Tmax"} & set(table.columns)
    assert len(set(table.columns["station"])) == 25


def test_bioconcentration_leaves_the_derived_class_out(shared_data: Path) -> None:
    table = load_table("bioconcentration", data_dir=shared_data)
    assert table.y[0] == 0.74
    assert not {"Class", "CAS", "SMILES", "Set"} & set(table.columns)


WEATHER = """station,Date,Present_Tmax,LDAPS_PPT1,Next_Tmax,Next_Tmin
1,2013-06-30,28.7,0,29.1,21.2
2,2013-06-30,,0,30.5,22.5
2,2013-07-01,31.9,0.5,30.5,22.5
1,2013-07-01,31.0,0,30.0,22.0
1,2013-07-02,31.0,0,30.0,22.0
3,2013-07-02,31.0,0,30.0,22.0
,,20,0,17.4,11.3
,,37.6,21,38.9,29.8
"""


def put(folder: Path, name: str, text: str) -> None:
    how = UCI_TABLES[name]
    (folder / how.folder).mkdir(exist_ok=True)
    (folder / how.folder / how.file.name).write_text(text)


def test_a_small_file_in_the_official_layout(tmp_path: Path) -> None:
    semicolons = "\ufeff" + WEATHER.replace(",", ";").replace("\n", "\r\n")
    put(tmp_path, "weather", semicolons)
    assert len(load_table("weather", data_dir=tmp_path, verify=False)) == 5
    put(tmp_path, "weather", WEATHER)
    table = load_table("weather", data_dir=tmp_path, verify=False)
    assert list(table.columns) == ["station", "Present_Tmax", "LDAPS_PPT1"]
    assert table.ids.tolist() == [0, 2, 3, 4, 5]
    assert [values[1] for values in table.columns.values()] == ["2", 31.9, 0.5]
    assert table.y.tolist() == [29.1, 30.5, 30, 30, 30]
    assert len(load_table("weather", data_dir=tmp_path, verify=False, limit=2)) == 2


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "weather", WEATHER)
    with pytest.raises(ValueError, match="is not the official file: its sha256"):
        load("weather", data_dir=tmp_path)
    put(tmp_path, "facebook", "Type;share\nPhoto;3\n")
    with pytest.raises(ValueError, match="not the facebook table: it has no column Lifetime Post"):
        load("facebook", data_dir=tmp_path)
    put(tmp_path, "facebook", "Type;Lifetime Post Total Impressions\nPhoto;3\n")
    with pytest.raises(ValueError, match="not the whole facebook table: it has 1 rows, expected 5"):
        load("facebook", data_dir=tmp_path)
    put(tmp_path, "weather", WEATHER.replace("31.9", "hot"))
    with pytest.raises(ValueError, match="column 'Present_Tmax' must hold numbers: could not"):
        load("weather", data_dir=tmp_path, verify=False)
    with pytest.raises(ValueError, match="limit must be an integer of at least 1, got 0"):
        load("weather", data_dir=tmp_path, verify=False, limit=0)

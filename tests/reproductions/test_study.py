"""Studies and their compact records: what is run, what is kept, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reproductions.experiment import select
from reproductions.study import (
    Cell,
    Study,
    StudyRecord,
    check_options,
    option_values,
    read_study,
    run_study,
    study_path,
)
from tests.reproductions.made_up import COINS, STUDY, cells

KNOWN = {"collusion/coins": COINS, "collusion/cards": replace(COINS, full_name="collusion/cards")}


def run_coins(out: Path, scale: str = "cpu", *, again: bool = False, **options: Any) -> StudyRecord:
    return run_study(STUDY, "collusion", scale, options, out, progress=False, again=again)


# ---- names and options --------------------------------------------------------------------------


def test_experiments_are_chosen_by_any_of_their_names_each_once() -> None:
    every = list(KNOWN.values())
    assert select(["collusion/"], KNOWN) == select(["COLLUSION", "coins"], KNOWN) == every
    assert select(["cards", "collusion/cards"], KNOWN) == every[1:]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("collusion/coin", "did you mean 'collusion/coins'?"),
        ("crads", "did you mean 'cards'?"),
        ("zzz", "see --list for all"),
    ],
)
def test_an_unknown_name_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match="there is no experiment") as error:
        select([name], KNOWN)
    assert hint in str(error.value)


def test_options_are_read_and_checked() -> None:
    values = {"a": 1, "b": 0.5, "c": True, "d": "x:y", "e": "[1]", "f_g": 2}
    assert option_values(["a=1", "b=0.5", "c=true", "d=x:y", "e=[1]", "f-g=2"]) == values
    for text in ("a", "=1", "a="):
        with pytest.raises(ValueError, match="an option is written key=value"):
            option_values([text])
    check_options({"bias": 1}, [STUDY])
    with pytest.raises(ValueError, match="no option 'bais' of coins; did you mean 'bias'"):
        check_options({"bais": 1}, [STUDY])
    with pytest.raises(ValueError, match="no option 'x' of coins; it takes none"):
        check_options({"x": 1}, [replace(STUDY, options={})])


# ---- records ------------------------------------------------------------------------------------


def test_a_study_leaves_a_compact_record(tmp_path: Path) -> None:
    made = run_coins(tmp_path)
    path = tmp_path / "collusion" / "coins.json"
    assert study_path(tmp_path, "collusion", "coins") == path
    assert read_study(path) == made
    assert made.complete
    assert [record["name"] for record in made.cells] == [f"run={seed}" for seed in range(5)]
    assert made.cells[1]["result"] == {"heads": 0.593333, "tails": 0.333333}  # six digits
    text = path.read_text()
    assert str(tmp_path) not in text
    assert sum(line.startswith('{"name"') for line in text.splitlines()) == 5  # one line a cell
    assert json.loads(text)["environments"][0]["packages"]["torch"]


def test_another_scale_or_option_does_not_replace_a_record(tmp_path: Path) -> None:
    run_coins(tmp_path)
    before = study_path(tmp_path, "collusion", "coins").read_text()
    with pytest.raises(ValueError, match="made with --scale cpu and no --set, not --scale smoke"):
        run_coins(tmp_path, "smoke")
    with pytest.raises(ValueError, match=r"not --scale cpu and --set bias=0\.5"):
        run_coins(tmp_path, bias=0.5)
    assert study_path(tmp_path, "collusion", "coins").read_text() == before
    changed = run_coins(tmp_path, bias=0.5, again=True)
    assert changed.options == {"bias": 0.5}
    assert all(record["cell"]["bias"] == 0.5 for record in changed.cells)
    with pytest.raises(ValueError, match="scale must be one of smoke, cpu, paper, got 'huge'"):
        run_coins(tmp_path, "huge")


def test_a_failed_cell_is_named_without_paths(tmp_path: Path) -> None:
    made = run_coins(tmp_path, bias=13)
    assert not made.complete
    assert made.failed["run=0"] == "RuntimeError: bad luck in 13.csv today"
    assert "someone" not in study_path(tmp_path, "collusion", "coins").read_text()


class Counted:
    """The study, with the names of the cells that were run; stops before a seed."""

    def __init__(self, out: Path, stop: int | None = None, plan: Any = cells) -> None:
        self.started: list[str] = []
        self.stop = stop
        self.out = out
        self.study: Study = replace(STUDY, run=self.run, cells=plan)

    def run(self, cell: Cell) -> dict[str, Any]:
        if cell["seed"] == self.stop:
            raise KeyboardInterrupt
        self.started.append(cell["name"])
        return STUDY.run(cell)

    def go(self) -> StudyRecord:
        options = {"bias": 1 / 3}
        return run_study(self.study, "collusion", "cpu", options, self.out, progress=False)


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Counted(tmp_path, stop=2).go()
    rest = Counted(tmp_path)
    whole = rest.go()
    assert rest.started == ["run=2", "run=3", "run=4"]
    assert whole.complete
    assert [record["name"] for record in whole.cells] == [f"run={seed}" for seed in range(5)]


def test_a_compact_record_is_enough_to_go_on_from(tmp_path: Path) -> None:
    """Its cells are not run again without their working files, unless their settings changed."""
    whole = Counted(tmp_path).go()
    assert whole.cells[0]["cell"]["bias"] == 0.333333  # not the 1/3 of the plan
    for file in (tmp_path / "collusion" / "cells" / "coins-cpu").iterdir():
        file.unlink()
    again = Counted(tmp_path)
    assert again.go() == whole
    assert again.started == []

    def plan(*asked: Any) -> list[Cell]:
        return [{**cell, "bias": 0.4} if cell["seed"] == 3 else cell for cell in cells(*asked)]

    changed = Counted(tmp_path, plan=plan)
    made = changed.go()
    assert changed.started == ["run=3"]
    assert made.cells[3]["result"]["heads"] == pytest.approx(1 / 3 + 0.43, abs=1e-6)
    assert made.cells[:3] == whole.cells[:3]


def test_a_file_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "coins.json"
    path.write_text('{"cells": []}')
    with pytest.raises(ValueError, match=r"coins\.json is not the record of a study"):
        read_study(path)

"""Studies, their compact records, and pages built from records alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reproductions import base
from reproductions.base import (
    CANNOT,
    Cell,
    Claim,
    Finding,
    Study,
    Verdict,
    check_options,
    option_values,
    select,
)
from reproductions.page import outcomes, page_text, write_figures, write_page
from reproductions.studies import (
    StudyRecord,
    cells_folder,
    read_study,
    run_study,
    study_path,
)
from tests.reproductions.made_up import COINS, STUDY, cells

KNOWN = {"collusion/coins": COINS, "collusion/cards": replace(COINS, full_name="collusion/cards")}


def run_coins(out: Path, scale: str = "cpu", **settings: Any) -> Any:
    again = settings.pop("again", False)
    return run_study(STUDY, "collusion", scale, settings, out, progress=False, again=again)


# ---- names and options --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["collusion", "collusion/", "collusion/…", "collusion/...", "collusion/*", "COLLUSION"],
)
def test_a_paper_is_all_of_its_experiments(name: str) -> None:
    assert select([name], KNOWN) == list(KNOWN.values())


def test_each_experiment_once_by_any_of_its_names() -> None:
    assert select(["collusion/coins", "coins", "collusion"], KNOWN) == list(KNOWN.values())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("collusion/coin", "did you mean 'collusion/coins'?"),
        ("crads", "did you mean 'collusion/cards'?"),
        ("colusion", "did you mean 'collusion'?"),
        ("zzz", "see --list for all"),
    ],
)
def test_an_unknown_name_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match="there is no experiment") as error:
        select([name], KNOWN)
    assert hint in str(error.value)


def test_options_are_read_and_checked() -> None:
    assert option_values(["a=1", "b=0.5", "c=true", "d=x:y", "e=[1]", "f-g=2"]) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": "x:y",
        "e": "[1]",
        "f_g": 2,
    }
    for text in ("a", "=1", "a="):
        with pytest.raises(ValueError, match="an option is written key=value"):
            option_values([text])
    check_options({"bias": 1}, [STUDY])
    with pytest.raises(ValueError, match="no option 'bais' of coins; did you mean 'bias'"):
        check_options({"bais": 1}, [STUDY])
    with pytest.raises(ValueError, match="no option 'x': coins takes none"):
        check_options({"x": 1}, [replace(STUDY, options={})])


# ---- studies ------------------------------------------------------------------------------------


def test_a_study_leaves_a_compact_record(tmp_path: Path) -> None:
    made = run_coins(tmp_path)
    path = study_path(tmp_path, "collusion", "coins")
    assert path == tmp_path / "collusion" / "coins.json"
    assert read_study(path) == made
    assert made.complete
    assert [record["name"] for record in made.records] == [f"run={seed}" for seed in range(5)]
    assert made.records[1]["result"] == {"heads": 0.593333, "tails": 0.333333}  # six digits
    working = cells_folder(tmp_path, "collusion", "coins", "cpu").done()
    assert working["run=1"]["result"]["heads"] == pytest.approx(1 / 3 + 0.26, abs=1e-15)
    text = path.read_text()
    assert str(tmp_path) not in text
    assert sum(line.startswith('{"name"') for line in text.splitlines()) == 5  # one line a cell
    assert json.loads(text)["environments"][0]["packages"]["torch"]


def test_a_second_start_runs_nothing(tmp_path: Path) -> None:
    first = run_coins(tmp_path)

    def never(cell: Any) -> dict[str, Any]:
        raise AssertionError("everything is done")

    lazy = replace(STUDY, run=never)
    assert run_study(lazy, "collusion", "cpu", {}, tmp_path, progress=False) == first


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
    assert all(record["cell"]["bias"] == 0.5 for record in changed.records)
    with pytest.raises(ValueError, match="scale must be one of smoke, cpu, paper, got 'huge'"):
        run_coins(tmp_path, "huge")


def test_a_failed_cell_is_named_without_paths(tmp_path: Path) -> None:
    made = run_coins(tmp_path, bias=13)
    assert not made.complete
    assert made.failed["run=0"] == "RuntimeError: bad luck in 13.csv today"
    text = page_text("collusion", outcomes(KNOWN.values(), tmp_path), KNOWN)
    assert "Failed: run=0 (RuntimeError: bad luck in 13.csv today)." in text
    assert "not decided yet: 0 of 5 cells are done" in text
    assert "someone" not in text + study_path(tmp_path, "collusion", "coins").read_text()


def test_an_interrupt_keeps_a_partial_record_but_never_instead_of_a_fuller_one(
    tmp_path: Path,
) -> None:
    def stops(cell: Any) -> dict[str, Any]:
        if cell["seed"] == 2:
            raise KeyboardInterrupt
        return STUDY.run(cell)

    broken = replace(STUDY, run=stops)
    with pytest.raises(KeyboardInterrupt):
        run_study(broken, "collusion", "cpu", {}, tmp_path, progress=False)
    path = study_path(tmp_path, "collusion", "coins")
    partial = read_study(path)
    assert (len(partial.records), partial.planned) == (2, 5)
    (outcome, _) = outcomes(KNOWN.values(), tmp_path)
    verdicts = [finding.verdict for _, finding in outcome.findings]
    assert verdicts == ["holds", "not tested at this scale"]

    whole = run_coins(tmp_path)
    remove_working_files(tmp_path)
    changed = replace(broken, cells=lambda *asked: [{**c, "coin": "new"} for c in cells(*asked)])
    with pytest.raises(KeyboardInterrupt):
        run_study(changed, "collusion", "cpu", {}, tmp_path, progress=False)
    assert read_study(path) == whole


def test_a_compact_record_is_enough_to_go_on_from(tmp_path: Path) -> None:
    """Its cells are not run again without their working files, unless their settings changed."""
    started: list[str] = []

    def run(cell: Any) -> dict[str, Any]:
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(cell["name"])
        return STUDY.run(cell)

    def go_on(study: Study) -> StudyRecord:
        started.clear()
        return run_study(study, "collusion", "cpu", {"bias": 1 / 3}, tmp_path, progress=False)

    with pytest.raises(KeyboardInterrupt):
        go_on(replace(STUDY, run=run))
    partial = read_study(study_path(tmp_path, "collusion", "coins"))
    assert partial.records[0]["cell"]["bias"] == 0.333333  # not the 1/3 of the plan
    remove_working_files(tmp_path)

    def count(cell: Any) -> dict[str, Any]:
        started.append(cell["name"])
        return STUDY.run(cell)

    whole = go_on(replace(STUDY, run=count))
    assert started == ["run=2", "run=3", "run=4"]
    assert whole.complete
    assert whole.records[:2] == partial.records
    assert whole.environments == partial.environments

    remove_working_files(tmp_path)
    assert go_on(replace(STUDY, run=count)) == whole
    assert started == []

    def plan(*asked: Any) -> list[Cell]:
        return [{**cell, "bias": 0.4} if cell["seed"] == 3 else cell for cell in cells(*asked)]

    remove_working_files(tmp_path)
    changed = go_on(replace(STUDY, run=count, cells=plan))
    assert started == ["run=3"]
    assert changed.records[3]["result"]["heads"] == pytest.approx(1 / 3 + 0.43, abs=1e-6)


def remove_working_files(out: Path) -> None:
    """As in a fresh copy of the project, which has the compact record alone."""
    for file in cells_folder(out, "collusion", "coins", "cpu").folder.iterdir():
        file.unlink()


def test_a_record_that_is_none_is_named(tmp_path: Path) -> None:
    path = study_path(tmp_path, "collusion", "coins")
    path.parent.mkdir()
    path.write_text('{"cells": []}')
    with pytest.raises(ValueError, match=r"coins\.json is not the record of a study"):
        outcomes(KNOWN.values(), tmp_path)


# ---- pages and figures --------------------------------------------------------------------------


def test_page_and_figures_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    run_coins(tmp_path)

    def build() -> dict[str, bytes]:
        found = outcomes(KNOWN.values(), tmp_path)
        paths = [write_page("collusion", found, KNOWN, tmp_path), *write_figures(found, tmp_path)]
        return {path.name: path.read_bytes() for path in paths}

    first = build()
    assert set(first) == {"collusion.md", "coins.svg", "cards.svg"}
    for file in (tmp_path / "collusion" / "figures").iterdir():
        file.unlink()
    assert build() == first
    assert b"<dc:date>" not in first["coins.svg"]


def test_what_stands_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_coins(tmp_path)
    settings = {"coins": {"cpu": "Five throws.", "cpu, coins": "Of a coin."}}
    monkeypatch.setattr(base, "read_settings", lambda paper: settings)
    dice = replace(COINS, full_name="collusion/dice", study=replace(STUDY, name="d"))
    known = KNOWN | {"collusion/dice": dice}
    text = page_text("collusion", outcomes(known.values(), tmp_path), known)
    assert "Of 4 claims 4 hold, with 0 contradicted, 0 undecided and 0 not tested" in text
    assert "Not run yet: `collusion/dice`." in text
    assert "| [`coins`](#coins) | Heads \\| tails | Section 0 | **holds** |" in text
    assert "0.6 \\| 0.4" in text
    assert "share: heads 0.6033, tails 0.3333, difference 0.27 [0.2504, 0.2896] over 5 runs" in text
    assert text.count("*Setting (`cpu`).* Five throws. Of a coin.\n") == 1
    assert text.count("*Setting (`cpu`).* Five throws.\n") == 1  # the cards, of the same study
    assert "![Figure 0: Heads come up more often](collusion/figures/coins.svg)" in text
    assert "| run=4 | 0.623 |" in text


def test_larger_networks_answer_for_what_was_not_tested(tmp_path: Path) -> None:
    run_coins(tmp_path)

    def page(again: tuple[str, str], verdict: Verdict = "holds") -> str:
        asked = Claim("Here", "Section 2", lambda _: Finding(CANNOT, "too few"), again)
        there = Claim("There, too", "Section 3", lambda _: Finding(verdict, "many"))
        cards = replace(KNOWN["collusion/cards"], claims=(there,))
        known = {"collusion/coins": replace(COINS, claims=(asked,)), "collusion/cards": cards}
        return page_text("collusion", outcomes(known.values(), tmp_path), known)

    answered = page(("cards", "There"), "contradicted")
    pointer = "; larger networks, [`cards`](#cards): **contradicted** |"
    assert f"| Here | Section 2 | **not tested at this scale**{pointer}" in answered
    assert "and 1 not tested at this scale, 1 of which larger networks test." in answered
    for open_ in (page(("dice", "There")), page(("cards", "There"), CANNOT)):
        assert "| Here | Section 2 | **not tested at this scale** |" in open_
        assert "larger networks" not in open_


def test_what_is_short_stands_under_the_experiment_that_says_it(tmp_path: Path) -> None:
    run_coins(tmp_path)
    cards = replace(KNOWN["collusion/cards"], title="Of cards", brief=lambda records: ["Aces."])
    silent = replace(cards, full_name="collusion/dice", brief=lambda records: [])
    known = {"collusion/coins": COINS, "collusion/cards": cards, "collusion/dice": silent}
    text = page_text("collusion", outcomes(known.values(), tmp_path), known)
    short = text.split("## In short")[1].split("## All claims")[0]
    assert short == "\n\nOf cards ([`cards`](#cards)):\n\n- Aces.\n\n"
    assert "## In short" not in page_text("collusion", outcomes(KNOWN.values(), tmp_path), KNOWN)


def test_a_check_that_is_wrong_is_not_hidden_once_all_is_done(tmp_path: Path) -> None:
    run_coins(tmp_path, "smoke")  # three runs: the second claim asks for a fifth
    with pytest.raises(KeyError, match="run=4"):
        outcomes(KNOWN.values(), tmp_path)

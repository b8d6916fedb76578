"""``dissensus reproduce``: names in, a page, figures and verdicts out."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from dissensus.papers.collusion import gat
from dissensus.papers.registry import EXPERIMENTS
from dissensus.papers.studies import read_study

FEW = ["--scale", "smoke", "--set", "draws=2"]


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were not installed: the figures take most of a small run's time."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_the_list_names_every_experiment(dissensus: Callable[..., Any]) -> None:
    answer = dissensus("reproduce", "--list")
    assert answer.status == 0
    for name, experiment in EXPERIMENTS.items():
        assert name in answer.out
        assert experiment.shows.split(",")[0] in answer.out
    for text in ("smoke", "cpu", "paper", "draws: how many random draws", "2 min"):
        assert text in answer.out


def test_the_list_fits_a_narrow_terminal(
    dissensus: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal: a file would get wide lines
    monkeypatch.setenv("COLUMNS", "80")
    printed = dissensus("reproduce", "ldr", "--list").out
    lines = Text.from_ansi(printed).plain.splitlines()
    names = [name for name in EXPERIMENTS if name.startswith("ldr/")]
    rows = [line.split()[0] for line in lines if line.startswith("ldr/")]
    assert rows == names
    assert max(map(len, lines)) <= 80
    table = lines[: lines.index("")]
    assert len(table) <= 1 + 3 * len(names)  # costs, and at most two lines of words


@pytest.mark.slow
def test_a_run_leaves_page_figures_and_records(
    dissensus: Callable[..., Any], tmp_path: Path
) -> None:
    names = ["collusion/gat", "gradients"]
    answer = dissensus("reproduce", *names, *FEW, "--out", tmp_path)
    assert answer.status == 0, answer.err
    assert "contradicted" in answer.out
    assert "Theorem D.1, Eq. 8" in answer.out
    assert str(tmp_path / "collusion.md") in answer.out
    assert "collusion/gat: 4 of 4 cells done" in answer.err
    for name in ("gat", "gradients"):
        assert (tmp_path / "collusion" / f"{name}.json").exists()
        assert (tmp_path / "collusion" / "figures" / f"{name}.svg").stat().st_size > 5000
    page = (tmp_path / "collusion.md").read_text()
    assert "with `--set draws=2`" in page
    assert "Figures 8 and 9" in page

    files = {
        p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and "cells" not in p.parts
    }
    for path in files:
        if path.suffix != ".json":
            path.unlink()
    again = dissensus("reproduce", "--report", "--out", tmp_path)
    assert again.status == 0
    assert {path: path.read_bytes() for path in files} == files


def test_a_figure_is_drawn_from_the_record(
    dissensus: Callable[..., Any], mistake: Callable[..., str], tmp_path: Path
) -> None:
    assert dissensus("reproduce", "gat", *FEW, "--out", tmp_path, "--quiet").status == 0
    words = ["--out", tmp_path, "--figure", tmp_path / "gat.png"]
    answer = dissensus("reproduce", "gat", *words)
    assert answer.status == 0, answer.err
    assert f"Written to {tmp_path / 'gat.png'}" in answer.out
    assert (tmp_path / "gat.png").stat().st_size > 5000
    count = sum(one.paper == "collusion" for one in EXPERIMENTS.values())
    wrong = f"--figure draws one experiment, got {count}"
    assert wrong in mistake("reproduce", "collusion", *words)
    assert "adp/errors has no figure" in mistake("reproduce", "adp/errors", *words)
    assert "`dissensus reproduce adp/jsd` makes it" in mistake("reproduce", "adp/jsd", *words)


def test_quiet_says_nothing(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    answer = dissensus("reproduce", "gat", *FEW, "--out", tmp_path, "--quiet")
    assert (answer.status, answer.out, answer.err) == (0, "", "")


@pytest.mark.usefixtures("no_figures")
def test_other_scales_have_folders_of_their_own(
    dissensus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a quick try never replaces results that took hours."""
    monkeypatch.chdir(tmp_path)
    assert dissensus("reproduce", "gat", *FEW, "--quiet").status == 0
    assert (tmp_path / "results-smoke" / "collusion.md").exists()
    assert not (tmp_path / "results").exists()


def test_mistakes_are_one_sentence(mistake: Callable[..., str], tmp_path: Path) -> None:
    assert "did you mean 'collusion/gat'?" in mistake("reproduce", "collusion/gatt")
    assert "did you mean 'draws'?" in mistake("reproduce", "gat", "--set", "draw=2")
    assert "--scale must be one of smoke, cpu, paper" in mistake("reproduce", "gat", "--scale", "x")
    assert "say what to reproduce" in mistake("reproduce")
    assert "there are no records" in mistake("reproduce", "--report", "--out", tmp_path)
    assert "an option is written key=value" in mistake("reproduce", "gat", "--set", "draws")


@pytest.mark.usefixtures("no_figures")
def test_other_settings_do_not_replace_results(
    dissensus: Callable[..., Any], mistake: Callable[..., str], tmp_path: Path
) -> None:
    assert dissensus("reproduce", "gat", *FEW, "--out", tmp_path, "--quiet").status == 0
    words = ["reproduce", "gat", "--scale", "smoke", "--set", "draws=3", "--out", tmp_path]
    assert "choose another --out, or replace it with --again" in mistake(*words)
    assert dissensus(*words, "--again", "--quiet").status == 0


@pytest.mark.usefixtures("no_figures")
def test_failures_and_interrupts_are_told(
    dissensus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_run(error: BaseException) -> None:
        def run(cell: dict[str, Any]) -> dict[str, Any]:
            if cell["name"] == "members=3":
                raise error
            return gat.run(cell)

        monkeypatch.setitem(gat.EXPERIMENT.study.__dict__, "run", run)

    set_run(RuntimeError("no luck"))
    answer = dissensus("reproduce", "gat", *FEW, "--out", tmp_path)
    assert answer.status == 1
    assert "members=3 failed: RuntimeError: no luck" in answer.err
    assert "1 cells failed; the same command tries them again" in answer.err
    set_run(KeyboardInterrupt())
    answer = dissensus("reproduce", "gat", *FEW, "--out", tmp_path)
    assert answer.status == 130
    assert "the same command goes on from there" in answer.err
    monkeypatch.setitem(gat.EXPERIMENT.study.__dict__, "run", gat.run)
    assert dissensus("reproduce", "gat", *FEW, "--out", tmp_path, "--quiet").status == 0


@pytest.mark.usefixtures("no_figures")
def test_the_data_folder_goes_by_the_environment(
    dissensus: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells may run in other processes, and records must not hold the machine's paths."""
    monkeypatch.setenv("DISSENSUS_DATA", "before")
    place = tmp_path / "data"
    words = ["reproduce", "gat", *FEW, "--out", tmp_path / "out", "--data-dir", place, "--quiet"]
    assert dissensus(*words).status == 0
    assert os.environ["DISSENSUS_DATA"] == str(place.resolve())
    for path in (tmp_path / "out").rglob("*.json"):
        assert str(tmp_path) not in path.read_text()


@pytest.mark.usefixtures("no_figures")
def test_without_matplotlib_all_but_the_figures_is_there(
    dissensus: Callable[..., Any], tmp_path: Path
) -> None:
    answer = dissensus("reproduce", "gat", *FEW, "--out", tmp_path)
    assert answer.status == 0
    assert "pip install 'dissensus[plots]'" in answer.err
    assert (tmp_path / "collusion.md").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_ray_runs_the_cells(dissensus: Callable[..., Any], tmp_path: Path) -> None:
    for engine in ("local", "ray"):
        answer = dissensus("reproduce", "gat", *FEW, "--engine", engine, "--out", tmp_path / engine)
        assert answer.status == 0, answer.err
        assert "collusion/gat: 4 of 4 cells done" in answer.err
    one, two = (read_study(tmp_path / e / "collusion" / "gat.json") for e in ("local", "ray"))
    assert [(r["cell"], r["result"]) for r in one.records] == [
        (r["cell"], r["result"]) for r in two.records
    ]

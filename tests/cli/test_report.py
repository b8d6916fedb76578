"""``dissensus report`` and ``dissensus figure``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_the_page_is_written_and_said_how_to_open(
    dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    out = tmp_path / "report"
    answer = dissensus("report", digits_run, "--out", out, "--title", "My <digits>")
    assert answer.status == 0, answer.err
    page = out / "index.html"
    assert str(page) in answer.out
    assert f"Open it in a browser: {page.resolve().as_uri()}" in answer.out
    text = page.read_text()
    assert "<title>My &lt;digits&gt;</title>" in text
    accuracy = json.loads((digits_run / "record.json").read_text())["test"]["accuracy"]
    assert f"test.accuracy = {accuracy:.10g}" in text
    assert text.count("Plotly, Inc.") >= 1
    assert 4e6 < page.stat().st_size < 7e6


def test_mistakes(mistake: Callable[..., str], digits_run: Path, tmp_path: Path) -> None:
    assert "there is no file or folder" in mistake("report", tmp_path / "gone")
    assert "neither a run nor a sweep" in mistake("report", tmp_path)
    assert "did you mean 'training'?" in mistake("figure", "trainig", digits_run)
    assert "it needs dissensus attack RUN" in mistake("figure", "accuracy-steps", digits_run)
    assert "must end in .svg or .png" in mistake("figure", "training", "--out", "x.pdf")
    assert "say which figure" in mistake("figure")


def test_a_figure_of_runs(dissensus: Callable[..., Any], digits_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "training.svg"
    answer = dissensus("figure", "training", digits_run, "--view", "training", "--out", file)
    assert answer.out == f"Written to {file}\n"
    first = file.read_bytes()
    dissensus("figure", "training", digits_run, "--view", "training", "--out", file)
    assert file.read_bytes() == first  # equal figures are equal files

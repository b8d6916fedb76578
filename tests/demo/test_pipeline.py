"""The demo runs from end to end, writes its page, and shows what it promises."""

import io
import sys
from pathlib import Path

import pytest

from dissensus.demo import run
from dissensus.demo.pipeline import MARK, _page, _print_summary
from dissensus.demo.plan import CONTENDERS
from dissensus.demo.summary import ContenderResult
from dissensus.detection import Estimate
from dissensus.runs import describe
from dissensus.tools.console import InertConsole


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.mark.slow
def test_the_demo_shows_collusion(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = run(made, epochs=12, limit=20, attacks=["pgd:eps=0.1,steps=20,loss=margin"])
    assert list(outcomes) == list(CONTENDERS)
    alone, joint = outcomes["independent"], outcomes["joint"]
    assert alone.accuracy > 0.85
    # Training the average: members that are much worse alone, and diversity out of proportion.
    assert joint.member < alone.member - 0.1
    assert joint.diversity > 5 * alone.diversity
    assert (alone.verdict, joint.verdict) == ("healthy", "colluding")
    for outcome in outcomes.values():
        # The worst case counts the paper's attack, too.
        assert outcome.strong <= outcome.paper
        assert outcome.held_out.low <= outcome.held_out <= outcome.held_out.high
    shown = capsys.readouterr().out
    assert "colluding" in shown
    assert f"{outcomes['adp'].accuracy:.1%}" in shown
    assert "index.html" in "".join(shown.split())
    page = (made / "report" / "index.html").read_text(encoding="utf-8")
    assert "colluding" in page
    assert {describe(made / "runs" / key).state for key in CONTENDERS} == {"finished"}


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="contains other files"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert not (tmp_path / MARK).exists()


def test_without_plotly_there_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert _page(tmp_path, {}) is None


def test_without_plotly_the_extra_is_named() -> None:
    console = InertConsole(width=80, record=True, file=io.StringIO())
    some = Estimate(0.9, low=0.8, high=1.0)
    plain = ContenderResult(some, some, 0.01, "healthy", some, some, some, some)
    _print_summary(console, {"independent": plain}, None, 1)
    assert "pip install 'dissensus[report]'" in console.export_text()

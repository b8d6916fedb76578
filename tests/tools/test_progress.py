"""Progress bars: on a terminal, in a log file, nested, and not at all."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dissensus.tools import progress
from dissensus.tools.progress import ProgressBar


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal whose text can be read back."""
    screen = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(progress, "make_console", lambda: screen)
    return screen


def refresh() -> None:
    """Draw now, not at the next tick of the display's clock."""
    assert progress._DISPLAY.progress is not None
    progress._DISPLAY.progress.refresh()


def test_a_terminal_shows_title_count_and_note(terminal: Console) -> None:
    with ProgressBar("scoring [a]", total=4, completed=1) as bar:
        bar.advance()
        bar.update(3, note="ERR [0.1]")
        bar.log("only in log files")
        bar.say("a line [that] stays")
    with ProgressBar("attacks", total=2) as bar:
        bar.begin("fgsm")(1.0)
        bar.begin("pgd")(0.5)
        assert bar.completed == 1.5
    with ProgressBar("waits", total=1, delay=60.0) as bar:
        bar.advance()
    with pytest.raises(RuntimeError), ProgressBar("outer"), ProgressBar("inner"):
        raise RuntimeError
    assert progress._DISPLAY.progress is None
    text = terminal.export_text()
    assert "scoring [a]" in text
    assert "3/4" in text
    assert "ERR [0.1]" in text
    assert "a line [that] stays" in text
    assert "only in log files" not in text
    assert "waits" not in text


def test_a_bar_inside_another_is_drawn_with_it(terminal: Console) -> None:
    with ProgressBar("outer", total=2) as outer:
        with ProgressBar("inner", total=5) as inner:
            inner.advance(5)
            refresh()
            inner.say("said inside")
        outer.advance()
        with ProgressBar("again", total=7) as inner:
            inner.advance()
            refresh()
    text = terminal.export_text()
    assert all(part in text for part in ("outer", "inner", "5/5", "again", "1/7", "said inside"))
    assert progress._DISPLAY.progress is None


def test_content_stands_below_the_bars_until_they_close(terminal: Console) -> None:
    with ProgressBar("outer", total=1) as bar, ProgressBar("inner", total=1):
        bar.show_below("a table")
        refresh()
    text = terminal.export_text()
    assert text.index("outer") < text.index("inner") < text.index("a table")
    with ProgressBar("next", total=1):
        refresh()
    assert "a table" not in terminal.export_text()


def test_log_files_get_lines_seldom_and_always_the_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProgressBar("training", total=3) as bar:
        for epoch in (1, 2, 3):
            bar.advance()
            bar.log(f"epoch {epoch}")
    assert capsys.readouterr().err.splitlines() == ["epoch 1", "epoch 3"]
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with ProgressBar("training", total=2) as bar:
        bar.log("epoch 1")
        bar.log("epoch 2")
        bar.say("done")
    assert capsys.readouterr() == ("", "epoch 1\nepoch 2\ndone\n")


def test_a_notebook_shows_bars_in_one_output_that_ends_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its kernel is no terminal, and its output is HTML."""
    ipython = pytest.importorskip("IPython.display")
    shown: list[str] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(bundle["text/html"])

    def show(bundle: dict[str, str], **options: object) -> Handle:
        assert options == {"raw": True, "display_id": True}
        return Handle()

    monkeypatch.setattr(ipython, "display", show)
    monkeypatch.setattr(progress, "make_console", lambda: Console(force_jupyter=True))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_DRAWINGS", 0.0)
    with ProgressBar("training <a>", total=4) as bar, ProgressBar("inner", total=2) as inner:
        inner.advance()
        bar.show_below("a table")
        bar.update(2, note="ERR 0.1")
        bar.log("epoch 2")
        assert bar.visible
    assert all(text in shown[-2] for text in ("training &lt;a&gt;", "2/4", "ERR 0.1", "a table"))
    assert "inner" in shown[-2]
    assert shown[-1] == ""
    assert progress._DISPLAY.progress is None
    assert capsys.readouterr() == ("", "")


def test_silence_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("training", total=1, show=False) as bar:
        bar.advance()
        bar.update(note="x", title="y", total=2)
        bar.begin("z")(0.5)
        bar.log("a")
        bar.say("b")
    assert capfd.readouterr() == ("", "")

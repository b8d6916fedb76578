"""What is printed and written for people is inert, whatever the files say that it comes from."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import dissensus as ds
from dissensus.cli.app import app
from dissensus.export import RunResults, save_folder
from dissensus.models import make_factory
from dissensus.runs import DataSummary
from dissensus.tools.console import InertConsole, printable
from dissensus.tools.verbs import Result
from tools.fuzz.file_generators import ESCAPES

#: Escape, bell, an eight-bit control sequence, and the mark that turns the direction of text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def test_nothing_is_left_that_a_terminal_obeys() -> None:
    every = "".join(map(chr, range(0x110000)))
    shown = printable(every)
    assert not CONTROL.search(shown)
    assert "\\x1b" in shown
    shown.encode("utf-8")
    plain = "naïve £5 → 数据 \U0001f600\n\tx"
    assert printable(plain) == plain


def test_tables_lines_and_markup_are_shown_as_they_are() -> None:
    file = io.StringIO()
    console = InertConsole(file=file, width=200)
    table = Table(title=ESCAPES, caption="[/b]")
    table.add_column("[/b]" + ESCAPES)
    table.add_row(ESCAPES)
    table.add_row(Text(ESCAPES))
    console.print(table)
    console.print("[/b] :warning: " + ESCAPES)
    console.say("one\nline")
    shown = file.getvalue()
    assert not CONTROL.search(shown)
    assert shown.count("[/b]") == 3
    assert ":warning:" in shown
    assert shown.count(r"\x1b[31mred\x1b]0;title\x07\x9b2J\u202e") == 4  # Text drops the bell
    assert r"one\nline" in shown


def test_results_and_their_text_are_inert() -> None:
    class Hostile(Result):
        def to_rows(self) -> list[dict[str, str]]:
            return [{ESCAPES: ESCAPES}]

        def to_dict(self) -> dict[str, str]:
            return {ESCAPES: ESCAPES}

        def display(self) -> Iterator[str]:
            yield ESCAPES

    assert not CONTROL.search(str(Hostile()) + Hostile().to_json())


def test_runs_and_report_show_names_of_a_stranger(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a\x1b[2Jb"
    run.mkdir(parents=True)
    config = {"training": {"objective": ESCAPES, "epochs": 3}, "ensemble": {"members": 3}}
    lines = [
        f"[{s}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in config[s].items())
        for s in config
    ]
    (run / "config.toml").write_text("\n".join(lines), encoding="utf-8")
    for command in ("runs", "report"):
        shown = CliRunner().invoke(app, [command, str(tmp_path / "runs")])
        assert not CONTROL.search(shown.output), shown.output
        assert r"\x1b[2J" in shown.output


def test_a_model_card_escapes_markdown_and_html(tmp_path: Path) -> None:
    make = make_factory("linear", (2,), 2)
    row = {"method": "a", "score": ESCAPES, "set": ESCAPES, "auroc": 0.5, "fpr95": 1.0}
    attacked = {
        "evaluated_on": ESCAPES,
        "examples": 5,
        "clean_accuracy": {"accuracy": 1.0, "low": 1.0, "high": 1.0},
        "worst_case": {"accuracy": 1.0, "low": 1.0, "high": 1.0},
        "attacks": [{"attack": ESCAPES, "accuracy": 0.5, "interval": [0.4, 0.6]}],
        "flags": [{"name": ESCAPES, "text": ESCAPES}],
    }
    judged = {"verdict": ESCAPES, "examples": {ESCAPES: 5}, "reasons": [ESCAPES], "advice": ESCAPES}
    notes = {"notes": [ESCAPES]}
    summary = DataSummary(
        ESCAPES, "classification", [2], 2, {ESCAPES: 5}, [ESCAPES] * 2, [ESCAPES] * 2, notes
    )
    results = RunResults(
        metrics={"test": {"accuracy": 0.5, "examples": 5}},
        ood={"detection": [row], "id": {"a": ESCAPES}},
        attacks=attacked,
        diagnosis=judged,
    )
    settings = {"training": {"objective": ESCAPES}, "data": {"augment": ESCAPES}}
    given = {"summary": summary, "results": results, "settings": settings}
    save_folder(
        ds.Ensemble(make, members=2), tmp_path, make, name=ESCAPES, license=ESCAPES, **given
    )
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert not CONTROL.search(card)
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["license"] == printable(ESCAPES)
    html = MarkdownIt("commonmark").enable("table").render(body)
    assert not re.search("<(img|a|script)", html)
    assert html.count("<h2>") == 8

"""Verbs: options declared once for Python and the command line, results in three forms."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dissensus.cli.options import AsJson, RunFolder, print_result, with_options
from dissensus.tools.verbs import REQUIRED, Result, collect, option


@dataclass(frozen=True)
class Paint:
    """Options of a verb."""

    colour: str = option(REQUIRED, "The colour [RGB].")
    layers: int = option(2, "How many layers.", min=1)
    dry: bool = option(False, "Wait for it.")
    outside: bool = option(True, "Paint the outside.")
    rooms: tuple[str, ...] = option((), "A room; may be repeated.", flag="--room")
    share: int | float | None = option(None, "A share, or a number of walls.", metavar="SHARE")


@dataclass(frozen=True)
class Painted(Result):
    """The result of a verb."""

    options: Paint

    def to_dict(self) -> dict[str, Any]:
        return vars(self.options) | {"rooms": list(self.options.rooms)}

    def to_rows(self) -> list[dict[str, Any]]:
        return [{"room": room, "colour": self.options.colour} for room in self.options.rooms]

    def display(self) -> Iterator[str]:
        yield f"[{self.options.colour}] " + "x" * 200


def run(*arguments: str) -> Any:
    app = typer.Typer(rich_markup_mode="rich")  # as that of the command line

    @app.command()
    @with_options
    def paint(house: RunFolder, options: Paint, as_json: AsJson = False) -> None:
        """Paint a house."""
        print_result(Painted(options), as_json=as_json)

    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "NO_COLOR": "1"})


def test_flags_become_the_dataclass() -> None:
    words = ["home", "--colour", "red", "--room", "hall", "--room", "bath", "--no-outside"]
    values = json.loads(run(*words, "--dry", "--layers", "3", "--share", "0.5", "--json").output)
    assert values == {
        "colour": "red",
        "layers": 3,
        "dry": True,
        "outside": False,
        "rooms": ["hall", "bath"],
        "share": "0.5",
    }


def test_help_is_made_from_the_fields() -> None:
    output = run("--help").output
    for text in ("Paint a house.", "The colour [RGB].", "[default: 2]", "--no-outside", "SHARE"):
        assert text in output
    assert "--no-dry" not in output
    assert "default: None" not in output


def test_limits_and_required_options_are_checked() -> None:
    assert run("home").exit_code == 2
    assert run("home", "--colour", "red", "--layers", "0").exit_code == 2


def test_keywords_become_the_dataclass() -> None:
    assert collect(Paint, None, {"colour": "red", "rooms": "hall"}).rooms == ("hall",)
    assert collect(Paint, Paint("red"), {"rooms": ["a", "b"]}) == Paint("red", rooms=("a", "b"))
    with pytest.raises(ValueError, match="paint has no option 'color'; did you mean 'colour'"):
        collect(Paint, None, {"color": "red"})
    with pytest.raises(ValueError, match="paint needs the option 'colour'"):
        collect(Paint, None, {})


def test_a_result_is_text_json_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    painted = Painted(Paint("red", rooms=("hall",)))
    painted.show()
    line = "[red] " + "x" * 200  # neither markup nor broken
    assert capsys.readouterr().out == line + "\n"
    assert str(painted) == line
    painted.save(tmp_path / "painted.json")
    assert json.loads((tmp_path / "painted.json").read_text()) == json.loads(painted.to_json())

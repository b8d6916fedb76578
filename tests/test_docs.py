"""The documentation tells the truth: its code runs, its values are those of the records, its links
lead somewhere, and the commands and methods it names exist."""

import inspect
import re
import runpy
import shlex
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from dissensus.cli import app
from dissensus.objectives import OBJECTIVES
from dissensus.objectives import parse as parse_objective
from dissensus.robustness import ATTACKS
from dissensus.robustness import parse as parse_attack
from dissensus.scores import SCORES
from dissensus.scores import parse as parse_score
from tests.markdown import (
    SHELLS,
    dissensus_arguments,
    fenced_blocks,
    inline_commands,
    run_blocks,
    shell_commands,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# A command, an option or a value that does not exist; typer has a copy of click of its own.
WRONG = (KeyError, ValueError, typer.BadParameter.__mro__[1])
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "reference")
README = ROOT / "README.md"
TEXTS = [*PAGES, README]
CODE = re.compile(r"\[`([\w.]+)`\]\(\.\./src/")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if "```python" in path.read_text()],
    ids=name_of,
)
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(
        path, [block for block in fenced_blocks(path.read_text()) if block.language == "python"]
    )


def test_blocks_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one namespace, as a reader would paste them; files land in a temp folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    blocks = fenced_blocks(README.read_text())
    run_blocks(README, [block for block in blocks if block.language == "python"])


def test_the_readme_shows_what_its_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The same words; numbers may differ as far as another processor moves them."""
    blocks = fenced_blocks(README.read_text())
    example, output = [block for block in blocks if block.language in ("python", "text")][:2]
    run_blocks(README, [example])
    printed, shown = capsys.readouterr().out, output.code
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", printed).split() == number.sub("#", shown).split()
    values = [[float(value) for value in number.findall(text)] for text in (printed, shown)]
    assert values[0] == pytest.approx(values[1], rel=0.5, abs=0.05)


def typed_in(path: Path) -> list[list[str]]:
    """What a page tells its readers to type, in blocks and in sentences, as words."""
    text = path.read_text()
    blocks = [block for block in fenced_blocks(text) if block.language in SHELLS]
    found = [words for block in blocks for words in shell_commands(block.code)]
    return [*found, *inline_commands(text)]


def commands_of(path: Path) -> list[list[str]]:
    """What of it follows ``dissensus``."""
    found = (dissensus_arguments(words) for words in typed_in(path))
    return [arguments for arguments in found if arguments is not None]


def check_command(arguments: list[str]) -> None:
    """Raise unless the command exists and takes these options, and what they name exists."""
    command = get_command(app)
    if not arguments[0].startswith("-"):
        command = command.commands[arguments.pop(0)]  # type: ignore[attr-defined]
    parser = command.make_parser(command.context_class(command))
    given, left, _ = parser.parse_args([word for word in arguments if word != "…"])
    if left:
        raise ValueError(f"{command.name} takes no {left}")
    if given.get("objective") and ".py:" not in given["objective"]:
        parse_objective(given["objective"])
    for attack in given.get("attacks") or ():
        parse_attack(attack)
    if command.name == "predict":
        for score in given.get("score") or ():
            parse_score(score)


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_commands_and_their_options_exist(path: Path) -> None:
    for arguments in commands_of(path):
        try:
            check_command(list(arguments))
        except WRONG as error:
            pytest.fail(f"{name_of(path)}: dissensus {shlex.join(arguments)}: {error!r}")


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_make_targets_and_examples_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *words in typed_in(path):
        if program == "make":
            assert words[0] in targets, f"{name_of(path)}: make {words[0]}"
        elif program == "python" and words[0].startswith("examples/"):
            script = (ROOT / words[0]).read_text()
            options = [word for word in words if word.startswith("--")]
            assert all(f'"{option}"' in script for option in options), f"{name_of(path)}: {words}"


def test_there_are_commands_to_check() -> None:
    assert sum(len(commands_of(path)) for path in TEXTS) > 50


@pytest.mark.parametrize(
    "words",
    [
        "trian --data digits",
        "train --dta digits",
        "train digits",
        "train --objective ldr:strenght=1",
        "attack runs/a --attacks pgd:esp=0.1",
        "predict runs/a --score psd",
    ],
)
def test_wrong_commands_are_noticed(words: str) -> None:
    with pytest.raises(WRONG):
        check_command(words.split())


def table_rows(heading: str) -> dict[str, str]:
    """The rows of a table of the methods page by the name in their first column."""
    section = (DOCS / "methods.md").read_text().partition(f"\n## {heading}\n")[2]
    section = section.partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` (\|.*)$", section, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "registry"),
    [("Objectives", OBJECTIVES), ("Scores", SCORES), ("Attacks", ATTACKS)],
)
def test_every_method_is_in_the_table(heading: str, registry: dict[str, object]) -> None:
    rows = table_rows(heading)
    assert list(rows) == list(registry)
    for name, row in rows.items():
        (place,) = CODE.findall(row)
        module, _, attribute = place.rpartition(".")
        found = getattr(import_module(f"dissensus.{module}"), attribute)
        entry = registry[name]
        assert found is (entry.func if isinstance(entry, partial) else entry), name


# ---- links --------------------------------------------------------------------------------------


@cache
def anchors(path: Path) -> set[str]:
    """The anchors that a code host gives the headings of a page."""
    prose = re.sub(r"^```.*?^```\s*$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *PAGES, *ROOT.glob("results/*.md")], ids=name_of
)
def test_links_lead_somewhere(path: Path) -> None:
    """Where the page lies, so that they work on a code host; tests/test_site.py tries the site."""
    prose = re.sub(
        r"^```.*?^```\s*$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        file, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            target = path.parent / file if file else path
            assert target.exists(), f"{name_of(path)}: {link}"
            assert not anchor or anchor in anchors(target), f"{name_of(path)}: no anchor {link}"


@pytest.mark.parametrize("path", [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_files_and_the_names_in_them_exist(path: Path) -> None:
    def found(file: str) -> Path | None:
        places = (folder / file for folder in (ROOT, ROOT / "src" / "dissensus"))
        return next(filter(Path.exists, places), None)

    text = path.read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md))`", text)
    assert len(named) > 5
    assert not [file for file in named if found(file) is None]
    for name, file in re.findall(r"`([A-Z_]+)`(?:,| in) `((?:\w+/)+\w+\.py)`", text):
        source = found(file)
        assert source is not None
        assert re.search(rf"^(?:class )?{name}\b", source.read_text(), re.MULTILINE), (name, file)


# ---- numbers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    """The names of ``docs/quotes.py``."""
    return runpy.run_path(str(DOCS / "quotes.py"))


def test_quoted_numbers_are_those_of_the_records(numbers: dict[str, Any]) -> None:
    assert not list(numbers["differences"]())


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ('phrase = "ratio {0.86}"', "0.86 is 0.868"),
        ('phrase = "ratio {0.87} and {0.87}"', "2 quoted, 1 recorded"),
        ('phrase = "ratios {0.87}"', "does not say: ratios 0.87"),
        ('phrase = "ratio {0.87}"\nexpect = ["holds"]', "holds is 0.868"),
    ],
)
def test_numbers_that_differ_are_reported(tmp_path: Path, entry: str, error: str) -> None:
    record = tmp_path / "record.json"
    record.write_text('{"cells": [{"name": "a", "ratio": 0.868}, {"name": "b", "ratio": 2}]}')
    way = f'["{record}", "cells", {{name = "a"}}, "ratio"]'
    (tmp_path / "numbers.toml").write_text(f"[[page]]\n{entry}\nfrom = [{way}]\n")
    (tmp_path / "page.md").write_text("The ratio\n0.87 and 0.87, and the ratio 0.86.")
    found = runpy.run_path(str(DOCS / "quotes.py"))
    scope = found["differences"].__globals__
    scope |= {"ROOT": tmp_path, "NUMBERS": tmp_path / "numbers.toml"}
    assert any(error in one for one in found["differences"]())


def test_what_no_record_holds_is_an_error(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="nothing at 'reslts'"):
        numbers["recorded"]("bench/fleet.json", "reslts")
    with pytest.raises(ValueError, match="0 entries have"):
        numbers["recorded"]("bench/fleet.json", "results", 0, "measurements", {"name": "x"})


def test_links_to_sources_lead_to_where_the_name_is() -> None:
    for path in TEXTS:
        for name, file in re.findall(
            r"\[`([\w.]+)`\]\((?:\.\./)*(src/[\w/.]+)\)", path.read_text()
        ):
            module, _, attribute = f"dissensus.{name}".rpartition(".")
            found = inspect.unwrap(getattr(import_module(module), attribute))
            assert inspect.getsourcefile(found) == str(ROOT / file), f"{name_of(path)}: {name}"


def test_the_page_of_benchmarks_is_that_of_the_records() -> None:
    from benchmarks.page import RECORDS, page

    assert (RECORDS / "README.md").read_text() == page(), "python -m benchmarks.page"


def test_pages_are_plain_markdown() -> None:
    for path in TEXTS:
        found = re.search(r"\{\{|\{%|<!--|^(```|:::)\{", path.read_text(), re.MULTILINE)
        assert not found, name_of(path)

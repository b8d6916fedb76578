"""The documentation tells the truth: its code runs, and the commands and methods it names exist."""

import re
import shlex
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from dissensus.cli import app
from dissensus.objectives import OBJECTIVES
from dissensus.objectives import parse as parse_objective
from dissensus.papers.base import select
from dissensus.papers.registry import EXPERIMENTS
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
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md"]


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
    if given.get("objective"):
        parse_objective(given["objective"])
    for attack in given.get("attacks") or ():
        parse_attack(attack)
    if command.name == "predict":
        for score in given.get("score") or ():
            parse_score(score)
    if command.name == "reproduce":
        select(given.get("names") or (), EXPERIMENTS)


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
        "reproduce collusion/beta-swep",
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
        (place,) = re.findall(r"\]\[(dissensus\.[\w.]+)\]", row)
        found = resolved(place)
        entry = registry[name]
        assert found is (entry.func if isinstance(entry, partial) else entry), name


def test_code_that_the_table_names_exists() -> None:
    places = re.findall(r"\]\[(dissensus\.[\w.]+)\]", (DOCS / "methods.md").read_text())
    assert len(places) > 60
    for place in places:
        resolved(place)


def resolved(place: str) -> object:
    module, _, name = place.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:  # a function that is called as its file is
        return getattr(resolved(module), name)

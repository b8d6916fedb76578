"""Examples in the help pages: they run as they stand, in an empty folder."""

import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dissensus.cli.app import COMMANDS, HELP
from tests.markdown import dissensus_arguments
from tests.test_docs import check_command

NEEDY = "Examples that need other data or packages"


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """The heading and the words of each example of a help page, without its remark."""
    heading = ""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("Examples"):
            heading = paragraph.strip()
        elif paragraph.startswith("  "):
            line = re.sub(r"\n\s*", " ", paragraph.strip())
            yield heading, shlex.split(line.partition("   ")[0])


def pages() -> list[str]:
    return [HELP, *(command.__doc__ or "" for command in COMMANDS)]


def test_every_page_has_examples_that_parse() -> None:
    for page in pages():
        found = list(examples(page))
        assert found, page
        for heading, words in found:
            assert heading in ("Examples", NEEDY)
            arguments = dissensus_arguments(words)
            assert arguments is not None, words
            check_command(arguments)


#: What makes a command quick; the last of two values counts.
QUICK = {
    "sweep": ["--epochs", "2"],
    "train": ["--epochs", "2"],
    "attack": ["--limit", "4"],
}


def shorter(words: list[str]) -> list[str]:
    """The command on fewer epochs, images or runs: some examples take minutes."""
    listed = {"--list", "--report", "--figure", "--resume", "--config"} & set(words)
    if listed:
        return words
    return [*words, *QUICK.get(words[0], [])]


def run_in_order(dissensus: Callable[..., Any], commands: list[list[str]]) -> None:
    for words in commands:
        if words[0] == "demo":
            continue  # it has tests of its own
        answer = dissensus(*shorter(words))
        assert answer.status == 0, f"dissensus {shlex.join(words)}: {answer.err}"


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data but those that are built in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISSENSUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.usefixtures("empty_folder")
def test_examples_of_the_help_run(dissensus: Callable[..., Any]) -> None:
    pytest.importorskip("matplotlib")
    found = [pair for page in pages() for pair in examples(page)]
    run_in_order(dissensus, [words[1:] for heading, words in found if heading == "Examples"])

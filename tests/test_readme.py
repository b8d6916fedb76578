"""The README tells the truth: its Python blocks run and the commands it names exist."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from dissensus.cli import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SHELLS = ("bash", "sh", "shell", "console")

needs_readme = pytest.mark.skipif(not README.exists(), reason="there is no README.md beside tests/")


class Block(NamedTuple):
    language: str
    line: int  # of its first line of code, counted from 1
    code: str


def fenced_blocks(text: str) -> list[Block]:
    """Return the fenced code blocks of a Markdown text that name a language."""
    pattern = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
    return [
        Block(found[1], text.count("\n", 0, found.start()) + 2, found[2])
        for found in pattern.finditer(text)
    ]


def readme_blocks(*languages: str) -> list[Block]:
    return [block for block in fenced_blocks(README.read_text()) if block.language in languages]


def shell_commands(code: str) -> list[list[str]]:
    """Return the commands of a shell block as words, without prompts, comments and output.

    In a block with ``$`` prompts only the lines that carry one are commands.
    """
    lines = code.replace("\\\n", " ").splitlines()
    prompted = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
    commands = []
    for line in prompted or lines:
        for part in re.split(r"&&|\|\||[|;]", line):
            if words := shlex.split(part, comments=True):
                commands.append(words)
    return commands


def dissensus_arguments(words: list[str]) -> list[str] | None:
    """Return what follows ``dissensus`` or ``python -m dissensus``; None for another program."""
    program = Path(words[0]).name
    if program == "dissensus":
        return words[1:]
    if program.startswith("python") and words[1:3] == ["-m", "dissensus"]:
        return words[3:]
    return None


@needs_readme
def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one namespace, as a reader would paste them; files land in a temp folder."""
    blocks = readme_blocks("python")
    assert blocks, "README.md has no ```python block"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        # The empty lines make a traceback point at the line in the README.
        code = compile("\n" * (block.line - 1) + block.code, str(README), "exec")
        exec(code, namespace)


@needs_readme
def test_commands_exist() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for block in readme_blocks(*SHELLS):
        for words in shell_commands(block.code):
            arguments = dissensus_arguments(words)
            if arguments and not arguments[0].startswith("-"):
                assert arguments[0] in known, (
                    f"README.md, block at line {block.line}: {shlex.join(words)!r}, "
                    f"but the commands are {sorted(known)}"
                )


@needs_readme
def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in readme_blocks(*SHELLS):
        for words in shell_commands(block.code):
            if words[0] == "make":
                missing = {word for word in words[1:] if word.isalpha()} - targets
                assert not missing, f"README.md, block at line {block.line}: no target {missing}"


def test_blocks_are_found_with_their_lines() -> None:
    text = "# Title\n\n```python\nx = 1\n```\n\ntext\n\n```console\n$ dissensus demo\nout\n```\n"
    assert fenced_blocks(text) == [
        Block("python", 4, "x = 1\n"),
        Block("console", 10, "$ dissensus demo\nout\n"),
    ]


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("$ dissensus demo\ndissensus: output, not a command\n", [["demo"]]),
        ("make demo && .venv/bin/dissensus scores  # all\n", [None, ["scores"]]),
        ("python -m dissensus objectives | head\n", [["objectives"], None]),
        ("pip install dissensus\n", [None]),
    ],
)
def test_commands_are_found(code: str, arguments: list[list[str] | None]) -> None:
    assert [dissensus_arguments(words) for words in shell_commands(code)] == arguments

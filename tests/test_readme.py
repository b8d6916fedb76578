"""The README tells the truth: its Python blocks run and the commands it names exist."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from dissensus.cli import app
from tests.markdown import (
    SHELLS,
    Block,
    dissensus_arguments,
    fenced_blocks,
    run_blocks,
    shell_commands,
)

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"

needs_readme = pytest.mark.skipif(not README.exists(), reason="there is no README.md beside tests/")


def readme_blocks(*languages: str) -> list[Block]:
    return [block for block in fenced_blocks(README.read_text()) if block.language in languages]


@needs_readme
def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one namespace, as a reader would paste them; files land in a temp folder."""
    blocks = readme_blocks("python")
    assert blocks, "README.md has no ```python block"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_blocks(README, blocks)


@needs_readme
def test_printed_output_is_what_the_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The same words; numbers may differ as far as another processor moves them."""
    example, output = readme_blocks("python", "text")[:2]
    assert output.language == "text"
    run_blocks(README, [example])
    printed, shown = capsys.readouterr().out, output.code
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", printed).split() == number.sub("#", shown).split()
    values = [[float(value) for value in number.findall(text)] for text in (printed, shown)]
    assert values[0] == pytest.approx(values[1], rel=0.5, abs=0.05)


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

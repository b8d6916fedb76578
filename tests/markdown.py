"""Code blocks and command lines of Markdown texts, for the tests that run or check them.

A block of ``python`` is run; one of ``py`` is a fragment to look at.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

SHELLS = ("bash", "sh", "shell", "console")


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
    """Return what follows ``dissensus`` or ``… -m dissensus``; None for another program."""
    program = Path(words[0]).name
    if program == "dissensus":
        return words[1:]
    if program.startswith("python") and words[1:3] == ["-m", "dissensus"]:
        return words[3:]
    if program == "torchrun" and "dissensus" in words:
        return words[words.index("dissensus") + 1 :]
    return None


def inline_commands(text: str) -> list[list[str]]:
    """Return the commands that stand in sentences: spans of ``dissensus …`` and ``make …``."""
    prose = re.sub(r"^```.*?^```\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"(?<!`)`((?:dissensus|make) [^`]+)`(?!`)", prose)
    return [shlex.split(" ".join(span.split())) for span in spans]


def run_blocks(path: Path, blocks: list[Block]) -> None:
    """Execute Python blocks in order and in one namespace, as a reader would paste them."""
    namespace: dict[str, object] = {"__name__": path.stem}
    for block in blocks:
        # The empty lines make a traceback point at the line in the page.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        exec(code, namespace)

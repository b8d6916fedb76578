"""The command line: help, version, the catalogues, and errors as one sentence."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from typer.testing import CliRunner

import dissensus
from dissensus.cli import app, main


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal wide enough that tables do not wrap, without colours."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``main`` with the given arguments and return its exit status."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["dissensus", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0)

    return run


def plant(monkeypatch: pytest.MonkeyPatch, module: str, **names: object) -> None:
    """Put a small module in the place of ``dissensus.<module>``."""
    planted = ModuleType(f"dissensus.{module}")
    vars(planted).update(names)
    monkeypatch.setitem(sys.modules, planted.__name__, planted)


def failing_demo(error: Exception) -> Callable[..., None]:
    def run(*given: object, **named: object) -> None:
        raise error

    return run


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"dissensus {dissensus.__version__}\n")


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("command", "registries"),
    [
        ("objectives", [dissensus.objectives.OBJECTIVES]),
        ("scores", [dissensus.scores.SCORES, dissensus.detection.FITTED_SCORES]),
    ],
)
def test_every_entry_of_the_registry_is_listed(
    command: str, registries: list[dict[str, object]]
) -> None:
    result = CliRunner().invoke(app, [command], catch_exceptions=False)
    rows = [line.split("│")[1].strip() for line in result.output.splitlines() if "│" in line]
    assert [row for row in rows if row] == [name for entries in registries for name in entries]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("beta must be in [0, 1],\n  got 2"), "beta must be in [0, 1], got 2"),
        (FileNotFoundError(2, "No such file", "a.csv"), "No such file: a.csv"),
        (OSError("disk full"), "disk full"),
        (ValueError(), "ValueError"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            "there is not enough memory; lower --batch-size or --members",
        ),
    ],
)
def test_errors_are_one_sentence(
    error: Exception,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    command_line: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(monkeypatch, "demo", run=failing_demo(error))
    monkeypatch.delenv("DISSENSUS_DEBUG", raising=False)
    assert command_line("demo") == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"dissensus: {sentence}\n")


@pytest.mark.parametrize("kind", [TypeError, RecursionError])
def test_what_nobody_has_foreseen_is_a_sentence_with_a_hint(
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    command_line: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(monkeypatch, "demo", run=failing_demo(kind("a\x1b[31m bug")))
    assert command_line("demo") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dissensus: {kind.__name__}: ")
    assert "\x1b" not in error
    assert "`dissensus --debug …` shows where" in error
    for variable, words in (("", ["--debug"]), ("1", [])):
        monkeypatch.setenv("DISSENSUS_DEBUG", variable)
        monkeypatch.setattr(sys, "argv", ["dissensus", *words, "demo"])
        with pytest.raises(kind, match="bug"):
            main()

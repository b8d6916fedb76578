"""Commands as users type them: arguments in, exit status and both outputs back."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dissensus.cli import main

SMALL = ["--model-option", "hidden=16", "--members", "3", "--batch-size", "256", "--threads", "1"]


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def dissensus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Run ``dissensus`` with the given arguments, in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DISSENSUS_DEBUG", raising=False)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["dissensus", *(str(a) for a in arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        code = stop.value.code
        return Answer(0 if code is None else int(code), *capsys.readouterr())

    return run


@pytest.fixture
def mistake(dissensus: Callable[..., Answer]) -> Callable[..., str]:
    """Run a command that must fail as a mistake of the user does; return the one sentence."""

    def run(*arguments: object) -> str:
        answer = dissensus(*arguments)
        assert answer.status == 2, answer
        assert answer.err.startswith("dissensus: "), answer.err
        assert answer.err.count("\n") == 1, answer.err
        return answer.err

    return run


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits, to be read only."""
    out = tmp_path_factory.mktemp("digits") / "run"
    train(out, "--data", "digits", "--epochs", "2", *SMALL)
    return out


@pytest.fixture(scope="session")
def diabetes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished regression run, to be read only."""
    out = tmp_path_factory.mktemp("diabetes") / "run"
    train(out, "--data", "diabetes", "--epochs", "2", *SMALL)
    return out


FLATS = ["rooms,town,id,price"] + [
    f"{1 + i % 5},{('Bonn', 'Ulm', 'Trier')[i % 3]},{i},{100 * (1 + i % 5) + 30.5 * (i % 3)}"
    for i in range(60)
]


@pytest.fixture(scope="session")
def flats_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a table of one's own; the table lies beside it."""
    folder = tmp_path_factory.mktemp("flats")
    table = folder / "flats.csv"
    table.write_text("\n".join(FLATS) + "\n")
    wanted = ["--data", table, "--target", "price", "--data-option", "drop=id"]
    train(folder / "run", *wanted, "--epochs", "3", *SMALL)
    return folder / "run"


def train(out: Path, *arguments: object) -> None:
    """``dissensus train --quiet --out OUT …``, for fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        words = ["dissensus", "train", "--quiet", "--out", out, *arguments]
        patch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code, stop.value.code

"""What people see while training, and figures for TensorBoard."""

import io
import os
import signal
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.tools import progress
from dissensus.training import Stopped, fit
from tests.training.problems import blobs, dense_mlp

TRAIN, VAL = blobs(40), blobs(30, seed=2)


def train(**options: Any) -> Any:
    ens = Ensemble(dense_mlp, members=2)
    return fit(ens, TRAIN, "joint", val=VAL, **{"epochs": 3, "batch_size": 16} | options)


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)


@pytest.mark.usefixtures("every_epoch")
def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    history = train()
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 3
    for line, record in zip(lines, history.epochs, strict=True):
        part, val = record["train"], record["val"]
        assert line == (
            f"Joint: epoch {record['epoch']}/3, train error {part['ensemble_error']:.4f}, accuracy "
            f"{part['accuracy']:.1%}; val error {val['ensemble_error']:.4f}, accuracy "
            f"{val['accuracy']:.1%}"
        )


@pytest.mark.usefixtures("every_epoch")
def test_nothing_is_shown_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    train(progress=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("every_epoch")
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(force_terminal=True, width=150, record=True, file=io.StringIO())
    monkeypatch.setattr(progress, "make_console", lambda: screen)
    history = train()
    text = screen.export_text()
    assert "Joint" in text
    assert "9/9" in text  # three epochs of three batches
    assert f"val error {history.epochs[-1]['val']['ensemble_error']:.4f}" in text
    assert "epoch 3/3" not in text  # the bar says it


def test_an_interruption_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("runs") / "with [brackets]"

    def press(x: Tensor, generator: torch.Generator) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return x

    with pytest.raises(Stopped):
        train(out=out, augment=press)
    said = capsys.readouterr().err
    assert "Stopped in epoch 1 after 1 of 3 batches; saved, go on with resume=True" in said
    assert str(out) in said


# ---- TensorBoard --------------------------------------------------------------------------------

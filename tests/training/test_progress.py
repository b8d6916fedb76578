"""What people see while training, and figures for TensorBoard."""

import io
import os
import signal
import sys
import types
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.tools import progress
from dissensus.training import Stopped, TensorBoard, fit
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


def test_lines_come_seldom_but_the_last_one_always(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e9)
    train(epochs=30, patience=2, optimizer="adam:lr=0.3")
    (line,) = capsys.readouterr().err.splitlines()
    assert "/30, train error" in line


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


class Writer:
    """Stands where ``SummaryWriter`` does."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: dict[tuple[str, int], float] = {}
        self.flushed = 0
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert (name, step) not in self.scalars
        self.scalars[name, step] = value

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        pass


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made = []
    return Writer.made


def test_every_figure_becomes_a_curve(writers: list[Any], tmp_path: Any) -> None:
    ens = Ensemble(dense_mlp, members=4)
    history = fit(
        ens,
        blobs(20),
        "ldr:active=2",
        val=VAL,
        epochs=2,
        progress=False,
        callbacks=[TensorBoard(tmp_path)],
    )
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.flushed) == (str(tmp_path), 1, 2)
    wanted = {}
    for record in history.epochs:
        for part in ("train", "val"):
            for name, value in record[part].items():
                several = value if isinstance(value, list) else [value]
                for number, single in enumerate(several):
                    key = f"{part}/{name}/{number}" if isinstance(value, list) else f"{part}/{name}"
                    if single is not None:
                        wanted[key, record["epoch"]] = single
    assert writer.scalars == wanted
    assert ("val/per_member_error/3", 2) in wanted
    assert sum("train/per_member_error/" in key and step == 1 for key, step in wanted) == 2


def test_a_resumed_run_goes_on_where_it_stood(writers: list[Any], tmp_path: Any) -> None:
    for epochs in (2, 3):
        train(
            out=tmp_path / "run",
            resume=True,
            epochs=epochs,
            progress=False,
            callbacks=[TensorBoard(tmp_path / "board")],
        )
    assert [writer.purge_step for writer in writers] == [1, 3]


def test_without_tensorboard_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="needs tensorboard; pip install tensorboard"):
        TensorBoard("board")

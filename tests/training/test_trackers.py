"""Trackers, each against the files that its own package writes, and hooks of callbacks."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import dissensus as ds
from dissensus.training import TRACKERS
from tests.training.problems import blobs


def train(out: Path | None, **settings: Any) -> ds.History:
    ens = ds.Ensemble(lambda: nn.Linear(4, 3), members=2)
    settings = {"epochs": 2, "progress": False, "out": out, **settings}
    return ds.fit(ens, blobs(20), val=blobs(9, seed=1), **settings)


def test_tensorboard_files_hold_every_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, track="tensorboard")
    history = train(tmp_path, track=["tensorboard"], resume=True, epochs=3)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name in ("val/accuracy", "train/diversity"):
        seen = events.Scalars(name)
        assert [event.step for event in seen] == [1, 2, 3]
        assert [event.value for event in seen] == pytest.approx(history.column(name))
    assert "val/per_member_error/1" in events.Tags()["scalars"]


@pytest.mark.slow  # importing MLflow takes seconds
@pytest.mark.filterwarnings("ignore")  # of MLflow about its own store
def test_mlflow_keeps_settings_and_metrics(tmp_path: Path, monkeypatch: Any) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    train(tmp_path / "run", track="mlflow")
    history = train(tmp_path / "run", track="mlflow", resume=True, epochs=3)
    (run,) = mlflow.search_runs(output_format="list")
    assert run.info.status == "FINISHED"
    assert run.data.params["training.objective"] == "independent"
    seen = mlflow.MlflowClient().get_metric_history(run.info.run_id, "val/ensemble_error")
    assert [metric.value for metric in seen] == history.column("val/ensemble_error")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_its_files_offline(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(tmp_path, track="wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    ends = time.monotonic() + 60  # its service writes in a process of its own
    while b"val/per_member_error/1" not in file.read_bytes() and time.monotonic() < ends:
        time.sleep(0.1)
    written = file.read_bytes()
    assert b"val/per_member_error/1" in written
    assert b"training.objective" in written
    assert file.stem.removeprefix("run-") in (tmp_path / "tracking.json").read_text()


@pytest.mark.parametrize("name", TRACKERS)
def test_without_its_package_the_error_says_what_to_install(name: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name].module, None)
    with pytest.raises(ImportError, match=f"needs {name}; pip install {name}"):
        train(None, track=name)


class Watcher:
    """A callback with every hook."""

    def __init__(self, fail_at: int = 0) -> None:
        self.seen: list[Any] = []
        self.fail_at = fail_at

    def on_start(self, config: dict[str, Any]) -> None:
        self.seen.append(config["training"]["epochs"])

    def on_step(self, step: int, terms: Any) -> None:
        self.seen.append((step, float(terms.loss) > 0))
        if step == self.fail_at:
            raise RuntimeError("stop")

    def on_end(self, history: Any) -> None:
        self.seen.append(history and history.ended)

    def __call__(self, record: dict[str, Any], ens: ds.Ensemble) -> None:
        self.seen.append(record["epoch"])


def test_hooks_of_a_callback_are_called_in_order() -> None:
    watcher = Watcher()
    train(None, callbacks=[watcher], batch_size=10)
    steps = [(step, True) for step in (1, 2, 3, 4)]
    assert watcher.seen == [2, *steps[:2], 1, *steps[2:], 2, "epochs"]
    failing = Watcher(fail_at=2)
    with pytest.raises(RuntimeError, match="stop"):
        train(None, callbacks=[failing], batch_size=10)
    assert failing.seen[-1] is None

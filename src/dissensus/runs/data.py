"""Data of a run, and their summary, by which the run can be used without them.

The summary, ``data.json``, has the shapes, the names of classes and columns, and the statistics of
the training rows, so that new inputs in the units of the source are treated as the training inputs
were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.folder import is_hub_folder, read_config, read_hub_config
from dissensus.tools.files import check_types, read_json, write_text

if TYPE_CHECKING:
    from torch import Tensor

    from dissensus.data import Data

SUMMARY = "data.json"

_SCHEMA = {
    **dict.fromkeys(("name", "task", "sha256"), str),
    "classes": [str],
    "features": [str],
    "input_shape": [int],
    "outputs": int,
    "rows": {str: int},
    "preprocessing": dict,
    "channels": {str: [float]},
}

#: How many examples on disk are read for the statistics of channels.
_SAMPLED = 10_000


@dataclass(frozen=True)
class DataSummary:
    """Plain JSON values about a data set; see :class:`dissensus.data.Data` for their meaning."""

    name: str
    task: str
    input_shape: list[int]
    outputs: int
    rows: dict[str, int]
    classes: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    channels: dict[str, list[float]] = field(default_factory=dict)
    sha256: str = ""

    @classmethod
    def of(cls, data: Data, *, channels: bool = False) -> DataSummary:
        """The summary of ``data``; with ``channels`` mean and deviation of each input channel."""
        # Of shards and folders of images, the examples know it; data in memory have none.
        digest = str(getattr(data.train[0], "digest", ""))
        if data.source and Path(data.source).is_file():
            with Path(data.source).open("rb") as source:
                digest = hashlib.file_digest(source, "sha256").hexdigest()
        return cls(
            data.name,
            data.task,
            list(data.input_shape),
            data.outputs,
            {part: len(x) for part, (x, _) in data.splits().items()},
            list(data.classes),
            list(data.features),
            dict(data.preprocessing),
            _channel_statistics(data.train[0]) if channels else {},
            digest,
        )

    @classmethod
    def read(cls, run: str | Path) -> DataSummary | None:
        """The summary that a run keeps; None for a run that was made without one."""
        file = Path(run) / SUMMARY
        values: Any = None
        try:
            if is_hub_folder(run):
                values = read_hub_config(run).get("facts")
            elif file.is_file():
                values = read_json(file)
            if values is None:
                return None
            check_types(values, _SCHEMA, "it")
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is not the summary of data: {error}") from error
        return cls(**{item.name: values[item.name] for item in fields(cls)})

    @classmethod
    def require(cls, run: str | Path, instead: str) -> DataSummary:
        """The summary of a run; an error names what to use ``instead`` if there is none."""
        summary = cls.read(run)
        if summary is None:
            raise ValueError(f"{run} does not know its data; use {instead} in Python")
        return summary

    def write(self, run: str | Path) -> None:
        """Write ``data.json``, whole or not at all."""
        write_text(Path(run) / SUMMARY, json.dumps(asdict(self), indent=1) + "\n")

    @property
    def prepared(self) -> str:
        """How a table, or flat arrays, became inputs, in a sentence; empty for other data."""
        from dissensus.data import Preparation

        if "preparation" in self.preprocessing:
            return Preparation.from_dict(self.preprocessing["preparation"]).summary()
        if "feature_mean" in self.preprocessing:
            return "inputs standardised by the training rows (standardize=false leaves them)"
        return ""

    def original(self, y: Tensor) -> Tensor:
        """Regression outputs in the units of the source, as ``Data.original``."""
        from dissensus.data.dataset import original_units

        return original_units(y, self.preprocessing)


def check_same_data(stored: DataSummary, now: DataSummary, run: str | Path) -> None:
    """Raise if the data changed since the run: its test rows may then have been trained on."""
    reasons = {
        "sha256": "the file has other content",
        "rows": f"the splits had {stored.rows} rows and have {now.rows}",
        "classes": f"the classes were {stored.classes[:20]} and are {now.classes[:20]}",
        "features": "the columns are not the same",
        "input_shape": f"one example had the shape {stored.input_shape}, now {now.input_shape}",
    }
    for key, text in reasons.items():
        if getattr(stored, key) != getattr(now, key):
            raise ValueError(
                f"{now.name} is not what {run} was trained on: {text}; bring the old data back"
            )


def _channel_statistics(x: Any) -> dict[str, list[float]]:
    """Mean and deviation of each channel or feature, over examples and places."""
    import numpy as np
    from torch import Tensor

    if not isinstance(x, Tensor):  # on disk: take examples from all over it
        rows = np.linspace(0, len(x) - 1, min(len(x), _SAMPLED)).astype(np.int64)
        x = x[rows]
    axes = [0, *range(2, x.ndim)]
    std = x.double().std(axes, correction=0)
    std = std.where(std > 1e-8, 1.0)
    return {"mean": x.double().mean(axes).tolist(), "std": std.tolist()}


# ---- data ---------------------------------------------------------------------------------------


def load_data(config: Mapping[str, Mapping[str, Any]]) -> Data:
    """The data that the sections ``[data]`` and ``[data_options]`` of a config ask for."""
    from dissensus import data

    asked = config.get("data", {})
    if "name" not in asked:
        raise ValueError("the run does not say what its data are; name them with --data")
    known = ("data_dir", "seed", "val", "test", "hold_out")
    settings = {key: asked[key] for key in known if asked.get(key) is not None}
    options = {key: asked[key] for key in ("target", "task") if asked.get(key) is not None}
    options |= config.get("data_options", {})
    for key in ("drop", "categorical"):  # names of columns; one alone is a list of one
        if isinstance(options.get(key), str):
            options[key] = [options[key]]
    return data.load(asked["name"], **settings, **options)


def data_of(run: str | Path, *, data_dir: str | Path | None = None) -> Data:
    """The data of a run in the same splits; raises if they have changed."""
    config = read_config(run)
    if data_dir is not None:
        config["data"] = {**config.get("data", {}), "data_dir": str(data_dir)}
    data, stored = load_data(config), DataSummary.read(run)
    if stored is not None:
        check_same_data(stored, DataSummary.of(data), run)
    return data


def table_layout(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """How the run read its table, for others like it: the target, and whether there are names."""
    header = config.get("data_options", {}).get("header", True)
    return {"target": config.get("data", {}).get("target"), "header": bool(header)}

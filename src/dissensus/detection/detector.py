"""Detectors: a score and a threshold on top of an ensemble, the part to deploy."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dissensus.detection.default_scores import default_score
from dissensus.detection.distances import DISTANCES, Distance
from dissensus.detection.measures import threshold_at
from dissensus.files import read_json, write_text
from dissensus.outputs import check_outputs, to_logits
from dissensus.scores import NamedScore, at_temperature, parse
from dissensus.scores.functions import check_scale

__all__ = ["Detector"]

_FORMAT = "dissensus.detector/1"
_FIELDS: dict[str, Any] = {
    "score": str | None,
    "threshold": float,
    "accept": float,
    "count": int,
    "quantiles": dict,
    "space": str,
}
_SCORES_OF_DISAGREEMENT = ("mutual_information", "pds", "pds_sum", "unique", "disagreement")
_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


class Detector:
    """Flags inputs whose score is above a threshold set on validation data.

    ``ens`` is any callable from inputs ``[batch, …]`` to logits ``[members, batch, classes]``. A
    module runs in eval mode and without gradients, and gets its training mode back. ``score`` is a
    name in ``SCORES``, with a temperature if it is to have one (``"bma:temperature=2"``), or a
    function from logits to ``[batch]`` that rises with "more out of distribution"; by default what
    :func:`default_score` chooses for the ensemble.
    ``temperature`` divides the logits by what ``calibration.fit_temperature`` found. At most
    ``batch_size`` examples run at once. ``space="probs"`` is for an ensemble that returns
    probabilities; without it such are refused.

    ``score`` may also be a fitted :class:`Mahalanobis` or :class:`NearestNeighbours`. It is given
    ``features(x)`` ``[batch, features]``, the inputs themselves where there is no ``features``;
    the ensemble is not run then.

    After :meth:`fit`: ``threshold``, ``accept``, ``count`` (how many validation examples) and
    ``quantiles`` of their scores, by which a later user can see whether scores have drifted.

    >>> ens = lambda x: torch.stack([x, x.flip(1)])     # two members that agree near x[0] = x[1]
    >>> val = torch.tensor([[0.0, 0.0], [0.2, 0.0]])
    >>> detector = Detector(ens, score="pds").fit(val, accept=1.0)
    >>> detector.is_ood(torch.tensor([[0.1, 0.0], [3.0, 0.0]]))
    tensor([False,  True])
    """

    def __init__(
        self,
        ens: Callable[[Tensor], Tensor],
        score: str | Callable[[Tensor], Tensor] | None = None,
        *,
        features: Callable[[Tensor], Tensor] | None = None,
        temperature: Tensor | float | None = None,
        batch_size: int = 1024,
        space: str = "logits",
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number above 0, got {batch_size!r}")
        score = default_score(ens, space) if score is None else score
        self.distance = score if isinstance(score, Distance) else None
        if features is not None and self.distance is None:
            raise ValueError("features= is for a score of features; leave it out")
        if temperature is not None:
            if self.distance is not None:
                raise ValueError("a score of features has no temperature; leave it out")
            score = at_temperature(score, temperature)
        self.ens, self.features = ens, features
        self.batch_size, self.space = batch_size, space
        self._score: Callable[[Tensor], Tensor] = parse(score) if isinstance(score, str) else score
        self.score_name = _name_of(self._score)
        self.threshold: float | None = None
        self.accept: float | None = None
        self.count = 0
        self.quantiles: dict[str, float] = {}

    def __repr__(self) -> str:
        score = self.score_name or getattr(self._score, "__name__", repr(self._score))
        return f"Detector(score={score!r}, threshold={self.threshold}, accept={self.accept})"

    def fit(self, val: Tensor | Iterable[Any], accept: float = 0.95) -> Self:
        """Set the threshold so that at least ``accept`` of the validation data are accepted.

        ``val`` is in-distribution data that did not train the ensemble: inputs, a tuple
        ``(x, y)`` of tensors, or a DataLoader or other iterable of batches ``x`` or ``(x, y)``;
        labels are not used. The rest, at most ``1 - accept`` of the known inputs, are false alarms.
        """
        scores = self.score(val)
        self.threshold, self.count = threshold_at(scores, accept), len(scores)
        self.accept = float(accept)
        points = np.quantile(scores.double().cpu().numpy(), _QUANTILES)
        self.quantiles = {f"{q:g}": float(v) for q, v in zip(_QUANTILES, points, strict=True)}
        return self

    def score(self, x: Tensor | Iterable[Any]) -> Tensor:
        """The score of each example, ``[batch]``, of anything ``fit`` takes; needs no threshold."""
        device = _device_of(self.ens)
        with torch.no_grad(), _eval_mode(self.ens):
            parts = [
                self._score_part(part if device is None else part.to(device))
                for batch in _batches(x)
                for part in batch.split(self.batch_size)
            ]
        if not parts:
            raise ValueError("there is nothing to score: the data held no batches")
        return torch.cat(parts)

    def is_ood(self, x: Tensor | Iterable[Any]) -> Tensor:
        """Whether each example's score is above the threshold, bool ``[batch]``."""
        threshold = self._fitted_threshold()
        return self.score(x).double() > threshold

    def save(self, path: str | Path) -> None:
        """Write score name, threshold and validation statistics as JSON, replacing atomically.

        The ensemble is not part of it. A function of your own is not either: pass it to ``load``.
        A score of features is written beside it, as ``.safetensors``.
        """
        record = {
            "format": _FORMAT,
            "score": self.score_name,
            "threshold": self._fitted_threshold(),
            "accept": self.accept,
            "count": self.count,
            "quantiles": self.quantiles,
            "space": self.space,
        }
        if self.distance is not None:
            self.distance.save(_distance_path(path))
        record["checksum"] = _checksum(record)
        write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(
        cls,
        path: str | Path,
        ens: Callable[[Tensor], Tensor],
        *,
        score: Callable[[Tensor], Tensor] | None = None,
        features: Callable[[Tensor], Tensor] | None = None,
        batch_size: int = 1024,
    ) -> Self:
        """Read a saved detector; ``ens`` must be the ensemble that it was fitted with.

        ``score`` is the function that a detector with a score of your own was fitted with,
        ``features`` the one whose values a score of features was.
        """
        record = _read_record(Path(path))
        if (record["score"] is None) == (score is None):
            what = "a function: pass it as" if score is None else "a named score: leave out"
            raise ValueError(f"{path} was fitted with {what} score=")
        scorer = score or record["score"]
        if record["score"] in DISTANCES:
            scorer = DISTANCES[record["score"]].load(_distance_path(path))
        how: dict[str, Any] = {"features": features, "batch_size": batch_size}
        detector = cls(ens, scorer, space=record["space"], **how)
        detector.threshold, detector.accept = float(record["threshold"]), float(record["accept"])
        detector.count, detector.quantiles = record["count"], record["quantiles"]
        return detector

    def _fitted_threshold(self) -> float:
        if self.threshold is None:
            raise RuntimeError("this Detector has no threshold yet; call .fit(val) first")
        return self.threshold

    def _score_part(self, x: Tensor) -> Tensor:
        if self.distance is not None:
            scored: Tensor = self.distance(
                x.flatten(1) if self.features is None else self.features(x)
            )
            return scored
        outputs = self.ens(x)
        check_outputs(outputs, finite=self.space != "log_probs")
        if outputs.shape[1] != len(x):
            raise ValueError(
                f"ens must return [members, batch, outputs] with a batch of {len(x)}, got "
                f"{tuple(outputs.shape)}; members come first"
            )
        if len(outputs) == 1 and getattr(self._score, "name", None) in _SCORES_OF_DISAGREEMENT:
            raise ValueError(
                f"{self.score_name} is 0 or constant for one member, so it detects nothing; pass a "
                "score of one network, such as 'energy' or 'entropy'"
            )
        if self.space != "logits":
            check_scale(getattr(self._score, "name", ""), self.space)
            outputs = to_logits(outputs, self.space)
        scores = self._score(outputs)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (len(x),):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"a score must return [batch] = ({len(x)},), got {got}")
        return scores


def _name_of(score: object) -> str | None:
    """What a saved detector calls its score; None for a function of the user's own."""
    if isinstance(score, NamedScore):
        return str(score)
    return next((name for name, kind in DISTANCES.items() if isinstance(score, kind)), None)


def _distance_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".safetensors")


def _batches(data: Tensor | Iterable[Any]) -> Iterator[Tensor]:
    """Yield the inputs of a tensor, an ``(x, y)`` tuple, a DataLoader or an iterable of batches."""
    if isinstance(data, Dataset):
        raise ValueError(
            f"data must come in batches, got the Dataset {type(data).__name__}; pass "
            "DataLoader(data, batch_size=256)"
        )
    whole = isinstance(data, Tensor) or (
        isinstance(data, tuple) and len(data) == 2 and all(isinstance(d, Tensor) for d in data)
    )
    for batch in [data] if whole else data:
        x = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if not isinstance(x, Tensor) or x.ndim == 0:
            raise ValueError(
                "data must be a tensor [batch, …], a tuple (x, y) of tensors, or batches of x or "
                f"(x, y); got a batch whose x is {type(x).__name__}"
            )
        yield x


def _device_of(ens: object) -> torch.device | None:
    """The device of a module's first parameter; None where there is none."""
    parameter = next(ens.parameters(), None) if isinstance(ens, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def _eval_mode(ens: object) -> Iterator[None]:
    """Put a module in eval mode; afterwards give each submodule its own mode back."""
    if not isinstance(ens, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in ens.modules()]
    try:
        ens.eval()
        yield
    finally:
        ens.train(modes[0][1])  # first through the module, which may do more than set a flag
        for module, training in modes:
            module.training = training


def _checksum(record: dict[str, Any]) -> str:
    """The sha256 of all other fields."""
    fields = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _read_record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"no detector at {path}: there is no such file")
    record = read_json(path)
    fields: dict[str, Any] = record if isinstance(record, dict) else {}
    if fields.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is not a detector of a known format: expected {_FORMAT!r}, got "
            f"{fields.get('format')!r}"
        )
    wrong = [key for key, kind in _FIELDS.items() if not isinstance(fields.get(key, ...), kind)]
    if not wrong and not math.isfinite(fields["threshold"]):
        wrong = ["threshold"]
    if wrong:
        raise ValueError(f"{path} is not a whole detector: bad or missing {', '.join(wrong)}")
    if fields.get("checksum", checksum := _checksum(fields)) != checksum:
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    return fields

"""Scores of inputs: every score of an ensemble in one pass over a set, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dissensus.calibration import fit_temperature
from dissensus.data import Inputs
from dissensus.detection import (
    DEFAULT_SCORES,
    DISTANCE_SCORES,
    Detector,
    Mahalanobis,
    MemberFeatures,
    NearestNeighbours,
)
from dissensus.detection.detector import Distance
from dissensus.detection.member_features import PENULTIMATE
from dissensus.ensemble import Ensemble
from dissensus.outputs import check_outputs
from dissensus.runs.accuracy import Candidates
from dissensus.scores import SCORES, parse, score_all
from dissensus.training import predict

__all__ = ["FITTED", "Scan", "Scorer"]

#: The end of a score whose temperature is fitted to the validation data.
FITTED = ":temperature=fit"


@dataclass(frozen=True, eq=False)
class Scan:
    """One pass over a set: scores ``{name: [rows]}`` and, with labels, which answers are correct.

    ``correct`` is as :meth:`Candidates.correct` gives it.
    """

    scores: dict[str, Tensor]
    correct: dict[str, Tensor] = field(default_factory=dict)


class Scorer:
    """An ensemble with everything that its scores need, fitted once.

    ``names`` are scores of ``dissensus.scores`` (``"bma"``, ``"bma:temperature=2"``), such with
    ``:temperature=fit``, whose temperature is then fitted to ``val``, and the scores of features in
    ``DISTANCE_SCORES``, which are fitted to at most ``rows`` rows of ``train``. ``features`` says
    of what: ``"inputs"``, ``"penultimate"``, or the name of a module of the members; None means the
    inputs where they are flat and ``"penultimate"`` otherwise. ``candidates`` say who is correct
    where inputs have labels.
    """

    def __init__(
        self,
        ens: Ensemble,
        names: Sequence[str] = DEFAULT_SCORES,
        *,
        train: tuple[Tensor, Tensor] | None = None,
        val: tuple[Tensor, Tensor] | None = None,
        features: str | None = None,
        rows: int = 10_000,
        k: int = 50,
        candidates: Candidates | None = None,
        batch_size: int = 512,
        seed: int = 0,
    ) -> None:
        self.ens, self.names, self.batch_size = ens, list(names), batch_size
        self.candidates = candidates
        self.temperature: float | None = None
        if any(name.endswith(FITTED) for name in names):
            self.temperature = _fit_temperature(ens, val, batch_size)
        self.specs = {name: self._spec(name) for name in self.names if name not in DISTANCE_SCORES}
        self.distances: dict[str, Distance] = {}
        self.features: MemberFeatures | None = None
        distances = [name for name in self.names if name in DISTANCE_SCORES]
        if distances:
            self._fit_distances(distances, train, features, rows, k, seed)

    def scan(self, source: Inputs, progress: Callable[[int], object] | None = None) -> Scan:
        """Every score of every row, and which answers are correct, in one pass."""
        scores: dict[str, list[Tensor]] = {name: [] for name in self.names}
        correct: dict[str, list[Tensor]] = {}
        for x, y in source.batches(self.batch_size):
            x = x.to(self.ens.device)
            with self.ens.evaluating():
                outputs = self.ens(x)
            for name, values in self._score(x, outputs).items():
                scores[name].append(values.double().cpu())
            if y is not None and self.candidates is not None:
                for name, values in self.candidates.correct(x, y, outputs).items():
                    correct.setdefault(name, []).append(values)
            if progress is not None:
                progress(len(x))
        return Scan(
            {name: torch.cat(batches) for name, batches in scores.items()},
            {name: torch.cat(batches, -1) for name, batches in correct.items()},
        )

    def detector(self, name: str) -> Detector:
        """A detector with the score called ``name``, still without a threshold."""
        if name in self.distances:
            distance = self.distances[name]
            return Detector(self.ens, distance, features=self.features, batch_size=self.batch_size)
        return Detector(self.ens, self.specs[name], batch_size=self.batch_size)

    def _spec(self, name: str) -> str:
        if name.endswith(FITTED):
            name = f"{name.removesuffix(FITTED)}:temperature={self.temperature!r}"
        return str(parse(name))

    def _score(self, x: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        check_outputs(outputs)
        if self.ens.combine == "mean":
            scores = {name: SCORES[spec](outputs) for name, spec in self.specs.items()}
        else:
            by_spec = score_all(outputs, list(dict.fromkeys(self.specs.values())))
            scores = {name: by_spec[spec] for name, spec in self.specs.items()}
        if self.distances:
            features = x.flatten(1) if self.features is None else self.features(x)
            scores |= {name: distance(features) for name, distance in self.distances.items()}
        return scores

    def _fit_distances(
        self,
        names: Sequence[str],
        train: tuple[Tensor, Tensor] | None,
        features: str | None,
        rows: int,
        k: int,
        seed: int,
    ) -> None:
        if train is None or not len(train[0]):
            raise ValueError(f"{', '.join(names)} must be fitted to training data; there are none")
        source = Inputs("train", *train).limited(rows, seed)
        labels = source.y
        assert labels is not None
        if features is None:
            features = "inputs" if source.x[:1].ndim == 2 else PENULTIMATE
        if features != "inputs":
            self.features = MemberFeatures(self.ens, features)
        values = torch.cat(
            [
                x.flatten(1) if self.features is None else self.features(x).cpu()
                for x, _ in source.batches(self.batch_size)
            ]
        )
        fits: dict[str, Callable[[], Distance]] = {
            "mahalanobis": lambda: Mahalanobis.fit(values, labels),
            "relative_mahalanobis": lambda: Mahalanobis.fit(values, labels, relative=True),
            "knn": lambda: NearestNeighbours.fit(values, k=min(k, len(values))),
        }
        self.distances = {name: fits[name]() for name in names}


def _fit_temperature(ens: Ensemble, val: tuple[Tensor, Tensor] | None, batch_size: int) -> float:
    if val is None or not len(val[0]):
        raise ValueError("temperature=fit needs validation data, and there are none")
    predictions = predict(ens, val, batch_size=batch_size)
    outputs, targets = predictions.outputs, predictions.targets
    assert targets is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a temperature at its bound still orders the inputs
        weights = None if ens.weights is None else ens.weights.cpu()
        return float(fit_temperature(outputs, targets, ens.combine, weights=weights))

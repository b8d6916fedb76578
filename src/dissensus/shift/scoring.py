"""All scores of a method in one pass over its inputs, a batch at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dissensus.calibration import fit_temperature
from dissensus.data import Inputs
from dissensus.detection import Detector, Mahalanobis, NearestNeighbours
from dissensus.detection.detector import Distance
from dissensus.ensemble import Ensemble
from dissensus.outputs import check_outputs
from dissensus.scores import SCORES, parse, score_all, score_file
from dissensus.shift.accuracy import Candidates
from dissensus.shift.features import PENULTIMATE, MemberFeatures
from dissensus.training import predict

__all__ = ["ALL_SCORES", "DEFAULT_SCORES", "DISTANCE_SCORES", "FileScorer", "Scan", "Scorer"]

#: A dozen that people compare with.
DEFAULT_SCORES = (
    "pds",
    "bma",
    "max_softmax",
    "entropy",
    "mean_entropy",
    "mutual_information",
    "energy",
    "max_logit",
    "confidence",
    "disagreement",
    "mahalanobis",
    "knn",
)

#: Scores of features by the names they have in a table.
DISTANCE_SCORES = ("mahalanobis", "relative_mahalanobis", "knn")

#: Everything that suits a classifier; ``fit`` is the temperature that is best on validation data.
ALL_SCORES = (
    *DEFAULT_SCORES,
    "unique",
    "ensemble_diversity",
    "relative_mahalanobis",
    "bma:temperature=fit",
    "pds:temperature=fit",
    "energy:temperature=fit",
)

_FITTED = ":temperature=fit"

Progress = Callable[[int], object]


@dataclass(frozen=True, eq=False)
class Scan:
    """What one pass over a set gave: scores ``{name: [rows]}`` and, with labels, who was right."""

    scores: dict[str, Tensor]
    right: dict[str, Tensor] = field(default_factory=dict)


class Scorer:
    """An ensemble with everything that its scores need, fitted once.

    ``names`` are scores of ``dissensus.scores`` (``"bma"``, ``"bma:temperature=2"``), such with
    ``:temperature=fit``, whose temperature is then fitted to ``val``, and the scores of features in
    ``DISTANCE_SCORES``, which are fitted to at most ``rows`` rows of ``train``. ``features`` says
    of what: ``"inputs"``, ``"penultimate"``, or the name of a module of the members; None means the
    inputs where they are flat and ``"penultimate"`` otherwise. ``candidates`` say who is right
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
        if any(name.endswith(_FITTED) for name in names):
            self.temperature = _fitted_temperature(ens, val, batch_size)
        self.specs = {name: self._spec(name) for name in self.names if name not in DISTANCE_SCORES}
        self.distances: dict[str, Distance] = {}
        self.features: MemberFeatures | None = None
        wanted = [name for name in self.names if name in DISTANCE_SCORES]
        if wanted:
            self._fit_distances(wanted, train, features, rows, k, seed)

    def scan(self, source: Inputs, progress: Progress | None = None) -> Scan:
        """Every score of every row, and who was right, in one pass."""
        scores: dict[str, list[Tensor]] = {name: [] for name in self.names}
        right: dict[str, list[Tensor]] = {}
        for x, y in source.batches(self.batch_size):
            x = x.to(self.ens.device)
            with self.ens.evaluating():
                outputs = self.ens(x)
            for name, values in self._scored(x, outputs).items():
                scores[name].append(values.double().cpu())
            if y is not None and self.candidates is not None:
                for name, values in self.candidates.right(x, y, outputs).items():
                    right.setdefault(name, []).append(values)
            if progress is not None:
                progress(len(x))
        return Scan(
            {name: torch.cat(parts) for name, parts in scores.items()},
            {name: torch.cat(parts, -1) for name, parts in right.items()},
        )

    def detector(self, name: str) -> Detector:
        """A detector with the score called ``name``, still without a threshold."""
        if name in self.distances:
            chosen = self.distances[name]
            return Detector(self.ens, chosen, features=self.features, batch_size=self.batch_size)
        return Detector(self.ens, self.specs[name], batch_size=self.batch_size)

    def _spec(self, name: str) -> str:
        spec = name
        if name.endswith(_FITTED):
            spec = f"{name.removesuffix(_FITTED)}:temperature={self.temperature!r}"
        return str(parse(spec))

    def _scored(self, x: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        check_outputs(outputs)
        if self.ens.combine == "mean":
            found = {name: SCORES[spec](outputs) for name, spec in self.specs.items()}
        else:
            together = score_all(outputs, list(dict.fromkeys(self.specs.values())))
            found = {name: together[spec] for name, spec in self.specs.items()}
        if self.distances:
            features = x.flatten(1) if self.features is None else self.features(x)
            found |= {name: distance(features) for name, distance in self.distances.items()}
        return found

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
        chosen = Inputs("train", *train).limited(rows, seed)
        assert chosen.y is not None
        if features is None:
            features = "inputs" if chosen.x[:1].ndim == 2 else PENULTIMATE
        if features != "inputs":
            self.features = MemberFeatures(self.ens, features)
        seen = torch.cat(
            [
                x.flatten(1) if self.features is None else self.features(x).cpu()
                for x, _ in chosen.batches(self.batch_size)
            ]
        )
        makers: dict[str, Callable[[], Distance]] = {
            "mahalanobis": lambda: Mahalanobis.fit(seen, _labels(chosen)),
            "relative_mahalanobis": lambda: Mahalanobis.fit(seen, _labels(chosen), relative=True),
            "knn": lambda: NearestNeighbours.fit(seen, k=min(k, len(seen))),
        }
        self.distances = {name: makers[name]() for name in names}


class FileScorer:
    """Scores of files of predictions, streamed; None stands for all that outputs alone give."""

    def __init__(self, names: Sequence[str] | None = None) -> None:
        unfit = [n for n in names or () if n in DISTANCE_SCORES or n.endswith(_FITTED)]
        if unfit:
            raise ValueError(f"{', '.join(unfit)} cannot be had from predictions alone")
        self.names = (
            [n for n in DEFAULT_SCORES if n not in DISTANCE_SCORES] if names is None else names
        )

    def scan(self, path: str | Path, progress: Progress | None = None) -> Scan:
        """Every score of every row of a file."""
        done = 0

        def advance(now: int, total: int) -> None:
            nonlocal done
            if progress is not None:
                progress(now - done)
            done = now

        found = score_file(path, self.names, progress=advance)
        return Scan({name: values.double() for name, values in found.items()})


def _labels(source: Inputs) -> Tensor:
    assert source.y is not None
    return source.y


def _fitted_temperature(ens: Ensemble, val: tuple[Tensor, Tensor] | None, batch_size: int) -> float:
    if val is None or not len(val[0]):
        raise ValueError("temperature=fit needs validation data, and there are none")
    found = predict(ens, val, batch_size=batch_size)
    assert found.targets is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a temperature at its bound still orders the inputs
        weights = None if ens.weights is None else ens.weights.cpu()
        return float(fit_temperature(found.outputs, found.targets, ens.combine, weights=weights))

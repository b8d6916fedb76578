"""Scorers: an ensemble with its scores fitted, and one pass over a set for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dissensus.calibration import fit_temperature
from dissensus.data import Inputs
from dissensus.detection import (
    DEFAULT_SCORES,
    Detector,
    MemberFeatures,
    default_score,
    is_fitted,
)
from dissensus.detection.distance_files import Distance
from dissensus.detection.feature_scores import (
    Combined,
    FeatureScore,
    FittedDistances,
    NeighboursFit,
    combine_tails,
    parse_score,
    recipes_of,
    score_spec,
)
from dissensus.detection.member_features import PENULTIMATE, has_last_layer
from dissensus.detection.tail_scale import TailScale
from dissensus.ensemble import Ensemble
from dissensus.outputs import check_outputs
from dissensus.runs.accuracy import Candidates
from dissensus.scores import SCORES, parse, score_all
from dissensus.training import predict

#: The start of the name of a score that is given the outputs of tuned members.
TUNED = "tuned/"

#: The end of a score whose temperature is fitted to the validation data.
_FITTED = ":temperature=fit"


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
    ``FITTED_SCORES``, which are fitted to at most ``rows`` rows of ``train``, combinations to
    ``val`` as well. ``features`` says of what: ``"inputs"``, ``"penultimate"``, or the name of a
    module of the members; None means ``"penultimate"``, and the inputs where members have no linear
    layer. ``candidates`` say who is correct where inputs have labels. ``tuned`` are members that
    disagree on strangers, and how they were tuned (``training.tuning.tune``):
    ``"tuned/pds"`` is the PDS of their outputs, ``"tuned/combined"`` combines such a score with the
    features of ``ens``.
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
        tuned: tuple[Ensemble, dict[str, Any]] | None = None,
        batch_size: int = 512,
        seed: int = 0,
    ) -> None:
        self.ens, self.names, self.batch_size = ens, list(names), batch_size
        self.candidates = candidates
        self.tuned: Ensemble | None = None if tuned is None else tuned[0]
        self.tuning: dict[str, Any] = {} if tuned is None else tuned[1]
        self.temperature: float | None = None
        if any(name.endswith(_FITTED) for name in names):
            self.temperature = _fit_temperature(ens, val, batch_size)
        plain = {name: name.removeprefix(TUNED) for name in self.names}
        recipes = {name: parse_score(bare) for name, bare in plain.items() if is_fitted(bare)}
        self.specs = {name: self._spec(name) for name in self.names if name not in recipes}
        self.combined = {
            name: recipe.resolve(default_score(self._scored(name)))
            for name, recipe in recipes.items()
            if isinstance(recipe, Combined)
        }
        single = {name: each for name, each in recipes.items() if name not in self.combined}
        for each in self.combined.values():
            single |= recipes_of(each)
        self.fitted = FittedDistances()
        if single:
            self.fitted = self._fit_distances(single, train, features, rows, k, seed)
        self.scales: dict[str, tuple[TailScale, ...]] = {}
        if self.combined:
            self._fit_scales(val)

    @property
    def distances(self) -> dict[str, Distance]:
        """The fitted scores of features by name."""
        return self.fitted.distances

    def scan(self, source: Inputs, progress: Callable[[int], object] | None = None) -> Scan:
        """Every score of every row, and which answers are correct, in one pass."""
        scores: dict[str, list[Tensor]] = {name: [] for name in self.names}
        correct: dict[str, list[Tensor]] = {}
        for x, y in source.batches(self.batch_size):
            x = x.to(self.ens.device)
            outputs = self._outputs(x)
            for name, values in self._score(x, outputs).items():
                scores[name].append(values.double().cpu())
            if y is not None and self.candidates is not None:
                for name, values in self.candidates.correct(x, y, outputs[""]).items():
                    correct.setdefault(name, []).append(values)
            if progress is not None:
                progress(len(x))
        return Scan(
            {name: torch.cat(batches) for name, batches in scores.items()},
            {name: torch.cat(batches, -1) for name, batches in correct.items()},
        )

    def detector(self, name: str) -> Detector:
        """A detector with the score called ``name``, still without a threshold."""
        size = self.batch_size
        if name in self.specs:
            detector = Detector(self.ens, self.specs[name].removeprefix(TUNED), batch_size=size)
        else:
            combined = self.combined.get(name)
            spec, names = name, [name]
            if combined is not None:
                spec, names = str(score_spec(combined)), combined.distances
            detector = Detector(self.ens, spec, batch_size=size)
            detector.use({each: self.distances[each] for each in names}, self.fitted.features)
        if name.startswith(TUNED):
            detector.tuned, detector.tuning = self.tuned, dict(self.tuning)
        return detector

    def _scored(self, name: str) -> Ensemble:
        """The members whose outputs a score is given."""
        if not name.startswith(TUNED):
            return self.ens
        if self.tuned is None:
            raise ValueError(f"{name} needs tuned members: tune=True (--tune)")
        if is_fitted(bare := name.removeprefix(TUNED)) and not isinstance(
            parse_score(bare), Combined
        ):
            raise ValueError(f"{bare} is a score of features, which tuning does not change")
        return self.tuned

    def _outputs(self, x: Tensor) -> dict[str, Tensor]:
        """The outputs of the members, and under ``"tuned/"`` those of the tuned ones."""
        with self.ens.evaluating():
            outputs = {"": self.ens(x)}
        if self.tuned is not None:
            with self.tuned.evaluating():
                outputs[TUNED] = self.tuned(x)
        return outputs

    def _spec(self, name: str) -> str:
        self._scored(name)
        start = TUNED if name.startswith(TUNED) else ""
        name = name.removeprefix(TUNED)
        if name.endswith(_FITTED):
            name = f"{name.removesuffix(_FITTED)}:temperature={self.temperature!r}"
        return start + str(parse(name))

    def _score(self, x: Tensor, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        of_outputs, of_features = self._parts(x, outputs)
        scores = {name: of_outputs[spec] for name, spec in self.specs.items()}
        for name in self.names:
            if name in self.combined:
                parts = self._combined_parts(name, of_outputs, of_features)
                scores[name] = combine_tails(parts, self.scales[name])
            elif name not in scores:
                scores[name] = of_features[name]
        return scores

    def _parts(
        self, x: Tensor, outputs: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The scores of outputs by their specs, and those of features by their names."""
        wanted = [*self.specs.values(), *map(self._combined_spec, self.combined)]
        of_outputs: dict[str, Tensor] = {}
        for start, own in outputs.items():
            check_outputs(own)
            tuned = start == TUNED
            specs = {spec.removeprefix(TUNED) for spec in wanted if spec.startswith(TUNED) == tuned}
            if self.ens.combine == "mean":
                scores = {spec: SCORES[spec](own) for spec in specs}
            else:
                scores = score_all(own, sorted(specs))
            of_outputs |= {start + spec: values for spec, values in scores.items()}
        return of_outputs, self.fitted(x)

    def _fit_distances(
        self,
        recipes: Mapping[str, FeatureScore],
        train: tuple[Tensor, Tensor] | None,
        features: str | None,
        rows: int,
        k: int,
        seed: int,
    ) -> FittedDistances:
        if train is None or not len(train[0]):
            raise ValueError(
                f"{', '.join(recipes)} must be fitted to training data; there are none"
            )
        source = Inputs("train", *train).limited(rows, seed)
        if features is None:
            features = PENULTIMATE if has_last_layer(self.ens) else "inputs"
        taken = None if features == "inputs" else MemberFeatures(self.ens, features)
        usual = NeighboursFit(k=min(k, len(source)))
        chosen = {n: usual if each == NeighboursFit() else each for n, each in recipes.items()}
        return FittedDistances.fit(chosen, source.batches(self.batch_size), taken)

    def _fit_scales(self, val: tuple[Tensor, Tensor] | None) -> None:
        """The scales on which scores are combined, from validation data."""
        if val is None or not len(val[0]):
            raise ValueError(f"{', '.join(self.combined)} needs validation data; there are none")
        parts = []
        for x, _ in Inputs("val", *val).batches(self.batch_size):
            x = x.to(self.ens.device)
            parts.append(self._parts(x, self._outputs(x)))
        for name, recipe in self.combined.items():
            columns = zip(*(self._combined_parts(name, *part) for part in parts), strict=True)
            self.scales[name] = recipe.fit_scales([torch.cat(values).cpu() for values in columns])

    def _combined_spec(self, name: str) -> str:
        start = TUNED if name.startswith(TUNED) else ""
        return start + str(self.combined[name].outputs_score)

    def _combined_parts(
        self, name: str, of_outputs: Mapping[str, Tensor], of_features: Mapping[str, Tensor]
    ) -> list[Tensor]:
        distances = [of_features[each] for each in self.combined[name].distances]
        return [of_outputs[self._combined_spec(name)], *distances]


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

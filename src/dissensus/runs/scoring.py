"""Scoring of inputs: a run with its scores fitted, and one pass over a set for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dissensus.calibration import fit_temperature
from dissensus.data import Data, Inputs, find_inputs
from dissensus.detection import (
    ALL_SCORES,
    DEFAULT_SCORES,
    Detector,
    Divergent,
    Example,
    LastLayer,
    MemberFeatures,
    Study,
    TailScale,
    compare,
    default_score,
    is_fitted,
)
from dissensus.detection.feature_scores import (
    Combined,
    Distance,
    FeatureScore,
    NeighboursFit,
    Scales,
    TrainingFeatures,
    combine_tails,
    parse_score,
)
from dissensus.detection.member_features import PENULTIMATE, has_last_layer
from dissensus.detection.study import extreme_rows
from dissensus.ensemble import Ensemble
from dissensus.outputs import check_outputs, combine
from dissensus.progress import ProgressBar
from dissensus.runs.accuracy import Accuracies, Candidates, summarize
from dissensus.runs.config import data_of, table_layout
from dissensus.runs.data_summary import DataSummary
from dissensus.runs.folder import read_config
from dissensus.runs.load import load
from dissensus.scores import SCORES, parse, score_all
from dissensus.training import predict

if TYPE_CHECKING:
    from dissensus.runs.detect import Detect

__all__ = ["Scan", "Scorer", "Setup", "set_up"]

#: The end of a score whose temperature is fitted to the validation data.
_FITTED = ":temperature=fit"

#: The scores of a regression: without classes there is no Mahalanobis distance to one.
_REGRESSION_SCORES = ("variance", "knn")


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
    layer. ``candidates`` say who is correct where inputs have labels.
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
            self.temperature = _fit_temperature(ens, val, batch_size)
        recipes = {name: parse_score(name) for name in self.names if is_fitted(name)}
        self.specs = {name: self._spec(name) for name in self.names if name not in recipes}
        self.combined = {
            name: recipe.resolve(default_score(ens))
            for name, recipe in recipes.items()
            if isinstance(recipe, Combined)
        }
        self.distances: dict[str, Distance] = {}
        self.features: MemberFeatures | None = None
        if recipes:
            single = {name: each for name, each in recipes.items() if name not in self.combined}
            single |= {each.distance: each.feature_score for each in self.combined.values()}
            self._fit_distances(single, train, features, rows, k, seed)
        self.scales: dict[str, Scales] = {}
        if self.combined:
            self._fit_scales(val)

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
        if name in self.specs:
            return Detector(self.ens, self.specs[name], batch_size=self.batch_size)
        detector = Detector(self.ens, name, features=self.features, batch_size=self.batch_size)
        source = self.combined[name].distance if name in self.combined else name
        detector.distance = self.distances[source]
        return detector

    def _spec(self, name: str) -> str:
        if name.endswith(_FITTED):
            name = f"{name.removesuffix(_FITTED)}:temperature={self.temperature!r}"
        return str(parse(name))

    def _score(self, x: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        of_outputs, of_features = self._parts(x, outputs)
        scores = {name: of_outputs[spec] for name, spec in self.specs.items()}
        for name in self.names:
            if name in self.combined:
                first, second = _combined_parts(self.combined[name], of_outputs, of_features)
                scores[name] = combine_tails(first, second, self.scales[name])
            elif name not in scores:
                scores[name] = of_features[name]
        return scores

    def _parts(self, x: Tensor, outputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The scores of outputs by their specs, and those of features by their names."""
        check_outputs(outputs)
        specs = [*self.specs.values(), *(str(c.outputs_score) for c in self.combined.values())]
        specs = list(dict.fromkeys(specs))
        if self.ens.combine == "mean":
            of_outputs = {spec: SCORES[spec](outputs) for spec in specs}
        else:
            of_outputs = score_all(outputs, specs)
        if not self.distances:
            return of_outputs, {}
        features = x.flatten(1) if self.features is None else self.features(x)
        return of_outputs, {name: each(features) for name, each in self.distances.items()}

    def _fit_distances(
        self,
        recipes: Mapping[str, FeatureScore],
        train: tuple[Tensor, Tensor] | None,
        features: str | None,
        rows: int,
        k: int,
        seed: int,
    ) -> None:
        if train is None or not len(train[0]):
            raise ValueError(
                f"{', '.join(recipes)} must be fitted to training data; there are none"
            )
        source = Inputs("train", *train).limited(rows, seed)
        if features is None:
            features = PENULTIMATE if has_last_layer(self.ens) else "inputs"
        layer: Callable[[], LastLayer] | None = None
        if features != "inputs":
            self.features = MemberFeatures(self.ens, features)
            layer = partial(self.features.last_layer, source.x[: self.batch_size])
        values = torch.cat(
            [
                x.flatten(1) if self.features is None else self.features(x).cpu()
                for x, _ in source.batches(self.batch_size)
            ]
        )
        known = TrainingFeatures(values, source.y, layer)
        usual = NeighboursFit(k=min(k, len(values)))
        self.distances = {
            name: (usual if recipe == NeighboursFit() else recipe).fit(known)
            for name, recipe in recipes.items()
        }

    def _fit_scales(self, val: tuple[Tensor, Tensor] | None) -> None:
        """The scales on which scores are combined, from validation data."""
        if val is None or not len(val[0]):
            raise ValueError(f"{', '.join(self.combined)} needs validation data; there are none")
        parts = []
        for x, _ in Inputs("val", *val).batches(self.batch_size):
            x = x.to(self.ens.device)
            with self.ens.evaluating():
                parts.append(self._parts(x, self.ens(x)))
        for name, recipe in self.combined.items():
            pairs = [_combined_parts(recipe, *part) for part in parts]
            first, second = (
                TailScale.fit(torch.cat(values).cpu(), label)
                for values, label in zip(
                    zip(*pairs, strict=True), (str(recipe.score), recipe.distance), strict=True
                )
            )
            self.scales[name] = (first, second)


def _combined_parts(
    recipe: Combined, of_outputs: Mapping[str, Tensor], of_features: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    return of_outputs[str(recipe.outputs_score)], of_features[recipe.distance]


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


@dataclass(frozen=True, eq=False)
class Setup:
    """A run with its scores fitted, and the sets to score; ``unknown`` by the text that named it.

    ``val``, from which thresholds come, is None for a run without a validation split.
    """

    scorer: Scorer
    data: Data
    known: Inputs
    unknown: dict[str, Inputs]
    val: Inputs | None
    options: Detect

    def measure(self, bar: ProgressBar) -> tuple[Study, dict[str, Accuracies]]:
        """Score every set once and compare; accuracies are those of the labelled sets."""
        sources = {source.name: source for source in (self.known, *self.unknown.values())}
        val = self.val if self.val is not self.known else None
        rows = sum(len(source) for source in (*sources.values(), val) if source is not None)
        bar.update(0, total=rows, note="rows scored")
        scans = {name: self.scorer.scan(each, bar.advance) for name, each in sources.items()}
        validation = None
        if val is not None:
            validation = self.scorer.scan(val, bar.advance).scores
        elif self.val is not None:
            validation = scans[self.known.name].scores
        bar.update(0, total=len(self.scorer.names) * len(self.unknown), note="intervals")
        study = compare(
            {name: scan.scores for name, scan in scans.items()},
            self.known.name,
            validation=validation,
            accept=self.options.accept,
            bootstrap=self.options.bootstrap,
            seed=self.options.seed,
            progress=bar.advance,
        )
        candidates = self.scorer.candidates
        greedy = () if candidates is None else candidates.greedy_members
        accuracy = {
            name: summarize(scan.correct, sources[name].groups, greedy, seed=self.options.seed)
            for name, scan in scans.items()
            if scan.correct
        }
        return study, accuracy

    def detector(self, score: str) -> Detector:
        """A detector by ``score``, its threshold fitted to the validation split."""
        if self.val is None:
            raise ValueError("a detector needs a run with a validation split, for the threshold")
        batches = (x for x, _ in self.val.batches(self.scorer.batch_size))
        return self.scorer.detector(score).fit(batches, accept=self.options.accept)

    def divergent(self, study: Study) -> dict[str, Divergent]:
        """The images of each set with the highest and lowest PDS (ldr, Fig. 3).

        The first score stands in where PDS is not among the scores. Inputs that are no images of
        classes have none.
        """
        if len(self.data.input_shape) != 3 or self.data.task != "classification":
            return {}
        score = "pds" if "pds" in self.scorer.names else self.scorer.names[0]
        divergent = {}
        for source in (self.known, *self.unknown.values()):
            values = study.scores[source.name][score]
            most, least = (
                self._examples(source, rows, values[rows]) for rows in extreme_rows(values)
            )
            divergent[source.name] = Divergent(score, most, least)
        return divergent

    def _examples(self, source: Inputs, rows: Tensor, scores: Tensor) -> list[Example]:
        ens, classes = self.scorer.ens, self.data.classes
        images = source.x[rows]
        with ens.evaluating():
            logits = ens(images.to(ens.device))
        predictions = combine(logits, ens.combine, ens.weights).argmax(-1).tolist()
        votes = logits.argmax(-1).T.tolist()
        labels = [None] * len(rows) if source.y is None else source.y[rows].tolist()
        return [
            Example(
                images[place].clamp(0, 1).numpy(),
                float(scores[place]),
                classes[predicted],
                [classes[vote] for vote in dict.fromkeys(votes[place]) if vote != predicted],
                None if label is None else classes[label],
            )
            for place, (predicted, label) in enumerate(zip(predictions, labels, strict=True))
        ]


def set_up(run: str | Path, options: Detect) -> Setup:
    """Load a run and its data, resolve the sets and fit what the scores need."""
    config = read_config(run)
    DataSummary.require(run, "dissensus.detection.compare")
    data, seed, limit = data_of(run, data_dir=options.data_dir), options.seed, options.limit
    reading: dict[str, Any] = {
        **table_layout(config),
        "data_dir": options.data_dir or config["data"].get("data_dir"),
        "groups": options.groups,
        "seed": seed,
    }
    inliers = find_inputs(options.known, data, **reading).limited(limit, seed)
    outliers = {
        text: find_inputs(text, data, **reading).limited(limit, seed) for text in options.sets
    }
    names = [inputs.name for inputs in (inliers, *outliers.values())]
    for name in names:
        if names.count(name) > 1:  # results go by name
            raise ValueError(f"two sets are called {name!r}; rename one of the files")
    val = None
    if len(data.val[0]):
        val = inliers if options.known == "val" else Inputs("val", *data.val).limited(limit, seed)
    ens = load(run, trust=options.trust, device=options.device)
    candidates = None
    if options.accuracy and data.task == "classification":
        labelled = data.val if len(data.val[0]) else None
        candidates = Candidates.of(ens, labelled, _soup_batches(ens, data.train, options))
    scorer = Scorer(
        ens,
        _score_names(ens, options.score_names, data.task, data.outputs),
        train=data.train,
        val=data.val,
        features=options.features,
        rows=options.fit_rows,
        k=options.neighbours,
        candidates=candidates,
        batch_size=options.batch_size,
        seed=seed,
    )
    return Setup(scorer, data, inliers, outliers, val, options)


def _score_names(ens: Ensemble, names: Sequence[str], task: str, classes: int) -> list[str]:
    """The scores asked for, or the usual ones; the default of the ensemble leads."""
    lead, members = default_score(ens), ens.members
    if task == "regression":
        return list(_REGRESSION_SCORES if names in ([], ["all"]) else names)
    if names == ["all"]:
        orthogonal = members <= classes - 1
        every = dict.fromkeys([lead, *ALL_SCORES])
        without = [] if orthogonal else ["ensemble_diversity"]
        without += [] if has_last_layer(ens) else ["vim", "react"]
        return [name for name in every if name not in without]
    return list(names or dict.fromkeys([lead, *DEFAULT_SCORES]))


def _soup_batches(ens: Ensemble, train: tuple[Any, Tensor], options: Detect) -> list[Tensor] | None:
    """Training inputs, by which a soup's BatchNorm layers find their statistics; None without."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if ens.stack is None or not any(isinstance(m, norms) for m in ens.stack.modules()):
        return None
    source = Inputs("train", *train).limited(options.fit_rows, options.seed)
    return [x for x, _ in source.batches(options.batch_size) if len(x) > 1]

"""Scoring of a run: its sets, scored and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dissensus.data import Data, Inputs, Strangers, find_inputs
from dissensus.detection import (
    ALL_SCORES,
    DEFAULT_SCORES,
    Detector,
    Divergent,
    Example,
    Study,
    compare,
    default_score,
    is_fitted,
)
from dissensus.detection.feature_scores import Combined, parse_score
from dissensus.detection.member_features import has_last_layer
from dissensus.detection.study import extreme_rows
from dissensus.ensemble import Ensemble
from dissensus.outputs import combine
from dissensus.runs.accuracy import Accuracies, Candidates, summarize
from dissensus.runs.config import data_of, table_layout
from dissensus.runs.data_summary import DataSummary
from dissensus.runs.folder import read_config
from dissensus.runs.load import load
from dissensus.runs.scorer import TUNED, Scorer
from dissensus.tools.progress import ProgressBar
from dissensus.training.tuning import tune

if TYPE_CHECKING:
    from dissensus.runs.detect import Detect

#: How many training images and strangers are kept to be shown.
_SHOWN = 8

#: The scores of a regression: without classes there is no Mahalanobis distance to one.
_REGRESSION_SCORES = ("variance", "knn")


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
    trained_on: str | None = None  # the data that its members were trained to disagree on

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

    def strangers(self) -> dict[str, NDArray[np.uint8]]:
        """Some training images and the strangers made of them, where members disagree on such."""
        spec = self.options.strangers if self.options.tune else self.trained_on
        x: Any = self.data.train[0]
        if len(self.data.input_shape) != 3 or not str(spec).startswith("strangers"):
            return {}
        if not isinstance(x, Tensor):  # streamed from disk
            return {}
        batch = x[: _SHOWN**2]
        made = Strangers.parse(str(spec))(batch, torch.Generator().manual_seed(self.options.seed))
        some = torch.arange(0, len(batch), max(1, len(batch) // _SHOWN))  # of every family
        both = {"known": batch[some], "stranger": made[some]}
        return {k: (255 * v.clamp(0, 1)).round().byte().cpu().numpy() for k, v in both.items()}

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


def set_up(run: str | Path, options: Detect, *, progress: bool = False) -> Setup:
    """Load a run and its data, resolve the sets, tune members and fit what the scores need."""
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
    tuned = None
    if options.tune:
        tuned = tune(
            ens,
            data.train,
            strangers=replace(Strangers.parse(options.strangers), groups=data.groups),
            epochs=options.tune_epochs,
            seed=seed,
            progress=progress,
        )
    scorer = Scorer(
        ens,
        _score_names(ens, options.score_names, data.task, data.outputs, tuned and tuned[0]),
        train=data.train,
        val=data.val,
        features=options.features,
        rows=options.fit_rows,
        k=options.neighbours,
        candidates=candidates,
        tuned=tuned,
        batch_size=options.batch_size,
        seed=seed,
    )
    trained_on = config["data"].get("disagreement")
    return Setup(scorer, data, inliers, outliers, val, options, trained_on)


def _score_names(
    ens: Ensemble, names: Sequence[str], task: str, classes: int, tuned: Ensemble | None
) -> list[str]:
    """The scores asked for, or the usual ones; the default leads, that of tuned members first."""
    if tuned is None:
        return _plain_names(ens, names, task, classes)
    plain = _plain_names(ens, [name.removeprefix(TUNED) for name in names], task, classes)
    changed = plain if names not in ([], ["all"]) else [default_score(tuned)]
    changed = [n for n in changed if not is_fitted(n) or isinstance(parse_score(n), Combined)]
    return [*(TUNED + name for name in changed), *plain]


def _plain_names(ens: Ensemble, names: Sequence[str], task: str, classes: int) -> list[str]:
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

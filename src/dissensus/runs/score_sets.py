"""The verb ``detect``: the detectors of a run, fitted, and each set scored in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dissensus.calibration import fit_temperature
from dissensus.data import Data, Inputs, Strangers, find_inputs
from dissensus.detection import (
    ALL_SCORES,
    DEFAULT_SCORES,
    Detector,
    Divergent,
    Example,
    ForwardPass,
    NearestNeighbours,
    Study,
    compare,
    default_score,
    fit_together,
    is_fitted,
    score_together,
)
from dissensus.detection.detector import SCORES_OF_DISAGREEMENT
from dissensus.detection.forward_pass import has_last_layer
from dissensus.detection.study import extreme_rows
from dissensus.detection.tuning import tune
from dissensus.ensemble import Ensemble
from dissensus.outputs import combine, stored_space
from dissensus.runs.accuracy import Accuracies, Candidates, summarize
from dissensus.runs.data import DataSummary, data_of, table_layout
from dissensus.runs.detections import Detect, Detections, MethodDetection
from dissensus.runs.folder import read_config
from dissensus.runs.load import load
from dissensus.runs.prediction_files import array_keys
from dissensus.scores import score_file
from dissensus.scores.functions import SCORES_OF_LOGITS
from dissensus.tools.progress import ProgressBar
from dissensus.tools.verbs import collect
from dissensus.training import predict

#: How many training images and strangers are kept to be shown.
_SHOWN = 8

#: The scores of a regression: without classes there is no Mahalanobis distance to one.
_REGRESSION_SCORES = ("variance", "knn")

#: The end of a score whose temperature is fitted to the validation data.
_FITTED = ":temperature=fit"


def detect(
    runs: str | Path | Sequence[str | Path],
    options: Detect | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> Detections:
    """Measure how well a run's scores recognise unknown inputs; several runs are compared.

    ``settings`` are the fields of :class:`Detect`. Instead of a run, ``runs`` may name a file of
    predictions, and ``unknown`` such files, with ``keys={"outputs": "logits"}`` if theirs have
    another name. Thresholds come from the validation split, never from
    what is tested on.

    ::

        detections = ds.runs.detect("runs/ldr", unknown=["held_out", "corrupt:5"])
        detections.show()
        detections.to_frame().sort_values("auroc")
        detections.detector().is_ood(x)
    """
    options = collect(Detect, options, settings)
    if not options.sets:
        raise ValueError("name at least one set of unknown inputs with --ood, --near or --far")
    paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    names = [path.resolve().name for path in paths]
    names = names if len(set(names)) == len(names) else list(map(str, paths))
    if len(set(names)) < len(names):
        raise ValueError(f"each RUN is one method, got the same one twice: {', '.join(names)}")
    methods = {}
    for path, name in zip(paths, names, strict=True):
        with ProgressBar(name, show=progress) as bar:
            if len(paths) > 1:
                bar.log(name)
            measure = _detect_in_files if path.is_file() else _detect_in_run
            methods[name] = measure(path, options, bar)
    return Detections(options, paths, methods)


# ---- runs ---------------------------------------------------------------------------------------


def _detect_in_run(run: Path, options: Detect, bar: ProgressBar) -> MethodDetection:
    """Load a run and its sets, tune members, fit detectors and score every set."""
    if options.keys or options.probs:
        flag = "--key" if options.keys else "--probs"
        raise ValueError(f"{flag} is for files of predictions, and {run} is not one")
    bar.update(note="loading" + (", tuning" if options.tune else ""))
    config = read_config(run)
    DataSummary.require(run, "dissensus.detection.compare")
    data = data_of(run, data_dir=options.data_dir)
    known, unknown = _find_sets(config, data, options)
    ens = load(run, trust=options.trust, device=options.device)
    val: Inputs | None = Inputs("val", *data.val) if len(data.val[0]) else None
    names = _score_names(ens, options, data)
    temperature = None
    if any(name.endswith(_FITTED) for name in names):
        temperature = _fit_temperature(ens, val)
    detectors = _make_detectors(ens, names, options, temperature)
    if options.tune:
        detectors = _make_tuned(ens, names, data, options, temperature, bar) | detectors
    train = Inputs("train", *data.train).limited(options.fit_rows, options.seed)
    _choose_neighbours(detectors, min(options.neighbours, len(train)))
    size = options.batch_size
    fit_together(
        list(detectors.values()),
        None if val is None else val.batches(size),
        options.accept,
        train=train.batches(size) if len(train) else None,
    )
    candidates = _candidates(ens, data, options)
    sets = [known, *unknown.values()]
    study, accuracy = _score_sets(detectors, sets, candidates, options, bar)
    spec = options.strangers if options.tune else config["data"].get("disagreement")
    return MethodDetection(
        study,
        {text: source.name for text, source in unknown.items()},
        accuracy,
        detectors,
        _divergent(ens, data, study, sets),
        _shown_strangers(data, str(spec), options.seed),
        temperature,
        next((d.tuning for d in detectors.values() if d.tuning), {}),
    )


def _find_sets(
    config: Mapping[str, Any], data: Data, options: Detect
) -> tuple[Inputs, dict[str, Inputs]]:
    """The known set, and the unknown ones by the texts that name them."""
    reading: dict[str, Any] = {
        **table_layout(config),
        "data_dir": options.data_dir or config["data"].get("data_dir"),
        "groups": options.groups,
        "seed": options.seed,
    }
    texts = [options.known, *options.sets]
    sets = [
        find_inputs(text, data, **reading).limited(options.limit, options.seed) for text in texts
    ]
    names = [inputs.name for inputs in sets]
    for name in names:
        if names.count(name) > 1:  # results go by name
            raise ValueError(f"two sets are called {name!r}; rename one of the files")
    return sets[0], dict(zip(options.sets, sets[1:], strict=True))


def _score_names(ens: Ensemble, options: Detect, data: Data) -> list[str]:
    """The scores asked for, or the usual ones; the default leads."""
    names, lead = options.score_names, default_score(ens)
    if names not in ([], ["all"]):
        return names
    if data.task == "regression":
        return list(_REGRESSION_SCORES)
    usual = list(dict.fromkeys([lead, *(ALL_SCORES if names else DEFAULT_SCORES)]))
    without = [] if ens.members <= data.outputs - 1 else ["ensemble_diversity"]
    without += [] if has_last_layer(ens) else ["vim", "react"]
    without += SCORES_OF_DISAGREEMENT if ens.members == 1 else ()
    return [name for name in usual if name not in without]


def _make_detectors(
    ens: Ensemble, names: Sequence[str], options: Detect, temperature: float | None
) -> dict[str, Detector]:
    """A detector for each score, by its name, not fitted yet."""
    return {
        name: Detector(
            ens,
            name.removesuffix(_FITTED),
            features=options.features if is_fitted(name) else None,
            temperature=temperature if name.endswith(_FITTED) else None,
            batch_size=options.batch_size,
        )
        for name in names
    }


def _make_tuned(
    ens: Ensemble,
    names: Sequence[str],
    data: Data,
    options: Detect,
    temperature: float | None,
    bar: ProgressBar,
) -> dict[str, Detector]:
    """Detectors whose scores of outputs are of a copy of the members, tuned on strangers."""
    members, how = tune(
        ens,
        data.train,
        strangers=replace(Strangers.parse(options.strangers), groups=data.groups),
        epochs=options.tune_epochs,
        seed=options.seed,
        progress=bar.show,
    )
    if options.score_names in ([], ["all"]):
        names = [default_score(members)]
    detectors = _make_detectors(ens, names, options, temperature)
    return {
        f"{name} (tuned)": detector.use_tuned(members, how)
        for name, detector in detectors.items()
        if detector.outputs_score is not None
    }


def _choose_neighbours(detectors: Mapping[str, Detector], k: int) -> None:
    """Take ``k`` neighbours where a score does not say how many."""
    for detector in detectors.values():
        for distance in detector.distances:
            if isinstance(distance, NearestNeighbours) and distance.k is None:
                distance.k = k


def _fit_temperature(ens: Ensemble, val: Inputs | None) -> float:
    if val is None:
        raise ValueError("temperature=fit needs validation data, and there are none")
    predictions = predict(ens, (val.x, val.y))
    assert predictions.targets is not None
    weights = None if ens.weights is None else ens.weights.cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a temperature at its bound still orders the inputs
        found = fit_temperature(
            predictions.outputs, predictions.targets, ens.combine, weights=weights
        )
    return float(found)


def _candidates(ens: Ensemble, data: Data, options: Detect) -> Candidates | None:
    """The ensemble, its soups and its members, for accuracy on sets with labels."""
    if not options.accuracy or data.task != "classification":
        return None
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    batches = None
    if ens.stack is not None and any(isinstance(m, norms) for m in ens.stack.modules()):
        source = Inputs("train", *data.train).limited(options.fit_rows, options.seed)
        batches = [x for x, _ in source.batches(options.batch_size) if len(x) > 1]
    return Candidates.of(ens, data.val if len(data.val[0]) else None, batches)


def _score_sets(
    detectors: Mapping[str, Detector],
    sets: Sequence[Inputs],
    candidates: Candidates | None,
    options: Detect,
    bar: ProgressBar,
) -> tuple[Study, dict[str, Accuracies]]:
    """Score every set once and compare; accuracies are those of the labelled sets."""
    bar.update(0, total=sum(map(len, sets)), note="rows scored")
    scores: dict[str, dict[str, Tensor]] = {}
    accuracy = {}
    for source in sets:
        correct: dict[str, list[Tensor]] = {}

        def watch(forward: ForwardPass, correct: dict[str, list[Tensor]] = correct) -> None:
            bar.advance(len(forward.x))
            if candidates is not None and forward.y is not None:
                logits = forward.outputs(candidates.ens)
                for name, values in candidates.correct(forward.x, forward.y, logits).items():
                    correct.setdefault(name, []).append(values)

        batches = source.batches(options.batch_size)
        values = score_together(list(detectors.values()), batches, watch=watch)
        scores[source.name] = {
            name: each.double().cpu() for name, each in zip(detectors, values, strict=True)
        }
        if correct and candidates is not None:
            joined = {name: torch.cat(values, -1) for name, values in correct.items()}
            accuracy[source.name] = summarize(
                joined, source.groups, candidates.greedy_members, seed=options.seed
            )
    bar.update(0, total=len(detectors) * (len(sets) - 1), note="intervals")
    limits = {name: each.threshold for name, each in detectors.items()}
    study = compare(
        scores,
        sets[0].name,
        thresholds={name: limit for name, limit in limits.items() if limit is not None},
        bootstrap=options.bootstrap,
        seed=options.seed,
        progress=bar.advance,
    )
    return study, accuracy


# ---- images to look at --------------------------------------------------------------------------


def _divergent(
    ens: Ensemble, data: Data, study: Study, sets: Sequence[Inputs]
) -> dict[str, Divergent]:
    """The images of each set with the highest and lowest PDS (ldr, Fig. 3).

    The first score stands in where PDS is not among the scores. Inputs that are no images of
    classes have none.
    """
    if len(data.input_shape) != 3 or data.task != "classification":
        return {}
    score = "pds" if "pds" in study.detection else next(iter(study.detection))
    divergent = {}
    for source in sets:
        values = study.scores[source.name][score]
        most, least = (
            _examples(ens, data.classes, source, rows, values[rows])
            for rows in extreme_rows(values)
        )
        divergent[source.name] = Divergent(score, most, least)
    return divergent


def _examples(
    ens: Ensemble, classes: Sequence[str], source: Inputs, rows: Tensor, scores: Tensor
) -> list[Example]:
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


def _shown_strangers(data: Data, spec: str, seed: int) -> dict[str, NDArray[np.uint8]]:
    """Some training images and the strangers made of them, where members disagree on such."""
    x: Any = data.train[0]
    if len(data.input_shape) != 3 or not spec.startswith("strangers"):
        return {}
    if not isinstance(x, Tensor):  # streamed from disk
        return {}
    batch = x[: _SHOWN**2]
    made = Strangers.parse(spec)(batch, torch.Generator().manual_seed(seed))
    some = torch.arange(0, len(batch), max(1, len(batch) // _SHOWN))  # of every family
    both = {"known": batch[some], "stranger": made[some]}
    return {k: (255 * v.clamp(0, 1)).round().byte().cpu().numpy() for k, v in both.items()}


# ---- files of predictions -----------------------------------------------------------------------


def _detect_in_files(known: Path, options: Detect, bar: ProgressBar) -> MethodDetection:
    """Scores of files of predictions, read in pieces; only those that outputs alone give."""
    names = options.score_names
    if options.tune:
        raise ValueError(f"--tune trains members, and {known} is a file of predictions")
    impossible = [n for n in names if is_fitted(n) or n.endswith(_FITTED)]
    if impossible:
        raise ValueError(f"{', '.join(impossible)} cannot be computed from predictions alone")
    space = "probs" if options.probs else stored_space(known)
    lost = () if space == "logits" else SCORES_OF_LOGITS
    names = names or [n for n in DEFAULT_SCORES if n not in lost and not is_fitted(n)]
    files = [known, *map(Path, options.sets)]
    if len({file.stem for file in files}) < len(files):
        raise ValueError("two files have the same name; rename one of them")
    keys, scores = array_keys(options.keys), {}
    for file in files:
        bar.update(note=f"scoring {file.name}")
        by_name = score_file(
            file,
            names,
            keys=keys,
            space="probs" if options.probs else None,
            progress=lambda row, rows: bar.update(row, total=rows),
        )
        scores[file.stem] = {score: values.double() for score, values in by_name.items()}
    study = compare(scores, known.stem, bootstrap=options.bootstrap, seed=options.seed)
    return MethodDetection(study, {text: Path(text).stem for text in options.sets})

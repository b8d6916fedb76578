"""Measurements of a trained ensemble: diversity, accuracy and detection, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.calibration import ece, fit_temperature
from dissensus.detection import (
    Mahalanobis,
    MemberFeatures,
    NearestNeighbours,
    RelativeMahalanobis,
    evaluate,
)
from dissensus.ensemble import Ensemble
from dissensus.losses import cross_entropy
from dissensus.outputs import combined_log_probs
from dissensus.runs.accuracy import Candidates, accuracies, summarize
from dissensus.scores import at_temperature, score_all
from dissensus.training import predict
from reproductions.ldr.data import Split, StudyData

#: The scores that are compared: the paper's (Table 6), and those that users will ask for.
DETECTORS = (
    "pds",
    "bma",
    "energy",
    "mean_entropy",
    "confidence",
    "entropy",
    "mutual_information",
    "max_logit",
    "unique",
)


Outputs = Callable[[Tensor], Tensor]


def measure(outputs: Outputs, data: StudyData) -> dict[str, Any]:
    """All numbers of one ensemble: for each part, and for each unknown set against test data.

    ``outputs`` gives members' logits ``[members, batch, classes]``.
    """
    parts = {"val": data.val, "test": data.test, **data.unknown}
    logits = {name: outputs(x) for name, (x, _) in parts.items()}
    logits |= {name: outputs(x) for name, x in data.proxies.items()}
    scores = {name: score_all(values, DETECTORS) for name, values in logits.items()}
    result: dict[str, Any] = {
        "parts": {name: _part(logits[name], scores[name], y) for name, (_, y) in parts.items()},
        "auroc": {name: _detection(scores["test"], scores[name]) for name in data.unknown},
        "fpr95": {
            name: {
                score: evaluate(scores["test"][score], scores[name][score], bootstrap=0).fpr95.value
                for score in ("pds", "bma")
            }
            for name in data.unknown
        },
        "val_auroc": {name: _detection(scores["val"], scores[name]) for name in data.proxies},
    }
    if data.groups is not None:
        result["groups"] = _groups(logits["test"], data.test[1], data.groups)
    return result


def outputs_of(ens: Ensemble, x: Tensor) -> Tensor:
    """Members' logits ``[members, batch, classes]`` in evaluation mode."""
    return predict(ens, x, batch_size=1024).outputs


def dropout_passes(ens: Ensemble, passes: int, seed: int) -> Outputs:
    """A network with its dropout left on, run ``passes`` times (Gal and Ghahramani, 2016)."""
    network = ens.member(0).eval()
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Dropout)]
    if not any(layer.p > 0 for layer in layers):
        raise ValueError("dropout passes need a network with dropout, got one without")
    for layer in layers:
        layer.train()

    def outputs(x: Tensor) -> Tensor:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            return torch.stack([network(x) for _ in range(passes)])

    return outputs


#: Training rows that distances are fitted to; all, but for sets as large as ImageNet.
_FITTED = 100_000


def distances(ens: Ensemble, data: StudyData) -> dict[str, dict[str, float]]:
    """AUROC of what needs no ensemble: distances of features, and softmax at a fitted temperature.

    The features are those before the last trained layer; where the inputs are a backbone's
    features, ``raw_`` scores are distances of these.
    """
    aurocs = _distances(MemberFeatures(ens), data)
    if data.train[0].ndim == 2:
        for name, raw in _distances(lambda x: x, data).items():
            aurocs[name] |= {f"raw_{score}": value for score, value in raw.items()}
    temperature = fit_temperature(outputs_of(ens, data.val[0]), data.val[1])
    tempered = at_temperature("bma", temperature)
    inside = tempered(outputs_of(ens, data.test[0]))
    for name, (x, _) in data.unknown.items():
        aurocs[name]["tempered_bma"] = auroc(inside, tempered(outputs_of(ens, x)))
    return aurocs


def _distances(features: Outputs, data: StudyData) -> dict[str, dict[str, float]]:
    known = features(data.train[0][:_FITTED])
    labels = data.train[1][:_FITTED]
    scores: dict[str, Outputs] = {
        "mahalanobis": Mahalanobis().fit(known, labels),
        "relative_mahalanobis": RelativeMahalanobis().fit(known, labels),
        "nearest_neighbours": NearestNeighbours().fit(known),
    }
    inside = {name: score(features(data.test[0])) for name, score in scores.items()}
    return {
        name: _detection(inside, {score: f(features(x)) for score, f in scores.items()})
        for name, (x, _) in data.unknown.items()
    }


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The area under the ROC curve of a score, unknown inputs being positive."""
    return evaluate(inside, outside, bootstrap=0).auroc.value


def _detection(inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]) -> dict[str, float]:
    return {score: auroc(inside[score], outside[score]) for score in inside}


def _part(logits: Tensor, scores: Mapping[str, Tensor], y: Tensor | None) -> dict[str, Any]:
    """#unique and C · PDS (both 1 for members that agree), and how good predictions are."""
    numbers: dict[str, Any] = {
        "unique": float(scores["unique"].double().mean()),
        "pds_sum": float(scores["pds"].double().mean()) * logits.shape[-1],
    }
    if y is None:
        return numbers
    log_probs = combined_log_probs(logits, "probability")
    own = (logits.argmax(-1) == y).double().mean(-1)
    return numbers | {
        "accuracy": float((log_probs.argmax(-1) == y).double().mean()),
        "score_accuracy": float((logits.mean(0).argmax(-1) == y).double().mean()),
        "member_accuracies": own.tolist(),
        "nll": float(cross_entropy(log_probs, y).double().mean()),
        "ece": float(ece(log_probs.exp(), y)),
    }


def _groups(logits: Tensor, y: Tensor, groups: Tensor) -> dict[str, list[float]]:
    """Accuracy by group: the ensemble, the member whose worst group is best, the mean member."""
    right = {
        "ensemble": combined_log_probs(logits, "probability").argmax(-1) == y,
        "members": logits.argmax(-1) == y,
    }
    worst = summarize(right, groups, bootstrap=0).worst_group
    return {name: list(way.by_group.values()) for name, way in worst.items()}


def soups(ens: Ensemble, data: StudyData) -> dict[str, dict[str, float]]:
    """Accuracy on each labelled part of averaged weights, and of the best member there.

    ``uniform`` averages all members' weights; ``greedy`` those that do not lower validation
    accuracy; ``oracle`` is the member that is best on the part itself (Appendix A.2).
    """
    labelled: dict[str, Split] = {"test": data.test}
    labelled |= {name: (x, y) for name, (x, y) in data.unknown.items() if y is not None}
    candidates = Candidates.of(ens, data.val)
    results = {}
    for name, (x, y) in labelled.items():
        ways = accuracies(candidates, x, y, bootstrap=0).overall
        results[name] = {way.removesuffix("_soup"): ways[way].value for way in ways}
    return results

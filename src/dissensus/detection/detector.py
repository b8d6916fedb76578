"""Detectors: a score and a threshold on top of an ensemble, the part to deploy.

Several detectors of one ensemble are fitted by :func:`fit_together` and asked by
:func:`score_together`: the members run once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.detection.detector_files import (
    check_together,
    file_checksum,
    read_detector,
    read_distances,
    write_detector,
    write_distances,
)
from dissensus.detection.distances import FeatureScore
from dissensus.detection.forward_pass import (
    PENULTIMATE,
    ForwardPass,
    Function,
    MemberFeatures,
    forward_passes,
    has_last_layer,
)
from dissensus.detection.registry import Combined, Score, default_score, parse_score, score_spec
from dissensus.detection.tail_scale import TailScale
from dissensus.ensemble import Ensemble
from dissensus.measures import threshold_at
from dissensus.scores import NamedScore, at_temperature
from dissensus.scores.functions import check_scale
from dissensus.tools.guards import check_finite, formula
from dissensus.tools.modules import device_of

#: Scores that are constant for one member.
SCORES_OF_DISAGREEMENT = ("mutual_information", "pds", "pds_sum", "unique", "disagreement")

_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

#: ``features`` for the inputs themselves; and what a file calls a function of the user's own.
INPUTS, _FUNCTION = "inputs", "<function>"


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

    ``score`` may also be a name in ``FITTED_SCORES``: ``"vim"``, ``"react"``, ``"mahalanobis"``,
    ``"relative_mahalanobis"``, ``"knn:k=10"``, or ``"combined"``; or such an object,
    ``Mahalanobis(shrinkage=0.1)``, fitted already or not. These are scores of features and are
    fitted to training data by :meth:`fit`. ``features`` says of which: ``"inputs"``, the name of a
    module of the members, or a function ``x -> [batch, features]``; by default the input of each
    member's last layer, and the inputs themselves where an object is given or members have no
    linear layer. Without a score of outputs the ensemble is not run.

    After :meth:`fit`: ``threshold``, ``accept``, ``count`` (how many validation examples) and
    ``quantiles`` of their scores, by which a later user can see whether scores have drifted.

    >>> ens = lambda x: torch.stack([x, x.flip(1)])     # two members that agree near x[0] = x[1]
    >>> val = torch.tensor([[0.0, 0.0], [0.2, 0.0]])
    >>> detector = Detector(ens, score="pds").fit(val, accept=1.0)
    >>> detector.is_ood(torch.tensor([[0.1, 0.0], [3.0, 0.0]]))
    tensor([False,  True])
    """

    @formula
    def __init__(
        self,
        ens: Function,
        score: str | Score | None = None,
        *,
        features: str | Function | None = None,
        temperature: Tensor | float | None = None,
        batch_size: int = 1024,
        space: str = "logits",
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number above 0, got {batch_size!r}")
        self.ens, self.batch_size, self.space = ens, batch_size, space
        self._asked = score, temperature
        #: Members that were tuned to disagree on strangers, and how; see :meth:`tune`.
        self.tuned: Function | None = None
        self.tuning: dict[str, Any] = {}
        self._choose_score()
        if features is not None and not self.distances:
            raise ValueError("features= is for a score of features; leave it out")
        self._source = features
        if features is None and isinstance(score, FeatureScore | Combined):
            self._source = INPUTS
        #: What turns inputs into features; None takes the inputs themselves.
        self.features: Function | None = None
        if self.distances and all(score.is_fitted for score in self.distances):
            self._take_features({})
        self.threshold: float | None = None
        self.accept: float | None = None
        self.count = 0
        self.quantiles: dict[str, float] = {}

    def _choose_score(self) -> None:
        """Take the score that was asked for, the best for the members that are scored if none."""
        score, temperature = self._asked
        usual = default_score(self.members, self.space)
        score = parse_score(score) if isinstance(score, str) else score
        if isinstance(score, FeatureScore | Combined) and temperature is not None:
            raise ValueError("a score of features has no temperature; leave it out")
        if score is None:
            score = parse_score(usual)
        if temperature is not None:
            score = at_temperature(score, temperature)
        if isinstance(score, Combined):
            score = score.resolve(usual)
        #: What it scores by, and its parts: a score of outputs, scores of features, or both.
        self.rule: Any = score
        self.parts: list[Any] = score.parts() if isinstance(score, Combined) else [score]
        self._check_task()

    def _check_task(self) -> None:
        """Raise for a score of classes where members predict numbers, and the other way round."""
        combine, names = getattr(self.ens, "combine", None), [str(p) for p in self.parts]
        for name in names[: combine is not None and isinstance(self.parts[0], NamedScore)]:
            if (combine == "mean") != (name == "variance"):
                kind = "regressors have the score variance alone"
                kind = kind if combine == "mean" else "variance is a score of regressors"
                raise ValueError(f"{kind}, got {name!r}")

    # ---- what it is of ---------------------------------------------------------------------------

    @property
    def members(self) -> Function:
        """The members whose outputs are scored."""
        return self.ens if self.tuned is None else self.tuned

    @property
    def score_name(self) -> str | None:
        """The text that names the score; None for a function of the user's own."""
        return score_spec(self.rule)

    @property
    def outputs_score(self) -> Callable[..., Tensor] | None:
        """The score of the members' outputs, if it has one."""
        return None if isinstance(self.parts[0], FeatureScore) else self.parts[0]

    @property
    def distances(self) -> list[FeatureScore]:
        """The scores of features among the parts."""
        return [part for part in self.parts if isinstance(part, FeatureScore)]

    def __repr__(self) -> str:
        score = self.score_name or getattr(self.rule, "__name__", repr(self.rule))
        tuned = ", tuned" if self.tuned is not None else ""
        return f"Detector(score={score!r}{tuned}, threshold={self.threshold}, accept={self.accept})"

    # ---- fitting ---------------------------------------------------------------------------------

    def tune(
        self,
        train: Any,
        objective: Any = None,
        *,
        strangers: Any = "strangers",
        epochs: int | None = None,
        progress: bool = True,
        **settings: Any,
    ) -> Self:
        """Score by a copy of the members that is trained to disagree on strangers.

        The copy is trained on ``train``, ``(x, y)`` or a DataLoader, for ``epochs`` more (two, and
        at least 100 steps), and its outputs are what a score of outputs scores from then on. The
        objective is ``a2d``, for regressors ``repulsion``. The ensemble itself stays as it is,
        and so do its predictions, and the features of a distance: ``combined`` takes the outputs of
        the copy and the features of the ensemble. ``strangers`` says which
        (:class:`dissensus.strangers.Strangers`), ``settings`` are those of :func:`dissensus.fit`.
        Call :meth:`fit` afterwards, as the threshold belongs to the copy.

        ::

            detector = ds.Detector(ens).tune(train).fit(val)
        """
        from dissensus.detection.tuning import tune

        ens: Any = self.ens
        self._check_tunable()
        more = {"strangers": strangers, "epochs": epochs, "progress": progress, **settings}
        return self.use_tuned(*tune(ens, train, objective, **more))

    def use_tuned(self, members: Function, how: Mapping[str, Any]) -> Self:
        """Score by members that are tuned already, and ``how``; what :meth:`tune` does last."""
        self._check_tunable()
        self.tuned, self.tuning = members, dict(how)
        self._choose_score()
        self.threshold = self.accept = None
        return self

    def _check_tunable(self) -> None:
        if self.outputs_score is None:
            raise ValueError(
                f"{self.score_name} is a score of features, which tuning does not change"
            )
        if self.space != "logits":
            raise ValueError(f"tuning needs members that return logits, not {self.space}")

    @formula
    def fit(
        self,
        val: Tensor | Iterable[Any],
        accept: float = 0.95,
        *,
        train: Tensor | Iterable[Any] | None = None,
    ) -> Self:
        """Set the threshold so that at least ``accept`` of the validation data are accepted.

        ``val`` is in-distribution data that did not train the ensemble: inputs, a tuple
        ``(x, y)`` of tensors, or a DataLoader or other iterable of batches ``x`` or ``(x, y)``;
        labels are not used. The rest, at most ``1 - accept`` of the known inputs, are false alarms.

        ``train`` is training data in the same forms, for a score of features, which is fitted to
        them; ``mahalanobis`` needs their labels.
        """
        if train is not None and not self.distances:
            raise ValueError("train= is for a score of features, such as 'vim'; leave it out")
        fit_together([self], val, accept, train=train)
        return self

    def set_threshold(self, values: list[Tensor], accept: float) -> None:
        """Take scales and threshold from the values of all parts for validation data."""
        if isinstance(self.rule, Combined):
            self.rule.fit(values)
        scores = self.combined(values)
        self.threshold, self.count = threshold_at(scores, accept), len(scores)
        self.accept = float(accept)
        points = np.quantile(scores.double().cpu().numpy(), _QUANTILES)
        self.quantiles = {f"{q:g}": float(v) for q, v in zip(_QUANTILES, points, strict=True)}

    def _take_features(self, known: dict[Any, Function]) -> None:
        """Find the source of features; members that are ``known`` are not copied again."""
        module = self._source
        if module is None:
            plain = isinstance(self.ens, Ensemble) and not has_last_layer(self.ens)
            module = INPUTS if plain else PENULTIMATE
        if not isinstance(module, str):
            self.features = module
        elif module != INPUTS:
            if (self.ens, module) not in known:
                known[self.ens, module] = MemberFeatures(self.ens, module)  # type: ignore[arg-type]
            self.features = known[self.ens, module]

    # ---- scoring ---------------------------------------------------------------------------------

    def score(self, x: Tensor | Iterable[Any]) -> Tensor:
        """The score of each example, ``[batch]``, of anything ``fit`` takes; needs no threshold."""
        (scored,) = score_together([self], x)
        return scored

    def is_ood(self, x: Tensor | Iterable[Any]) -> Tensor:
        """Whether each example's score is above the threshold, bool ``[batch]``."""
        threshold = self._fitted_threshold()
        return self.score(x).double() > threshold

    def values(self, forward: ForwardPass) -> list[Tensor]:
        """The values ``[batch]`` of all parts for one batch."""
        return [self._value(part, forward) for part in self.parts]

    def combined(self, values: list[Tensor]) -> Tensor:
        """The score of each example, from the values of all parts."""
        return self.rule(values) if isinstance(self.rule, Combined) else values[0]

    def _value(self, part: Any, forward: ForwardPass) -> Tensor:
        if isinstance(part, FeatureScore):
            if not part.is_fitted:
                raise ValueError(
                    f"{self.score_name} is not fitted yet; call .fit(val, train=(x, y)) first"
                )
            return forward.distance(part, self.features)
        outputs = forward.outputs(self.members, self.space)
        if not isinstance(part, NamedScore):
            return self._own_score(part, forward)
        check_scale(part.name, self.space)
        if len(outputs) == 1 and part.name in SCORES_OF_DISAGREEMENT:
            raise ValueError(
                f"{part.name} is constant for one member; choose 'energy' or 'entropy'"
            )
        if part.name == "variance":
            return part(outputs)
        return part(forward.scored(self.members, self.space))

    def _own_score(self, function: Callable[[Tensor], Tensor], forward: ForwardPass) -> Tensor:
        """The values of a function of the user's own."""
        scores = function(forward.scored(self.members, self.space).logits)
        rows = len(forward.x)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (rows,):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"a score must return [batch] = ({rows},), got {got}")
        return scores

    def _fitted_threshold(self) -> float:
        if self.threshold is None:
            raise ValueError("this Detector has no threshold yet; call .fit(val) first")
        return self.threshold

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write score name, threshold and validation statistics as JSON, replacing atomically.

        The ensemble is not part of it. A function of your own is not either: pass it to ``load``.
        A score of features is written beside it, as ``.safetensors``; that of ``knn`` holds the
        features of the training data. Tuned members are in ``.tuned.safetensors``.
        """
        record: dict[str, Any] = {
            "score": self.score_name,
            "threshold": self._fitted_threshold(),
            "accept": self.accept,
            "count": self.count,
            "quantiles": self.quantiles,
            "space": self.space,
        }
        if self.distances:
            source = INPUTS if self.features is None else _FUNCTION
            record["features"] = getattr(self.features, "module", source)
            record["distance"] = write_distances(_distance_path(path), self.distances)
        if isinstance(self.rule, Combined):
            record["scales"] = [scale.to_dict() for scale in self.rule.scales]
        if self.tuned is not None:
            from dissensus.detection.tuning import save_tuned

            members: Any = self.tuned
            save_tuned(members, _tuned_path(path))
            record["tuned"] = {**self.tuning, "checksum": file_checksum(_tuned_path(path))}
        write_detector(path, record)

    @classmethod
    def load(
        cls,
        path: str | Path,
        ens: Function,
        *,
        score: Callable[[Tensor], Tensor] | None = None,
        features: Function | None = None,
        batch_size: int = 1024,
    ) -> Self:
        """Read a saved detector; ``ens`` must be the ensemble that it was fitted with.

        ``score`` is the function that a detector with a score of your own was fitted with,
        ``features`` a function of your own whose values a score of features was fitted to.
        """
        record = read_detector(path)
        name, source = record["score"], record.get("features")
        if (name is None) == (score is None):
            what = "a function: pass it as" if score is None else "a named score: leave out"
            raise ValueError(f"{path} was fitted with {what} score=")
        if source == _FUNCTION and features is None:
            raise ValueError(f"{path} was fitted with a function of features: pass it as features=")
        settings: dict[str, Any] = {"space": record["space"], "batch_size": batch_size}
        detector = cls(ens, score or name, features=features or source, **settings)
        if record.get("tuned"):
            from dissensus.detection.tuning import load_tuned

            tuning, known = dict(record["tuned"]), detector.ens
            check_together(path, _tuned_path(path), tuning.pop("checksum", ""))
            detector.use_tuned(load_tuned(_tuned_path(path), known), tuning)  # type: ignore[arg-type]
        if detector.distances:
            check_together(path, _distance_path(path), record.get("distance") or "")
            detector._take_distances(read_distances(_distance_path(path)), path)
        if isinstance(detector.rule, Combined):
            scales = map(TailScale.from_dict, record.get("scales") or ())
            detector.rule.scales = tuple(scales)
        detector.threshold, detector.accept = float(record["threshold"]), float(record["accept"])
        detector.count, detector.quantiles = record["count"], record["quantiles"]
        return detector

    def _take_distances(self, scores: list[FeatureScore], path: str | Path) -> None:
        """Take fitted scores of features in place of those that are not fitted."""
        if [type(score) for score in scores] != [type(score) for score in self.distances]:
            raise ValueError(f"{path} and its file of features are of different scores")
        self.parts[len(self.parts) - len(scores) :] = scores
        if isinstance(self.rule, FeatureScore):
            self.rule = scores[0]
        self._take_features({})


def _distance_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".safetensors")


def _tuned_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".tuned.safetensors")


# ---- several detectors at once -------------------------------------------------------------------


def fit_together(
    detectors: Sequence[Detector],
    val: Tensor | Iterable[Any] | None,
    accept: float = 0.95,
    *,
    train: Tensor | Iterable[Any] | None = None,
) -> None:
    """Fit detectors of one ensemble, :meth:`Detector.fit` of each, in one pass over the data.

    Scores of features that several of them name are fitted once and shared. Without ``val`` they
    have no threshold.
    """
    if train is not None:
        _fit_distances([d for d in detectors if d.distances], train)
    if val is None:
        return
    values = _values(detectors, val)
    for detector, own in zip(detectors, values, strict=True):
        detector.set_threshold(own, accept)


def score_together(
    detectors: Sequence[Detector],
    data: Tensor | Iterable[Any],
    *,
    watch: Callable[[ForwardPass], object] | None = None,
) -> list[Tensor]:
    """The scores ``[rows]`` by each of several detectors, in one pass over the data.

    ``watch`` is called with the :class:`ForwardPass` of each batch.

    >>> ens = lambda x: torch.stack([x, x.flip(1)])
    >>> detectors = [Detector(ens, "pds"), Detector(ens, "entropy")]
    >>> [scores.shape for scores in score_together(detectors, torch.zeros(5, 2))]
    [torch.Size([5]), torch.Size([5])]
    """
    values = _values(detectors, data, watch)
    scores = [detector.combined(own) for detector, own in zip(detectors, values, strict=True)]
    for each in scores:
        check_finite(each, name="scores")
    return scores


def _values(
    detectors: Sequence[Detector],
    data: Tensor | Iterable[Any],
    watch: Callable[[ForwardPass], object] | None = None,
) -> list[list[Tensor]]:
    """The values ``[rows]`` of all parts of each detector."""
    batches: list[list[list[Tensor]]] = []
    for forward in _passes(detectors, data):
        batches.append([detector.values(forward) for detector in detectors])
        if watch is not None:
            watch(forward)
    if not batches:
        raise ValueError("there is nothing to score: the data held no batches")
    return [
        [torch.cat(own) for own in zip(*values, strict=True)]
        for values in zip(*batches, strict=True)
    ]


def _passes(detectors: Sequence[Detector], data: Tensor | Iterable[Any]) -> Iterator[ForwardPass]:
    """Forward passes where the members are, in the smallest batches that a detector asks for."""
    device = device_of(detectors[0].ens) if detectors else None
    for detector in detectors:
        if isinstance(detector.tuned, nn.Module) and device is not None:
            detector.tuned.to(device)
    size = min((detector.batch_size for detector in detectors), default=1024)
    return forward_passes(data, size, device)


def _fit_distances(detectors: Sequence[Detector], train: Tensor | Iterable[Any]) -> None:
    """Fit the scores of features of all detectors, each once."""
    members: dict[Any, Function] = {}
    fitted: dict[Any, FeatureScore] = {}
    for detector in detectors:
        detector._take_features(members)
        for place, part in enumerate(detector.parts):
            if isinstance(part, FeatureScore):
                key = detector.features, score_spec(part)
                detector.parts[place] = fitted.setdefault(key, part)
    features: dict[Any, list[Tensor]] = {source: [] for source, _ in fitted}
    labels, example = [], None
    for forward in _passes(detectors, train):
        for source, values in features.items():
            values.append(forward.features(source))
        labels += [] if forward.y is None else [forward.y]
        example = forward.x if example is None else example
    if example is None:
        raise ValueError("there is nothing to fit to: the training data held no batches")
    targets = torch.cat(labels) if labels else None
    joined = {source: torch.cat(values) for source, values in features.items()}
    for (source, _), score in fitted.items():
        layers = None
        if score.needs_layers and isinstance(source, MemberFeatures):
            layers = source.last_layers(example)
        score.fit(joined[source], targets, layers)

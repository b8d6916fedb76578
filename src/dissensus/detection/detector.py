"""Detectors: a score and a threshold on top of an ensemble, the part to deploy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.detection.batches import batches, device_of, eval_mode
from dissensus.detection.default_scores import default_score
from dissensus.detection.detector_files import file_checksum, read_record, write_detector
from dissensus.detection.distance_files import Distance, write_distances
from dissensus.detection.feature_scores import (
    DISTANCES,
    Combined,
    Features,
    FittedDistances,
    combine_tails,
    is_fitted,
    load_distances,
    parse_score,
    recipes_of,
    score_spec,
)
from dissensus.detection.measures import threshold_at
from dissensus.detection.member_features import PENULTIMATE, MemberFeatures
from dissensus.detection.tail_scale import TailScale
from dissensus.outputs import check_outputs, to_logits
from dissensus.scores import at_temperature
from dissensus.scores.functions import check_scale
from dissensus.tools.guards import check_finite, formula

_SCORES_OF_DISAGREEMENT = ("mutual_information", "pds", "pds_sum", "unique", "disagreement")
_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

#: What a file calls features that come from a function of the user's own.
_FUNCTION = "<function>"


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
    ``"relative_mahalanobis"``, ``"knn:k=10"``, or ``"combined"``. These are scores of features and
    are fitted to training data by :meth:`fit`. ``features`` says of which: the name of a module of
    the members or a function ``x -> [batch, features]``; by default the input of each member's last
    layer. A :class:`Mahalanobis` or other score that is fitted already is given ``features(x)``,
    the inputs themselves where there is no ``features``; the ensemble is not run then.

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
        ens: Callable[[Tensor], Tensor],
        score: str | Callable[[Tensor], Tensor] | None = None,
        *,
        features: str | Features | None = None,
        temperature: Tensor | float | None = None,
        batch_size: int = 1024,
        space: str = "logits",
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number above 0, got {batch_size!r}")
        self.ens, self.batch_size, self.space = ens, batch_size, space
        self._asked: tuple[Any, ...] = (score, features, temperature)
        #: Members that were tuned to disagree on strangers, and how; see :meth:`tune`.
        self.tuned: Callable[[Tensor], Tensor] | None = None
        self.tuning: dict[str, Any] = {}
        self._choose_score(*self._asked)
        self.threshold: float | None = None
        self.accept: float | None = None
        self.count = 0
        self.quantiles: dict[str, float] = {}

    def _choose_score(
        self,
        score: str | Callable[[Tensor], Tensor] | None,
        features: str | Features | None,
        temperature: Tensor | float | None,
    ) -> None:
        """Take the score that was asked for, the best for the members that are scored if none."""
        ens = self.ens
        usual = default_score(ens if self.tuned is None else self.tuned, self.space)
        score = usual if score is None else score
        of_features = isinstance(score, Distance) or (isinstance(score, str) and is_fitted(score))
        if features is not None and not of_features:
            raise ValueError("features= is for a score of features; leave it out")
        if temperature is not None:
            if of_features:
                raise ValueError("a score of features has no temperature; leave it out")
            score = at_temperature(score, temperature)
        named: Any = parse_score(score) if isinstance(score, str) else score
        if isinstance(named, Combined):
            named = named.resolve(usual)
        self.score_name = score_spec(named)
        self.recipe: Any = named if recipes_of(named) else None
        self.scales: tuple[TailScale, ...] | None = None
        self._outputs_score: Callable[[Tensor], Tensor] | None = None if of_features else named
        if isinstance(named, Combined):
            self._outputs_score = named.outputs_score
        self._module = features if isinstance(features, str) else None
        known = {named.kind: named} if isinstance(named, Distance) else {}
        if self._module is not None and known:
            features = MemberFeatures(ens, self._module)  # type: ignore[arg-type]
        self._fitted = FittedDistances(None if isinstance(features, str) else features, known)

    @property
    def features(self) -> Features | None:
        """What turns inputs into features for a score of features."""
        return self._fitted.features

    def use(self, distances: dict[str, Distance], features: Features | None) -> None:
        """Take scores of features that are fitted already, by their names in the score."""
        self._fitted = FittedDistances(features, distances)

    @property
    def distance(self) -> Distance | None:
        """The fitted score of features; the first one of a combination of several."""
        return next(iter(self._fitted.distances.values()), None)

    def __repr__(self) -> str:
        score = self.score_name or getattr(
            self._outputs_score, "__name__", repr(self._outputs_score)
        )
        tuned = ", tuned" if self.tuning else ""
        return f"Detector(score={score!r}{tuned}, threshold={self.threshold}, accept={self.accept})"

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
        from dissensus.training.tuning import tune

        if self._outputs_score is None:
            raise ValueError(
                f"{self.score_name} is a score of features, which tuning does not change; choose a "
                "score of outputs, or 'combined'"
            )
        if self.space != "logits":
            raise ValueError(f"tuning needs members that return logits, not {self.space}")
        ens: Any = self.ens
        self.tuned, self.tuning = tune(
            ens,
            train,
            objective,
            strangers=strangers,
            epochs=epochs,
            progress=progress,
            **settings,
        )
        self._choose_score(*self._asked)
        self.threshold = self.accept = self.scales = None
        return self

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

        ``train`` is training data in the same forms, for a score of features given by name, which
        is fitted to them; ``mahalanobis`` needs their labels.
        """
        if train is not None:
            self._fit_score(train)
        values = self._values(val)
        if isinstance(self.recipe, Combined):
            self.scales = self.recipe.fit_scales(values)
        scores = self._combined(values)
        self.threshold, self.count = threshold_at(scores, accept), len(scores)
        self.accept = float(accept)
        points = np.quantile(scores.double().cpu().numpy(), _QUANTILES)
        self.quantiles = {f"{q:g}": float(v) for q, v in zip(_QUANTILES, points, strict=True)}
        return self

    def score(self, x: Tensor | Iterable[Any]) -> Tensor:
        """The score of each example, ``[batch]``, of anything ``fit`` takes; needs no threshold."""
        scored = self._combined(self._values(x))
        check_finite(scored, name="scores")
        return scored

    def is_ood(self, x: Tensor | Iterable[Any]) -> Tensor:
        """Whether each example's score is above the threshold, bool ``[batch]``."""
        threshold = self._fitted_threshold()
        return self.score(x).double() > threshold

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
        if self.features is not None:
            record["features"] = (
                self.features.module if isinstance(self.features, MemberFeatures) else _FUNCTION
            )
        if self.scales is not None:
            names = _scale_names(len(self.scales))
            record["scales"] = dict(zip(names, [s.to_dict() for s in self.scales], strict=True))
        if self.distance is not None:
            write_distances(_distance_path(path), list(self._fitted.distances.values()))
            record["distance"] = file_checksum(_distance_path(path))
        if self.tuned is not None:
            from dissensus.training.tuning import save_tuned

            members: Any = self.tuned
            save_tuned(members, _tuned_path(path))
            record["tuned"] = {**self.tuning, "checksum": file_checksum(_tuned_path(path))}
        write_detector(path, record)

    @classmethod
    def load(
        cls,
        path: str | Path,
        ens: Callable[[Tensor], Tensor],
        *,
        score: Callable[[Tensor], Tensor] | None = None,
        features: str | Features | None = None,
        batch_size: int = 1024,
    ) -> Self:
        """Read a saved detector; ``ens`` must be the ensemble that it was fitted with.

        ``score`` is the function that a detector with a score of your own was fitted with,
        ``features`` a function of your own whose values a score of features was fitted to.
        """
        record = read_record(Path(path))
        name, module = record["score"], record.get("features")
        if (name is None) == (score is None):
            what = "a function: pass it as" if score is None else "a named score: leave out"
            raise ValueError(f"{path} was fitted with {what} score=")
        if module == _FUNCTION and features is None:
            raise ValueError(f"{path} was fitted with a function of features: pass it as features=")
        distances: list[Distance] = []
        if name is not None and (name in DISTANCES or is_fitted(name)):
            file = _distance_path(path)
            _check_together(path, file, record.get("distance"))
            distances = load_distances(file)
        scorer = score or (distances[0] if name in DISTANCES and not is_fitted(name) else name)
        detector = cls(ens, scorer, space=record["space"], batch_size=batch_size)
        if "tuned" in record:
            from dissensus.training.tuning import load_tuned

            tuning, members = dict(record["tuned"]), _tuned_path(path)
            _check_together(path, members, tuning.pop("checksum", ""))
            known: Any = ens
            detector.tuned, detector.tuning = load_tuned(members, known), tuning
        found: Any = features if callable(features) else None
        if (features is None and module is not None) or isinstance(features, str):
            found = MemberFeatures(ens, features or module)  # type: ignore[arg-type]
        names = list(recipes_of(detector.recipe) or detector._fitted.distances)
        if len(names) != len(distances):
            raise ValueError(
                f"{path} is for {' and '.join(names)}, and its file of features holds "
                f"{len(distances)} of {len(names)}; fit and save the detector again"
            )
        detector._fitted = FittedDistances(found, dict(zip(names, distances, strict=True)))
        if isinstance(detector.recipe, Combined):
            scales = record.get("scales") or {}
            detector.scales = tuple(
                TailScale.from_dict(scales.get(key) or {}) for key in _scale_names(len(names) + 1)
            )
        detector.threshold, detector.accept = float(record["threshold"]), float(record["accept"])
        detector.count, detector.quantiles = record["count"], record["quantiles"]
        return detector

    def _fitted_threshold(self) -> float:
        if self.threshold is None:
            raise ValueError("this Detector has no threshold yet; call .fit(val) first")
        return self.threshold

    def _fit_score(self, train: Tensor | Iterable[Any]) -> None:
        """Fit a score of features, given by name, to training data."""
        if self.recipe is None:
            raise ValueError(
                "train= is for a score of features that is given by name, such as 'vim'; leave it "
                "out"
            )
        features = self.features
        if features is None or isinstance(features, MemberFeatures):
            features = MemberFeatures(self.ens, self._module or PENULTIMATE)  # type: ignore[arg-type]
        with torch.no_grad(), eval_mode(self.ens):
            recipes = recipes_of(self.recipe)
            self._fitted = FittedDistances.fit(recipes, self._parts(train), features)

    def _parts(self, data: Tensor | Iterable[Any]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """At most ``batch_size`` inputs at a time; the labels of a batch come with its first."""
        device = device_of(self.ens)
        for x, y in batches(data):
            for place, part in enumerate(x.split(self.batch_size)):
                yield part if device is None else part.to(device), None if place else y

    def _values(self, x: Tensor | Iterable[Any]) -> list[Tensor]:
        """The score of outputs and that of features, ``[batch]`` each; one of them, or both."""
        device = device_of(self.ens)
        if isinstance(self.tuned, nn.Module) and device is not None:
            self.tuned.to(device)
        with torch.no_grad(), eval_mode(self.ens):
            parts = [self._part_values(part) for part, _ in self._parts(x)]
        if not parts:
            raise ValueError("there is nothing to score: the data held no batches")
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    def _combined(self, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        if self.scales is None:
            raise ValueError(
                f"{self.score_name} has no scales yet; call .fit(val, train=train) first"
            )
        return combine_tails(values, self.scales)

    def _part_values(self, x: Tensor) -> list[Tensor]:
        values = [] if self._outputs_score is None else [self._score_outputs(x)]
        if self.recipe is not None and self.distance is None:
            raise ValueError(
                f"{self.score_name} is not fitted to training data yet; call "
                ".fit(val, train=(x, y)) first"
            )
        return [*values, *self._fitted(x).values()]

    def _score_outputs(self, x: Tensor) -> Tensor:
        assert self._outputs_score is not None
        members = self.ens if self.tuned is None else self.tuned
        outputs, name = members(x), getattr(self._outputs_score, "name", "")
        check_outputs(outputs, finite=self.space != "log_probs")
        if outputs.shape[1] != len(x):
            raise ValueError(
                f"ens must return [members, batch, outputs] with a batch of {len(x)}, got "
                f"{tuple(outputs.shape)}; members come first"
            )
        if len(outputs) == 1 and name in _SCORES_OF_DISAGREEMENT:
            raise ValueError(
                f"{name} is 0 or constant for one member, so it detects nothing; pass a "
                "score of one network, such as 'energy' or 'entropy'"
            )
        if self.space != "logits":
            check_scale(name, self.space)
            outputs = to_logits(outputs, self.space)
        scores = self._outputs_score(outputs)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (len(x),):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"a score must return [batch] = ({len(x)},), got {got}")
        return scores


def _distance_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".safetensors")


def _scale_names(count: int) -> list[str]:
    """Names of scales in a file: that of the score, of the distance, and of further ones."""
    return ["score", "distance", *(f"distance{place}" for place in range(2, count))]


def _tuned_path(path: str | Path) -> Path:
    return Path(path).with_suffix(".tuned.safetensors")


def _check_together(path: str | Path, file: Path, checksum: str | None) -> None:
    """Raise unless ``file``, beside the detector at ``path``, is the one that was saved with it."""
    if checksum is not None and checksum != file_checksum(file):
        raise ValueError(
            f"{path} and {file.name} do not belong together; copy both, or save it again"
        )

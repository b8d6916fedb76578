"""From a run and a question about it to what a study takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dissensus.data import Data, Inputs, find_inputs
from dissensus.ensemble import Ensemble
from dissensus.runs import Facts, data_of, load, read_config
from dissensus.shift.accuracy import Candidates
from dissensus.shift.scoring import ALL_SCORES, DEFAULT_SCORES, Scorer
from dissensus.shift.study import Steps, Study, study

__all__ = ["Prepared", "Question", "prepare"]

#: What a regression has: no classes, so no Mahalanobis distance to the nearest one.
_REGRESSION_SCORES = ("variance", "knn")


@dataclass(frozen=True)
class Question:
    """What ``dissensus ood`` is asked; see its options.

    ``near`` and ``far`` are groups of OOD sets; they are tested like those of ``ood`` and need not
    be named there as well. ``scores`` is None for a dozen usual ones, or ``("all",)``.
    """

    id: str = "test"
    ood: Sequence[str] = ()
    near: Sequence[str] = ()
    far: Sequence[str] = ()
    scores: Sequence[str] | None = None
    features: str | None = None
    fit_rows: int = 10_000
    neighbours: int = 50
    groups: str | None = None
    limit: int | None = None
    tpr: float = 0.95
    bootstrap: int = 200
    accuracy: bool = True
    batch_size: int = 512
    seed: int = 0

    @property
    def sets(self) -> list[str]:
        """All OOD sets by the texts that name them, each once."""
        return list(dict.fromkeys([*self.ood, *self.near, *self.far]))


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run, its scores fitted, and the sets to scan; :meth:`study` does the work."""

    scorer: Scorer
    data: Data
    known: Inputs
    unknown: dict[str, Inputs]  # by the text that named it
    val: Inputs | None
    question: Question

    @property
    def rows(self) -> int:
        """How many rows will be scanned."""
        scanned = [self.known, *self.unknown.values()]
        if self.val is not None and self.val is not self.known:
            scanned.append(self.val)
        return sum(len(source) for source in scanned)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the sets that are near and far."""
        asked = {"near": self.question.near, "far": self.question.far}
        return {
            group: [self.unknown[text].name for text in dict.fromkeys(texts)]
            for group, texts in asked.items()
            if texts
        }

    def study(self, steps: Steps | None = None) -> Study:
        """Scan all sets and measure."""
        return study(
            self.scorer,
            self.known,
            list(self.unknown.values()),
            val=self.val,
            tpr=self.question.tpr,
            bootstrap=self.question.bootstrap,
            seed=self.question.seed,
            steps=steps,
        )


def prepare(
    run: str | Path,
    question: Question,
    *,
    data_dir: str | Path | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> Prepared:
    """Load a run and its data, find the sets, fit what the scores need.

    Thresholds will come from the run's validation split; a run without one has none.
    """
    if not question.sets:
        raise ValueError("name at least one set of unknown inputs with --ood, --near or --far")
    config = read_config(run)
    if Facts.read(run) is None:
        raise ValueError(
            f"{run} does not know its data, as it was not made by `dissensus train`; use "
            "dissensus.shift in Python"
        )
    data, seed, limit = data_of(run, data_dir=data_dir), question.seed, question.limit
    asked = config.get("data", {})
    reading: dict[str, Any] = {
        "target": asked.get("target"),
        "header": bool(config.get("data_options", {}).get("header", True)),
        "data_dir": asked.get("data_dir") if data_dir is None else data_dir,
        "groups": question.groups,
        "seed": seed,
    }
    inliers = find_inputs(question.id, data, **reading).limited(limit, seed)
    outliers = {
        text: find_inputs(text, data, **reading).limited(limit, seed) for text in question.sets
    }
    _check_names([inliers, *outliers.values()])
    val = None
    if len(data.val[0]):
        val = inliers if question.id == "val" else Inputs("val", *data.val).limited(limit, seed)
    ens = load(run, trust=trust, device=device)
    candidates = None
    if question.accuracy and data.task == "classification":
        candidates = Candidates.of(
            ens, data.val if len(data.val[0]) else None, _train_batches(ens, data.train, question)
        )
    scorer = Scorer(
        ens,
        _names(question.scores, data.task, ens.members, data.outputs),
        train=data.train,
        val=data.val,
        features=question.features,
        rows=question.fit_rows,
        k=question.neighbours,
        candidates=candidates,
        batch_size=question.batch_size,
        seed=seed,
    )
    return Prepared(scorer, data, inliers, outliers, val, question)


def _check_names(sets: Sequence[Inputs]) -> None:
    """Raise where two sets are called alike, as results go by name."""
    names = [inputs.name for inputs in sets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two sets are called {name!r}; rename one of the files")


def _names(asked: Sequence[str] | None, task: str, members: int, classes: int) -> list[str]:
    if task == "regression":
        return list(_REGRESSION_SCORES if asked in (None, ("all",), ["all"]) else asked or ())
    if asked is None:
        return list(DEFAULT_SCORES)
    if list(asked) == ["all"]:
        orthogonal = members <= classes - 1
        return [name for name in ALL_SCORES if orthogonal or name != "ensemble_diversity"]
    return list(asked)


def _train_batches(
    ens: Ensemble, train: tuple[Any, Tensor], question: Question
) -> list[Tensor] | None:
    """Training inputs by which a soup's BatchNorm layers find their statistics; None without."""
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if ens.stack is None or not any(isinstance(m, norms) for m in ens.stack.modules()):
        return None
    source = Inputs("train", *train).limited(question.fit_rows, question.seed)
    return [x for x, _ in source.batches(question.batch_size) if len(x) > 1]

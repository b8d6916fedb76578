"""API calls with bad arguments: each is answered by finite numbers or a sentence.

Every public function of :data:`MODULES` takes part, a new one by itself: its parameters get values
by their names (:data:`VALUES`), good ones that fit each other, some of which :func:`spoil` then
replaces by others of another type, shape, kind or size.
"""

import inspect
import math
import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import dissensus as ds
from dissensus import (
    calibration,
    data,
    decomposition,
    detection,
    diagnostics,
    diversity,
    losses,
    objectives,
    outputs,
    scores,
)
from dissensus.models import make_factory

SOURCE = Path(ds.__file__).parent
MODULES: tuple[ModuleType, ...] = (
    losses,
    diversity,
    outputs,
    decomposition,
    scores,
    calibration,
    detection,
    objectives,
    diagnostics,
    data,
)

#: Public functions that take files, whole results or data sets; other categories try those.
ELSEWHERE = {
    *("stored_space", "score_file", "array_names", "codependence", "debiased_share"),
    *("dominance", "explosion", "generalization_gap", "judge", "leftover_offset", "pairwise"),
    *("compare", "curve_rows", "detection_rows", "group_means", "histogram_rows", "thinned"),
    *("among_best", "histogram_edges", "data_places", "find_inputs", "hold_out_classes", "load"),
    *("is_shards", "is_store", "load_ood", "load_table", "read_inputs", "take_part", "spec"),
    *("combine_tails", "fit_together", "score_together"),
}

#: Formulas, which training evaluates at every step: they look at types and shapes, not at values.
FORMULAS = {
    *("errors", "mse", "gaussian_nll", "cross_entropy", "mean_cross_entropy", "brier", "zero_one"),
    *("entropy", "jensen_shannon", "log_determinant", "log_ensemble_diversity"),
    *("wrong_class_predictions", "weighted_mean", "log_mean_exp", "combined_log_probs"),
    *("majority_vote", "to_logits", "gaussian_moments", "hardness_weights"),
}

#: Results that may hold a NaN or an infinity, as their docstrings say.
OPEN_RESULTS = {"hessian_terms", "reliability", "calibration", "roc_curve", "evaluate"}


class Call(NamedTuple):
    """One call: what it is called, the function and its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = ", ".join(f"{key}={show(value)}" for key, value in self.arguments.items())
        return f"{self.name}({given})"


def show(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}…"


class Sizes(NamedTuple):
    """What the arguments of one call have in common."""

    members: int
    batch: int
    classes: int
    rng: random.Random

    def normal(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.rng.randrange(2**31))
        return torch.randn(shape, generator=generator)

    def labels(self) -> Tensor:
        return self.normal(self.classes, self.batch).argmax(0)

    def simplex(self, *shape: int) -> Tensor:
        return self.normal(*shape).softmax(-1)

    def targets(self) -> Tensor:
        soft = self.simplex(self.batch, self.classes)
        return self.rng.choice([self.labels(), soft, self.normal(self.batch, self.classes)])


def _choice(*values: Any) -> Callable[[Sizes], Any]:
    return lambda sizes: sizes.rng.choice(values)


def _member_values(sizes: Sizes) -> Tensor:
    return sizes.normal(sizes.members, sizes.batch, sizes.classes)


def _optional_weights(sizes: Sizes) -> Tensor | None:
    return sizes.rng.choice([None, sizes.simplex(sizes.members)])


def _rows(sizes: Sizes) -> Tensor:
    return sizes.normal(sizes.batch)


def _images(sizes: Sizes) -> Tensor:
    return sizes.normal(sizes.batch, 3, 8, 8).sigmoid()


#: A good value for each name of a parameter.
VALUES: dict[str, Callable[[Sizes], Any]] = {
    "outputs": _member_values,
    "logits": _member_values,
    "values": _member_values,
    "log_values": _member_values,
    "log_probs": lambda s: _member_values(s).log_softmax(-1),
    "probs": lambda s: s.simplex(s.batch, s.classes),
    "gram": lambda s: (lambda x: x @ x.mT)(s.normal(s.batch, s.members, 16)),
    "targets": Sizes.targets,
    "labels": Sizes.labels,
    "weights": _optional_weights,
    "example_weights": lambda s: s.rng.choice([None, s.simplex(s.batch)]),
    "means": _rows,
    "log_variances": _rows,
    "id_scores": _rows,
    "ood_scores": _rows,
    "intervals": lambda s: s.normal(s.batch, 2).sort(-1).values,
    "quantiles": lambda s: s.normal(s.batch, 3).sort(-1).values,
    "levels": _choice([0.1, 0.5, 0.9]),
    "coverage": _choice(0.5, 0.9),
    "loss": _choice("mse", "cross_entropy", "brier", "zero_one", losses.mse),
    "combine": _choice("probability", "score", "mean", "vote", None),
    "how": _choice("probability", "score", "mean"),
    "space": _choice("logits", "logits", "probs", "log_probs"),
    "form": _choice("exact", "second_order"),
    "label_smoothing": _choice(0.0, 0.1),
    "temperature": _choice(1.0, 2.0, torch.tensor(3.0)),
    "score": _choice("bma", "pds", "energy"),
    "names": _choice(None, ["pds", "bma:temperature=2"]),
    "text": _choice("pds", "adp:beta=1", "independent"),
    "trained": _choice(None, "adp"),
    "bins": _choice(5, 15),
    "scheme": _choice("width", "mass"),
    "per_member": _choice(True, False),
    "shrinkage": _choice(0.0, 1.0),
    "bounds": _choice((0.01, 100.0)),
    "bootstrap": _choice(0, 20),
    "confidence": _choice(0.9, 0.95),
    "accept": _choice(0.9, 1.0),
    "seed": _choice(0, 7),
    "count": _choice(20, 3),
    "total": _choice(20, 50),
    "members": lambda s: s.members,
    "batch": lambda s: s.batch,
    "classes": lambda s: s.classes,
    "target_probability": _choice(0.7, 0.9),
    "alpha": _choice(0.5, 2.0),
    "beta": _choice(0.0, 0.5),
    "others_only": _choice(True, False),
    "detach": _choice(True, False),
    "trainable": _choice(True, False),
    "finite": _choice(True, False),
    "trust": _choice(False),
    "name": _choice("outputs", "logits"),
    "objective": _choice("adp", "independent", None),
    "x": _images,
    "kind": _choice(*sorted(data.CORRUPTIONS)),
    "severity": _choice(1, 5),
    "input_shape": _choice([1, 8, 8], [3, 16, 16], [3, 8, 8]),
    "padding": _choice(0, 2),
    "probability": _choice(0.0, 0.5),
    "degrees": _choice(0.0, 15.0),
    "share": _choice(0.0, 0.1),
    "generator": lambda s: torch.Generator().manual_seed(0),
    "val": _choice(0.2, 2),
    "test": _choice(0.2, 2),
}

#: Where a name means something else than in most functions.
OTHER_VALUES: dict[str, dict[str, Callable[[Sizes], Any]]] = {
    "conformal_quantile": {"scores": lambda s: s.normal(40), "weights": lambda s: None},
    "sample_quantiles": {"values": _rows, "weights": lambda s: None},
    "interval_coverage": {"targets": _rows, "weights": lambda s: None},
    "crps_quantiles": {"targets": _rows},
    "gaussian_nll": {"targets": _rows},
    "check_labels": {"targets": Sizes.labels},
    "zero_one": {"labels": lambda s: _member_values(s).argmax(-1)},
    "hessian_diversity": {"loss": _choice(losses.mse)},
    "hessian_terms": {"loss": _choice(losses.mse)},
    "brier": {"probs": lambda s: s.simplex(s.members, s.batch, s.classes)},
}


# ---- bad values ---------------------------------------------------------------------------------

DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.complex64),
    *(torch.bool, torch.int64, torch.int8, torch.uint8),
]
NUMBERS = [math.nan, math.inf, -math.inf, 1e300, -1e30, 1e30, 65504.0, 1e-45, 0.0, -1.0]
OTHER_TYPES: list[Any] = [
    *(None, "x", "", 5, -1, 1.5, math.nan, True, b"x", 1j, [], [1.0], {}, {"a": 1}, object()),
    *("\x1b[2J", 10**30, np.float64(2), np.array(["a"]), torch.tensor(1.0), lambda *a: 0, set()),
]


def spoil(value: Any, rng: random.Random) -> Any:
    """Another value in place of a good one: sometimes still a good one."""
    if not isinstance(value, Tensor) or not value.ndim or rng.random() < 0.15:
        return rng.choice(OTHER_TYPES)
    way = rng.choice(["dtype", "dtype", "number", "number", "scale", "shape", "kind"])
    if way == "dtype":
        return value.to(rng.choice(DTYPES))
    if way in ("number", "scale"):
        worse = value.double() if rng.random() < 0.3 else value.clone()
        bad = rng.choice(NUMBERS)
        if way == "scale" and worse.is_floating_point():
            return worse * bad
        if worse.numel():
            place = rng.randrange(worse.numel())
            safe = int(max(min(bad, 2.0**62), -(2.0**62))) if bad == bad else 2**40
            numbers = torch.tensor(bad if worse.is_floating_point() else safe, dtype=torch.float64)
            worse.view(-1)[place] = numbers.to(worse.dtype)
        return worse
    if way == "shape":
        return rng.choice(
            [
                value[None],
                value[..., None],
                value[:0],
                value[..., :0],
                value[:1],
                torch.cat([value, value]),
                value.reshape(-1),
                value.mT if value.ndim > 1 else value[None],
                torch.zeros(()),
            ]
        )
    return rng.choice(
        [
            value.tolist(),
            value.numpy(),
            value.to("meta"),
            value.to_sparse(),
            value.clone().requires_grad_() if value.is_floating_point() else value[..., ::2],
            value.expand(2, *value.shape),
        ]
    )


# ---- calls --------------------------------------------------------------------------------------


def functions() -> dict[str, Callable[..., Any]]:
    """Every public function that takes part, by its full name."""
    found = {}
    for module in MODULES:
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and name not in ELSEWHERE:
                found[f"{module.__name__.removeprefix('dissensus.')}.{name}"] = function
    found |= {f"objectives.{name}": own for name, own in objective_calls().items()}
    return found | {f"ds.{name}": own for name, own in ENSEMBLE_CALLS.items()}


def objective_calls() -> dict[str, Callable[..., Any]]:
    """Every objective at its defaults."""

    def call(name: str) -> Callable[..., Any]:
        objective = objectives.parse(name)

        def evaluate(
            outputs: Any, targets: Any, weights: Any, example_weights: Any, disagreement: Any
        ) -> Any:
            more = {"disagreement": disagreement} if objective.needs_disagreement else {}
            return objective(
                outputs, targets, weights=weights, example_weights=example_weights, **more
            )

        return evaluate

    return {f"parse({name!r})": call(name) for name in objectives.OBJECTIVES}


def _ensemble() -> ds.Ensemble:
    return ds.Ensemble(make_factory("mlp", (4,), 3, hidden=4), members=2)


def _make(members: Any, seed: Any, combine: Any, execution: Any) -> Any:
    make = make_factory("linear", (4,), 3)
    ds.Ensemble(make, members=members, seed=seed, combine=combine, execution=execution)


def _predict(rows: Any, batch_size: Any) -> Any:
    return ds.predict(_ensemble(), rows, batch_size=batch_size)


def _fit(rows: Any, row_labels: Any, epochs: Any, batch_size: Any, lr: Any) -> Any:
    epochs = 1 if isinstance(epochs, int) and epochs > 5 else epochs  # it would only take long
    # What a network's own layers cannot take is its own error; here its inputs are of their type.
    if isinstance(rows, Tensor) and (rows.dtype != torch.float32 or rows.shape[1:] != (4,)):
        rows = torch.ones(4, 4)
    recipe = ds.Recipe(optimizer=ds.Optimizer("sgd", lr=lr), epochs=epochs, batch_size=batch_size)
    ens = _ensemble()
    return ds.fit(ens, (rows, row_labels), recipe=recipe, progress=False)


def _detect(rows: Any, score: Any, accept: Any) -> Any:
    detector = ds.Detector(_ensemble(), score=score).fit(rows, accept)
    return detector.score(rows), detector.is_ood(rows)


ENSEMBLE_CALLS: dict[str, Callable[..., Any]] = {
    "Ensemble": _make,
    "predict": _predict,
    "fit": _fit,
    "Detector": _detect,
}
VALUES |= {
    "disagreement": _member_values,
    "execution": _choice("auto", "stacked", "loop"),
    "rows": lambda s: s.normal(s.batch, 4),
    "row_labels": lambda s: s.normal(3, s.batch).argmax(0),
    "epochs": _choice(1, 2),
    "batch_size": _choice(4),
    "lr": _choice(0.1, 1e-3),
}


def draw(rng: random.Random, names: Sequence[str], every: Mapping[str, Any]) -> Call:
    """A call with about one bad argument."""
    name = rng.choice(names)
    function, own = every[name], OTHER_VALUES.get(name.rpartition(".")[2], {})
    sizes = Sizes(rng.randrange(1, 4), rng.randrange(1, 9), rng.randrange(2, 6), rng)
    arguments = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        value = (own.get(key) or VALUES[key])(sizes)
        if parameter.default is not parameter.empty and rng.random() < 0.5:
            continue
        arguments[key] = spoil(value, rng) if rng.random() < 0.35 else value
    return Call(name, function, arguments)


def cases(_: Path, count: int, seed: int = 0) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` calls; the slow ones of ``ds`` are rarer."""
    rng, every = random.Random(seed), functions()
    quick = [name for name in every if not name.startswith("ds.")]
    slow = [name for name in every if name.startswith("ds.")]
    for _ in range(count):
        call = draw(rng, slow if rng.random() < 0.05 else quick, every)
        yield str(call), partial(failure, call)


# ---- judgement ----------------------------------------------------------------------------------


def failure(call: Call) -> str:
    """How a call failed to answer as it must; empty if it did."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call.function(**call.arguments)
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not Path(frames[-1].filename).is_relative_to(SOURCE):
            return f"not our own sentence: {error!r}"
        return "" if len(str(error)) > 15 else f"no sentence: {error!r}"
    except Exception as error:
        return repr(error)
    name = call.name.rpartition(".")[2]
    if name in FORMULAS or name in OPEN_RESULTS or all_finite(result):
        return ""
    return f"not finite: {result}"


def all_finite(value: Any) -> bool:
    """Whether no NaN and no infinity is anywhere in a result."""
    if isinstance(value, Tensor) and (value.is_meta or value.is_sparse):
        return False
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value.double()).all())
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
    if isinstance(value, float | complex):
        return math.isfinite(abs(value))
    if isinstance(value, Mapping):
        return all(map(all_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(all_finite, value))
    if is_dataclass(value) and not isinstance(value, type):
        return all(all_finite(getattr(value, item.name)) for item in fields(value))
    return True

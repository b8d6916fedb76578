"""Estimator calls with bad tables, targets and parameters."""

import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError

from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from tools.fuzz.api_calls import OTHER_TYPES, all_finite

SMALL = {"n_estimators": 4, "max_iter": 2, "hidden_layer_sizes": (4,), "random_state": 0}
METHODS = {
    DiverseClassifier: ["predict", "predict_proba", "predict_log_proba", "predict_set"],
    DiverseRegressor: ["predict", "predict_std", "predict_interval", "predict_quantiles"],
}
BOTH = ["ood_score", "transform", "member_outputs"]
PARAMETERS: dict[str, list[Any]] = {
    "device": ["x", "cuda:99", 5, None, "meta"],
    "n_estimators": [0, -1, "x", 1.5, None, 1],
    "learning_rate_init": [float("nan"), -1.0, 1e300, "x", None],
    "batch_size": [0, -5, "x", 1.5],
    "max_iter": [0, -1, "x", None],
    "objective": ["nothing", 5, "adp:beta=nan", "\x1b[2J"],
    "random_state": ["x", -1, 1.5],
    "hidden_layer_sizes": [0, (-1,), "x", (10**12,), ()],
}


def table(rng: random.Random, rows: int = 40) -> np.ndarray:
    return np.random.default_rng(rng.randrange(2**31)).normal(size=(rows, 4))


def spoil(x: np.ndarray, rng: random.Random) -> Any:
    """A worse table, or something else."""
    way = rng.randrange(9)
    if way == 0:
        return rng.choice(OTHER_TYPES)
    if way == 1:
        return x * rng.choice([1e300, 1e38, -1e30, 1e-300, 0.0])
    if way == 2:
        bad = x.copy()
        bad.flat[rng.randrange(bad.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e300])
        return bad
    if way == 3:
        return x.astype(rng.choice([np.float16, np.complex64, bool, np.int8, object, "U5"]))
    if way == 4:
        return rng.choice([x[:0], x[:1], x[:, :0], x[..., :-1], x[None], x.ravel()])
    if way == 5:
        return x.tolist()
    if way == 6:
        return np.where(x > 2, np.nan, x)
    if way == 7:
        return np.ma.masked_greater(x, 1)
    return x.astype(np.float32)


def cases(_: Path, count: int, seed: int = 0) -> Iterator[tuple[str, Callable[[], str]]]:
    """``count`` calls: one in five fits, the rest ask fitted estimators."""
    rng = random.Random(seed)
    x = table(rng)
    targets = {DiverseClassifier: (x[:, 0] > 0).astype(int), DiverseRegressor: x[:, 0]}
    fitted = {kind: kind(**SMALL).fit(x, y) for kind, y in targets.items()}
    for _ in range(count):
        kind = rng.choice(list(targets))
        if rng.random() < 0.2:
            given, y = x, targets[kind]
            parameters = dict(SMALL)
            match rng.randrange(3):
                case 0:
                    given = spoil(x, rng)
                case 1:
                    y = spoil(y[:, None].astype(float), rng)
                    y = y.ravel() if isinstance(y, np.ndarray) and rng.random() < 0.7 else y
                case _:
                    name = rng.choice(list(PARAMETERS))
                    parameters[name] = rng.choice(PARAMETERS[name])
            words = {key: value for key, value in parameters.items() if SMALL.get(key) != value}

            def fit(
                kind: Any = kind, parameters: Any = parameters, x: Any = given, y: Any = y
            ) -> Any:
                return kind(**parameters).fit(x, y).predict(table(random.Random(0), 5))

            yield f"{kind.__name__}({words}).fit({_show(given)}, {_show(y)})", partial(failure, fit)
        else:
            method = rng.choice(METHODS[kind] + BOTH)
            given = spoil(table(rng, 7), rng)
            more = [rng.choice(OTHER_TYPES)] if rng.random() < 0.15 and method != "predict" else []
            if method in ("predict_proba", "predict_log_proba", "transform", "member_outputs"):
                more = []
            call = getattr(fitted[kind], method)
            name = f"{kind.__name__}.{method}({_show(given)}, {more})"
            yield name, partial(failure, partial(call, given, *more))


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)} up to {value.flat[0] if value.size else None}"
    return repr(value)[:60]


def failure(call: Callable[[], Any]) -> str:
    """How a call failed to answer as it must; scikit-learn's own sentences count as answers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call()
    except (ValueError, NotFittedError) as error:
        return "" if len(str(error)) > 15 else f"no sentence: {error!r}"
    except TypeError as error:
        # Its checks of tables raise TypeError with a sentence, for sparse or complex ones.
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        return "" if "sklearn" in last and "dissensus" not in last else repr(error)
    except Exception as error:
        return repr(error)
    return "" if all_finite(result) else f"not finite: {result}"

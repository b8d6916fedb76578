"""Fits: one contender on one split of one table, in a process of its own.

The process is forked when the table is loaded, and has one thread: its CPU time and the memory that
it adds are those of the fit. A fit that needs more than the ``limit`` is ended; it counts as last
on its table, as does one that fails.
"""

import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from reproductions.cells import count_option, names_option
from reproductions.study import Cell, Study
from reproductions.tables import measures
from reproductions.tables.contenders import CONTENDERS, Contender
from reproductions.tables.sources import TABLES, Table, load_table, split_rows

#: Tables with more rows than this have three splits.
MANY_ROWS = 25_000
#: The CPU time of a fit, in seconds, after which it is ended.
LIMIT = 180.0
COVERAGE = 0.9
_SMOKE = {"tables": "diabetes+wine", "contenders": "forest+hgb+dissensus", "splits": 1}

Floats = NDArray[np.float64]


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """A cell for each split, contender and table that suit each other."""
    options = {**_SMOKE, **options} if scale == "smoke" else options
    tables = names_option(options, "tables", TABLES)
    return [
        {
            "name": f"{table}-{contender}-split={split}",
            "table": table,
            "contender": contender,
            "split": split,
        }
        for split in range(count_option(options, "splits", 5))
        for contender in names_option(options, "contenders", CONTENDERS)
        for table in tables
        if split < _splits(CONTENDERS[contender], TABLES[table])
    ]


def _splits(contender: Contender, table: Table) -> int:
    """How many splits of a table a contender is run on; none if they do not suit each other."""
    few = table.classes and table.classes < contender.least_classes
    if table.task not in contender.tasks or table.rows > contender.most_rows or few:
        return 0
    return min(contender.splits, 3 if table.rows > MANY_ROWS else 5)


def run(cell: Cell) -> dict[str, Any]:
    """The facts about a table and a fit on it; a failed fit has a ``status`` and a ``message``."""
    contender, table = CONTENDERS[cell["contender"]], TABLES[cell["table"]]
    version = str(import_module(contender.package).__version__)
    X, y = load_table(cell["table"])
    facts = {"rows": len(y), "columns": X.shape[1]}
    size = X.memory_usage(deep=True).sum() / 2**20
    return {
        **facts,
        "table_mb": size,
        **fork(contender, X, y, table, cell["split"]),
        "version": version,
    }


def fork(
    contender: Contender, X: Any, y: NDArray[Any], table: Table, split: int, limit: float = LIMIT
) -> dict[str, Any]:
    """What :func:`measure` returns in a process of its own, or why it returned nothing."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, contender, X, y, table, split, limit)
    process = context.Process(target=_measure_in_child, args=arguments)
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        found = {}
    process.join()
    if found:
        return found
    if process.exitcode == -signal.SIGXCPU:
        return {"status": "limit", "message": f"no fit within {limit:g} s"}
    return {"status": "failed", "message": f"exit code {process.exitcode}"}


def _measure_in_child(
    sender: Connection,
    contender: Contender,
    X: Any,
    y: NDArray[Any],
    table: Table,
    split: int,
    limit: float,
) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that 200 epochs were not enough, for one
    try:
        found = measure(contender, *split_rows(X, y, table.task, split), table.task, split, limit)
    except Exception as error:
        found = {"status": "failed", "message": f"{type(error).__name__}: {error}"[:300]}
    sender.send(found)
    sender.close()


def measure(
    contender: Contender,
    X: Any,
    X_test: Any,
    y: NDArray[Any],
    y_test: NDArray[Any],
    task: str,
    seed: int,
    limit: float | None = None,
) -> dict[str, Any]:
    """Fit a contender, and return its times, peak memory and measures on the test rows.

    ``limit`` ends the process; where one is set, the clock of its CPU time goes in ticks.
    """
    model = contender.make(task, seed)
    before, files = _peak_mb(), _files_mb()
    with nullcontext() if limit is None else _cpu_limit(limit):
        fit_cpu, fit_wall, _ = _timed(lambda: model.fit(X, y))
    found: dict[str, Any] = {"status": "done", "fit_cpu": fit_cpu, "fit_wall": fit_wall}
    found["peak_mb"] = _peak_mb() - before
    if files is not None:
        found["files_mb"] = (_files_mb() or 0.0) - files
    found["test_rows"] = len(y_test)
    if getattr(model, "capped_", False):
        found["capped"] = True
    if task == "classification":
        found["predict_cpu"], _, probs = _timed(lambda: model.predict_proba(X_test))
        probs = np.asarray(probs, np.float64)
        _check_finite(probs)
        rate = measures.error_rate(probs, y_test)
        return found | {"error": rate, "nll": measures.nll(probs, y_test)}
    found["predict_cpu"], _, predictions = _timed(lambda: model.predict(X_test))
    predictions = np.asarray(predictions, np.float64)
    quantiles, (low, high), source = _distribution(
        contender, model, X, X_test, y, predictions, seed
    )
    _check_finite(predictions, quantiles, low, high)
    return found | {
        "error": measures.rmse(predictions, y_test),
        "crps": measures.crps(quantiles, y_test),
        "coverage": measures.coverage(low, high, y_test),
        "width": float((high - low).mean()),
        "target_std": float(y_test.std()),
        "distribution": source,
    }


def _check_finite(*arrays: Floats) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("its predictions are not all finite")


def _distribution(
    contender: Contender,
    model: Any,
    X: Any,
    X_test: Any,
    y: NDArray[Any],
    predictions: Floats,
    seed: int,
) -> tuple[Floats, Iterable[Floats], str]:
    """Quantiles of each test row, its 90% interval, and where both come from."""
    if hasattr(model, "predict_quantiles"):
        quantiles = np.asarray(model.predict_quantiles(X_test, measures.LEVELS), np.float64)
        interval = model.predict_interval(X_test, coverage=COVERAGE)
        bounds = interval if isinstance(interval, tuple) else np.asarray(interval).T
        return quantiles, bounds, "its own"
    if contender.residuals is not None:
        residuals, source = contender.residuals(model, X, y), "out of bag"
    else:
        residuals, source = _held_out_residuals(contender, X, y, seed), "second fit"
    levels = np.array([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    interval = measures.residual_quantiles(predictions, residuals, levels).T
    return measures.residual_quantiles(predictions, residuals), interval, source


def _held_out_residuals(contender: Contender, X: Any, y: NDArray[Any], seed: int) -> Floats:
    """Residuals on 20% of the training rows of a model that was fitted to the others."""
    own, held, y_own, y_held = train_test_split(X, y, test_size=0.2, random_state=seed)
    model = contender.make("regression", seed).fit(own.reset_index(drop=True), y_own)
    found: Floats = y_held - model.predict(held.reset_index(drop=True))
    return found


def _timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return time.process_time() - cpu, time.perf_counter() - wall, result


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """End this process when the block takes more than ``seconds`` of CPU time."""
    old = resource.getrlimit(resource.RLIMIT_CPU)
    used = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CPU, old)


def _peak_mb() -> float:
    """The largest memory this process has held so far; a fork begins with what it inherits."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _files_mb() -> float | None:
    """The pages of files, such as libraries, that this process has mapped; None if not on Linux.

    A fork begins without them and maps again those that it uses. They count towards its peak.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) / 1024 for line in lines if "RssFile" in line), None)


FITS = Study(
    "fits",
    cells,
    run,
    jobs=1,  # times are compared
    options={
        "contenders": "only these contenders, joined by +",
        "tables": "only these tables, joined by +",
        "splits": "how many splits of each table (5)",
    },
    cost={"smoke": "20 s", "cpu": "5 h", "paper": "5 h"},
    parts=("contenders", "tables", "splits"),
)

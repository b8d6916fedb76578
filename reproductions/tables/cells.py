"""Cells of the comparison: one contender on one split of one table, run and recorded.

Each cell runs in a process of its own, forked when the table is loaded, with one thread. Its record
is one line of ``records/CONTENDER.jsonl``, written as soon as it ends; a cell with a record is not
run again.
"""

import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from benchmarks.records import Record, put_record, read_lines, rounded
from benchmarks.timing import processor
from reproductions.tables import measures
from reproductions.tables.contenders import CONTENDERS, Contender
from reproductions.tables.sources import TABLES, is_there, load_table, split_rows

#: Of the tables with more rows than this, only the first three splits are run.
MANY_ROWS = 25_000
#: The CPU time of a fit, in seconds, after which it is ended.
LIMIT = 180.0
COVERAGE = 0.9


class Cell(NamedTuple):
    """One contender on one split of one table."""

    table: str
    contender: str
    split: int


# ---- records ------------------------------------------------------------------------------------


def read_records(folder: Path) -> list[Record]:
    """All records, in the order of tables, contenders and splits."""
    places = {name: place for place, name in enumerate([*TABLES, *CONTENDERS])}

    def order(record: Record) -> tuple[int, int, str, int]:
        name = record["contender"]
        own = places.get(name, len(places))
        return places.get(record["table"], len(places)), own, name, record["split"]

    return sorted(read_lines(folder), key=order)


def add_record(folder: Path, record: Record) -> None:
    """Write a record as a line of its contender's file, instead of the cell's old one."""
    put_record(folder / f"{record['contender']}.jsonl", record, cell_of)


def cell_of(record: Record) -> Cell:
    """The cell that a record is of."""
    return Cell(record["table"], record["contender"], record["split"])


# ---- which cells --------------------------------------------------------------------------------


def run_cells(
    folder: Path,
    tables: Sequence[str] = tuple(TABLES),
    contenders: Sequence[str] = tuple(CONTENDERS),
    splits: Sequence[int] = range(5),
    *,
    again: bool = False,
    limit: float = LIMIT,
    report: Callable[[str], object] = print,
) -> None:
    """Run the cells that have no record yet, or all with ``again``: split by split."""
    everyone = {}
    for name in contenders:
        if CONTENDERS[name].version is None:
            report(f"{name}: skipped, {CONTENDERS[name].package} is not installed")
        else:
            everyone[name] = CONTENDERS[name]
    there = [name for name in tables if is_there(name)]
    if absent := [name for name in tables if name not in there]:
        report(f"skipped, not in $DISSENSUS_DATA/tables: {', '.join(absent)}")
    records = [] if again else read_records(folder)
    done = {cell_of(record) for record in records}
    ended = {(r["table"], r["contender"]) for r in records if r["status"] == "limit"}
    for split in splits:
        for name, contender in everyone.items():
            for table in there:
                cell = Cell(table, name, split)
                if cell in done or (table, name) in ended or split not in contender.splits:
                    continue
                X, y = load_table(table)
                if not _is_planned(contender, TABLES[table].task, y, split):
                    continue
                record = run_cell(cell, contender, X, y, limit)
                add_record(folder, record)
                if record["status"] == "limit":
                    ended.add((table, name))
                report(_line(record))


def _is_planned(contender: Contender, task: str, y: NDArray[Any], split: int) -> bool:
    too_many = contender.max_rows is not None and len(y) > contender.max_rows
    fits = task == "regression" or len(np.unique(y)) >= contender.classes
    suits = task in contender.tasks and fits
    return suits and not too_many and (len(y) <= MANY_ROWS or split < 3)


def _line(record: Record) -> str:
    words = [f"{record[key]:.4g} {key}" for key in ("error", "nll", "crps") if key in record]
    if record["status"] == "done":
        words.append(f"{record['fit_cpu']:.1f} s")
    else:
        words.append(f"{record['status']} {record.get('message', '')}".strip())
    return f"{record['table']} {record['contender']} split {record['split']}: {', '.join(words)}"


# ---- one cell -----------------------------------------------------------------------------------


def run_cell(cell: Cell, contender: Contender, X: Any, y: NDArray[Any], limit: float) -> Record:
    """Run a cell in a process of its own and return its record; failures are recorded too."""
    task = TABLES[cell.table].task
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure_in_child, args=(sender, contender, X, y, task, cell.split, limit)
    )
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        found = {}
    process.join()
    if not found:
        ended = process.exitcode == -signal.SIGXCPU
        message = f"no fit within {limit:g} s" if ended else f"exit code {process.exitcode}"
        found = {"status": "limit" if ended else "failed", "message": message}
    facts = {
        "table": cell.table,
        "contender": cell.contender,
        "split": cell.split,
        "task": task,
        "rows": len(y),
        "columns": X.shape[1],
        "table_mb": X.memory_usage(deep=True).sum() / 2**20,
    }
    machine = {
        "version": contender.version,
        "processor": processor(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    record: Record = rounded({**facts, **found, **machine})
    return record


def _measure_in_child(
    sender: Connection,
    contender: Contender,
    X: Any,
    y: NDArray[Any],
    task: Any,
    split: int,
    limit: float,
) -> None:
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that 200 epochs were not enough, for one
    try:
        found = measure(contender, *split_rows(X, y, task, split), task, split, limit)
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
) -> Record:
    """Fit a contender, and return its times, peak memory and measures on the test rows.

    ``limit`` ends the process; where one is set, the clock of its CPU time goes in ticks.
    """
    model = contender.make(task, seed)
    before, files = _peak_mb(), _files_mb()
    with nullcontext() if limit is None else _cpu_limit(limit):
        fit_cpu, fit_wall, _ = _timed(lambda: model.fit(X, y))
    found: Record = {"status": "done", "fit_cpu": fit_cpu, "fit_wall": fit_wall}
    found["peak_mb"] = _peak_mb() - before
    if files is not None:
        found["files_mb"] = (_files_mb() or 0.0) - files
    found["test_rows"] = len(y_test)
    if getattr(model, "capped_", False):
        found["capped"] = True
    if task == "classification":
        found["predict_cpu"], _, probs = _timed(lambda: model.predict_proba(X_test))
        return found | _judge_classes(np.asarray(probs, np.float64), y_test)
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


def _judge_classes(probs: NDArray[np.float64], labels: NDArray[Any]) -> Record:
    _check_finite(probs)
    return {"error": measures.error_rate(probs, labels), "nll": measures.nll(probs, labels)}


def _check_finite(*arrays: NDArray[np.float64]) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("its predictions are not all finite")


def _distribution(
    contender: Contender,
    model: Any,
    X: Any,
    X_test: Any,
    y: NDArray[Any],
    predictions: NDArray[np.float64],
    seed: int,
) -> tuple[NDArray[np.float64], Iterable[NDArray[np.float64]], str]:
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


def _held_out_residuals(
    contender: Contender, X: Any, y: NDArray[Any], seed: int
) -> NDArray[np.float64]:
    """Residuals on 20% of the training rows of a model that was fitted to the others."""
    own, held, y_own, y_held = train_test_split(X, y, test_size=0.2, random_state=seed)
    model = contender.make("regression", seed).fit(own.reset_index(drop=True), y_own)
    found: NDArray[np.float64] = y_held - model.predict(held.reset_index(drop=True))
    return found


def _timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return time.process_time() - cpu, time.perf_counter() - wall, result


class _cpu_limit:
    """End this process when the block takes more than ``seconds`` of CPU time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        self.old = resource.getrlimit(resource.RLIMIT_CPU)
        used = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + self.seconds) + 1, self.old[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, self.old)


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

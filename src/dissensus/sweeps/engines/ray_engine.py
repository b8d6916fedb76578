"""Ray engine: cells as tasks of Ray, on this machine or on a cluster.

A task runs one batch of cells and streams their records back; the process that started the run
writes them. So workers need neither the folder nor a shared file system: only Dissensus, and the
data where the settings say they are. Between our own processes Ray pickles; nothing that is
pickled is ever written to a file of ours.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import Any

from dissensus._version import __version__
from dissensus.sweeps.engines.cell_folder import Cell, Record, as_companion, wanted
from dissensus.sweeps.engines.local import Work, death_record, use_threads
from dissensus.sweeps.engines.queue import Crew, Queue
from dissensus.sweeps.engines.ray_session import (
    Capacity,
    check_address,
    find_capacity,
    import_ray,
    missing_variables,
    session,
    worker_environment,
)
from dissensus.tools.specs import check_numbers, number


@dataclass(frozen=True)
class RayEngine:
    """Ray: each run has ``cpus`` cores, as many threads, and ``gpus`` GPUs (0.5 shares one).

    At most ``jobs`` runs are active, or as many as fit. ``address`` is that of a cluster
    (``host:6379``, or ``auto`` for the one this machine belongs to); without it, and without
    ``RAY_ADDRESS``, a Ray of this machine is started and stopped again. A Ray that this process
    has started itself is used as it is. A cell whose worker dies is tried ``attempts`` times.
    """

    jobs: int | None = number(None, low=1)
    cpus: int = number(1, low=1)
    gpus: float = 0.0
    address: str | None = None
    attempts: int = number(3, low=1)

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.address is not None:
            check_address(self.address)
        if not self.gpus >= 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ValueError(f"gpus must be a share of one GPU or a whole number, got {self.gpus}")

    def session(self) -> AbstractContextManager[None]:
        """Ray started or joined, for several crews to share."""
        cores = None if self.jobs is None else self.jobs * self.cpus
        return session(self.address, cores, worker_environment(self.cpus, self.gpus))

    def crew(self, work: Work) -> RayCrew:
        """Workers that do ``work``."""
        return RayCrew(self, work)


class RayCrew(Crew):
    """Tasks that do ``work``, as many at once as there is room for.

    Ray is started when it is first needed. An early exit ends all tasks.
    """

    def __init__(self, engine: RayEngine, work: Work) -> None:
        self.ray = import_ray()
        self.engine, self.work = engine, work
        self.running: dict[Any, list[Cell]] = {}  # tasks, and their cells without a record yet
        self.deaths: Counter[str] = Counter()
        self.stack = ExitStack()

    def __exit__(self, *error: object) -> None:
        for stream in self.running:
            with suppress(Exception):  # it ended meanwhile, or its machine is gone
                self.ray.cancel(stream, force=True)
        self.running.clear()
        self.stack.close()

    @cached_property
    def jobs(self) -> int:  # type: ignore[override]
        return self._capacity.jobs

    @cached_property
    def machines(self) -> int:  # type: ignore[override]
        return self._capacity.machines

    @cached_property
    def _capacity(self) -> Capacity:
        engine = self.engine
        self.stack.enter_context(engine.session())
        grows = engine.address is not None
        return find_capacity(engine.cpus, engine.gpus, engine.jobs, grows=grows)

    @cached_property
    def _task(self) -> Any:
        engine = self.engine
        variables = missing_variables(worker_environment(engine.cpus, engine.gpus))
        return self.ray.remote(_batch_task(self.work, engine.cpus)).options(
            num_cpus=engine.cpus,
            num_gpus=engine.gpus,
            num_returns="streaming",
            max_retries=0,  # what is left of a batch is given again, not all of it
            runtime_env={"env_vars": variables} if variables else None,
        )

    def empty(self, queue: Queue) -> None:
        """Run all that is in the queue; some tasks wait at Ray for room."""
        self.deaths.clear()
        while queue or self.running:
            while len(self.running) < self.jobs + self._capacity.ahead:
                batch = queue.take()
                if batch is None:
                    break
                self.running[self._task.remote(batch)] = batch
            if not self.running:
                queue.wait()
                continue
            ready, _ = self.ray.wait(list(self.running), timeout=queue.patience)
            for stream in ready:
                self._take(stream, queue)

    def _take(self, stream: Any, queue: Queue) -> None:
        """Keep the next record of a task; if its worker died, run the rest again."""
        errors = self.ray.exceptions
        try:
            record: Record = self.ray.get(next(stream))
        except StopIteration:
            del self.running[stream]
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            del self.running[stream]
            raise _worker_error(error) from error
        except errors.RayError as error:  # the worker, its machine or a record is lost
            self._retry(self.running.pop(stream), error, queue)
        else:
            self.running[stream] = [
                as_companion(cell) if cell["name"] == record["name"] else cell
                for cell in self.running[stream]
            ]
            self._keep(record, queue)

    def _retry(self, cells: list[Cell], error: Exception, queue: Queue) -> None:
        """Run cells again as a batch, the last time one by one: one may kill its worker."""
        self.deaths.update(cell["name"] for cell in wanted(cells))
        batch: list[Cell] = []
        for cell in cells:
            if cell.get("companion"):
                batch.append(cell)
                continue
            times = self.deaths[cell["name"]]
            if times >= self.engine.attempts:
                cause = type(error).__name__
                cause += ", perhaps for lack of memory" if cause == "WorkerCrashedError" else ""
                how = f"the worker that ran the cell died {times} times ({cause})"
                self._keep(death_record(cell, how), queue, times)
            elif times == self.engine.attempts - 1:
                queue.put_back([cell])
            else:
                batch.append(cell)
        if wanted(batch):
            queue.put_back(batch)

    def _keep(self, record: Record, queue: Queue, attempts: int | None = None) -> None:
        times = attempts or self.deaths[record["name"]] + 1
        if times > 1:
            record["attempts"] = times
        queue.keep(record)


def _worker_error(error: Exception) -> ValueError:
    """The error for what a worker raised outside of any cell."""
    cause = getattr(error, "cause", None) or error
    words = " ".join(f"{type(cause).__name__}: {cause}".split())
    return ValueError(
        f"a worker of Ray cannot run cells ({words}); every machine of the cluster needs Python "
        f'with dissensus {__version__} (pip install "dissensus[ray]") and the modules that it runs'
    )


# ---- in the worker ------------------------------------------------------------------------------


def _batch_task(work: Work, threads: int) -> Callable[[list[Cell]], Iterator[Record]]:
    """A task for Ray. Workers load it and ``work`` once, so that they keep its data."""
    version = __version__

    def run_batch(cells: list[Cell]) -> Iterator[Record]:
        yield from _records(work, cells, threads, version)

    return run_batch


def _records(work: Work, cells: list[Cell], threads: int, version: str) -> Iterator[Record]:
    """The records of a batch, each as it is made."""
    if version != __version__:
        raise RuntimeError(f"the worker has dissensus {__version__}, not {version}")
    if len(cells) == 1:  # in the main thread, as everywhere
        records: list[Record] = []
        use_threads(threads)
        work(cells, records.append)
        yield records[0]
        return
    ended: SimpleQueue[Record | BaseException | None] = SimpleQueue()

    def work_in_thread() -> None:
        try:
            use_threads(threads)
            work(cells, ended.put)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    threading.Thread(target=work_in_thread, daemon=True).start()
    while (item := ended.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item

"""Ray engine: batches of cells as tasks of Ray, on this machine or on a cluster.

A task returns the records of its batch, and the process that started the run writes them. So
workers need neither the folder nor a shared file system: only Dissensus, and the data where the
settings say they are. Ray pickles between processes; no pickle is ever written to a file.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from dissensus._version import __version__
from dissensus.sweeps.cells import CellFolder, Record
from dissensus.sweeps.pool import Batch, Room, Work, environment_set, run_batch, thread_variables
from dissensus.tools.specs import check_numbers, number

_SECRET = secrets.token_hex(32)  # one for this process: Ray reads it once
_STORE = 100 << 20  # bytes of shared memory; records are small
_SECONDS_TO_ANSWER = 10.0
_LONGEST = 40  # characters of a folder: below it Ray makes sockets, whose paths end at 107


@dataclass
class RayEngine:
    """Ray: each run has ``cpus`` cores, as many threads, and ``gpus`` GPUs (0.5 shares one).

    At most ``jobs`` runs are active, or as many as fit. ``address`` is that of a cluster
    (``host:6379``, or ``auto`` for the one this machine belongs to); without it, and without
    ``RAY_ADDRESS``, a Ray of this machine is started and stopped again. A Ray that this process
    has started itself is used as it is.
    """

    jobs: int | None = number(None, low=1)
    cpus: int = number(1, low=1)
    gpus: float = number(0.0, low=0)
    address: str | None = None
    workers_write = False

    def __post_init__(self) -> None:
        check_numbers(self)

    @contextmanager
    def session(self) -> Iterator[None]:
        """While entered, this process is connected to Ray; its tasks end with it."""
        ray = import_ray()
        names = ("WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError")
        self.died = tuple(getattr(ray.exceptions, name) for name in names)
        self._tasks: WeakKeyDictionary[Future[list[Record]], Any] = WeakKeyDictionary()
        with ExitStack() as stack:
            if not ray.is_initialized():
                stack.enter_context(_connection(self.address, self.jobs and self.jobs * self.cpus))
            try:
                yield
            finally:
                for task in self._tasks.values():
                    with suppress(Exception):  # it ended meanwhile, or its machine is gone
                        ray.cancel(task, force=True)

    def room(self) -> Room:
        """The runs that fit; as many more wait at Ray, where it does not start them too early."""
        alive = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
        needs = {"CPU": self.cpus, "GPU": self.gpus}
        fits = [
            min(int(have.get(name, 0) / count + 1e-9) for name, count in needs.items() if count)
            for have in alive
        ]
        if not any(fits) and (self.jobs is None or self.address is None):
            raise ValueError(
                f"no machine of Ray has {self.cpus} CPUs and {self.gpus:g} GPUs for a run; for a "
                "cluster that grows by itself, give --ray-address and --jobs"
            )
        jobs = self.jobs or sum(fits)
        full = jobs == sum(fits) and (self.jobs is None or self.address is None)
        return Room(jobs, max(1, sum(fit > 0 for fit in fits)), ahead=jobs if full else 0)

    def submit(self, batch: Batch, work: Work, folder: CellFolder) -> Future[list[Record]]:
        """Hand a batch to Ray."""
        variables = thread_variables(self.cpus)
        if "DISSENSUS_DATA" in os.environ:
            variables["DISSENSUS_DATA"] = os.environ["DISSENSUS_DATA"]
        if not self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        remote = _task().options(
            num_cpus=self.cpus, num_gpus=self.gpus, runtime_env={"env_vars": variables}
        )
        task = remote.remote(batch, work, __version__)
        future: Future[list[Record]] = task.future()
        self._tasks[future] = task
        return future


@cache
def _task() -> Any:
    return import_ray().remote(max_retries=0)(_run_batch)  # run_batches tries again itself


def _run_batch(batch: Batch, work: Work, version: str) -> list[Record]:
    """The records of a batch; runs in a worker of Ray."""
    if version != __version__:
        raise ValueError(f"the worker has dissensus {__version__}, not {version}")
    return run_batch(batch, work)


def import_ray() -> ModuleType:
    """The package ``ray``, or an error that says how to install it."""
    # Ray prints a paragraph for each worker that dies; records and the progress line suffice.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ValueError('--engine ray needs Ray: pip install "dissensus[ray]"') from error
    module: ModuleType = ray
    return module


# ---- connection ---------------------------------------------------------------------------------


@contextmanager
def _connection(address: str | None, cores: int | None) -> Iterator[None]:
    """A cluster, or a Ray of this machine, which ends with the connection.

    A Ray of this machine answers only processes that know its random secret, sends no statistics,
    and keeps its files in a temporary folder.
    """
    ray = import_ray()
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    with ExitStack() as stack:
        if address == "local":
            place = "/tmp" if len(tempfile.gettempdir()) > _LONGEST and os.name != "nt" else None
            folder = tempfile.TemporaryDirectory("", "ray", place, ignore_cleanup_errors=True)
            settings |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": folder.name}
            settings["object_store_memory"] = _STORE
            stack.enter_context(folder)
            variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": _SECRET}
            variables["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
            stack.enter_context(environment_set(variables))
        stack.callback(ray.shutdown)
        before = signal.getsignal(signal.SIGTERM)
        try:
            _knock(address)
            ray.init(address, **settings)
        except OSError as error:
            raise ValueError(f"there is no Ray cluster at {address}: {error}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # which Ray replaced
        if address == "local":
            # Else the agents of a killed program try for a minute to report that Ray was killed.
            with Path(folder.name, "session_latest", "logs", "raylet.out").open("a") as log:
                log.write("Raylet received SIGTERM\n")
        yield


def _knock(address: str) -> None:
    """Raise OSError if no server answers; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()

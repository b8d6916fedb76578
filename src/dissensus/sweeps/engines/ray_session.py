"""Ray session: started on this machine or joined by its address, and its capacity."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import NamedTuple

from dissensus.sweeps.engines.local import environment_set, thread_variables

_STORE = 100 << 20  # bytes of shared memory; records are small
_SECONDS_TO_ANSWER = 10.0
_LONGEST = 40  # characters of a folder: below it Ray makes sockets, whose paths end at 107

#: Variables that workers of the Ray that this process started have from the start.
_inherited: dict[str, str] = {}


def import_ray() -> ModuleType:
    """The package ``ray``, or an error that says how to install it."""
    # Ray prints a paragraph for each worker that dies; records and the progress line suffice.
    hidden = os.environ.get("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    try:
        with environment_set({"RAY_DEDUP_LOGS_SKIP_REGEX": hidden}):
            import ray
            import ray.exceptions
    except ImportError as error:
        raise ValueError('--engine ray needs Ray: pip install "dissensus[ray]"') from error
    module: ModuleType = ray
    return module


@contextmanager
def session(address: str | None, cores: int | None, variables: dict[str, str]) -> Iterator[None]:
    """While entered, this process is connected to Ray; an existing connection is left alone.

    A Ray that is started here has ``cores`` cores and sets ``variables`` for its workers. It
    answers only processes that know its random secret, sends no statistics, and keeps its files in
    a temporary folder that is removed when it stops.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    with _quiet():
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        with _local(ray, cores, variables) if where == "local" else _joined(ray, where):
            yield


@contextmanager
def _local(ray: ModuleType, cores: int | None, variables: dict[str, str]) -> Iterator[None]:
    place = tempfile.gettempdir()
    if len(place) > _LONGEST and os.name != "nt":
        place = "/tmp"
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": _secret(),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir=place, ignore_cleanup_errors=True) as folder,
        environment_set(settings, "RAY_AUTH_MODE"),  # Ray sets that one itself
    ):
        try:
            with environment_set(variables), _keep_signals():
                ray.init(
                    "local",
                    num_cpus=cores,
                    include_dashboard=False,
                    object_store_memory=_STORE,
                    log_to_driver=False,
                    configure_logging=False,
                    _temp_dir=folder,
                )
            _inherited.update(variables)
            yield
        finally:
            _inherited.clear()
            ray.shutdown()


@contextmanager
def _joined(ray: ModuleType, address: str) -> Iterator[None]:
    check_address(address)
    try:
        _knock(address)
        with _keep_signals():
            ray.init(address, log_to_driver=False, configure_logging=False)
    except OSError as error:
        raise ValueError(f"there is no Ray cluster at {address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError if no server answers; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()


def check_address(address: str) -> None:
    """Raise for an address that Ray accepts but cannot be used here."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is the address of a Ray client, which cannot stream records; give that of "
            "the cluster itself (host:6379), from one of its machines or with `ray job submit`"
        )


@cache
def _secret() -> str:
    """One secret for this process: Ray reads it once."""
    return secrets.token_hex(32)


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def worker_environment(cpus: int, gpus: float) -> dict[str, str]:
    """The environment of workers: threads, the data folder, and no GPU unless asked for."""
    variables = thread_variables(cpus)
    if "DISSENSUS_DATA" in os.environ:
        variables["DISSENSUS_DATA"] = os.environ["DISSENSUS_DATA"]
    if not gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables


def missing_variables(variables: dict[str, str]) -> dict[str, str]:
    """The variables that workers lack: a task that needs any waits for a new process."""
    return {name: value for name, value in variables.items() if _inherited.get(name) != value}


class Capacity(NamedTuple):
    """How many runs are active at once, on how many machines, and how many more are queued at Ray.

    One is queued for each that runs, so that workers need not wait for the next. None are queued
    where Ray has room for more runs than asked for: it would start them.
    """

    jobs: int
    machines: int
    ahead: int


def find_capacity(cpus: int, gpus: float, jobs: int | None, *, grows: bool) -> Capacity:
    """The room that Ray has for runs.

    Where the cluster ``grows``, ``jobs`` is not checked: there may be no machine yet.
    """
    alive = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
    fits = [_fitting(have, cpus, gpus) for have in alive]
    machines = max(1, sum(fit > 0 for fit in fits))
    if not any(fits) and (jobs is None or not grows):
        needs = f"{cpus} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        sizes = [(have.get("GPU", 0.0), have.get("CPU", 0.0)) for have in alive]
        most = max(sizes, default=(0.0, 0.0))
        raise ValueError(
            f"no machine of Ray has {needs} for a run; the largest has {most[1]:g} CPUs and "
            f"{most[0]:g} GPUs. For a cluster that grows by itself, give --jobs"
        )
    jobs = sum(fits) if jobs is None else jobs
    return Capacity(jobs, machines, jobs if jobs == sum(fits) and not grows else 0)


def _fitting(have: dict[str, float], cpus: int, gpus: float) -> int:
    """How many runs one machine has room for.

    >>> _fitting({"CPU": 8.0, "GPU": 1.0}, cpus=2, gpus=0.25), _fitting({"CPU": 8.0}, 2, 1)
    (4, 0)
    """
    count = int(have.get("CPU", 0) // cpus)
    return min(count, int(have.get("GPU", 0) / gpus + 1e-9)) if gpus else count

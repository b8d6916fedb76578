"""A process with a busy child; behind ``test_sweeps.py``, which kills it.

``python -m tests.hardening.orphans PLATFORM`` prints the number of the child, which believes that
it runs on ``PLATFORM``.
"""

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace

from dissensus.sweeps.engines import local


def work(platform: str, ready: Connection) -> None:
    local.sys = SimpleNamespace(platform=platform)  # type: ignore[assignment]
    local.end_with_parent()
    ready.send(None)
    while True:
        sum(range(10**6))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    end, far = context.Pipe()
    child = context.Process(target=work, args=(sys.argv[1], far))
    child.start()
    end.recv()
    print(child.pid, flush=True)
    time.sleep(600)

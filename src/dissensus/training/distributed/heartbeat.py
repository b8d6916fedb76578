"""Heartbeats of ranks: they show which rank is to blame when a job cannot continue.

Every rank writes to the store that all ranks share how many beats it has lived and how many
exchanges it has reached. Nobody reads them until an exchange fails or takes too long. Then those
who wait read twice: a rank that no longer counts is dead or stopped, and one that has reached fewer
exchanges than the others hangs. A rank that fails by itself, because of a NaN loss or a full disk,
reports it before it ends.
"""

from __future__ import annotations

import threading
import time
from typing import Any

_BEAT = 0.25  # seconds between two signs of life
_FAILED = "failed"


class RankFailed(ConnectionError):
    """A rank died, hangs or reported an error; the message names it."""


class Heartbeat:
    """The heartbeat of this rank; it can read those of the others."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        self.entered = 0
        self.beat = _BEAT * max(1.0, ranks / 64)  # so that the store is not kept busy by many
        self._over = threading.Event()
        self._own = store.clone()  # a thread of its own, a connection of its own
        self._thread = threading.Thread(target=self._beat, name="signs of life", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        beats = 0
        while not self._over.wait(self.beat):
            beats += 1
            try:
                self._own.set(f"beat/{self.rank}", f"{beats} {self.entered}")
            except Exception:
                return  # the store is gone, and with it the job; the main thread will find out

    def close(self) -> None:
        self._over.set()
        self._thread.join(2 * self.beat)

    def report(self, error: BaseException) -> None:
        """Report that this rank fails, unless another one has reported first."""
        text = " ".join(str(error).split()) or "no message"
        self._publish(f"rank {self.rank} failed: {type(error).__name__}: {text}")

    def blame(self, error: BaseException, timeout: float) -> RankFailed:
        """The error that names the rank to blame for ``error``, which an exchange raised."""
        try:
            cause = self._reported(4 * self.beat) or self._publish(self._diagnose(error, timeout))
        except Exception as lost:
            cause = f"rank 0 is gone, and the store that it kept: {lost}"
        return RankFailed(f"{cause} (seen by rank {self.rank})")

    def _reported(self, seconds: float) -> str | None:
        """What a rank has reported, after a short wait for it."""
        until = time.monotonic() + seconds
        while not self.store.check([_FAILED]):
            if time.monotonic() > until:
                return None
            time.sleep(self.beat / 4)
        return str(self.store.get(_FAILED).decode())

    def _publish(self, text: str) -> str:
        """Put ``text`` into the store unless there is a report; return the report."""
        try:
            return str(self.store.compare_set(_FAILED, "", text).decode())
        except Exception:
            return text  # nobody is left to read it

    def _diagnose(self, error: BaseException, timeout: float) -> str:
        """Which rank gives no sign of life, or is behind the others."""
        before = self._beats()
        time.sleep(6 * self.beat)
        after = self._beats()
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        silent = [rank for rank in others if before[rank][0] == after[rank][0]]
        if silent:
            return f"{_named(silent)} gave no sign of life: killed, stopped, or cut off"
        behind = [rank for rank in others if after[rank][1] < self.entered]
        if behind:
            return (
                f"{_named(behind)} did not come to the exchange that the others wait in, within "
                f"{timeout:g} s: it hangs, or needs a longer timeout"
            )
        return f"an exchange among the ranks failed: {' '.join(str(error).split())}"

    def _beats(self) -> list[tuple[int, int]]:
        keys = [f"beat/{rank}" for rank in range(self.ranks)]
        texts = [self.store.get(k).decode() if self.store.check([k]) else "0 0" for k in keys]
        return [(int(beats), int(entered)) for beats, entered in (text.split() for text in texts)]


def _named(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))

"""When an epoch is saved in its middle: after so many batches, or after so much time."""

from __future__ import annotations

import re
import time

__all__ = ["Pace"]

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_USUAL = "10min"


class Pace:
    """``every`` so many batches (a whole number), or so much time (``"90s"``, ``"5min"``).

    >>> pace = Pace(100)
    >>> [batch for batch in range(1, 301) if pace.due(batch)]
    [100, 200, 300]
    >>> Pace("5 parsecs")
    Traceback (most recent call last):
    ...
    ValueError: checkpoint_every must be batches (100) or a time ("30s", "5min", "1h"), got ...
    """

    def __init__(self, every: int | str | None) -> None:
        self.batches, self.seconds = 0, 0.0
        text = str(_USUAL if every is None else every).strip()
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)|([1-9]\d*)", text)
        if found is None or isinstance(every, bool) or (found[1] and float(found[1]) == 0):
            raise ValueError(
                'checkpoint_every must be batches (100) or a time ("30s", "5min", "1h"), got '
                f"{every!r}"
            )
        if found[3]:
            self.batches = int(found[3])
        else:
            self.seconds = float(found[1]) * _UNITS[found[2]]
        self.last = time.monotonic()

    def due(self, batch: int) -> bool:
        """Whether to save after the batch of this number in its epoch."""
        if self.batches:
            return batch % self.batches == 0
        if time.monotonic() - self.last < self.seconds:
            return False
        self.last = time.monotonic()
        return True

"""Fair comparisons of speed on a machine that others use too.

Contenders take turns within one run: in every round each is timed once, so that a busy spell
slows all of them and cancels in the ratio. A ratio is taken within each round, and the median
over the rounds is what counts. CPU time is the default clock, because it does not count the time
in which another process had the core.
"""

import gc
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from dissensus._version import __version__

Clock = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Contender:
    """Something to time. ``limit`` is the largest ratio to the baseline that is good enough."""

    name: str
    run: Callable[[], object]
    limit: float | None = None


@dataclass(frozen=True)
class Spread:
    """The median of some values and the quartiles around it.

    >>> Spread.of([4.0, 1.0, 2.0, 3.0, 90.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Measurement:
    """One contender's times of a single call, in seconds, and its ratio to the baseline."""

    name: str
    calls: int  # in one sample
    cpu: Spread
    wall: Spread
    ratio: Spread
    limit: float | None

    @property
    def met(self) -> bool | None:
        """Whether the limit is met; None where there is none."""
        return None if self.limit is None else self.ratio.median <= self.limit


@dataclass(frozen=True)
class Check:
    """A measured value other than a time, such as peak memory, against its limit.

    >>> Check("peak extra memory / input size", value=1.4, limit=2.0).met
    True
    """

    name: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit


@dataclass(frozen=True)
class Result:
    """One comparison; the first measurement is the baseline's, its ratio 1."""

    title: str
    clock: Clock
    rounds: int
    measurements: tuple[Measurement, ...]
    checks: tuple[Check, ...] = ()

    @property
    def missed(self) -> list[str]:
        """The names of what did not meet its limit."""
        entries: list[Measurement | Check] = [*self.measurements, *self.checks]
        return [entry.name for entry in entries if entry.met is False]


def compare(
    title: str,
    baseline: Contender,
    contenders: Sequence[Contender],
    repeats: int = 30,
    clock: Clock = "cpu",
    min_sample: float = 2e-3,
    checks: Sequence[Check] = (),
) -> Result:
    """Time ``contenders`` against ``baseline`` in ``repeats`` interleaved rounds.

    Each sample repeats its call until it takes at least about ``min_sample`` seconds, so that the
    clock's resolution does not matter. Ratios are of ``clock`` times.

    >>> short = Contender("short", lambda: sum(range(10_000)))
    >>> long = Contender("long", lambda: sum(range(80_000)), limit=0.5)
    >>> result = compare("sums", short, [long], repeats=3)
    >>> result.measurements[0].ratio.median, result.missed
    (1.0, ['long'])
    """
    everyone = [baseline, *contenders]
    _check_arguments(everyone, repeats)
    calls = [_calls_needed(contender.run, min_sample, clock) for contender in everyone]
    cpu: list[list[float]] = [[] for _ in everyone]
    wall: list[list[float]] = [[] for _ in everyone]
    for turn in _rounds(title, repeats):
        # Each round starts with another contender, so that none always follows the same one.
        for place in range(len(everyone)):
            index = (turn + place) % len(everyone)
            cpu_time, wall_time = _sample(everyone[index].run, calls[index])
            cpu[index].append(cpu_time)
            wall[index].append(wall_time)
    times = cpu if clock == "cpu" else wall
    measurements = tuple(
        Measurement(
            contender.name,
            calls[i],
            Spread.of(cpu[i]),
            Spread.of(wall[i]),
            Spread.of([own / base for own, base in zip(times[i], times[0], strict=True)]),
            contender.limit,
        )
        for i, contender in enumerate(everyone)
    )
    return Result(title, clock, repeats, measurements, tuple(checks))


def _check_arguments(everyone: Sequence[Contender], repeats: int) -> None:
    names = [contender.name for contender in everyone]
    if len(set(names)) < len(names):
        raise ValueError(f"contenders must have different names, got {names}")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")


def _calls_needed(run: Callable[[], object], min_sample: float, clock: Clock) -> int:
    """Return how many calls make one sample; the tries also warm the caches up."""
    run()
    calls, which = 1, 0 if clock == "cpu" else 1
    while (one_call := _sample(run, calls)[which]) * calls < min_sample:
        wanted = math.ceil(1.2 * min_sample / max(one_call, 1e-9))
        calls = max(calls + 1, min(10 * calls, wanted))
    return calls


def _sample(run: Callable[[], object], calls: int) -> tuple[float, float]:
    """Return the CPU and the wall time of one call, averaged over ``calls`` of them."""
    with _no_garbage_collection():
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / calls, wall / calls


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the collector from running in one contender's time for another's garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rounds(title: str, repeats: int) -> Iterator[int]:
    """Count the rounds with a progress bar that is drawn between them, never during a sample."""
    console = Console(stderr=True)
    bar = Progress(
        console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    )
    with bar:
        task = bar.add_task(title, total=repeats)
        for turn in range(repeats):
            yield turn
            bar.advance(task)
            bar.refresh()


def table(result: Result) -> Table:
    """Return the comparison as a table that says which limits are met."""
    shown = Table(
        title=f"{result.title} ({result.clock} time, {result.rounds} rounds)",
        title_justify="left",
        title_style="bold",
    )
    shown.add_column("contender", style="cyan")
    for heading in ("CPU", "wall", "ratio", "quartiles", "limit"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for row in result.measurements:
        shown.add_row(
            row.name,
            duration(row.cpu.median),
            duration(row.wall.median),
            f"{row.ratio.median:.2f}×",
            f"{row.ratio.low:.2f}–{row.ratio.high:.2f}",
            "" if row.limit is None else f"≤ {row.limit:g}×",
            _mark(row.met),
        )
    for check in result.checks:
        shown.add_row(
            check.name, "", "", f"{check.value:.2f}", "", f"≤ {check.limit:g}", _mark(check.met)
        )
    return shown


def _mark(met: bool | None) -> Text:
    if met is None:
        return Text("")
    return Text("met", style="green") if met else Text("NOT met", style="bold red")


def duration(seconds: float) -> str:
    """Return a time with three digits and the unit that suits it.

    >>> duration(0.0000123), duration(0.00456), duration(7.0)
    ('12.3 µs', '4.56 ms', '7.00 s')
    """
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, size = next((pair for pair in units if seconds >= pair[1]), units[-1])
    value = seconds / size
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f} {unit}"


def write_record(name: str, results: Sequence[Result], quick: bool, folder: Path) -> Path:
    """Write the results with what is needed to judge them to ``folder/<name>.json``.

    A quick run goes to a file of its own, so that it never replaces a careful one.
    """
    path = folder / (f"{name}-quick.json" if quick else f"{name}.json")
    record = {
        "name": name,
        "quick": quick,
        "machine": machine_facts(),
        "results": [asdict(result) | {"missed": result.missed} for result in results],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def machine_facts() -> dict[str, Any]:
    """Return what a timing depends on: processor, threads, versions, date."""
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dissensus": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """Return the processor's name; Linux keeps it where ``platform`` does not look."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

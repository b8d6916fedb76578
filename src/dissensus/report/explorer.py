"""The collusion explorer: members' predictions around the ensemble's, at each β of real runs.

The paper's Figure 1 draws colluding members as arrows that cancel. Here they are what was measured:
the same held-out points for every β, each member's output for them, and the members' mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.report.figure import percent, short
from dissensus.report.found import Contents, Floats, HeldOut, Method, Number, Source, Sweep

__all__ = ["Explorer", "Stop", "explorers"]

_CLASSES = 10  # more outputs than this are not offered


@dataclass(frozen=True, eq=False)
class Stop:
    """One β: ``outputs`` ``[members, rows, outputs]`` and what is known of the whole test split."""

    beta: float
    outputs: Floats
    numbers: Mapping[str, Number]
    verdict: str
    source: Source


@dataclass(frozen=True, eq=False)
class Explorer:
    """What the slider moves over; ``outputs`` names what can be chosen to look at."""

    name: str
    stops: Sequence[Stop]
    targets: Floats
    outputs: Sequence[str]
    regression: bool

    def told(self, stop: Stop) -> dict[str, str]:
        """What the readout shows at a stop, as text."""
        known = {
            name: (percent if name in ("accuracy", "debiased") else short)(number.value)
            for name, number in stop.numbers.items()
        }
        return known | ({"verdict": stop.verdict} if stop.verdict else {})

    def alt(self) -> str:
        """What is seen, in a sentence."""
        first, last = self.stops[0], self.stops[-1]
        what = "outputs" if self.regression else "scores"
        return (
            f"On {first.outputs.shape[1]} held-out inputs members' {what} lie "
            f"{short(_spread(first))} away from their mean at β = {first.beta:g} and "
            f"{short(_spread(last))} at β = {last.beta:g} (root mean square); constant offsets "
            "alone make up "
            f"{short(_offset(first))} and {short(_offset(last))} of that."
        )

    def json(self) -> dict[str, Any]:
        """What the page draws; outputs have four digits."""
        return {
            "name": self.name,
            "alt": self.alt(),
            "regression": self.regression,
            "outputs": list(self.outputs),
            "start": _widest(self.stops[-1]),
            "targets": self.targets.tolist(),
            "stops": [
                {
                    "beta": stop.beta,
                    "values": _digits(stop.outputs),
                    "told": self.told(stop),
                    "keys": {
                        name: f"{number.source.file} → {number.source.key}"
                        for name, number in stop.numbers.items()
                    },
                }
                for stop in self.stops
            ],
        }


def explorers(contents: Contents) -> list[Explorer]:
    """Every set of held-out predictions at two or more β: sweeps first, then the runs."""
    found = [_of_sweep(sweep) for sweep in contents.sweeps]
    found.append(_of_runs(contents.methods))
    return [one for one in found if one is not None]


def _of_sweep(sweep: Sweep) -> Explorer | None:
    if sweep.axis != "beta" or len(sweep.held_out) < 2:
        return None
    stops = []
    points = {point.x: point for point in sweep.lines[0].points}
    for beta, held in sweep.held_out.items():
        point = points.get(beta)
        numbers = {} if point is None else point.numbers
        words = {} if point is None else point.verdicts
        verdict = max(words, key=lambda word: words[word], default="")
        stops.append((beta, held, numbers, verdict))
    return _explorer(f"{sweep.name} ({sweep.setting})", stops)


def _of_runs(methods: Sequence[Method]) -> Explorer | None:
    """Runs of the same make-up that differ in β alone."""
    groups: dict[tuple[Any, ...], dict[float, Method]] = {}
    for method in methods:
        if method.beta is not None and method.held_out is not None:
            held = method.held_out
            key = (method.data, held.outputs.shape, held.targets.tobytes())
            groups.setdefault(key, {}).setdefault(method.beta, method)
    largest = max(groups.values(), key=len, default={})
    if len(largest) < 2:
        return None
    stops = []
    for beta, method in sorted(largest.items()):
        assert method.held_out is not None
        verdict = "" if method.diagnosis is None else method.diagnosis.text("verdict")
        stops.append((beta, method.held_out, method.numbers, verdict))
    names = ", ".join(method.name for _, method in sorted(largest.items()))
    return _explorer(f"the runs {names}", stops)


def _explorer(
    name: str, stops: Sequence[tuple[float, HeldOut, Mapping[str, Number], str]]
) -> Explorer | None:
    first = stops[0][1]
    alike = all(held.outputs.shape == first.outputs.shape for _, held, _, _ in stops)
    if not alike or first.outputs.shape[0] < 2:
        return None
    count = first.outputs.shape[2]
    regression = first.regression
    if regression:
        labels = [f"output {place + 1}" for place in range(count)] if count > 1 else ["prediction"]
    else:
        named = first.classes if len(first.classes) == count else tuple(map(str, range(count)))
        labels = [f"score of class {one}" for one in named]
    made = [
        Stop(beta, _shown(held)[:, :, :_CLASSES], numbers, verdict, held.source)
        for beta, held, numbers, verdict in stops
    ]
    return Explorer(name, made, first.targets, labels[:_CLASSES], regression)


def _shown(held: HeldOut) -> Floats:
    """Outputs as they are, scores centred: a constant on all scores changes no prediction."""
    if held.regression:
        return held.outputs
    centred: Floats = held.outputs - held.outputs.mean(-1, keepdims=True)
    return centred


def _spread(stop: Stop) -> float:
    apart = stop.outputs - stop.outputs.mean(0)
    return float(np.sqrt((apart**2).mean()))


def _offset(stop: Stop) -> float:
    apart = (stop.outputs - stop.outputs.mean(0)).mean(1)
    return float(np.sqrt((apart**2).mean()))


def _widest(stop: Stop) -> int:
    """The output in which members' constant offsets differ most."""
    offsets = (stop.outputs - stop.outputs.mean(0)).mean(1)
    return int((offsets**2).sum(0).argmax())


def _digits(values: Floats) -> Any:
    return [[[float(f"{v:.4g}") for v in row] for row in member] for member in values]

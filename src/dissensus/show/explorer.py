"""The collusion explorer: members' predictions around the ensemble's, at each β of real runs.

The paper's Figure 1 draws colluding members as arrows that cancel. Here they are measured: the same
held-out points for every β, each member's output for them, and the members' mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.show.contents import (
    Contents,
    Floats,
    HeldOut,
    Reference,
    Sweep,
    SweepPoint,
)
from dissensus.show.figure import Cell, cell, format_number, short
from dissensus.show.html import Elements, Html, element, join_html, missing, save_buttons
from dissensus.show.metrics import METRICS, SWEEP_METRICS
from dissensus.show.sweep_files import runs_as_sweep

_CLASSES = 10  # the reader can choose among this many outputs at most
_READOUT = {name: METRICS[name].heading for name in SWEEP_METRICS} | {"verdict": "verdict"}


@dataclass(frozen=True, eq=False)
class Stop:
    """One β: ``outputs`` ``[members, rows, outputs]``, and the numbers of the whole test split."""

    beta: float
    outputs: Floats
    point: SweepPoint
    source: Reference

    @property
    def deviations(self) -> Floats:
        """The members' outputs minus the ensemble's."""
        deviations: Floats = self.outputs - self.outputs.mean(0)
        return deviations

    def json(self) -> dict[str, Any]:
        """The stop as the page needs it; outputs have four digits."""
        numbers, verdict = self.point.numbers, self.point.verdict
        texts = {name: format_number(n, METRICS[name].form) for name, n in numbers.items()}
        return {
            "beta": self.beta,
            "values": [[[float(f"{v:.4g}") for v in r] for r in m] for m in self.outputs],
            "texts": texts | ({"verdict": verdict} if verdict else {}),
            "keys": {name: f"{n.source.file} → {n.source.key}" for name, n in numbers.items()},
        }


@dataclass(frozen=True, eq=False)
class Explorer:
    """What the slider moves over; ``outputs`` names what can be chosen to look at."""

    name: str
    stops: Sequence[Stop]
    targets: Floats
    outputs: Sequence[str]
    regression: bool

    def alt(self) -> str:
        """A text alternative: how far members are from their mean at both ends of the slider."""
        first, last = self.stops[0], self.stops[-1]
        (spread, offset), (last_spread, last_offset) = (
            (short(_rms(stop.deviations)), short(_rms(stop.deviations.mean(1))))
            for stop in (first, last)
        )
        return (
            f"On {first.outputs.shape[1]} held-out inputs the root mean square distance of "
            f"members' {'outputs' if self.regression else 'scores'} from their mean is {spread} at "
            f"β = {first.beta:g} and {last_spread} at β = {last.beta:g}; constant offsets alone "
            f"make up {offset} and {last_offset} of it."
        )

    def json(self) -> dict[str, Any]:
        """What the page draws; it starts with the output whose offsets differ most."""
        offsets = self.stops[-1].deviations.mean(1)
        return {
            "name": self.name,
            "alt": self.alt(),
            "regression": self.regression,
            "outputs": list(self.outputs),
            "start": int((offsets**2).sum(0).argmax()),
            "targets": self.targets.tolist(),
            "stops": [stop.json() for stop in self.stops],
        }


def _rms(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


# ---- from sweeps and runs -----------------------------------------------------------------------


def explorers(contents: Contents) -> list[Explorer]:
    """Every set of held-out predictions at two or more β: sweeps first, then the runs."""
    from_runs = runs_as_sweep(contents.methods)
    sweeps = [*contents.sweeps, *([from_runs] if from_runs else [])]
    return [explorer for sweep in sweeps if (explorer := _explorer(sweep)) is not None]


def _explorer(sweep: Sweep) -> Explorer | None:
    if sweep.axis != "beta" or len(sweep.held_out) < 2:
        return None
    first = next(iter(sweep.held_out.values()))
    members, _, outputs = first.outputs.shape
    same_rows = all(
        held.outputs.shape == first.outputs.shape and np.array_equal(held.targets, first.targets)
        for held in sweep.held_out.values()
    )
    if not same_rows or members < 2:
        return None
    if first.regression:
        labels = [f"output {index + 1}" for index in range(outputs)]
        labels = labels if outputs > 1 else ["prediction"]
    else:
        classes = first.classes if len(first.classes) == outputs else range(outputs)
        labels = [f"score of class {name}" for name in classes]
    points = {point.x: point for point in sweep.lines[0].points}
    stops = [
        Stop(
            beta,
            _center(held)[:, :, :_CLASSES],
            points.get(beta, SweepPoint(beta, {})),
            held.source,
        )
        for beta, held in sweep.held_out.items()
    ]
    name = f"{sweep.name} ({sweep.setting})"
    return Explorer(name, stops, first.targets, labels[:_CLASSES], first.regression)


def _center(held: HeldOut) -> Floats:
    """Scores minus their mean, as a constant on all scores changes no prediction; values as is."""
    shift = 0.0 if held.regression else held.outputs.mean(-1, keepdims=True)
    centered: Floats = held.outputs - shift
    return centered


# ---- as HTML ------------------------------------------------------------------------------------

_LEAD = (
    "Each member's output for the same held-out inputs, with the ensemble in the middle: Figure 1 "
    "of the collusion paper, measured. Move β from joint training back to independent training. "
    "Members that collude are separated by constant offsets, which cancel in the ensemble."
)
_SCORES = " Scores are logits minus their mean over the classes."


def explorer_section(sets: Sequence[Explorer], make: Elements) -> Html:
    """A figure with a slider over β; a sentence if there is nothing to slide over."""
    if not sets:
        sweep = "`dissensus sweep --objective augmented --grid beta=0:1:0.1`"
        return missing("No collusion explorer", f"{sweep}, or runs that differ in β alone")
    readout = [
        element("div", element("dt", heading), element("dd", data_text=name))
        for name, heading in _READOUT.items()
    ]
    rows: list[list[Cell]] = [
        [
            explorer.name,
            f"{stop.beta:g}",
            *(cell(stop.point.numbers.get(name), METRICS[name].form) for name in SWEEP_METRICS),
            stop.point.verdict or "–",
        ]
        for explorer in sets
        for stop in explorer.stops
    ]
    canvas = {"class_": "canvas", "role": "img", "aria_labelledby": "alt-explorer"}
    return element(
        "figure",
        element("h3", "The collusion explorer"),
        element("p", _LEAD, "" if sets[0].regression else _SCORES),
        element("div", _controls(sets), save_buttons("explorer"), class_="controls"),
        element("dl", *readout, class_="readout", aria_live="polite"),
        element("div", id="plot-explorer", **canvas),
        element("figcaption", sets[0].alt(), id="alt-explorer"),
        make.details(
            make.table(("from", "β", *_READOUT.values()), rows, "the collusion explorer"),
            [stop.source for explorer in sets for stop in explorer.stops],
        ),
        id="explorer",
        class_="explorer",
    )


def _controls(sets: Sequence[Explorer]) -> Html:
    """The list of sets, if there are several, the slider, and what to look at."""
    options = [element("option", e.name, value=index) for index, e in enumerate(sets)]
    source = element("label", "from", element("select", *options, id="explorer-source"))
    last = len(sets[0].stops) - 1
    rest = (
        '<label class="slide"><output id="explorer-value" for="explorer-beta"></output>'
        f'<input id="explorer-beta" type="range" min="0" max="{last}" value="{last}" step="1" '
        'aria-label="β, from independent to joint training">'
        '<span class="ends"><span>independent</span><span>joint</span></span></label>'
        '<label>look at<select id="explorer-output"></select></label>'
        '<label>show<select id="explorer-mode"><option value="plain">predictions</option>'
        '<option value="around">difference from the ensemble</option></select></label>'
    )
    return join_html(source if len(sets) > 1 else None, Html(rest))

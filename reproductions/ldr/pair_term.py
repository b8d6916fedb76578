"""Pair term of LDR over training: does it move members apart, and on which inputs?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reproductions.comparisons import (
    Larger,
    Pairs,
    Quantity,
    Sides,
    Within,
    at,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import Panel, Plot, Rule, curve_series
from reproductions.ldr.weights import (
    STUDY,
    compare,
    curves,
    epoch_series,
    epoch_table,
    trainings,
)
from reproductions.study import Record

_APART, _TOGETHER = (Quantity(key, at("curve", key)) for key in ("apart", "together"))


def _rate(part: str) -> Quantity:
    """The rate of total variation on a set by the pair term, mean over the times of a training."""
    return Quantity(
        "rate", lambda record: float(np.mean([one["pair_term"] for one in _flow(record, part)]))
    )


def _growth(part: str) -> Quantity:
    """The rate relative to the total variation that there is."""
    return Quantity("growth", lambda record: float(np.mean(_growths(record, part))))


def _growths(record: Record, part: str) -> list[float]:
    return [one["pair_term"] / one["tv"] for one in _flow(record, part)]


def _flow(record: Record, part: str) -> list[dict[str, float]]:
    """What the pair term does to a set of inputs, at each time of a training."""
    return [time["sets"][part] for time in record["result"]["flow"]]


def _on_unknown(runs: Sequence[Record], quantity: Callable[[str], Quantity]) -> Quantity:
    """The mean over the sets of unknown inputs."""
    sets = runs[0]["result"]["flow"][0]["sets"]
    reads = [quantity(part).read for part in sets if part not in ("train", "test")]
    return Quantity("", lambda record: float(np.mean([read(record) for read in reads])))


def _net(records: list[Record]) -> dict[str, list[float]]:
    """The rate in each run, on training, test and unknown inputs of each case."""
    rates = {}
    for case, runs in trainings(records).items():
        sets = {"train": _rate("train"), "test": _rate("test"), "unknown": _on_unknown(runs, _rate)}
        for name, rate in sets.items():
            rates[f"{case} {name}"] = list(rate.values(runs).values())
    return rates


def _on_unknown_and_test(quantity: Callable[[str], Quantity]) -> Pairs:
    def pairs(records: list[Record]) -> Sides:
        return {
            case: (_on_unknown(runs, quantity).values(runs), quantity("test").values(runs))
            for case, runs in trainings(records).items()
        }

    return pairs


def plot(records: list[Record]) -> Plot:
    """For each case, how fast the pair term moves members apart, by row and by set of inputs."""
    panels = []
    for case, runs in trainings(records).items():
        rows = [
            epoch_series(key, curves(runs, key), style)
            for style, key in enumerate(("apart", "together"))
        ]
        first = runs[0]["result"]["flow"]
        epochs = [time["epoch"] for time in first]
        sets = [
            curve_series(part, epochs, [_growths(run, part) for run in runs], style)
            for style, part in enumerate(first[0]["sets"])
        ]
        zero = [Rule("y", 0.0)]
        panels += [
            Panel("epoch", "rate of total variation, training rows", rows, case, legend="best"),
            Panel("epoch", "relative rate, by set", sets, case, rules=zero, legend="best"),
        ]
    columns = min(4, len(panels))
    return Plot(panels, "How the pair term moves members apart over training", columns, (3.2, 2.8))


def table(records: list[Record]) -> Table:
    """Where the weight lies, and what it does to training rows."""
    keys = {
        "unsure_share": "weight on top probability < ½",
        "together_share": "weight on rows drawn together",
        "apart": "rate apart",
        "together": "rate together",
    }
    return epoch_table(records, keys)


EXPERIMENT = Experiment(
    "ldr/flow",
    "Equations 3 and 6",
    "Whether the pair term moves members apart, and on which inputs",
    STUDY,
    (
        Claim(
            "On training rows, the pair term moves members apart more than together",
            "Eq. 3",
            Larger(
                "rate of total variation, mean over rows and training",
                ("apart", "together"),
                compare(_APART, _TOGETHER),
                "{:.3g}",
            ),
            ours=True,
        ),
        Claim(
            "Through the network, the pair term raises the total variation between members",
            "Eq. 6",
            Within("rate of total variation by the pair term", _net, low=0.0),
            ours=True,
        ),
        Claim(
            "It raises it by a larger factor on unknown inputs than on test inputs",
            "Section 3.3",
            Larger(
                "rate relative to the total variation that there is, mean over training",
                ("unknown", "test"),
                _on_unknown_and_test(_growth),
                "{:.3g}",
            ),
            ours=True,
        ),
    ),
    table,
    plot,
)

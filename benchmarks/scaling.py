"""A model of the cost of a distributed step: its bytes and seconds on more devices than one has.

The model adds up what a step does one after the other, with nothing overlapped:

- *compute*: ``ceil(M / a) · t · ceil(B / d) / B`` for M members on a ranks along members and a
  batch of B rows on d ranks along data, t being the seconds of one member with the whole batch;
- *objective*: ``passes`` over the gathered outputs at the speed of memory, on every rank alike;
- *outputs*: a ring all-gather over all W = a · d ranks, ``(W − 1) · (latency + piece /
  bandwidth)``;
- *gradients*: a ring all-reduce over d ranks, ``2 (d − 1) · (latency + own gradients / d /
  bandwidth)``.

It holds where every rank has the same device and the same way to every other, where half the rows
take half the time, and where loading data is hidden. It breaks where devices are starved (few rows
each), where the network is shared or tapered, and with the stragglers that large jobs have.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Devices", "Prediction", "Work", "bytes_per_step", "predict_step"]

_HEAD = 3  # numbers in front of a rank's outputs; see exchange


@dataclass(frozen=True)
class Work:
    """One step of an ensemble; ``seconds`` are those of one member with the whole batch."""

    members: int
    batch: int
    outputs: int
    parameters: int
    seconds: float = 0.0
    coupled: bool = True
    itemsize: int = 4


@dataclass(frozen=True)
class Devices:
    """What connects the devices, and how fast they read: seconds, bytes a second.

    ``passes`` is how often an objective and its gradient go over the gathered outputs.
    """

    latency: float = 20e-6
    bandwidth: float = 20e9
    memory: float = 1e12
    passes: float = 20.0


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, by what they go into."""

    compute: float
    objective: float
    outputs: float
    gradients: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.compute + self.objective + self.outputs + self.gradients


def bytes_per_step(work: Work, along: int, data: int) -> dict[str, int]:
    """The bytes that the busiest rank hands over in a step on a mesh of ``along`` × ``data``.

    As data-parallel training hands over the gradients of all members, on a mesh of 1 × ranks.

    >>> step = Work(members=4, batch=32, outputs=10, parameters=269_722)        # ResNet-20
    >>> bytes_per_step(step, along=2, data=1)
    {'outputs': 2572, 'gradients': 0}
    >>> bytes_per_step(Work(4, 32, 10, 269_722, coupled=False), along=1, data=2)
    {'outputs': 0, 'gradients': 4315552}
    """
    members, rows = -(-work.members // along), _most_rows(work.batch, data)
    outputs = (_HEAD + members * rows * work.outputs) * work.itemsize if work.coupled else 0
    gradients = members * work.parameters * work.itemsize if data > 1 else 0
    return {"outputs": outputs if along * data > 1 else 0, "gradients": gradients}


def predict_step(work: Work, devices: Devices, along: int, data: int) -> Prediction:
    """The seconds of a step on a mesh of ``along`` × ``data`` ranks.

    >>> one = Work(members=8, batch=256, outputs=1000, parameters=25_557_032, seconds=0.1)
    >>> alone = predict_step(one, Devices(), 1, 1).total
    >>> round(alone / predict_step(one, Devices(), 8, 1).total, 2)           # of 8 devices
    7.95
    """
    sent, ranks = bytes_per_step(work, along, data), along * data
    rows = _most_rows(work.batch, data)
    # A rank that takes its part of a mean sees no outputs but its own.
    seen = work.members * work.batch if work.coupled else -(-work.members // along) * rows
    size = seen * work.outputs * work.itemsize
    exchanges = ranks - 1 if work.coupled else 0
    piece = sent["gradients"] / data
    return Prediction(
        compute=-(-work.members // along) * work.seconds * rows / work.batch,
        objective=devices.passes * size / devices.memory,
        outputs=exchanges * (devices.latency + sent["outputs"] / devices.bandwidth),
        gradients=2 * (data - 1) * (devices.latency + piece / devices.bandwidth),
    )


def _most_rows(batch: int, data: int) -> int:
    """The rows of the rank that has most; nobody is left with a single one."""
    return -(-batch // max(1, min(data, batch // 2)))

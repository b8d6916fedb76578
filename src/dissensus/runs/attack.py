"""Attacks on a run: the accuracy that adversaries leave its ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.runs.data import data_of
from dissensus.runs.folder import RESULTS
from dissensus.runs.load import load
from dissensus.tools.files import write_npz
from dissensus.tools.records import environment, write_record
from dissensus.tools.specs import parse_values
from dissensus.tools.verbs import (
    Result,
    collect,
    data_dir_option,
    device_option,
    option,
    trust_option,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from dissensus.data import Data
    from dissensus.ensemble import Ensemble
    from dissensus.robustness import Protocol, Robustness

#: The ε of the standard attacks where none is given, by the paper's data set that is most alike.
_EPS = {"mnist": 0.1, "cifar10": 8 / 255, "cifar100": 8 / 255}

#: Points of the curve over ε, in units of the largest ε of the attacks.
_CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

#: Images and attacks of which examples are kept.
_IMAGES, _ATTACKS = 8, 6


@dataclass(frozen=True)
class AttackOptions:
    """Options of :func:`attack`. ``curve`` are values of ε, ``"auto"`` or ``"none"``."""

    attacks: tuple[str, ...] = option(
        (), "An attack; may be repeated, or several with spaces between them."
    )
    standard: bool = option(False, "AutoAttack, long PGD, reweighted members, Square.")
    paper: bool = option(False, "The attacks of the adp paper: historical, weak.")
    eps: float | None = option(
        None, "ε of --standard.", default_text="0.1, or 8/255 for colour images"
    )
    norm: str = option("linf", "Norm of --standard: linf or l2.")
    limit: int | None = option(None, "Attack only the first examples, this many.", min=1)
    split: str = option("test", "train, val, test, or an extra set of the data.")
    curve: str | Sequence[float] = option(
        "auto", "Values of ε for the strongest gradient attack: 0.05,0.1 or 0:0.2:0.05; or none."
    )
    checks: bool = option(True, "Look for masked gradients: two more attacks.")
    transfer: bool = option(
        True, "Try what fools one member on the others: PGD of 10 steps on each."
    )
    seed: int = option(0, "Seed of random starts and targets.")
    batch_size: int = option(256, "Examples at once.", min=1)
    data_dir: Path | None = data_dir_option()
    trust: bool = trust_option()
    device: str = device_option()

    def __post_init__(self) -> None:
        if not (self.attacks or self.standard or self.paper):
            raise ValueError("say how to attack: --standard, --paper or --attacks pgd:eps=0.1")
        if (self.eps is not None or self.norm != "linf") and not self.standard:
            raise ValueError("--eps and --norm are those of --standard; --attacks have their own")
        if not all(isinstance(value, int | float) and value > 0 for value in self.eps_values or ()):
            raise ValueError(f"--curve must be ε above 0, auto or none, got {self.curve!r}")

    @property
    def eps_values(self) -> list[Any] | None:
        """The values of ``curve`` but for 0, where the clean accuracy is known; None for auto."""
        if self.curve in ("auto", "none"):
            return None if self.curve == "auto" else []
        curve = self.curve
        values = parse_values(curve, "--curve") if isinstance(curve, str) else curve
        return [value for value in values if value != 0]


@dataclass(frozen=True, eq=False, repr=False)
class RunRobustness(Result):
    """Robustness of a run: accuracy under every attack, transfer among members, and examples.

    ``evaluated_on`` says which inputs were attacked; ``transfer`` is None for a single member or
    where it was not asked for.
    """

    run: Path
    evaluated_on: str
    robustness: Robustness
    transfer: dict[str, Any] | None
    classes: Sequence[str]

    @property
    def folder(self) -> Path:
        """The usual folder for the record and figures: ``robustness`` in the run."""
        return self.run / "robustness"

    @cached_property
    def record(self) -> dict[str, Any]:
        """Everything but the inputs, as plain values."""
        transfer = {} if self.transfer is None else {"transfer": self.transfer}
        return {
            "format": RESULTS["attack"][1],
            "evaluated_on": self.evaluated_on,
            "run": str(self.run),
            **transfer,
            **self.robustness.to_dict(),
            "environment": environment(),
        }

    def to_dict(self) -> dict[str, Any]:
        """The :attr:`record`."""
        return self.record

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each attack: accuracy, its interval, and success rate."""
        return self.robustness.to_rows()

    def display(self) -> Iterator[str]:
        """The inputs, a table of the attacks, the worst case, and signs of masked gradients."""
        yield self.evaluated_on
        yield from self.robustness.report().splitlines()

    def save(self, path: str | Path | None = None) -> None:
        """Write ``record.json`` and ``examples.npz`` to a folder, :attr:`folder` if none."""
        folder = self.folder if path is None else Path(path)
        write_record(folder / "record.json", self.record)
        if self.examples:
            write_npz(folder / "examples.npz", self.examples)

    @cached_property
    def examples(self) -> dict[str, NDArray[Any]]:
        """A few images that most attacks broke, before and after; empty if there are none.

        ``original`` ``[images, channels, height, width]`` and ``adversarial`` ``[attacks, images,
        …]`` as bytes, ``labels`` ``[images]`` and ``predictions`` ``[attacks, images]``. Images
        that were wrong from the start do not count.
        """
        import torch

        outcomes = [row.outcome for row in self.robustness.rows[:_ATTACKS]]
        inputs, labels = self.robustness.inputs, outcomes[0].labels
        correct = outcomes[0].clean_predictions == labels
        times = torch.stack([outcome.broken & correct for outcome in outcomes]).sum(0)
        rows = times.argsort(descending=True, stable=True)[:_IMAGES]
        rows = rows[times[rows] > 0]
        if inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or not len(rows):
            return {}
        return {
            "original": _bytes(inputs[rows]),
            "adversarial": _bytes(torch.stack([each.adversarial[rows] for each in outcomes])),
            "labels": labels[rows].numpy(),
            "predictions": torch.stack([each.predictions[rows] for each in outcomes]).numpy(),
        }


def attack(
    run: str | Path,
    options: AttackOptions | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> RunRobustness:
    """Attack a run's ensemble; ``settings`` are the fields of :class:`AttackOptions`.

    The attacker sees all members and their gradients, and inputs stay in [0, 1]. The headline is
    the worst case for each example over all attacks.

    ::

        robustness = ds.runs.attack("runs/adp", standard=True, eps=0.1, limit=200)
        robustness.show()
        robustness.to_frame()[["attack", "accuracy"]]
    """
    from dissensus import robustness

    options = collect(AttackOptions, options, settings)
    attacks = [robustness.parse(spec) for text in options.attacks for spec in text.split()]
    ens = load(run, trust=options.trust, device=options.device)
    data = data_of(run, data_dir=options.data_dir)
    where, x, y = _inputs(data, options)
    protocol = _protocol(attacks, _most_alike(data), options)
    result = robustness.evaluate(
        ens,
        x,
        y,
        protocol=protocol,
        curve=_curve(protocol, options.eps_values),
        checks=options.checks,
        batch_size=options.batch_size,
        seed=options.seed,
        progress=progress,
    )
    transfer = None
    if options.transfer and ens.members > 1:
        transfer = _transfer(ens, x, y, protocol, _EPS[_most_alike(data)], options)
    return RunRobustness(Path(run), where, result, transfer, data.classes)


def _inputs(data: Data, options: AttackOptions) -> tuple[str, Tensor, Tensor]:
    """The name of what to attack, the inputs and the labels."""
    from dissensus.data import OnDisk
    from dissensus.data.inputs import take_part

    part, limit = take_part(data, options.split, labelled=True), options.limit
    x, y, where = part.x, part.y, f"{options.split} of {data.name}"
    assert y is not None
    if limit is not None and limit < len(x):
        x, y, where = x[:limit], y[:limit], f"the first {limit} of {where}"
    if isinstance(x, OnDisk):
        if limit is None:
            raise ValueError(f"{where} is on disk, {len(x)} examples; say how many: --limit")
        x = x[:]
    return where, x, y


def _most_alike(data: Data) -> str:
    """The data set of the adp paper that ``data`` is most alike."""
    if len(data.input_shape) != 3 or data.input_shape[0] != 3:
        return "mnist"
    return "cifar100" if data.outputs == 100 else "cifar10"


def _protocol(attacks: Sequence[Any], alike: str, options: AttackOptions) -> Protocol:
    """All attacks that ``options`` ask for."""
    from dissensus import robustness

    protocols = []
    if options.paper:
        protocols.append(robustness.paper(alike))
    if options.standard:
        eps = _EPS[alike] if options.eps is None else options.eps
        protocols.append(robustness.standard(eps, options.norm))
    if attacks:
        protocols.append(robustness.Protocol("own", "attacks as asked for", tuple(attacks)))
    return robustness.joined(protocols)


def _budgets(protocol: Protocol) -> list[tuple[str, float]]:
    """Norm and ε of the attacks that have them."""
    budgets = (each.budget() for each in protocol.attacks)
    return [budget for budget in budgets if budget is not None]


def _curve(protocol: Protocol, values: Sequence[float] | None) -> list[float]:
    """Values of ε; by default some around those of the attacks, where these are of one norm."""
    if values is not None:
        return [float(value) for value in values]
    budgets = _budgets(protocol)
    if len({norm for norm, _ in budgets}) != 1:
        return []
    largest = max(eps for _, eps in budgets)
    return [round(largest * factor, 12) for factor in _CURVE]


def _transfer(
    ens: Ensemble, x: Tensor, y: Tensor, protocol: Protocol, eps: float, options: AttackOptions
) -> dict[str, Any]:
    """The accuracy of each member (column) on inputs made to fool each member (row).

    By PGD within the largest budget of the attacks, in the norm that most of them have.
    """
    from dissensus import robustness

    budgets = _budgets(protocol)
    norms = [norm for norm, _ in budgets]
    norm = max(norms, key=norms.count, default="linf")
    eps = max((size for other, size in budgets if other == norm), default=eps)
    pgd = robustness.PGD(norm=norm, eps=eps, steps=10)
    accuracy = robustness.transfer(ens, x, y, pgd, batch_size=options.batch_size, seed=options.seed)
    return {"attack": pgd.spec(), "targeted": False, "accuracy": accuracy.tolist()}


def _bytes(images: Tensor) -> NDArray[Any]:
    pixels: NDArray[Any] = (images.cpu().clamp(0, 1) * 255).round().byte().numpy()
    return pixels

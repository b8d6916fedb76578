"""What ``dissensus attack`` does: attacks on a run, and the files that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dissensus import robustness
from dissensus.cli.attack_figures import keep_examples, write_figures
from dissensus.cli.shown import note
from dissensus.data import Examples
from dissensus.ensemble import Ensemble
from dissensus.records import environment, write_record
from dissensus.robustness import Attack, Protocol, Robustness
from dissensus.runs import data_of, load

__all__ = ["Asked", "Attacked", "attack_run"]

#: The ε of --standard where none is given.
_EPS = {"mnist": 0.1, "cifar10": 8 / 255, "cifar100": 8 / 255}

#: What --curve auto looks at, in units of the largest ε of the attacks.
_CURVE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


class Asked(NamedTuple):
    """Which attacks: those of the paper, the honest ones at ε, and others; see ``HELP``."""

    own: Sequence[Attack] = ()
    paper: bool = False
    standard: bool = False
    eps: float | None = None
    norm: str = "linf"

    def protocol(self, like: str) -> Protocol:
        """All of them, for data like one of the paper's sets."""
        protocols = []
        if self.paper:
            protocols.append(robustness.paper(like))
        if self.standard:
            eps = _EPS[like] if self.eps is None else self.eps
            protocols.append(robustness.standard(eps, self.norm))
        if self.own:
            protocols.append(Protocol("own", "attacks as asked for", tuple(self.own)))
        return robustness.joined(protocols)


class Attacked(NamedTuple):
    """What was found, the record of it, and the files that were written to the folder."""

    found: Robustness
    record: dict[str, Any]
    folder: Path
    files: list[str]


class _Inputs(NamedTuple):
    """What is attacked: in words, which of the paper's data it is like, and the data."""

    where: str
    like: str
    x: Tensor
    y: Tensor
    classes: Sequence[str]


def attack_run(
    run: Path,
    asked: Asked,
    *,
    limit: int | None = None,
    split: str = "test",
    curve: Sequence[float] | None = None,
    checks: bool = True,
    transfer: bool = True,
    out: Path | None = None,
    save: str | None = None,
    figures: bool = True,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool = True,
    data_dir: Path | None = None,
    trust: bool = False,
    device: str = "cpu",
) -> Attacked:
    """Attack a run and write what was found to ``out``, or to its folder ``robustness``.

    ``curve`` are values of ε; None for some around those of the attacks.
    """
    ens = load(run, trust=trust, device=device)
    inputs = _chosen(run, split, data_dir, limit)
    protocol = asked.protocol(inputs.like)
    found = robustness.evaluate(
        ens,
        inputs.x,
        inputs.y,
        protocol=protocol,
        curve=_around(protocol) if curve is None else curve,
        checks=checks,
        batch_size=batch_size,
        seed=seed,
        progress=progress,
    )
    record: dict[str, Any] = {"format": "dissensus.robustness/1"}
    record |= {"evaluated_on": inputs.where, "run": str(run)}
    if transfer and ens.members > 1:
        record["transfer"] = _transfer(ens, inputs, protocol, batch_size, seed)
    record |= {**found.to_dict(), "environment": environment()}
    folder = run / "robustness" if out is None else out
    write_record(folder / "record.json", record)
    files = ["record.json", *(_drawn(found, folder, inputs.classes) if figures else [])]
    if keep_examples(found, folder / "examples.npz"):
        files.append("examples.npz")
    if save is not None:
        found.save(folder / f"adversarial.{save}")
        files.append(f"adversarial.{save}")
    return Attacked(found, record, folder, files)


def _drawn(found: Robustness, folder: Path, classes: Sequence[str]) -> list[str]:
    try:
        return [path.name for path in write_figures(found, folder, classes)]
    except ValueError as error:  # matplotlib is not installed: the rest is still worth having
        note(f"dissensus: {error}")
        return []


def _transfer(
    ens: Ensemble, inputs: _Inputs, protocol: Protocol, batch_size: int, seed: int
) -> dict[str, Any]:
    """What each member (column) makes of inputs made to fool each member (row): its accuracy.

    By PGD within the largest budget of the attacks, of the norm that most of them have.
    """
    budgets = [found for found in (one.budget() for one in protocol.attacks) if found is not None]
    norms = [norm for norm, _ in budgets]
    norm = max(norms, key=norms.count, default="linf")
    eps = max((eps for own, eps in budgets if own == norm), default=_EPS[inputs.like])
    made = robustness.PGD(norm=norm, eps=eps, steps=10)
    matrix = robustness.transfer(ens, inputs.x, inputs.y, made, batch_size=batch_size, seed=seed)
    return {"attack": made.spec(), "targeted": False, "accuracy": matrix.tolist()}


def _chosen(run: Path, split: str, data_dir: Path | None, limit: int | None) -> _Inputs:
    found = data_of(run, data_dir=data_dir)
    sets = {**found.extra, **found.splits()}
    if split not in sets:
        raise ValueError(f"{found.name} has no split {split!r}; it has {', '.join(sets)}")
    x, y = sets[split]
    if y is None or not len(x):
        lacks = "no labels" if y is None else "no rows"
        raise ValueError(f"the split {split!r} of {found.name} has {lacks}; choose another --split")
    where = f"{split} of {found.name}"
    if limit is not None and limit < len(x):
        x, y, where = x[:limit], y[:limit], f"the first {limit} of {where}"
    if isinstance(x, Examples):
        if limit is None:
            raise ValueError(f"{where} is on disk, {len(x)} examples; say how many: --limit")
        x, y = x[:], y[:]
    colour = len(found.input_shape) == 3 and found.input_shape[0] == 3
    like = ("cifar100" if found.outputs == 100 else "cifar10") if colour else "mnist"
    return _Inputs(where, like, x, y, found.classes)


def _around(protocol: Protocol) -> list[float]:
    """Values of ε around those of the attacks; none where they are of two norms, or have no ε."""
    budgets = [found for found in (one.budget() for one in protocol.attacks) if found is not None]
    if len({norm for norm, _ in budgets}) != 1:
        return []
    largest = max(eps for _, eps in budgets)
    return [round(largest * factor, 12) for factor in _CURVE]

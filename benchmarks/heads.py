"""Heads on frozen features at ldr's size, 768 → 3072 → 768 → 1000, and LDR with many members."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.timing import Contender, Result, compare
from benchmarks.training import ours, plain_loop
from dissensus.ensemble import Ensemble
from dissensus.models import MemberFactory, make_factory
from dissensus.objectives import parse
from dissensus.training import Recipe
from dissensus.training.evaluation import Meter
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream

FEATURES, CLASSES = 768, 1000


def run(quick: bool) -> list[Result]:
    """All comparisons; one thread unless ``--threads`` says otherwise."""
    repeats = 3 if quick else 5
    paper = make_factory("ldr_head", (FEATURES,), CLASSES)
    small = make_factory("ldr_head", (192,), 100)
    return [
        *(_steps(paper, 5, batch, repeats) for batch in (32, 256)),
        *(_products(paper, 5, batch, repeats) for batch in (32, 256)),
        _steps(small, 20, 128, repeats),
        _steps(small, 50, 128, repeats),
        _drawn(small if quick else paper, 3),
    ]


def _batch(make: MemberFactory, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, *make.input_shape), torch.randint(make.outputs, (size,))


def _named(make: MemberFactory, members: int, batch: int) -> str:
    (width,) = make.input_shape
    return f"{members} heads {width}-{4 * width}-{width}-{make.outputs}, batch {batch}"


def _steps(make: MemberFactory, members: int, batch: int, repeats: int) -> Result:
    x, y = _batch(make, batch)
    return compare(
        f"{_named(make, members, batch)}: one step, ratio to the plain loop",
        Contender("plain loop", plain_loop(make, members, x, y)),
        [Contender("dissensus", ours(make, members, x, y), 1.0)],
        repeats=repeats,
    )


def _products(make: MemberFactory, members: int, batch: int, repeats: int) -> Result:
    """A whole step, optimiser included, within twice the time of its bare matrix products."""
    x, y = _batch(make, batch)
    return compare(
        f"{_named(make, members, batch)}: one step, ratio to its matrix products alone",
        Contender("matrix products", _bare(make, members, batch)),
        [Contender("dissensus", ours(make, members, x, y), 2.0)],
        repeats=repeats,
    )


def _bare(make: MemberFactory, members: int, batch: int) -> Callable[[], None]:
    """The products of a forward and a backward pass, member by member, as fast as they go."""
    (width,) = make.input_shape
    sizes = [(width, 4 * width), (4 * width, width), (width, make.outputs)]
    weights = [torch.randn(b, a) for a, b in sizes]
    inputs = [torch.randn(batch, a) for a, _ in sizes]
    gradients = [torch.randn(batch, b) for _, b in sizes]

    def products() -> None:
        for _ in range(members):
            for weight, x, gradient in zip(weights, inputs, gradients, strict=True):
                x @ weight.T
                gradient @ weight
                gradient.T @ x

    return products


def _drawn(make: MemberFactory, repeats: int) -> Result:
    """LDR draws two members a batch: an epoch should cost the same however many there are."""
    x, y = _batch(make, 256 * 8)

    def epoch(members: int) -> Callable[[], object]:
        objective, recipe = parse("ldr:active=2"), Recipe(batch_size=256)
        ens = Ensemble(make, members).train()
        stream = Stream((x, y), objective, None, None, recipe, members, ens.device)
        trainer = Trainer(ens, objective, recipe)

        def steps() -> dict[str, object]:
            meter = Meter(members, ens.combine)
            for batch in stream.epoch(0):
                outputs, terms = trainer.step(batch, set(), 1.0, check=False)
                meter.add(outputs, batch.y, terms.parts, batch.drawn)
            return meter.record()

        return steps

    return compare(
        f"LDR, 2 of {_named(make, 50, 256)}: an epoch of 8 batches, ratio to 5 members",
        Contender("5 members", epoch(5)),
        [Contender("50 members", epoch(50), 1.1)],
        repeats=repeats,
    )

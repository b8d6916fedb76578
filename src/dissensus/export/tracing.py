"""From a module to a graph that stands by itself, with a batch of any size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from dissensus.export.deployed import Deployed

__all__ = ["check_equal", "check_example", "traced"]


def traced(deployed: Deployed, example: Tensor) -> ExportedProgram:
    """The graph of ``deployed``; ``example`` says shape and type of the inputs, not their number.

    An error says what in a network stands in the way.
    """
    rows = _several(example)
    try:
        with torch.no_grad():
            deployed(rows)  # a mistake in the example is told as what it is
            program = torch.export.export(
                deployed,
                (torch.zeros_like(rows),),  # they are kept in a pt2: nobody's data
                dynamic_shapes={"x": {0: Dim("batch")}},
                strict=False,
            )
    except Exception as error:  # tracing runs the network's own code, which may raise anything
        raise ValueError(_advice(deployed, rows, error)) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names files of this machine
    return program


def check_equal(
    deployed: Deployed, example: Tensor, run: Callable[[Tensor], dict[str, Tensor]], what: str
) -> None:
    """Raise unless ``run`` gives the members and the prediction that ``deployed`` gives."""
    with torch.no_grad():
        for rows in (_several(example), example[:1]):
            wanted, got = deployed(rows), run(rows)
            for name in list(wanted)[:2]:
                size = float(wanted[name].abs().max())
                if not torch.allclose(wanted[name], got[name], rtol=1e-3, atol=1e-4 * size):
                    off = float((wanted[name] - got[name]).abs().max())
                    raise ValueError(
                        f"{what} does not give what the ensemble gives, {name} is off by "
                        f"{off:.3g}; nothing was written. Export in another format"
                    )


def check_example(example: Tensor) -> None:
    """Raise unless ``example`` is a batch of inputs."""
    if not isinstance(example, Tensor) or example.ndim == 0 or len(example) == 0:
        got = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"example must be a tensor [batch, …] of one row or more, got {got}")


def _several(example: Tensor) -> Tensor:
    """At least three rows: torch takes a batch of 1 for one that is always 1."""
    return example if len(example) > 2 else example[:1].expand(3, *example.shape[1:]).clone()


def _advice(deployed: Deployed, rows: Tensor, error: Exception) -> str:
    text = " ".join(str(error).split())
    kind = deployed.network.kind()
    if not _runs(deployed, rows):
        return f"{kind} cannot take inputs of shape {tuple(rows.shape)}, {rows.dtype}: {text[:300]}"
    if "specialized it to be a constant" in text or "marked batch as dynamic" in text:
        return (
            f"{kind} fixes the number of rows, so that its graph would serve batches of "
            f"{len(rows)} alone; write its shapes with x.shape[0], flatten(1) or -1 in place of a "
            "number, or hand it on as a folder (save_folder, --format hub)"
        )
    return (
        f"torch.export cannot trace {kind}: its forward does what a graph cannot hold, such as "
        "branching on values (`if x.sum() > 0`), .item() or NumPy; write it with torch.where or "
        f"torch.cond, or hand it on as a folder (save_folder, --format hub). torch says: "
        f"{type(error).__name__}: {text[:300]}"
    )


def _runs(deployed: Deployed, rows: Tensor) -> bool:
    try:
        with torch.no_grad():
            deployed(rows)
    except Exception:
        return False
    return True

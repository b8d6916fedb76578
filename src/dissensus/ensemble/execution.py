"""The two executions, stacked and looped, and the choice between them.

**Stacked** runs one batched operation for each layer and all members: through the engine where the
network has one, else through ``torch.func.vmap``. **Looped** runs the members one after the other,
each as the ordinary network it is. Both give the same numbers.

The rule (``execution="auto"``) never times anything, so results do not depend on the load of the
machine: **stacked** on a GPU, where small kernels of many members are better launched as one, and
on a CPU for networks without convolutions; **looped** for convolutions on a CPU, where a stack of
them becomes a grouped convolution that is slower than the members one by one. Looped, too, are
layers that cannot be stacked: recurrent ones, and BatchNorm with a cumulative mean.

The same rule picks the memory format: images enter looped convolutions on a CPU with their channels
last, which all layers behind them keep, and which a step takes two thirds to nine tenths of the
time in. Only rounding depends on it. ``benchmarks/training.py`` measures all of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vmap

from dissensus.ensemble.adapters import shared_names
from dissensus.ensemble.engine import engine_of
from dissensus.ensemble.stack import Tensors, call, places_of

EXECUTIONS = ("auto", "stacked", "looped", "tune")

_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convolutional(module: nn.Module) -> bool:
    """Whether any layer is a convolution."""
    return any(isinstance(layer, _CONVOLUTIONS) for layer in module.modules())


def takes_channels_last(module: nn.Module) -> bool:
    """Whether images may come with channels last: there are 2-d convolutions, and none that fails.

    On a CPU, torch 2 (oneDNN) writes beyond its memory in the backward pass of a strided 1 × 1
    convolution in that format whose channels do not fill a vector: 2 to 7 with vectors of 8. Those
    of AVX-512 hold 16.

    >>> [takes_channels_last(nn.Conv2d(c, 8, 1, stride=2)) for c in (15, 16)]
    [False, True]
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return bool(layers) and not any(
        layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels < 16
        for layer in layers
    )


def stackable(module: nn.Module) -> bool:
    """Whether ``vmap`` takes every layer; it has no rule for the two kinds sorted out here."""
    return not any(
        isinstance(layer, nn.RNNBase) or (isinstance(layer, BATCH_NORMS) and not layer.momentum)
        for layer in module.modules()
    )


def choose(convolutions: bool, device: torch.device) -> str:
    """The rule of ``execution="auto"``.

    >>> choose(False, torch.device("cpu")), choose(True, torch.device("cpu"))
    ('stacked', 'looped')
    """
    return "looped" if convolutions and device.type == "cpu" else "stacked"


def channels_last(x: Tensor) -> Tensor:
    """Images ``[…, channels, height, width]`` on a CPU with channels last in memory.

    A copy in all cases: strides of an image with one channel suit both formats, and convolutions
    take such images as contiguous. Graphs that are exported or compiled do without it.

    >>> x = torch.zeros(2, 1, 4, 4)
    >>> x.stride(), channels_last(x).stride(), channels_last(x).shape
    ((16, 16, 4, 1), (16, 1, 4, 1), torch.Size([2, 1, 4, 4]))
    """
    if x.ndim < 4 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return x
    return x.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


def measure(run: Callable[[str], Tensor], repeats: int = 5) -> dict[str, float]:
    """Seconds of a forward and backward pass in both executions: the least of some turns each."""
    best = {"stacked": float("inf"), "looped": float("inf")}
    for _ in range(repeats):
        for name in best:
            start = time.perf_counter()
            run(name).sum().backward()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def stacked_outputs(
    stack: nn.Module, parameters: Tensors, buffers: Tensors, x: Tensor, *, own: bool = False
) -> Tensor:
    """``[members, batch, outputs]`` from stacked tensors; buffers are updated in place.

    ``x`` is one batch for all members or, with ``own``, ``[members, batch, …]``, one for each.
    """
    # torch.compile would guard on all engines there are, and these go with their ensembles.
    engine = None if torch.compiler.is_dynamo_compiling() else engine_of(stack)
    if engine is not None and x.ndim >= 2 + own:
        return engine.forward(parameters, x if own else x[None])
    places = places_of(stack)

    def member(tensors: Tensors, state: Tensors, inputs: Tensor) -> Tensor:
        return call(stack, places, {**tensors, **state}, inputs)

    shared = shared_names(stack)
    tensors = {**parameters, **{name: parameters[name][0] for name in shared}}
    axes = ({name: None if name in shared else 0 for name in tensors}, 0, 0 if own else None)
    try:
        outputs: Tensor = vmap(member, axes, randomness="different")(tensors, buffers, x)
    except RuntimeError as error:
        if "vmap" not in str(error) and "Batching rule" not in str(error):
            raise
        raise ValueError(
            f"these members cannot be stacked, use execution='looped': {error}"
        ) from error
    return outputs


def looped_outputs(
    stack: nn.Module, parameters: Tensors, buffers: Tensors, x: Tensor, *, own: bool = False
) -> Tensor:
    """``[members, batch, outputs]`` from stacked tensors; ``x`` and buffers as when stacked.

    ``unbind`` rather than indexing: its gradient puts the members' gradients together once, where
    every index would make a gradient of the whole stack.
    """
    tensors = {name: tensor.unbind(0) for name, tensor in (*parameters.items(), *buffers.items())}
    members = max(map(len, parameters.values()))
    for name in shared_names(stack):
        tensors[name] = tensors[name] * members
    places = places_of(stack)
    inputs = x.unbind(0) if own else [x] * members
    each = ({name: rows[j] for name, rows in tensors.items()} for j in range(members))
    outputs = [call(stack, places, *member) for member in zip(each, inputs, strict=True)]
    return torch.stack(outputs)

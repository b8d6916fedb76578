"""Architectures: those of the papers, small ones for a CPU, and any other by its import path.

Every entry of :data:`MODELS` is ``builder(input_shape, outputs, **options) -> nn.Module``, where
``input_shape`` is the shape of one example, without the batch. :func:`make_factory` binds these
into the function without arguments that an ensemble calls once for each member; seeding happens
outside.

>>> make = make_factory("mlp", (64,), 10, hidden=(32,))
>>> make()
Sequential(
  (0): Linear(in_features=64, out_features=32, bias=True)
  (1): ReLU()
  (2): Linear(in_features=32, out_features=10, bias=True)
)
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.models.convolutional import cnn, small_cnn, vgg
from dissensus.models.dense import LDRHead, ldr_head, ldr_linear_head, linear, mlp, table_mlp
from dissensus.models.layers import NORMS, InputNormalize, ScaledLinear
from dissensus.models.network_split import split
from dissensus.models.resnet import BasicBlock, ResNet, resnet18, resnet20, resnet34
from dissensus.tools.import_paths import resolve
from dissensus.tools.modules import eval_mode
from dissensus.tools.specs import check_keys, nearest

__all__ = [
    "MODELS",
    "NORMS",
    "BasicBlock",
    "InputNormalize",
    "LDRHead",
    "MemberFactory",
    "ResNet",
    "ScaledLinear",
    "cnn",
    "ldr_head",
    "ldr_linear_head",
    "linear",
    "make_factory",
    "mlp",
    "resnet18",
    "resnet20",
    "resnet34",
    "resolve",
    "small_cnn",
    "split",
    "table_mlp",
    "vgg",
]

#: The most parameters of a member that is built by name; more would run until memory ends.
MAX_PARAMETERS = 2**31

#: Every architecture by name: ``builder(input_shape, outputs, **options) -> nn.Module``.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "table_mlp": table_mlp,
    "small_cnn": small_cnn,
    "cnn": cnn,
    "vgg": vgg,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "ldr_head": ldr_head,
    "ldr_linear_head": ldr_linear_head,
}


@dataclass(frozen=True)
class MemberFactory:
    """Makes a new member at each call; what :func:`make_factory` returns.

    It is plain data (names, numbers), so it can be compared, printed and sent to other processes.
    """

    model: str
    input_shape: tuple[int, ...]
    outputs: int
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> nn.Module:
        """Build one member with whatever random state torch is in."""
        if self.model in MODELS:
            member = MODELS[self.model](self.input_shape, self.outputs, **self.options)
        else:
            member = self._foreign()
        if self.normalize is None:
            return member
        return nn.Sequential(OrderedDict(normalize=InputNormalize(*self.normalize), model=member))

    def describe(self) -> dict[str, Any]:
        """The same as plain JSON values; the file of ``file.py:name`` with its whole path."""
        place, _, name = self.model.rpartition(":")
        path = f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else None
        return {
            "name": path or self.model,
            "input_shape": list(self.input_shape),
            "outputs": self.outputs,
            "normalize": None if self.normalize is None else [list(p) for p in self.normalize],
            "options": dict(self.options),
        }

    def _foreign(self) -> nn.Module:
        build = resolve(self.model)
        given = {"input_shape": self.input_shape, "outputs": self.outputs}
        names = _parameters(build)
        arguments = {key: value for key, value in given.items() if key in names}
        arguments |= dict(self.options)
        try:
            member = build(**arguments)
        except TypeError as error:
            call = f"{self.model}({', '.join(arguments)})"
            raise ValueError(f"{call} failed: {error}; pass its arguments as options") from error
        if not isinstance(member, nn.Module):
            raise ValueError(f"{self.model} must return an nn.Module, got {type(member).__name__}")
        _check_outputs(self.model, member, self.input_shape, self.outputs)
        return member


def make_factory(
    model: str,
    input_shape: Sequence[int],
    outputs: int,
    *,
    normalize: tuple[Sequence[float] | float, Sequence[float] | float] | None = None,
    **options: Any,
) -> MemberFactory:
    """Bind a model's name, input shape and options into a function that makes a new member.

    ``model`` is a name of :data:`MODELS` or an import path for :func:`resolve`. A callable found
    by path receives ``input_shape`` and ``outputs`` if it has parameters of these names, and
    ``options``; what it returns must map ``[batch, *input_shape]`` to ``[batch, outputs]``.
    ``normalize=(mean, std)`` puts an :class:`InputNormalize` before the model.

    >>> make_factory("mpl", (4,), 2)
    Traceback (most recent call last):
    ...
    ValueError: there is no model 'mpl'; did you mean 'mlp'? (a model of your own is ...
    """
    shape = tuple(int(size) for size in input_shape)
    if model in MODELS:
        known = [n for n in _parameters(MODELS[model]) if n not in ("input_shape", "outputs")]
        check_keys(f"model {model!r}", options, known)
    elif ":" in model:
        resolve(model)  # a wrong path is reported now, not when the first member is made
    else:
        hint = f"{nearest(model, MODELS, 3)} (a model of your own is module:name or file.py:name)"
        raise ValueError(f"there is no model {model!r}; {hint}")
    stats = None
    if normalize is not None:
        layer = InputNormalize(*normalize)
        stats = (tuple(layer.mean.tolist()), tuple(layer.std.tolist()))
    if model in MODELS:
        _check_size(model, shape, outputs, options)
    return MemberFactory(model, shape, outputs, stats, options)


def _check_size(
    model: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, Any]
) -> None:
    """Build a member without memory, so that wrong settings and sizes are reported at no cost."""
    try:
        with torch.device("meta"):
            member = MODELS[model](shape, outputs, **options)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{model} cannot be built with these options: {error}") from error
    size = sum(parameter.numel() for parameter in member.parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{model} would have {size} parameters, at most {MAX_PARAMETERS} may be")


def _parameters(build: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(build).parameters)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return []


def _check_outputs(model: str, member: nn.Module, input_shape: Sequence[int], outputs: int) -> None:
    """Run two examples in evaluation mode, which changes neither weights nor random state."""
    try:
        with eval_mode(member), torch.no_grad():
            result = member(torch.zeros(2, *input_shape))
    except RuntimeError as error:
        raise ValueError(f"{model} cannot take a batch {(2, *input_shape)}: {error}") from error
    got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
    if got != (2, outputs):
        wanted = f"[batch, outputs] = {(2, outputs)}, got {got}"
        raise ValueError(f"{model} must give {wanted}; set an option such as num_classes")

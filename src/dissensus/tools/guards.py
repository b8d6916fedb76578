"""Guards of public functions: an error says what arrived, and no result is silently non-finite.

:func:`formula` is for what training evaluates at every step: types and shapes are answered with a
sentence, values are the caller's, so that NaN in is NaN out. :func:`guarded` is for all else: a NaN
or an infinity in a result raises too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = [
    "check_finite",
    "check_row_weights",
    "check_shape",
    "describe",
    "device_named",
    "formula",
    "guarded",
    "unreadable",
]

P = ParamSpec("P")
R = TypeVar("R")

#: What torch, NumPy and Python raise for something that they cannot use.
_RAW_ERRORS = (
    RuntimeError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    NotImplementedError,
)


def formula(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which says what arrived where torch or Python could not use it.

    >>> @formula
    ... def double(outputs):
    ...     return 2 * outputs.exp()
    >>> double("x")
    Traceback (most recent call last):
    ...
    ValueError: double cannot use outputs='x': 'str' object has no attribute 'exp'
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, *_RAW_ERRORS) as error:
            if isinstance(error, ValueError) and _is_own(error):
                raise
            given = _describe_arguments(function, args, kwargs)
            if given is None:  # a call that Python itself refuses
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ValueError(f"{_name(function)} cannot use {given}: {reason}") from error

    return call


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """:func:`formula`, which also raises where a tensor of the result is not finite.

    >>> @guarded
    ... def double(outputs):
    ...     return 2 * outputs
    >>> double(torch.tensor([1.0, 3e38]))
    Traceback (most recent call last):
    ...
    ValueError: double gives 1 NaN or infinite of 2 values for outputs=torch.float32 [2]; ...
    """
    inner = formula(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result = inner(*args, **kwargs)
        for values in _tensors(result):
            if unreadable(values) or _finite(values):
                continue
            given = _describe_arguments(function, args, kwargs)
            if values.is_meta or values.is_sparse:
                raise ValueError(f"{function.__name__} needs dense tensors, got {given}")
            bad = int((~torch.isfinite(values)).sum())
            got = f"{bad} NaN or infinite of {values.numel()} values for {given}"
            raise ValueError(f"{function.__name__} gives {got}; pass smaller numbers or float64")
        return result

    return call


def check_shape(values: Any, *, name: str, **axes: int | None) -> None:
    """Raise unless ``values`` is a tensor or an array with these axes; None is any size above 0.

    >>> check_shape(torch.zeros(4, 2), name="targets", rows=4, classes=3)
    Traceback (most recent call last):
    ...
    ValueError: targets must be [rows, classes] = (4, 3), got (4, 2)
    >>> check_shape([1.0], name="x", rows=None)
    Traceback (most recent call last):
    ...
    ValueError: x must be [rows], got list
    """
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) == len(axes):
        pairs = zip(shape, axes.values(), strict=True)
        if all(size == wanted or (wanted is None and size) for size, wanted in pairs):
            return
    sizes = ", ".join("any" if size is None else str(size) for size in axes.values())
    sizes = f"({sizes},)" if len(axes) == 1 else f"({sizes})"
    wanted = f"[{', '.join(axes)}]" + ("" if set(axes.values()) <= {None} else f" = {sizes}")
    got = describe(values) if shape is None else tuple(shape)
    raise ValueError(f"{name} must be {wanted}, got {got}")


def check_finite(values: Any, *, name: str) -> None:
    """Raise with a count if a tensor or an array holds a NaN or an infinity."""
    values = values if isinstance(values, Tensor) else torch.as_tensor(values)
    if unreadable(values) or _finite(values):
        return
    bad = int((~torch.isfinite(values)).sum())
    raise ValueError(f"{name} must be finite, got {bad} NaN or infinite of {values.numel()} values")


def check_row_weights(weights: Any, rows: int, *, name: str = "weights") -> None:
    """Raise unless ``weights`` is ``[rows]``, finite, at least 0, and above 0 for some row."""
    check_shape(weights, name=name, rows=rows)
    check_finite(weights, name=name)
    if bool((weights < 0).any()) or not bool((weights > 0).any()):
        raise ValueError(f"{name} must be at least 0, and not zero for all rows")


def unreadable(values: Tensor) -> bool:
    """Whether ``values`` cannot be read: inside a ``torch.func`` transform, or while traced."""
    return bool(
        torch._C._functorch.is_functorch_wrapped_tensor(values) or torch.compiler.is_compiling()
    )


def device_named(name: str | torch.device) -> torch.device:
    """The device called ``name``; ``auto`` is a GPU if there is one.

    >>> device_named("x")
    Traceback (most recent call last):
    ...
    ValueError: there is no device 'x'; use cpu, cuda or auto
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if not isinstance(name, str | torch.device):
            raise RuntimeError
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; use cpu, cuda or auto") from None
    if device.type == "meta":
        raise ValueError("tensors on the device meta have no values; use cpu, cuda or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"this torch sees no device {str(device)!r}; use cpu (--device cpu)")
    return device


def describe(value: object) -> str:
    """What a value is, in a few words.

    >>> describe(torch.zeros(2, 3)), describe([1.0]), describe("x"), describe(None)
    ('torch.float32 [2, 3]', 'list', "'x'", 'None')
    """
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device.type}"
        layout = "" if value.layout is torch.strided else f" {value.layout}"
        return f"{value.dtype} {list(value.shape)}{where}{layout}"
    if value is None or isinstance(value, bool | int | float | complex | str):
        text = repr(value)
        return text if len(text) < 40 else f"{text[:37]}…"
    return type(value).__name__


def _describe_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """The arguments of a call by name; None where the call does not fit the function."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    return ", ".join(f"{name}={describe(value)}" for name, value in given.items() if name != "self")


def _name(function: Callable[..., Any]) -> str:
    """The name that the caller used: that of the class for what makes an object."""
    own = function.__name__
    return own if not own.startswith("__") else function.__qualname__.split(".")[-2]


def _is_own(error: ValueError) -> bool:
    """Whether it was raised here, and not by torch, NumPy or Python."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == "dissensus"


def _finite(values: Tensor) -> bool:
    if values.is_meta or values.is_sparse:
        return False
    if not values.is_floating_point():
        return True
    values = values.double() if values.element_size() == 1 else values  # 8 bits have no sum
    # A sum is finite if its terms are, short of overflow, and costs a thirtieth of isfinite.
    return bool(torch.isfinite(values.detach().sum())) or bool(torch.isfinite(values).all())


def _tensors(result: object) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, float):
        yield torch.tensor(result, dtype=torch.float64)
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _tensors(value)
    elif isinstance(result, tuple | list):
        for value in result:
            yield from _tensors(value)

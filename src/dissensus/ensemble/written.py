"""Larger dense networks, forward and backward written out, for all members at once.

``dense.py`` has plain chains of small layers, where the bookkeeping of automatic differentiation is
most of the time. Here are networks with layer norms, residual connections and scales, such as ldr's
heads, whose layers are large. Their time is matrix products, and, done automatically, the fresh
memory for gradients of all members together, which the system clears page by page at each step;
here gradients go into memory that is kept.

A network is read once by ``torch.fx`` into steps that :data:`RULES` knows; any other is left to
automatic differentiation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from dissensus.ensemble.stack import hooked, places_of

__all__ = ["RULES", "WrittenPlan", "written_backward", "written_forward", "written_plan"]

Tensors = Mapping[str, Tensor]
aten = torch.ops.aten


@dataclass(frozen=True)
class Step:
    """One operation: what kind, on which values, with which module or parameters, to which."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    module: nn.Module | None = None
    prefix: str = ""  # of the module's parameters; for a scale the parameter's name
    differentiable: bool = True  # whether any parameter stands before the first input


@dataclass(frozen=True)
class WrittenPlan:
    """The steps of a network from the value ``input`` to the value ``output``."""

    steps: list[Step]
    input: str
    output: str

    def fits(self, x: Tensor) -> bool:
        """Whether a batch ``x`` is a matrix ``[batch, features]``."""
        return x.ndim == 2


class Gradients:
    """Gradients by name, in memory that is kept from step to step."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self.found: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Forget the gradients, not their memory."""
        self.found = {}

    def product(self, name: str, a: Tensor, b: Tensor) -> None:
        """Add ``a b`` to the gradient of ``name``."""
        if name in self.found:
            self.found[name].baddbmm_(a, b)
            return
        shape = (a.shape[0], a.shape[1], b.shape[2])
        memory = self.kept.get(name)
        if memory is None or memory.shape != shape or memory.dtype != a.dtype:
            memory = self.kept[name] = a.new_empty(shape)
        self.found[name] = torch.bmm(a, b, out=memory)

    def add(self, name: str, value: Tensor) -> None:
        """Add ``value`` to the gradient of ``name``."""
        self.found[name] = self.found[name] + value if name in self.found else value


# ---- rules --------------------------------------------------------------------------------------
# Values are [members, batch, features], or [1, batch, features] as long as members share them.
# Forward returns the output and what backward needs; backward adds the parameters' gradients and
# returns those of the inputs, None where no parameter stands before one.

Saved = tuple[Any, ...]


class Rule(NamedTuple):
    """How a step is done, and how it is undone."""

    forward: Callable[[Step, Tensors, list[Tensor]], tuple[Tensor, Saved]]
    backward: Callable[[Step, Tensors, Saved, Tensor, Gradients], list[Tensor | None]]


def _linear(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    weight, bias = tensors[step.prefix + "weight"], tensors.get(step.prefix + "bias")
    x = values[0].expand(len(weight), -1, -1)
    if bias is None:
        return torch.bmm(x, weight.mT), (x,)
    return torch.baddbmm(bias[:, None], x, weight.mT), (x,)


def _linear_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    weight = step.prefix + "weight"
    found.product(weight, grad.mT, saved[0])
    if step.prefix + "bias" in tensors:
        found.add(step.prefix + "bias", grad.sum(1))
    return [torch.bmm(grad, tensors[weight]) if step.differentiable else None]


def _norm(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    assert isinstance(step.module, nn.LayerNorm)
    (x,), shape = values, list(step.module.normalized_shape)
    hat, mean, rstd = aten.native_layer_norm(x, shape, None, None, step.module.eps)
    weight, bias = tensors.get(step.prefix + "weight"), tensors.get(step.prefix + "bias")
    out = hat
    if weight is not None:
        out = hat * weight[:, None] if bias is None else bias[:, None].addcmul(hat, weight[:, None])
    return out, (x, hat, mean, rstd)


def _norm_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    assert isinstance(step.module, nn.LayerNorm)
    x, hat, mean, rstd = saved
    weight = tensors.get(step.prefix + "weight")
    if weight is not None:
        found.add(step.prefix + "weight", (grad * hat).sum(1))
        grad_hat = grad * weight[:, None] if step.differentiable else grad
    else:
        grad_hat = grad
    if step.prefix + "bias" in tensors:
        found.add(step.prefix + "bias", grad.sum(1))
    if not step.differentiable:
        return [None]
    shape, wanted = list(step.module.normalized_shape), [True, False, False]
    back = aten.native_layer_norm_backward(grad_hat, x, shape, mean, rstd, None, None, wanted)
    return [back[0]]


def _scale(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    return values[0] * tensors[step.prefix][:, None], (values[0],)


def _wide(grad: Tensor, width: int) -> Tensor:
    """The gradient of a value that was ``width`` features wide before it was broadcast."""
    return grad if grad.shape[-1] == width else grad.sum(-1, keepdim=True)


def _scale_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    scale = tensors[step.prefix]
    found.add(step.prefix, _wide((grad * saved[0]).sum(1), scale.shape[-1]))
    if not step.differentiable:
        return [None]
    return [_wide(grad * scale[:, None], saved[0].shape[-1])]


def _dropout(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    assert isinstance(step.module, nn.Dropout)
    if not step.module.training or step.module.p == 0:
        return values[0], ()
    members = len(next(iter(tensors.values())))
    out, mask = torch.native_dropout(
        values[0].expand(members, -1, -1).contiguous(), step.module.p, True
    )
    return out, (mask, 1 / (1 - step.module.p))


def _dropout_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    return [aten.native_dropout_backward(grad, *saved) if saved else grad]


def _add(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
    return values[0] + values[1], (values[0].shape[-1], values[1].shape[-1])


def _add_back(
    step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
) -> list[Tensor | None]:
    return [_wide(grad, width) for width in saved]


def _activation(backward: Callable[..., Tensor], *, of_output: bool) -> Rule:
    """An activation by torch's own gradient of it, which takes its input or its output."""

    def forward(step: Step, tensors: Tensors, values: list[Tensor]) -> tuple[Tensor, Saved]:
        assert step.module is not None
        out = step.module(values[0])
        return out, (out if of_output else values[0],)

    def back(
        step: Step, tensors: Tensors, saved: Saved, grad: Tensor, found: Gradients
    ) -> list[Tensor | None]:
        return [backward(step.module, grad, saved[0])]

    return Rule(forward, back)


#: Operations by name; to add one: a rule, a line here and where it is recognised, a test.
RULES: dict[str, Rule] = {
    "linear": Rule(_linear, _linear_back),
    "norm": Rule(_norm, _norm_back),
    "scale": Rule(_scale, _scale_back),
    "dropout": Rule(_dropout, _dropout_back),
    "add": Rule(_add, _add_back),
    "gelu": _activation(
        lambda m, g, x: aten.gelu_backward(g, x, approximate=m.approximate), of_output=False
    ),
    "silu": _activation(lambda m, g, x: aten.silu_backward(g, x), of_output=False),
    "relu": _activation(lambda m, g, y: aten.threshold_backward(g, y, 0), of_output=True),
    "tanh": _activation(lambda m, g, y: aten.tanh_backward(g, y), of_output=True),
    "sigmoid": _activation(lambda m, g, y: aten.sigmoid_backward(g, y), of_output=True),
}

_MODULES: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.LayerNorm: "norm",
    nn.Dropout: "dropout",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
}

_FUNCTIONS: dict[Any, nn.Module] = {
    torch.relu: nn.ReLU(),
    functional.relu: nn.ReLU(),
    functional.gelu: nn.GELU(),
    functional.silu: nn.SiLU(),
    torch.tanh: nn.Tanh(),
    torch.sigmoid: nn.Sigmoid(),
}

_SUMS, _PRODUCTS = (operator.add, torch.add), (operator.mul, torch.mul)


# ---- reading a network --------------------------------------------------------------------------


def written_plan(stack: nn.Module) -> WrittenPlan | None:
    """The plan of a network of which every operation has a rule; None for any other."""
    places = places_of(stack)
    tied = any(place != name for place, name in places.items())
    if tied or any(hooked(module) for module in stack.modules()):
        return None
    try:
        graph = fx.Tracer().trace(stack)
    except Exception:  # its forward does what cannot be traced
        return None
    steps: list[Step] = []
    shared = {node.name for node in graph.nodes if node.op == "placeholder"}
    renamed: dict[str, str] = {}
    if len(shared) != 1:
        return None
    (source,) = shared
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        if node.op == "output":
            (last,) = node.args
            if not isinstance(last, fx.Node) or last.name in shared:
                return None
            return WrittenPlan(steps, source, renamed.get(last.name, last.name))
        step = _step(stack, node, renamed, shared)
        if step is None:
            return None
        if step.kind == "same":
            renamed[node.name] = step.inputs[0]
            if step.inputs[0] in shared:
                shared.add(node.name)
            continue
        steps.append(step)
    return None


def _step(
    stack: nn.Module, node: fx.Node, renamed: Mapping[str, str], shared: set[str]
) -> Step | None:
    nodes = [arg for arg in node.args if isinstance(arg, fx.Node)]
    if node.kwargs not in ({}, {"inplace": False}) or len(nodes) != len(node.args):
        return None
    values = tuple(renamed.get(n.name, n.name) for n in nodes if n.op != "get_attr")
    constants = [str(n.target) for n in nodes if n.op == "get_attr"]
    free = bool(values) and values[0] not in shared
    if node.op == "call_module" and len(values) == 1 and not constants:
        module = stack.get_submodule(str(node.target))
        if type(module) is nn.Identity:
            return Step("same", values, node.name)
        kind = _MODULES.get(type(module))
        flat = not isinstance(module, nn.LayerNorm) or len(module.normalized_shape) == 1
        if kind is None or not flat or getattr(module, "inplace", False):
            return None
        return _unless_free(Step(kind, values, node.name, module, f"{node.target}.", free), shared)
    if node.op != "call_function":
        return None
    if node.target in _FUNCTIONS and len(values) == 1 and not constants:
        module = _FUNCTIONS[node.target]
        kind = _MODULES[type(module)]
        return _unless_free(Step(kind, values, node.name, module, "", free), shared)
    if node.target in _SUMS and len(values) == 2:
        return Step("add", values, node.name)
    if node.target in _PRODUCTS and len(values) == len(constants) == 1:
        known = dict(stack.named_parameters())
        if constants[0] in known and known[constants[0]].ndim == 2:  # [members, features]
            return Step("scale", values, node.name, None, constants[0], free)
    return None


def _unless_free(step: Step, shared: set[str]) -> Step:
    """Note what members share until a parameter, or chance, makes them differ."""
    module = step.module
    assert module is not None
    if step.inputs[0] in shared and step.kind != "dropout" and not list(module.parameters()):
        shared.add(step.output)
    return step


# ---- running it ---------------------------------------------------------------------------------


def written_forward(plan: WrittenPlan, tensors: Tensors, x: Tensor) -> tuple[Tensor, list[Saved]]:
    """Outputs ``[members, batch, outputs]`` and what :func:`written_backward` needs."""
    with torch.no_grad():
        values, kept = {plan.input: x[None]}, []
        for step in plan.steps:
            given = [values[name] for name in step.inputs]
            values[step.output], saved = RULES[step.kind].forward(step, tensors, given)
            kept.append(saved)
        members = len(next(iter(tensors.values())))
        return values[plan.output].expand(members, -1, -1), kept


def written_backward(
    plan: WrittenPlan,
    tensors: Tensors,
    kept: list[Saved],
    gradient: Tensor,
    found: Gradients,
) -> None:
    """Add the gradients of all parameters, from that of the outputs, to ``found``."""
    with torch.no_grad():
        grads: dict[str, Tensor] = {plan.output: gradient}
        for step, saved in zip(reversed(plan.steps), reversed(kept), strict=True):
            grad = grads.pop(step.output, None)
            if grad is None:  # nothing that trains depends on it
                continue
            back = RULES[step.kind].backward(step, tensors, saved, grad, found)
            for name, own in zip(step.inputs, back, strict=True):
                if own is not None and name != plan.input:
                    grads[name] = grads[name] + own if name in grads else own

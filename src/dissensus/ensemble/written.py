"""Larger dense networks, forward and backward written out, for all members at once.

``dense.py`` has plain chains of small layers, where the bookkeeping of automatic differentiation is
most of the time. Here are networks with layer norms, residual connections and scales, such as ldr's
heads, whose layers are large. Their time is matrix products, and, done automatically, the fresh
memory for gradients of all members together, which the system clears page by page at each step;
here gradients go into memory that is kept.

A network is read once by ``torch.fx`` into steps that ``rules.RULES`` knows; any other is left to
automatic differentiation.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from dissensus.ensemble.rules import RULES, Gradients, Saved, Step, Tensors
from dissensus.ensemble.stack import hooked, places_of

__all__ = ["WrittenPlan", "written_backward", "written_forward", "written_plan"]


@dataclass(frozen=True)
class WrittenPlan:
    """The steps of a network from the value ``input`` to the value ``output``."""

    steps: list[Step]
    input: str
    output: str

    def fits(self, x: Tensor) -> bool:
        """Whether ``x`` is ``[batch, features]``, or ``[batch, tokens, features]`` and the like."""
        return x.ndim >= 2


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
    if node.target is operator.getitem:
        return _token_step(node, renamed, shared)
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


def _token_step(node: fx.Node, renamed: Mapping[str, str], shared: set[str]) -> Step | None:
    """``x[:, number]`` of ``[batch, tokens, features]``."""
    value, index = node.args
    plain = isinstance(index, tuple) and len(index) == 2 and type(index[1]) is int
    if not isinstance(value, fx.Node) or value.op == "get_attr" or not plain:
        return None
    if index[0] != slice(None):  # type: ignore[index]
        return None
    name = renamed.get(value.name, value.name)
    if name in shared:
        shared.add(node.name)
    return Step("token", (name,), node.name, None, str(index[1]), name not in shared)  # type: ignore[index]


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
        outputs = values[plan.output]
        return outputs.expand(members, *outputs.shape[1:]), kept


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

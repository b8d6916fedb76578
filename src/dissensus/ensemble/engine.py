"""The engine: stacked members as a list of operations, with their gradients written out.

For small networks most of the time of a training step is the bookkeeping of automatic
differentiation; for large ones much of it is fresh memory for gradients. The engine has neither. It
reads a network once, by ``torch.fx``, into the steps that ``operations.py`` knows, and then runs
all members of one or many ensembles in one batched operation for each step. A network with
anything else in it has no engine: it runs through ``torch.func.vmap`` and automatic
differentiation, to the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from dissensus.ensemble.adapters import AdaptedLinear
from dissensus.ensemble.operations import (
    ELEMENTWISE,
    OPERATIONS,
    GradientBuffers,
    Memory,
    Step,
    Values,
)
from dissensus.ensemble.stack import Tensors, hooked, places_of
from dissensus.models.layers import LeafTracer, ScaledLinear

#: From the gradients at outputs to those of the tensors, in their order.
Backward = Callable[[Sequence[Tensor]], list[Tensor]]

# Modules by the kind of their operation.
_MODULES: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    AdaptedLinear: "adapted",
    ScaledLinear: "scaled",
    nn.LayerNorm: "norm",
    nn.Dropout: "dropout",
    nn.Flatten: "flatten",
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.Identity: "identity",
    **dict.fromkeys(ELEMENTWISE, "elementwise"),
}
_CONTAINERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)

_FUNCTIONS: dict[Any, nn.Module] = {
    torch.relu: nn.ReLU(),
    functional.relu: nn.ReLU(),
    functional.gelu: nn.GELU(),
    functional.silu: nn.SiLU(),
    torch.tanh: nn.Tanh(),
    torch.sigmoid: nn.Sigmoid(),
}
_SUMS, _PRODUCTS = (operator.add, torch.add), (operator.mul, torch.mul)


class Engine:
    """The steps of a network from the value ``input`` to the value ``output``.

    ``shared`` are the values that depend on no parameter, so that members share them.
    """

    def __init__(self, steps: list[Step], input: str, output: str, shared: set[str]) -> None:
        self.steps, self.input, self.output, self.shared = steps, input, output, shared
        self.operations = [OPERATIONS[step.kind] for step in steps]
        self.buffers = GradientBuffers()

    def forward(self, tensors: Tensors, x: Tensor) -> Tensor:
        """Outputs ``[rows, batch, outputs]`` for inputs ``[ensembles, batch, …]``.

        The rows of the stacked ``tensors`` are the members of these ensembles in turn, equally many
        of each, and of a shared weight the ensembles; for one ensemble pass ``x[None]``.
        Differentiable by torch.
        """
        return self._run(tensors, x)[0].contiguous()

    def vjp(self, tensors: Tensors, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Backward]:
        """Outputs as of :meth:`forward` for each of ``inputs``, and their vector-Jacobian product.

        The product is a function from the gradients at all outputs to the gradients of ``tensors``.
        The next call reuses the memory of the gradients and of all values in between. Torch records
        nothing.
        """
        scratch = self.buffers.scratch
        scratch.taken = 0
        with torch.no_grad():
            runs = [self._run(tensors, x, scratch) for x in inputs]
            outputs = [output.clone() if scratch.taken else output for output, _ in runs]

        def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
            self.buffers.tensors, self.buffers.gradients = tensors, {}
            with torch.no_grad():
                for (_, saved), gradient in zip(runs, gradients, strict=True):
                    self._accumulate(saved, gradient)
            self.buffers.tensors = {}
            by_name = self.buffers.gradients
            # The members' first layer is one product; a layer that is never called has no gradient.
            return [
                by_name[name].view_as(tensor) if name in by_name else torch.zeros_like(tensor)
                for name, tensor in tensors.items()
            ]

        return outputs, backward

    def _run(
        self, tensors: Tensors, x: Tensor, memory: Memory | None = None
    ) -> tuple[Tensor, list[Any]]:
        values, every = Values({self.input: x}), []
        values.memory = memory
        for step, operation in zip(self.steps, self.operations, strict=True):
            values[step.output], saved = operation.forward(step, tensors, values)
            every.append(saved)
        return values[self.output], every

    def _accumulate(self, saved: list[Any], gradient: Tensor) -> None:
        """Add the gradients of one pass to the buffers."""
        gradients = {self.output: gradient}  # at each value
        steps = zip(self.steps, self.operations, saved, strict=True)
        for step, operation, own in reversed(list(steps)):
            at_output = gradients.pop(step.output, None)
            if at_output is None:  # no parameter stands before it, or nothing uses it
                continue
            at_inputs = operation.backward(step, own, at_output, self.buffers)
            for name, part in zip(step.inputs, at_inputs, strict=True):
                if part is not None and name not in self.shared:
                    gradients[name] = gradients[name] + part if name in gradients else part


# ---- reading a network --------------------------------------------------------------------------

_ENGINES: WeakKeyDictionary[nn.Module, Engine | None] = WeakKeyDictionary()


def engine_of(stack: nn.Module) -> Engine | None:
    """The engine of a network of which every operation is known; None for any other."""
    if type(stack) in _MODULES:  # not cached: the engine would keep its only layer alive
        if hooked(stack) or not list(stack.parameters()):
            return None
        step = Step(_MODULES[type(stack)], ("x",), "y", stack, "", shared=True)
        return Engine([step], "x", "y", {"x"})
    if stack not in _ENGINES:
        _ENGINES[stack] = _read(stack)
    return _ENGINES[stack]


def _read(stack: nn.Module) -> Engine | None:
    if any(place != name for place, name in places_of(stack).items()):  # tied weights
        return None
    if list(stack.buffers()) or not all(map(_readable, stack.modules())):
        return None
    graphs = [_graph(stack, training=training) for training in (True, False)]
    if graphs[0] is None or graphs[1] is None or str(graphs[0]) != str(graphs[1]):
        return None
    return _GraphReader(stack).read(graphs[0])


def _readable(module: nn.Module) -> bool:
    """Whether a module may have an engine: hooks and torch's other layers have no operation."""
    if hooked(module):
        return False
    torchs = type(module).__module__.startswith("torch.nn")
    return not torchs or type(module) in (*_MODULES, *_CONTAINERS)


def _graph(stack: nn.Module, *, training: bool) -> fx.Graph | None:
    modes = [(module, module.training) for module in stack.modules()]
    try:
        for module, _ in modes:
            module.training = training
        return LeafTracer(_is_leaf).trace(stack)
    except Exception:  # its forward does what cannot be traced
        return None
    finally:
        for module, mode in modes:
            module.training = mode


def _is_leaf(module: nn.Module, path: str) -> bool:
    own = isinstance(module, AdaptedLinear | ScaledLinear)
    return own or fx.Tracer().is_leaf_module(module, path)


class _GraphReader:
    """Reads the nodes of a graph into steps."""

    def __init__(self, stack: nn.Module) -> None:
        self.stack = stack
        self.steps: list[Step] = []
        self.values: dict[str, str] = {}  # the value that each node of the graph stands for
        self.shared: set[str] = set()  # values that the members of an ensemble share

    def read(self, graph: fx.Graph) -> Engine | None:
        inputs = [node.name for node in graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            return None
        self.shared, self.values = set(inputs), {inputs[0]: inputs[0]}
        for node in graph.nodes:
            if node.op == "output":
                (last,) = node.args
                output = self.values.get(last.name) if isinstance(last, fx.Node) else None
                if output is None or output in self.shared:
                    return None
                return Engine(self.steps, inputs[0], output, self.shared)
            if node.op not in ("placeholder", "get_attr") and not self._add(node):
                return None
        return None

    def _add(self, node: fx.Node) -> bool:
        """Add the step of a node; False where there is no operation for it."""
        if node.target is operator.getitem:
            return self._add_token(node)
        nodes = [arg for arg in node.args if isinstance(arg, fx.Node)]
        if node.kwargs not in ({}, {"inplace": False}) or len(nodes) != len(node.args):
            return False
        values = [self.values[n.name] for n in nodes if n.op != "get_attr"]
        constants = [str(n.target) for n in nodes if n.op == "get_attr"]
        if node.op == "call_module" and len(values) == 1 and not constants:
            module = self.stack.get_submodule(str(node.target))
            return self._add_module(node, module, f"{node.target}.")
        if node.op != "call_function":
            return False
        if node.target in _FUNCTIONS and len(values) == 1 and not constants:
            return self._add_module(node, _FUNCTIONS[node.target], "")
        if node.target in _SUMS and len(values) == 2:
            self._append(node, "add", tuple(values), shared=set(values) <= self.shared)
            return True
        if node.target in _PRODUCTS and len(values) == len(constants) == 1:
            parameter = dict(self.stack.named_parameters()).get(constants[0])
            if parameter is not None and parameter.ndim == 2:  # [members, features]
                self._append(node, "scale", tuple(values), name=constants[0])
                return True
        return False

    def _add_module(self, node: fx.Node, module: nn.Module, name: str) -> bool:
        (source,) = node.args
        assert isinstance(source, fx.Node)
        kind, value = _MODULES[type(module)], self.values[source.name]
        if getattr(module, "inplace", False) and len(source.users) > 1:
            return False  # others would see what it wrote
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            return False
        if kind == "identity":
            self.values[node.name] = value
            return True
        shared = value in self.shared and kind != "dropout" and not list(module.parameters())
        self._append(node, kind, (value,), module, name, shared=shared)
        return True

    def _add_token(self, node: fx.Node) -> bool:
        """Add ``x[:, number]`` of ``[batch, tokens, features]``."""
        source, index = node.args
        if not isinstance(source, fx.Node) or source.op == "get_attr":
            return False
        if not isinstance(index, tuple) or len(index) != 2 or index[0] != slice(None):
            return False
        if type(index[1]) is not int:
            return False
        value = self.values[source.name]
        self._append(node, "token", (value,), name=str(index[1]), shared=value in self.shared)
        return True

    def _append(
        self,
        node: fx.Node,
        kind: str,
        inputs: tuple[str, ...],
        module: nn.Module | None = None,
        name: str = "",
        *,
        shared: bool = False,
    ) -> None:
        """Add a step; ``shared`` says whether the members of an ensemble share its output."""
        # A linear layer does not need its output for its gradient.
        linear = any(s.output == inputs[0] and s.kind in ("linear", "adapted") for s in self.steps)
        users = [len(n.users) for n in node.all_input_nodes if n.name == inputs[0]]
        in_place = linear and users == [1]
        before = inputs[0] in self.shared
        self.steps.append(Step(kind, inputs, node.name, module, name, before, in_place))
        self.values[node.name] = node.name
        if shared:
            self.shared.add(node.name)

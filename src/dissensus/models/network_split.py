"""Networks split in two: a frozen backbone, and the layers that each member trains for itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from dissensus.models.layers import LeafTracer
from dissensus.tools.modules import eval_mode
from dissensus.tools.specs import check_choice, nearest

Values = dict[fx.Node, fx.Node]


def split(
    network: nn.Module,
    name: str,
    *,
    weights: str = "random",
    example: Tensor | None = None,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> tuple[nn.Module, Callable[[], nn.Module]]:
    """Cut ``network`` before the module called ``name``: a backbone, and what makes the rest.

    The head is that module and all that depends on it: ``blocks.11.mlp`` of a vision transformer
    is ldr's head of two layers, ``head`` the linear one of Table 4. Where a second path runs
    around the cut, as a residual connection does, layers before it join the head until one tensor
    goes across. ``make_head()`` copies the head and draws new weights; ``weights="given"``
    keeps those of the network.

    ``keep`` shortens what goes across where the head needs a part of it alone, such as
    ``lambda tokens: tokens[:, :1]`` for the class token. With an ``example`` batch it is checked
    that head and backbone together give what the network gives; do so whenever ``keep`` is used.

    The network's own ``forward`` is traced (``torch.fx``) down to the cut; other modules are not
    traced and may contain any code.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> backbone, make_head = split(network, "2", example=torch.randn(5, 4))
    >>> backbone(torch.zeros(5, 4)).shape, make_head()
    (torch.Size([5, 8]), Sequential(
      (0): Linear(in_features=8, out_features=3, bias=True)
    ))
    """
    check_choice("split", "weights", weights, ["random", "given"])
    graph, cut = _trace(network, name)
    inside, across = _head_nodes(graph, cut)
    backbone: nn.Module = fx.GraphModule(network, _backbone_graph(graph, across), "Backbone")
    if keep is not None:
        backbone = nn.Sequential(backbone, _Keep(keep))
    backbone = copy.deepcopy(backbone).requires_grad_(False).eval()
    head = _as_sequential(fx.GraphModule(network, _head_graph(graph, inside, across), "Head"))
    if example is not None:
        _check_equal(network, backbone, head, example)
    fixed = _fixed_weights(head) if weights == "random" else []
    if fixed:
        names = ", ".join(fixed[:3])
        raise ValueError(f"{names} cannot be drawn again by reset_parameters; use weights='given'")

    def make_head() -> nn.Module:
        new = copy.deepcopy(head).requires_grad_().train()
        for module in new.modules() if weights == "random" else ():
            if (reset := _resetter(module)) is not None:
                reset()
        return new

    return backbone, make_head


class Head(nn.Module):
    """The layers after a cut. Every ``fx.GraphModule`` has a class of its own; heads have one."""

    def __init__(self, layers: fx.GraphModule) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


class _Keep(nn.Module):
    def __init__(self, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        return self.keep(x)


# ---- the graph ----------------------------------------------------------------------------------


def _trace(network: nn.Module, name: str) -> tuple[fx.Graph, fx.Node]:
    names = [known for known, _ in network.named_modules() if known]
    if name not in names:
        raise ValueError(f"the network has no module {name!r}; {nearest(name, names, 3)}")
    try:
        # Looks into what contains the cut, and into nothing else.
        graph = LeafTracer(lambda _, path: not name.startswith(f"{path}.")).trace(network)
    except Exception as error:  # a forward may do anything with what it is given
        reason = f"as tracing its forward failed ({type(error).__name__}: {error})"
        raise ValueError(
            f"{type(network).__name__} cannot be split at {name!r}, {reason}"
        ) from error
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if len(calls) != 1:
        raise ValueError(f"{name!r} must be called once by the network, got {len(calls)} calls")
    return graph, calls[0]


def _head_nodes(graph: fx.Graph, cut: fx.Node) -> tuple[set[fx.Node], fx.Node]:
    """The nodes of the head, and the one before it that it needs."""
    inside = {cut}
    for node in graph.nodes:
        if any(before in inside for before in node.all_input_nodes):
            inside.add(node)
    place = {node: number for number, node in enumerate(graph.nodes)}
    across = _across(inside)
    while len(across) > 1:  # a path around the cut: let layers before it join the head
        inside.add(max(across, key=lambda node: place[node]))
        across = _across(inside)
    if across[0].op == "placeholder":
        raise ValueError(f"several tensors cross {cut.target!r}; split the network elsewhere")
    return inside, across[0]


def _across(inside: set[fx.Node]) -> list[fx.Node]:
    """The nodes outside of the head that it needs, without constants of the network."""
    needed = {before: None for node in inside for before in node.all_input_nodes}
    return [node for node in needed if node not in inside and node.op != "get_attr"]


def _backbone_graph(graph: fx.Graph, across: fx.Node) -> fx.Graph:
    needed = {across}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    backbone = fx.Graph()
    values: Values = {}
    for node in graph.nodes:
        if node in needed:
            values[node] = backbone.node_copy(node, lambda before: values[before])
    backbone.output(values[across])
    return backbone


def _head_graph(graph: fx.Graph, inside: set[fx.Node], across: fx.Node) -> fx.Graph:
    head = fx.Graph()
    values: Values = {across: head.placeholder("features")}
    for node in graph.nodes:
        if node in inside or (node.op == "get_attr" and any(u in inside for u in node.users)):
            values[node] = head.node_copy(node, lambda before: values[before])
    return head


def _as_sequential(head: fx.GraphModule) -> nn.Module:
    """An ``nn.Sequential`` if the layers are one, which members run faster; else a ``Head``."""
    layers: list[nn.Module] = []
    before: Any = None
    for node in head.graph.nodes:
        if node.op == "call_module" and node.args == (before,) and not node.kwargs:
            layers.append(head.get_submodule(str(node.target)))
        elif node.op == "output":
            return nn.Sequential(*layers) if node.args == (before,) else Head(head)
        elif node.op != "placeholder":
            return Head(head)
        before = node
    return Head(head)


# ---- weights ------------------------------------------------------------------------------------


def _resetter(module: nn.Module) -> Callable[[], object] | None:
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, name, None)
        if callable(reset):
            return reset  # type: ignore[no-any-return]
    return None


def _fixed_weights(head: nn.Module) -> list[str]:
    """Weights that no method draws again; scales and shifts may stay as they are."""
    return [
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in head.named_modules()
        if _resetter(module) is None
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1
    ]


def _check_equal(network: nn.Module, backbone: nn.Module, head: nn.Module, example: Tensor) -> None:
    with eval_mode(network), eval_mode(head), torch.no_grad():
        wanted, got = network(example), head(backbone(example))
    if wanted.shape != got.shape or not torch.allclose(wanted, got, rtol=1e-4, atol=1e-5):
        raise ValueError("backbone and head differ from the network: keep= drops too much")

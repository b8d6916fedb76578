"""Adapters: members that share the weights of their linear layers, as in BatchEnsemble and TabM.

A shared layer holds one weight ``W`` for all members, and for each member ``j`` two vectors and a
bias, its adapters::

    y_j = ((x ∘ r_j) Wᵀ) ∘ s_j + b_j                             (BatchEnsemble, 2020, Eq. 5)

which is an ordinary linear layer of weight ``W ∘ s_j r_jᵀ``. Members start as in TabM (2025; the
package ``tabm``, ``arch_type="tabm"``): ``r`` of the first layer is a random sign for each member
and input, all other ``r`` and ``s`` are 1, ``W`` and ``b`` are those of the first member, and the
last layer is not shared but each member's own, drawn with its seed. So members differ where
their inputs come in and where their outputs go out, and begin with the same features in between.
TabM found this start better than random signs everywhere, which BatchEnsemble has.

A ``ScaledLinear``, which has a gain for each input, shares its weight in the same way: its gains
are ``r``, times their rate ``c`` (1 elsewhere), and decay with the weights as they do there.

Everything else with parameters (norms, convolutions, embeddings) is each member's own, as it is
in an ensemble that shares nothing. In a stack of ``members``, a tensor of each member's own is
``[members, …]`` and a shared weight is ``[1, …]``, in a fleet ``[ensembles, …]``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from dissensus.ensemble.stack import Tensors, hooked, like, places_of, rebuild, stack_modules
from dissensus.models.layers import ScaledLinear

#: What members may share, beside nothing: the weights of linear layers behind adapters.
SHARINGS = ("adapters",)


class AdaptedLinear(nn.Module):
    """A linear layer of one shared weight, in a stack; its forward is that of one member."""

    bias: nn.Parameter | None

    def __init__(
        self, shared: Tensor, r: Tensor, s: Tensor, bias: Tensor | None, rate: float | None = None
    ) -> None:
        super().__init__()
        self.shared, self.r, self.s = map(nn.Parameter, (shared, r, s))
        self.gains, self.rate = rate is not None, 1.0 if rate is None else rate
        self.bias = None if bias is None else nn.Parameter(bias)
        self.out_features, self.in_features = shared.shape[-2:]

    @property
    def weight(self) -> Tensor:
        """``W ∘ s (c r)ᵀ``, the weight of a member, or of each of some, for one of each ``r``."""
        return self.shared * self.s[..., :, None] * (self.rate * self.r[..., None, :])

    def forward(self, x: Tensor) -> Tensor:
        """``((x ∘ c r) Wᵀ) ∘ s + b`` of one member."""
        scaled = functional.linear(x * (self.rate * self.r), self.shared) * self.s
        return scaled if self.bias is None else scaled + self.bias

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}" + (f", rate={self.rate:g}" if self.gains else "")
        )


def share(modules: Sequence[nn.Module], seeds: Sequence[int]) -> nn.Module:
    """The stack of ``modules`` with shared linear layers; ``seeds`` draw the members' signs."""
    stack = stack_modules(modules)
    layers = [layer for layer in stack.modules() if _is_linear(layer)]
    tied = Counter(places_of(stack).values())
    names = {id(tensor): name for name, tensor in stack.named_parameters()}
    shared = [
        layer
        for layer in layers[:-1]  # the last one is each member's own
        if layer.weight.requires_grad and tied[names[id(layer.weight)]] == 1 and not hooked(layer)
    ]
    if not shared:
        raise ValueError(
            f"{type(stack).__name__} has no nn.Linear but the last to share; use sharing=None"
        )
    inputs = shared[0].weight.shape[-1]
    signs = torch.stack([_random_signs(inputs, seed) for seed in seeds])
    for layer in shared:
        _replace(stack, layer, _adapt(layer, signs if layer is shared[0] else None))
    return stack


def _is_linear(layer: nn.Module) -> TypeGuard[nn.Linear | ScaledLinear]:
    """Whether it is such a layer itself; one derived from it may do anything."""
    return type(layer) in (nn.Linear, ScaledLinear)


def _random_signs(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (count,), generator=generator) * 2.0 - 1.0


def _adapt(layer: nn.Linear | ScaledLinear, signs: Tensor | None) -> AdaptedLinear:
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    r, s = (weight.new_ones(len(weight), size) for size in (weight.shape[2], weight.shape[1]))
    rate = None
    if isinstance(layer, ScaledLinear):
        r, rate = layer.gain.detach(), layer.rate
    r = r.clone() if signs is None else r * signs.to(r)
    start = None if bias is None else bias[:1].expand_as(bias).clone()
    return AdaptedLinear(weight[:1].clone(), r, s, start, rate).train(layer.training)


def _replace(stack: nn.Module, layer: nn.Module, other: nn.Module) -> None:
    """Put another layer in every place of one."""
    for module in list(stack.modules()):
        for name, child in module._modules.items():
            if child is layer:
                module._modules[name] = other


def kinds_of(stack: nn.Module) -> dict[str, str]:
    """The kind of every parameter: ``shared``, ``adapters`` (``r`` and ``s``) or ``own``.

    ``adapters`` do not decay; gains do, as they do in members that share nothing.
    """
    kinds = dict.fromkeys((name for name, _ in stack.named_parameters()), "own")
    for prefix, module in stack.named_modules():
        if isinstance(module, AdaptedLinear):
            kinds[f"{prefix}.shared"] = "shared"
            kinds[f"{prefix}.s"] = "adapters"
            kinds[f"{prefix}.r"] = "own" if module.gains else "adapters"
    return kinds


def shared_names(stack: nn.Module) -> frozenset[str]:
    """The names of the parameters that all members share."""
    return frozenset(name for name, kind in kinds_of(stack).items() if kind == "shared")


def rows_of(
    tensors: Tensors, shared: frozenset[str], pick: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """``pick`` of every tensor of the members' own; those that they share as they are."""
    return {name: t if name in shared else pick(t) for name, t in tensors.items()}


def member_picker(stack: nn.Module, members: Sequence[int]) -> Callable[[str, Tensor], Tensor]:
    """A function from a tensor of ``stack`` to that of some members; shared ones stay whole."""
    shared, chosen = shared_names(stack), list(members)
    return lambda name, t: like(t, t.detach()[[0] if name in shared else chosen])


def separate(stack: nn.Module, members: Sequence[int]) -> nn.Module:
    """A stack of some members that shares nothing: ordinary layers of weight ``W ∘ s rᵀ``."""
    apart = rebuild(stack, member_picker(stack, members))
    for layer in list(apart.modules()):
        if isinstance(layer, AdaptedLinear):
            _replace(apart, layer, _plain(layer))
    return apart


def _plain(layer: AdaptedLinear) -> nn.Linear | ScaledLinear:
    linear: nn.Linear | ScaledLinear
    if layer.gains:
        linear = ScaledLinear(layer.in_features, layer.out_features, layer.rate)
        linear.weight = nn.Parameter((layer.shared * layer.s[..., None]).detach())
        linear.gain = layer.r
    else:
        linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, "meta")
        linear.weight = nn.Parameter(layer.weight.detach())
    linear.bias = layer.bias  # type: ignore[assignment]
    return linear.train(layer.training)

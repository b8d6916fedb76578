"""Features of an ensemble's members, for the scores that are distances between features."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dissensus.specs import nearest

__all__ = ["PENULTIMATE", "MemberFeatures"]

#: The features that go into a member's last linear layer.
PENULTIMATE = "penultimate"


class Members(Protocol):
    """An ensemble, as far as it matters here."""

    @property
    def members(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def member(self, index: int, /) -> nn.Module: ...


class MemberFeatures:
    """Features of all members side by side, ``[batch, members · width]``.

    ``module`` is ``"penultimate"``, the input of each member's last linear layer, or the name of a
    module of the members (``ens.member(0).named_modules()``), whose output is taken. Further axes
    are flattened. Members run one after the other, in evaluation mode and without gradients.

    >>> from dissensus.ensemble import Ensemble
    >>> make_member = lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> MemberFeatures(Ensemble(make_member, members=2))(torch.zeros(5, 4)).shape
    torch.Size([5, 12])
    """

    def __init__(self, ens: Members, module: str = PENULTIMATE) -> None:
        self.device = ens.device
        self.members = [ens.member(index).eval() for index in range(ens.members)]
        self._features: list[Tensor] = []
        for member in self.members:
            if module == PENULTIMATE:
                _last_linear(member).register_forward_pre_hook(self._take_input)
            else:
                _find_module(member, module).register_forward_hook(self._take_output)

    def __call__(self, x: Tensor) -> Tensor:
        """The features of ``x``."""
        self._features = []
        with torch.no_grad():
            for member in self.members:
                member(x.to(self.device))
        features, self._features = self._features, []
        if len(features) != len(self.members):
            raise ValueError(
                f"the module whose features are wanted ran {len(features)} times in "
                f"{len(self.members)} members; name one that runs once"
            )
        return torch.cat([each.flatten(1) for each in features], 1)

    def _take_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features.append(inputs[0])

    def _take_output(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._features.append(output)


def _last_linear(member: nn.Module) -> nn.Module:
    layers = [module for module in member.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("members have no linear layer; name a module whose output to take")
    return layers[-1]


def _find_module(member: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = {key: each for key, each in member.named_modules() if key}
    if name not in modules:
        raise ValueError(f"members have no module {name!r}; {nearest(name, modules)}")
    return modules[name]

"""What members see before they decide: features for the scores on features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.specs import nearest

__all__ = ["PENULTIMATE", "MemberFeatures"]

#: The name for what goes into a member's last linear layer.
PENULTIMATE = "penultimate"


class MemberFeatures:
    """Features of all members side by side, ``[batch, members · width]``.

    ``module`` is ``"penultimate"``, the input of each member's last linear layer, or the name of a
    module of the members (``ens.member(0).named_modules()``), whose output is taken. Further axes
    are flattened. In evaluation mode, without gradients; members run one after the other.

    >>> make_member = lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> ens = Ensemble(make_member, members=2)
    >>> MemberFeatures(ens)(torch.zeros(5, 4)).shape
    torch.Size([5, 12])
    """

    def __init__(self, ens: Ensemble, module: str = PENULTIMATE) -> None:
        self.device = ens.device
        self.members = [ens.member(index).eval() for index in range(ens.members)]
        self._seen: list[Tensor] = []
        for member in self.members:
            if module == PENULTIMATE:
                _last_linear(member).register_forward_pre_hook(self._keep_input)
            else:
                _named(member, module).register_forward_hook(self._keep_output)

    def __call__(self, x: Tensor) -> Tensor:
        """The features of ``x``."""
        self._seen = []
        with torch.no_grad():
            for member in self.members:
                member(x.to(self.device))
        if len(self._seen) != len(self.members):
            raise ValueError(
                f"the module whose features are wanted ran {len(self._seen)} times in "
                f"{len(self.members)} members; name one that runs once"
            )
        seen, self._seen = self._seen, []
        return torch.cat([features.flatten(1) for features in seen], 1)

    def _keep_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._seen.append(inputs[0])

    def _keep_output(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._seen.append(output)


def _last_linear(member: nn.Module) -> nn.Module:
    layers = [module for module in member.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("members have no linear layer; name a module whose output to take")
    return layers[-1]


def _named(member: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = {key: each for key, each in member.named_modules() if key}
    if name not in modules:
        raise ValueError(f"members have no module {name!r}; {nearest(name, modules)}")
    return modules[name]

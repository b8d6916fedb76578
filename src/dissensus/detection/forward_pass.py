"""Forward passes: batches of inputs, with the outputs and features that several scores share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dissensus.detection.distances import FeatureScore
from dissensus.detection.logit_scores import LastLayers
from dissensus.ensemble import Ensemble
from dissensus.outputs import check_outputs
from dissensus.scores import Logits
from dissensus.tools.modules import eval_mode
from dissensus.tools.specs import nearest

T = TypeVar("T")

#: From inputs ``[batch, …]`` to features ``[batch, width]``, or to members' outputs.
Function = Callable[[Tensor], Tensor]

#: The features that go into a member's last linear layer.
PENULTIMATE = "penultimate"


class ForwardPass:
    """A batch of inputs ``x`` and, with labels, ``y``: outputs and features, each computed once.

    Modules run in eval mode and without gradients, and get their training mode back.
    """

    def __init__(self, x: Tensor, y: Tensor | None = None) -> None:
        self.x, self.y = x, y
        self._computed: dict[Any, Any] = {}

    def outputs(self, members: Function, space: str = "logits") -> Tensor:
        """What ``members`` return, ``[members, batch, outputs]``, checked."""
        return self._once(("outputs", members, space), lambda: self._run_members(members, space))

    def scored(self, members: Function, space: str = "logits") -> Logits:
        """The logits of ``members`` with the quantities that scores share."""
        outputs = self.outputs(members, space)
        return self._once(("scored", members, space), lambda: Logits(outputs, None, space))

    def features(self, source: Function | None) -> Tensor:
        """Features of the inputs, ``[batch, width]``; without a ``source`` the inputs."""
        return self._once(("features", source), lambda: self._run_source(source))

    def distance(self, score: FeatureScore, source: Function | None) -> Tensor:
        """A score of features, ``[batch]``."""
        return self._once((score, source), lambda: score(self.features(source)))

    def _once(self, key: Any, compute: Callable[[], T]) -> T:
        if key not in self._computed:
            self._computed[key] = compute()
        value: T = self._computed[key]
        return value

    def _run_members(self, members: Function, space: str) -> Tensor:
        with torch.no_grad(), eval_mode(members):
            outputs = members(self.x)
        check_outputs(outputs, finite=space != "log_probs")
        if outputs.shape[1] != len(self.x):
            raise ValueError(
                f"ens must return [members, {len(self.x)}, outputs], got {tuple(outputs.shape)}"
            )
        return outputs

    def _run_source(self, source: Function | None) -> Tensor:
        if source is None:
            return self.x.flatten(1)
        with torch.no_grad():
            return source(self.x)


def forward_passes(
    data: Tensor | Iterable[Any], batch_size: int, device: torch.device | None = None
) -> Iterator[ForwardPass]:
    """Passes of at most ``batch_size`` inputs each, on ``device``.

    ``data`` is a tensor, an ``(x, y)`` tuple, a DataLoader or another iterable of batches ``x`` or
    ``(x, y)``.
    """
    if isinstance(data, Dataset):
        raise ValueError("data must come in batches, got a Dataset; pass DataLoader(data, 256)")
    whole = isinstance(data, Tensor) or (
        isinstance(data, tuple) and len(data) == 2 and all(isinstance(d, Tensor) for d in data)
    )
    for batch in [data] if whole else data:
        parts = batch if isinstance(batch, (tuple, list)) and batch else [batch]
        x, y = parts[0], parts[1] if len(parts) > 1 else None
        if not isinstance(x, Tensor) or x.ndim == 0:
            raise ValueError(f"data must be a tensor, (x, y) or batches, got {type(x).__name__}")
        for start in range(0, len(x), batch_size):
            own = slice(start, start + batch_size)
            part = x[own] if device is None else x[own].to(device)
            yield ForwardPass(part, y[own] if isinstance(y, Tensor) else None)


# ---- features of members -------------------------------------------------------------------------


class MemberFeatures:
    """Features of all members side by side, ``[batch, members · width]``.

    ``module`` is ``"penultimate"``, the input of each member's last linear layer, or the name of a
    module of the members (``ens.member(0).named_modules()``), whose output is taken. Further axes
    are flattened. Members run one after the other, in evaluation mode and without gradients. Where
    members are linear heads on one backbone or on the inputs, they have the same features, which
    are taken once, ``[batch, width]``.

    The members are copied: train the ensemble first.

    >>> make_member = lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> features = MemberFeatures(Ensemble(make_member, members=2))
    >>> features(torch.zeros(5, 4)).shape, features.last_layers(torch.zeros(5, 4)).weight.shape
    (torch.Size([5, 12]), torch.Size([2, 3, 6]))
    """

    def __init__(self, ens: Ensemble, module: str = PENULTIMATE) -> None:
        if not isinstance(ens, Ensemble):
            raise ValueError(f"features need an Ensemble, got {type(ens).__name__}; pass features=")
        self.device, self.module = ens.device, module
        self.classifies = getattr(ens, "combine", None) != "mean"
        self.members = [ens.member(index).eval() for index in range(ens.members)]
        self.shared = module == PENULTIMATE and all(
            _is_linear_head(member, getattr(ens, "backbone", None)) for member in self.members
        )
        self._features: list[Tensor] = []
        for member in self.members:
            if module == PENULTIMATE:
                _last_linear(member).register_forward_pre_hook(self._take_input)
            else:
                _find_module(member, module).register_forward_hook(self._take_output)

    def __call__(self, x: Tensor) -> Tensor:
        """The features of ``x``."""
        members = self.members[:1] if self.shared else self.members
        return torch.cat([features for features, _ in self._run(members, x)], 1)

    def last_layers(self, example: Tensor) -> LastLayers:
        """The members' last linear layers; ``example`` shows that their outputs are the logits."""
        if self.module != PENULTIMATE or not self.classifies:
            what = f"features of {self.module!r}" if self.classifies else "a regression"
            raise ValueError(
                f"vim and react need the penultimate layer of a classifier, got {what}"
            )
        layers = [_last_linear(member) for member in self.members]
        runs = self._run(self.members, example)
        if not all(_gives(layer, *run) for layer, run in zip(layers, runs, strict=True)):
            raise ValueError("the last linear layer of a member does not give its outputs; use knn")
        return LastLayers.of(layers)

    def _run(self, members: list[nn.Module], x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Features and outputs of each member."""
        self._features = []
        with torch.no_grad():
            outputs = [member(x.to(self.device)) for member in members]
        features, self._features = self._features, []
        if len(features) != len(members):
            raise ValueError(f"{self.module!r} ran {len(features)} times in {len(members)} members")
        return [(each.flatten(1), out) for each, out in zip(features, outputs, strict=True)]

    def _take_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features.append(inputs[0])

    def _take_output(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._features.append(output)


def _gives(layer: nn.Linear, features: Tensor, outputs: Tensor) -> bool:
    """Whether the layer leads from these features to these outputs."""
    if features.shape[1] != layer.in_features:
        return False
    with torch.no_grad():
        return torch.allclose(layer(features), outputs, rtol=1e-3, atol=1e-4)


def has_last_layer(ens: object) -> bool:
    """Whether members have a linear layer, and so a penultimate layer; False for no Ensemble."""
    modules = ens.member(0).modules() if isinstance(ens, Ensemble) else ()
    return any(isinstance(module, nn.Linear) for module in modules)


def _is_linear_head(member: nn.Module, backbone: nn.Module | None) -> bool:
    """Whether nothing of the member's own comes before its last layer."""
    frozen = 0 if backbone is None else len(backbone.state_dict())
    return len(member.state_dict()) - frozen == len(_last_linear(member).state_dict())


def _last_linear(member: nn.Module) -> nn.Linear:
    layers = [module for module in member.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("members have no linear layer; name a module whose output to take")
    return layers[-1]


def _find_module(member: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = {key: each for key, each in member.named_modules() if key}
    if name not in modules:
        raise ValueError(f"members have no module {name!r}; {nearest(name, modules)}")
    return modules[name]

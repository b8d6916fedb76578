"""The ensemble: members as one ``nn.Module`` that gives ``[members, batch, outputs]``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from dissensus.ensemble.adapters import (
    SHARINGS,
    member_picker,
    rows_of,
    separate,
    share,
    shared_names,
)
from dissensus.ensemble.execution import (
    EXECUTIONS,
    channels_last,
    choose,
    convolutional,
    looped_outputs,
    measure,
    stackable,
    stacked_outputs,
    takes_channels_last,
)
from dissensus.ensemble.factories import check_members, make_members, member_seed
from dissensus.ensemble.stack import (
    Tensors,
    alike,
    put_tensors,
    stack_modules,
    tensors_of,
    unstack,
)
from dissensus.models import MemberFactory
from dissensus.outputs import COMBINATIONS, check_weights, combine, majority_vote
from dissensus.tools.guards import formula
from dissensus.tools.specs import check_choice
from dissensus.tools.tabular import html_table


class Ensemble(nn.Module):
    """``members`` networks from ``make_member()``, each with a seed of its own.

    ``ens(x)`` is every member's output, ``[members, batch, outputs]``; ``ens.predict(x)`` combines
    them: ``combine`` is ``"probability"``, ``"score"`` or ``"mean"`` (regression). ``execution`` is
    ``"auto"``, ``"stacked"``, ``"looped"`` or ``"tune"`` (see ``ensemble.execution``).

    With ``sharing="adapters"`` members share the weights of their linear layers, as in TabM and
    BatchEnsemble: a member's own are a scale for every input and output of a layer, biases, and
    the last layer (see ``ensemble.adapters``). Many members have hardly more parameters than one.

    >>> ens = Ensemble(lambda: nn.Linear(4, 3), members=5, seed=0)
    >>> ens(torch.zeros(2, 4)).shape, ens(torch.zeros(2, 4), members=[0, 3]).shape
    (torch.Size([5, 2, 3]), torch.Size([2, 2, 3]))
    >>> ens.predict(torch.zeros(2, 4)).sum(-1)
    tensor([1., 1.])
    >>> len(ens), ens[0], ens[1:3].members
    (5, Linear(in_features=4, out_features=3, bias=True), 2)
    """

    weights: Tensor | None
    made_by: MemberFactory | None  # what made the members, where it is plain data

    @formula
    def __init__(
        self,
        make_member: Callable[[], nn.Module] | nn.Module,
        members: int = 5,
        seed: int = 0,
        combine: str = "probability",
        execution: str = "auto",
        sharing: str | None = None,
    ) -> None:
        super().__init__()
        check_members(members)
        if sharing is not None:
            check_choice("Ensemble", "sharing", sharing, SHARINGS)
        modules = make_members(make_member, members, seed)
        # Signs have a seed apart from that of the weights, which drew from the same numbers.
        signs = [member_seed(member_seed(seed, j), 0) for j in range(members)]
        self._settle(modules, combine, execution, signs if sharing else None)
        self.made_by = make_member if isinstance(make_member, MemberFactory) else None

    @classmethod
    def from_members(
        cls, members: Sequence[nn.Module], combine: str = "probability", execution: str = "auto"
    ) -> Self:
        """An ensemble of modules that exist, even unlike ones; their weights are copied."""
        modules = list(members)
        if not modules or not all(isinstance(module, nn.Module) for module in modules):
            got = [type(module).__name__ for module in modules]
            raise ValueError(f"members must be one or more nn.Module, got {got}")
        ens = cls.__new__(cls)
        nn.Module.__init__(ens)
        ens._settle([copy.deepcopy(module) for module in modules], combine, execution)
        return ens.train(any(module.training for module in modules))

    @classmethod
    def on_features(
        cls,
        backbone: nn.Module,
        make_head: Callable[[], nn.Module],
        members: int = 5,
        seed: int = 0,
        combine: str = "probability",
        execution: str = "auto",
        sharing: str | None = None,
    ) -> Self:
        """Member heads on a shared, frozen ``backbone``, which runs once for each batch."""
        ens = cls(make_head, members, seed, combine, execution, sharing)
        ens.backbone = backbone.requires_grad_(False).eval()
        return ens

    def _settle(
        self,
        modules: list[nn.Module],
        combine: str,
        execution: str,
        signs: Sequence[int] | None = None,
    ) -> None:
        """Hold ``modules``; with ``signs``, seeds of their adapters, they share weights."""
        check_choice("Ensemble", "combine", combine, COMBINATIONS)
        check_choice("Ensemble", "execution", execution, EXECUTIONS)
        self.combine, self.execution = combine, execution
        self.members = len(modules)
        #: The text that names the objective it was last trained by; None where that is not known.
        self.objective: str | None = None
        self.backbone: nn.Module | None = None
        self.made_by = None
        self.register_buffer("weights", None)
        self.stack: nn.Module | None = None
        self.unlike: nn.ModuleList | None = None
        self.sharing = None if signs is None else "adapters"
        #: Names in the stack of the parameters that all members share.
        self.shared: frozenset[str] = frozenset()
        if alike(modules):
            self.stack = stack_modules(modules) if signs is None else share(modules, signs)
            self.shared = shared_names(self.stack)
            self._stackable = stackable(self.stack)
        elif signs is not None:
            raise ValueError("members of unlike structure cannot share weights; use sharing=None")
        elif execution == "stacked":
            raise ValueError(
                "members of unlike structure cannot be stacked; use execution='looped' or 'auto'"
            )
        else:
            self.unlike = nn.ModuleList(modules)
        # Found once, as every step looks them up.
        self._convolutional = convolutional(self.holder)
        self._sees_images = takes_channels_last(self.holder)
        if not list(self.holder.parameters()):
            raise ValueError("members must have parameters, got modules without any")

    # ---- outputs --------------------------------------------------------------------------------

    def forward(self, x: Tensor, members: Sequence[int] | None = None) -> Tensor:
        """``[members, batch, outputs]``; with ``members`` only of these, in this order."""
        x = self.features(x)
        if self.stack is None:
            assert self.unlike is not None
            chosen = range(self.members) if members is None else self._indices(members)
            x = channels_last(x) if self._sees_images else x
            return _same_shape([self.unlike[j](x) for j in chosen])
        parameters, buffers = tensors_of(self.stack)
        if members is None:
            return self.run(parameters, buffers, x)
        index = torch.tensor(self._indices(members), device=self.device)
        rows = rows_of(parameters, self.shared, lambda tensor: tensor.index_select(0, index))
        return self.run_drawn(rows, buffers, x, index)

    def run(self, parameters: Tensors, buffers: Tensors, x: Tensor, *, own: bool = False) -> Tensor:
        """Outputs from stacked tensors that are passed in: what training and vmap build on.

        With ``own``, ``x`` is ``[members, batch, …]``: each member runs on a batch of its own.
        """
        assert self.stack is not None
        if self.resolved_execution() == "stacked":
            return _three_axes(stacked_outputs(self.stack, parameters, buffers, x, own=own))
        x = channels_last(x) if self._sees_images else x
        return _three_axes(looped_outputs(self.stack, parameters, buffers, x, own=own))

    def run_drawn(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, index: Tensor, *, own: bool = False
    ) -> Tensor:
        """As :meth:`run` for some members: ``parameters`` are theirs, ``buffers`` are everyone's.

        Running statistics of the drawn members are written back; those of others are not touched.
        """
        rows = {name: tensor.index_select(0, index) for name, tensor in buffers.items()}
        outputs = self.run(parameters, rows, x, own=own)
        if self.training:
            for name, tensor in buffers.items():
                tensor.index_copy_(0, index, rows[name])
        return outputs

    def features(self, x: Tensor) -> Tensor:
        """What the members see: ``x``, or the frozen backbone's features of it."""
        if self.backbone is None:
            return x
        # Weights of the backbone never get a gradient; inputs that ask for one (attacks) do.
        with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
            features: Tensor = self.backbone(x)
        return features

    def predict(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """The combined prediction in evaluation mode: probabilities, or the mean in regression."""
        with self.evaluating():
            return combine(self(x), self.combine, self.weights if weights is None else weights)

    def vote(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """The class that most members predict, ``[batch]``; ties go to the lowest class."""
        with self.evaluating():
            return majority_vote(self(x), self.weights if weights is None else weights)

    def set_weights(self, weights: Tensor | None) -> Self:
        """Weigh the members in ``predict`` and ``vote``; None weighs them equally."""
        check_weights(weights, self.members)
        self.weights = None if weights is None else weights.detach().clone().to(self.device)
        return self

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While entered, evaluation mode without gradients."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)

    # ---- members --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.members

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...

    @overload
    def __getitem__(self, index: slice) -> Ensemble: ...

    def __getitem__(self, index: int | slice) -> nn.Module | Ensemble:
        """``ens[0]`` is :meth:`member` 0, a copy; ``ens[:3]`` an ensemble of the first three."""
        if isinstance(index, slice):
            return self.select(range(self.members)[index])
        if not -self.members <= index < self.members:
            raise IndexError(f"member {index} of an ensemble of {self.members} members")
        return self.member(index)

    def __iter__(self) -> Iterator[nn.Module]:
        return (self.member(index) for index in range(self.members))

    def member(self, index: int) -> nn.Module:
        """A copy of one member as an ordinary module, behind the backbone if there is one."""
        (chosen,) = self._indices([index])
        if self.stack is None:
            assert self.unlike is not None
            module: nn.Module = copy.deepcopy(self.unlike[chosen])
        else:
            module = unstack(separate(self.stack, [chosen]), lambda tensor: tensor[0])
        return self._with_backbone(module)

    def select(self, members: Sequence[int]) -> Ensemble:
        """A new ensemble of some members (pruning), in the order given."""
        chosen = self._indices(members)
        ens = copy.deepcopy(self)
        ens.members = len(chosen)
        if ens.stack is None:
            assert ens.unlike is not None
            ens.unlike = nn.ModuleList(ens.unlike[j] for j in chosen)
        else:
            put_tensors(ens.stack, member_picker(ens.stack, chosen))
        if self.weights is not None:
            weights = self.weights[chosen]
            ens.set_weights(weights / weights.sum() if weights.sum() > 0 else None)
        return ens

    def soup(self, loader: Any = None, members: Sequence[int] | None = None) -> nn.Module:
        """One module with the mean of the members' weights; see ``ensemble.soups``."""
        from dissensus.ensemble.soups import soup

        return soup(self, loader, members)

    def save(self, folder: str | Path) -> None:
        """Write the weights, and how to build the ensemble, for ``dissensus.load(folder)``.

        An ensemble of a named network (``models.make_factory``) loads as it is. For one of a
        function of your own, pass ``make_member=`` to ``load``: files hold no code.
        """
        from dissensus.ensemble.saving import save

        save(self, folder)

    def _with_backbone(self, module: nn.Module) -> nn.Module:
        module.train(self.training)
        if self.backbone is None:
            return module
        return nn.Sequential(copy.deepcopy(self.backbone), module)

    def _indices(self, members: Sequence[int]) -> list[int]:
        chosen = [int(member) for member in members]
        if not chosen or not all(-self.members <= member < self.members for member in chosen):
            raise ValueError(
                f"members must be one or more of 0 to {self.members - 1}, got {list(members)}"
            )
        chosen = [member % self.members for member in chosen]
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"members must not repeat, got {list(members)}")
        return chosen

    # ---- execution and modes --------------------------------------------------------------------

    @property
    def holder(self) -> nn.Module:
        """The module that holds the members: their stack, or the list of unlike ones."""
        holder = self.stack if self.stack is not None else self.unlike
        assert holder is not None
        return holder

    @property
    def device(self) -> torch.device:
        """Where the members' parameters are."""
        return next(self.holder.parameters()).device

    def resolved_execution(self) -> str:
        """``"stacked"`` or ``"looped"``: what runs now."""
        if self.stack is None:
            return "looped"
        if self.execution in ("auto", "tune"):
            return choose(self._convolutional, self.device) if self._stackable else "looped"
        return self.execution

    def tune(self, x: Tensor) -> dict[str, float]:
        """Time both executions on ``x``, keep the faster one, and return the seconds of each."""
        if self.stack is None or not self._stackable:
            return {}
        trial = copy.deepcopy(self)

        def run(execution: str) -> Tensor:
            trial.execution = execution
            outputs: Tensor = trial(x)
            return outputs

        with torch.random.fork_rng(), torch.enable_grad():
            seconds = measure(run)
        self.execution = min(seconds, key=lambda name: seconds[name])
        return seconds

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; a shared backbone always evaluates."""
        super().train(mode)
        if self.backbone is not None:
            self.backbone.eval()
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        saved = state_dict.get(prefix + "weights")
        self.weights = None if saved is None else saved.detach().clone().to(self.device)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __repr__(self) -> str:
        sharing = f", sharing={self.sharing!r}" if self.sharing else ""
        networks = [self.holder] if self.stack is not None else self.holder.children()
        kinds = dict.fromkeys(type(network).__name__ for network in networks)
        return (
            f"Ensemble({self.members} × {' or '.join(kinds)}, {_count_parameters(self.holder):,} "
            f"parameters, combine={self.combine!r}, execution={self.execution!r}{sharing})"
        )

    def _repr_html_(self) -> str:
        """The layers of the members, or the members where they are unlike."""
        kind = "member" if self.stack is None else "layer"
        rows = [
            {kind: name, "module": type(module).__name__, "parameters": _count_parameters(module)}
            for name, module in self.holder.named_children()
        ]
        return html_table(rows, repr(self))


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _three_axes(outputs: Tensor) -> Tensor:
    if outputs.ndim != 3:
        raise ValueError(
            f"a member must return [batch, outputs] or [batch, 1], got {tuple(outputs.shape[1:])}"
        )
    return outputs


def _same_shape(outputs: list[Tensor]) -> Tensor:
    shapes = {tuple(output.shape) for output in outputs}
    if len(shapes) > 1:
        raise ValueError(f"members must return outputs of one shape, got {sorted(shapes)}")
    return _three_axes(torch.stack(outputs))

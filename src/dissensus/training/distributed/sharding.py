"""Members whose parameters are split over the ranks of the data axis (FSDP2).

For members that do not fit on one device together with their gradients and moments: a rank keeps
its part of each, and a member is put together only while it runs. Members run one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import unstack
from dissensus.objectives import Objective, Terms
from dissensus.training.distributed.group import Group
from dissensus.training.optim import MemberOptimizer, Optimizer
from dissensus.training.recipe import Recipe
from dissensus.training.steps import Meet, Reduce, autocast, evaluate_objective
from dissensus.training.stream import Batch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["ShardTrainer", "Shards"]

Tensors = dict[str, Tensor]


class Shards:
    """The members of ``ens``, split; ``ens`` goes on with them as members of unlike structure."""

    def __init__(self, ens: Ensemble, group: Group) -> None:
        if group.data is None or group.mesh is None:
            raise ValueError("shard=True splits members over ranks along data, of which there is 1")
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ValueError("shard=True needs torch 2.6 or newer") from error
        self.group, self.stacked = group, ens.stack is not None
        if ens.stack is not None:
            stack, ens.stack = ens.stack, None
            picks = [itemgetter(j) for j in range(ens.members)]
            ens.unlike = nn.ModuleList(unstack(stack, pick) for pick in picks)
        assert ens.unlike is not None
        self.members = ens.unlike
        self.mesh = group.mesh["data"]
        self._split = fully_shard

    def split(self) -> None:
        """Split every member; called once all layers are in their places."""
        for member in self.members:
            self._split(member, mesh=self.mesh, reshard_after_forward=True)

    def parameters(self, member: int) -> list[DTensor]:
        """The split parameters of a member that are trained."""
        return [p for p in self.members[member].parameters() if p.requires_grad]  # type: ignore[misc]

    def whole(self, part: Tensor, like: DTensor) -> Tensor:
        """A tensor from the parts of it on all ranks, split as ``like`` is."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        ).full_tensor()

    def part(self, whole: Tensor, like: DTensor) -> Tensor:
        """This rank's part of a tensor that all ranks have whole."""
        from torch.distributed.tensor import distribute_tensor

        there = whole.to(like.device)
        return distribute_tensor(
            there, like.device_mesh, like.placements, src_data_rank=None
        ).to_local()

    # ---- weights, named as an ensemble does -----------------------------------------------------

    def state(self) -> Tensors:
        """The whole weights and statistics of this rank's members; all ranks along data ask."""
        found: list[Tensors] = []
        for member in self.members:
            own = member.state_dict()
            found.append({n: t.full_tensor() if _split(t) else t for n, t in own.items()})
        if self.stacked:
            return {f"stack.{n}": torch.stack([own[n] for own in found]) for n in found[0]}
        return {f"unlike.{j}.{n}": t for j, own in enumerate(found) for n, t in own.items()}

    def load(self, state: Tensors) -> None:
        """Take the parts of whole weights and statistics."""
        for j, member in enumerate(self.members):
            for name, tensor in member.state_dict().items():
                saved = state[f"stack.{name}"][j] if self.stacked else state[f"unlike.{j}.{name}"]
                if _split(tensor):
                    tensor.to_local().copy_(self.part(saved, tensor))
                else:
                    tensor.copy_(saved)


class ShardTrainer:
    """Steps members that are split, as ``UnlikeTrainer`` does others."""

    def __init__(self, ens: Ensemble, objective: Objective, recipe: Recipe, shards: Shards) -> None:
        self.ens, self.objective, self.recipe, self.shards = ens, objective, recipe, shards
        self.meet: Meet = evaluate_objective
        self.reduce: Reduce | None = None  # FSDP2 does it
        self.parameters = [shards.parameters(member) for member in range(ens.members)]
        if not any(self.parameters):
            raise ValueError("no parameter requires a gradient: there is nothing to train")
        settings = recipe.optimizer
        assert isinstance(settings, Optimizer)
        rates, decays = settings.for_members(ens.members)
        self.optimizers = [
            MemberOptimizer(
                Optimizer(**{**vars(settings), "lr": rates[j], "weight_decay": decays[j]}),
                [p.to_local().detach()[None] for p in own],  # views: stepping them steps these
                1,
            )
            for j, own in enumerate(self.parameters)
        ]

    def step_trained(
        self, batch: Batch, trained: set[int], scale: float, *, check: bool
    ) -> tuple[Tensor, Terms]:
        """Train ``trained`` of this rank's members on one batch."""
        x, extra = batch.x, batch.extra
        rows = list(range(self.ens.members)) if batch.drawn is None else batch.drawn
        update = [m for m in rows if m in trained and self.parameters[m]]
        before = [(b, b.clone()) for m in rows if m not in update for b in self._buffers(m)]
        with autocast(x, self.recipe):
            outputs = self.ens(x, rows)
            unlabelled = None if extra is None else self.ens(extra, rows)
        ends = [outputs] if unlabelled is None else [outputs, unlabelled]
        outputs, terms, at_ends = self.meet(self.objective, ends, batch, check=check)
        for buffer, values in before:
            buffer.copy_(values)
        if update and math.isfinite(terms.loss.detach()):
            torch.autograd.backward(ends, at_ends)
            for member in update:
                gradients = self._clipped([self._gradient(p) for p in self.parameters[member]])
                self.optimizers[member].step([g[None] for g in gradients], None, scale)
        for parameter in self.ens.parameters():
            parameter.grad = None
        return outputs, terms

    def _gradient(self, parameter: DTensor) -> Tensor:
        """This rank's part of a gradient summed over ranks; FSDP2 takes their mean."""
        local = parameter.to_local()
        if parameter.grad is None:
            return torch.zeros_like(local)
        gradient: Tensor = parameter.grad.to_local()  # type: ignore[attr-defined]
        return gradient * self.shards.mesh.size()

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """As ``optim.clip_by_member`` for one member, whose parts lie on several ranks."""
        if self.recipe.clip is None:
            return gradients
        square = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        group = self.shards.group
        norm = group.all_reduce(square.reshape(1), "gradients", group.data).sqrt()
        factor = (self.recipe.clip / (norm + 1e-6)).clamp_max(1.0)
        return [gradient * factor for gradient in gradients]

    def _buffers(self, member: int) -> Sequence[Tensor]:
        return list(self.shards.members[member].buffers())

    # ---- moments, named as the trainer of an ensemble in one piece does -------------------------

    def tensors(self) -> Tensors:
        """What has to be saved of the optimisers, whole; all ranks along data ask."""
        found: list[Tensors] = []
        for own, optimizer in zip(self.parameters, self.optimizers, strict=True):
            state = optimizer.state()
            whole = {"counts": state["counts"]}
            for slot in range(len(optimizer.moments)):
                for index, parameter in enumerate(own):
                    name = f"moment{slot}.{index}"
                    whole[name] = self.shards.whole(state[name][0], parameter)[None]
            found.append(whole)
        if self.shards.stacked:
            return {name: torch.cat([own[name] for own in found]) for name in found[0]}
        return {f"{j}.{name}": t for j, own in enumerate(found) for name, t in own.items()}

    def load(self, tensors: Tensors) -> None:
        """Go on from what :meth:`tensors` returned."""
        for j, (own, optimizer) in enumerate(zip(self.parameters, self.optimizers, strict=True)):
            part = {}
            for name in optimizer.state():
                saved = tensors[name][j : j + 1] if self.shards.stacked else tensors[f"{j}.{name}"]
                if name != "counts":
                    parameter = own[int(name.partition(".")[2])]
                    saved = self.shards.part(saved[0], parameter)[None]
                part[name] = saved
            optimizer.load(part)


def _split(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")

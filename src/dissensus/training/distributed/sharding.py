"""Sharding: members whose parameters are split over the ranks of the data axis (FSDP2).

For members that do not fit on one device together with their gradients and moments: a rank keeps
its part of each, and a member is assembled only while it runs. Members run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import unstack
from dissensus.training.distributed.communicator import Communicator
from dissensus.training.optim import MemberOptimizer
from dissensus.training.recipe import Recipe
from dissensus.training.step import Backward, SeparateMembers

Tensors = dict[str, Tensor]


class Shards:
    """The members of ``ens``, split; from then on ``ens`` holds them as unlike members."""

    def __init__(self, ens: Ensemble, link: Communicator) -> None:
        if link.data is None or link.mesh is None:
            raise ValueError("shard=True splits members over ranks along data, of which there is 1")
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ValueError("shard=True needs torch 2.6 or newer") from error
        self.link, self.stacked = link, ens.stack is not None
        if ens.stack is not None:
            stack, ens.stack = ens.stack, None
            picks = [itemgetter(j) for j in range(ens.members)]
            ens.unlike = nn.ModuleList(unstack(stack, pick) for pick in picks)
        assert ens.unlike is not None
        self.members = ens.unlike
        self.mesh = link.mesh["data"]
        self._split = fully_shard

    def split(self) -> None:
        """Split every member; called once all layers are in their places."""
        for member in self.members:
            self._split(member, mesh=self.mesh, reshard_after_forward=True)

    def whole(self, part: Tensor, like: Any) -> Tensor:
        """A tensor from the parts of it on all ranks, split as ``like`` is."""
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        ).full_tensor()

    def part(self, whole: Tensor, like: Any) -> Tensor:
        """This rank's part of a tensor that all ranks have whole."""
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = like.device_mesh, like.placements
        parts = distribute_tensor(whole.to(like.device), mesh, placements, src_data_rank=None)
        return parts.to_local()

    # ---- weights, named as an ensemble does -----------------------------------------------------

    def state(self) -> Tensors:
        """The whole weights and statistics of own members; all ranks along data must call."""
        members: list[Tensors] = []
        for member in self.members:
            own = member.state_dict()
            members.append({n: t.full_tensor() if _split(t) else t for n, t in own.items()})
        if self.stacked:
            return {f"stack.{n}": torch.stack([own[n] for own in members]) for n in members[0]}
        return {f"unlike.{j}.{n}": t for j, own in enumerate(members) for n, t in own.items()}

    def load(self, state: Tensors) -> None:
        """Take the parts of whole weights and statistics."""
        for j, member in enumerate(self.members):
            for name, tensor in member.state_dict().items():
                saved = state[f"stack.{name}"][j] if self.stacked else state[f"unlike.{j}.{name}"]
                if _split(tensor):
                    tensor.to_local().copy_(self.part(saved, tensor))
                else:
                    tensor.copy_(saved)


class ShardedMembers(SeparateMembers):
    """Members that are split; FSDP2 sums their gradients over ranks."""

    def __init__(self, ens: Ensemble, recipe: Recipe, shards: Shards) -> None:
        self.shards = shards
        super().__init__(ens, recipe)

    def _local(self, parameter: nn.Parameter) -> Tensor:
        local: Tensor = parameter.to_local()  # type: ignore[attr-defined]
        return local

    def _backward(self, outputs: list[Tensor], leaves: list[nn.Parameter]) -> Backward:
        """FSDP2 leaves the mean over ranks of a gradient, of which a rank has its part."""

        def backward(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
            if not leaves:
                return []
            cast = [g.to(output.dtype) for g, output in zip(gradients, outputs, strict=True)]
            torch.autograd.backward(outputs, cast)
            summed = [self._gradient(leaf) * self.shards.mesh.size() for leaf in leaves]
            for parameter in self.ens.parameters():
                parameter.grad = None
            return summed

        return backward

    def _gradient(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            return torch.zeros_like(self._local(parameter))
        gradient: Tensor = parameter.grad.to_local()  # type: ignore[attr-defined]
        return gradient

    def _clipped(self, gradients: list[Tensor], limit: float) -> list[Tensor]:
        """As ``optim.clip_by_member`` for one member, whose parts lie on several ranks."""
        square = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        link = self.shards.link
        norm = link.all_reduce(square.reshape(1), "gradients", link.data).sqrt()
        factor = (limit / (norm + 1e-6)).clamp_max(1.0)
        return [gradient * factor for gradient in gradients]

    # ---- moments, named as those of an ensemble in one piece -------------------------

    def state(self) -> Tensors:
        """The optimisers' tensors, whole; all ranks along data must call."""
        members: list[Tensors] = []
        for own, optimizer in zip(self.parameters, self.optimizers, strict=True):
            assert isinstance(optimizer, MemberOptimizer)  # the trainer has looked
            state = optimizer.state()
            whole = {"counts": state["counts"]}
            for slot in range(len(optimizer.moments)):
                for index, parameter in enumerate(own):
                    name = f"moment{slot}.{index}"
                    whole[name] = self.shards.whole(state[name][0], parameter)[None]
            members.append(whole)
        if self.shards.stacked:
            return {name: torch.cat([own[name] for own in members]) for name in members[0]}
        return {f"{j}.{name}": t for j, own in enumerate(members) for name, t in own.items()}

    def load(self, tensors: Tensors) -> None:
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

"""Outputs of all members from those of each rank, in one all-gather that gradients pass.

A rank sends ``[own members, own rows, outputs]``, with three numbers in front by which all ranks
see that they are at the same batch, and whether one wants to stop. Pieces are padded to one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dissensus.training.distributed.group import Group
from dissensus.training.layout import Share

__all__ = ["Exchange", "to_all_members"]

_HEAD = 3  # numbers in front of the outputs: wants to stop, rows, a sum over the targets
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Exchange:
    """Gathers outputs over the whole mesh, or over a ``column`` of it, which has all members."""

    def __init__(self, group: Group, *, column: bool = False) -> None:
        self.group = group
        self.comm = group.column if column else None
        self.rank = group.along if column else group.rank
        self.wants_to_stop = False  # this rank
        self.stopping = False  # any rank, as of the last exchange
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}
        self._places = torch.empty(0, dtype=torch.float64)

    @property
    def width(self) -> int | None:
        """How many outputs a member has; None before the first exchange."""
        return next((width for width, _ in self._kinds.values()), None)

    def gather(
        self,
        pieces: Sequence[Tensor],
        shares: Sequence[Share],
        targets: Tensor | None = None,
        kind: str = "train",
    ) -> list[Tensor]:
        """The whole of each piece, ``[members, rows, outputs]``; differentiable.

        ``shares`` say how each is dealt out. ``targets`` have to be the same on all ranks. Outputs
        of one ``kind`` always have the same dtype.
        """
        width, dtype = self._settled(kind, pieces)
        pieces = [
            piece
            if piece.shape[2] == width
            else piece.new_empty(*piece.shape[:2], width, dtype=dtype)
            for piece in pieces
        ]
        if torch.is_grad_enabled():
            return list(_apply(_Gathered, self, shares, targets, width, *pieces))
        return self.run(pieces, shares, targets, width)

    def run(
        self, pieces: Sequence[Tensor], shares: Sequence[Share], targets: Tensor | None, width: int
    ) -> list[Tensor]:
        """As :meth:`gather`, for pieces that all have ``width`` outputs, without a gradient."""
        ranks = range(len(shares[0].members) * len(shares[0].rows))
        sizes = [sum(share.size(rank) for share in shares) * width for rank in ranks]
        flat = pieces[0].new_zeros(_HEAD + max(sizes))
        flat[0], flat[1] = float(self.wants_to_stop), shares[0].shape[1]
        flat[2] = self._sum(targets)
        own = torch.cat([piece.detach().flatten() for piece in pieces])
        flat[_HEAD : _HEAD + len(own)] = own
        whole = self.group.all_gather(flat, "outputs", self.comm)
        self._check(whole[:, :_HEAD])
        found = [flat.new_empty(*share.shape, width) for share in shares]
        for rank in ranks:
            start = _HEAD
            for share, into in zip(shares, found, strict=True):
                positions, rows = share.of(rank)
                part = whole[rank, start : start + share.size(rank) * width]
                shape = len(positions), len(rows), width
                into[positions, rows.start : rows.stop] = part.view(shape)
                start += share.size(rank) * width
        return found

    def _settled(self, kind: str, pieces: Sequence[Tensor]) -> tuple[int, torch.dtype]:
        """Outputs and dtype, which a rank whose members are not drawn cannot know by itself."""
        if kind not in self._kinds:
            known = next((p for p in pieces if p.numel()), None)
            own = [0, 0] if known is None else [known.shape[2], 1 + _DTYPES.index(known.dtype)]
            device = pieces[0].device
            pair = torch.tensor(own, device=device)
            found = self.group.all_gather(pair, "shapes", self.comm).tolist()
            seen = {tuple(pair) for pair in found if pair[0]}
            if len(seen) != 1:
                raise ValueError(
                    "members must have equally many outputs of one dtype on all ranks, got "
                    + ", ".join(f"{n} × {_DTYPES[d - 1]}" for n, d in sorted(seen))
                )
            ((width, number),) = seen
            self._kinds[kind] = width, _DTYPES[number - 1]
        return self._kinds[kind]

    def _sum(self, targets: Tensor | None) -> float:
        """A number that two batches in unlike order hardly share."""
        if targets is None:
            return 0.0
        flat = targets.detach().flatten().to("cpu", torch.float64)
        if len(self._places) < len(flat):
            self._places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
        return float(flat @ self._places[: len(flat)] / len(flat))

    def _check(self, heads: Tensor) -> None:
        rough = 1e-2 if heads.dtype.itemsize < 4 else 1e-5
        heads = heads.to("cpu", torch.float64)
        self.stopping = bool(heads[:, 0].any())
        close = torch.isclose(heads, heads[0], rtol=rough, equal_nan=True)
        unlike = (~close[:, 1:].all(1)).nonzero().flatten().tolist()
        if unlike:
            raise ValueError(
                f"rank {unlike[0]} has another batch than rank 0; all ranks must be given the same "
                "data in the same order: pass tensors, or a loader whose order follows torch's seed"
            )


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    return function.apply(*inputs)


class _Gathered(torch.autograd.Function):
    """All outputs from each rank's, and back.

    Forward is an all-gather. Backward needs no exchange: every rank evaluates the one loss on the
    same gathered outputs and so finds the same gradient ∂loss/∂outputs, whole, of which its own
    members' and rows' is a slice. Adding up the ranks' gradients, as the backward pass of an
    all-gather does where each rank has a loss of its own, would count the one loss once a rank.
    """

    @staticmethod
    def forward(
        ctx: Any,
        exchange: Exchange,
        shares: Sequence[Share],
        targets: Tensor | None,
        width: int,
        *pieces: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.own = [share.of(exchange.rank) for share in shares]
        return tuple(exchange.run(pieces, shares, targets, width))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slices = [
            gradient[positions, rows.start : rows.stop]
            for gradient, (positions, rows) in zip(gradients, ctx.own, strict=True)
        ]
        return None, None, None, None, *slices


class _ToAllMembers(torch.autograd.Function):
    """Inputs as they are; their gradient is the sum of what the ranks' members each have of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        group = ctx.group
        return group.all_reduce(gradient.contiguous().clone(), "inputs", group.column), None


def to_all_members(x: Tensor, group: Group) -> Tensor:
    """``x`` for the members of a column of ranks, each of which has the whole gradient of it."""
    same: Tensor = _apply(_ToAllMembers, x, group)
    return same

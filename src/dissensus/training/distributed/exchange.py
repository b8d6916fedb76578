"""Exchange of outputs: those of all members from those of each rank, in one all-gather.

A rank sends ``[own members, own rows, outputs]``, with three numbers in front by which all ranks
see that they are at the same batch, and whether one wants to stop. Pieces are padded to one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dissensus.objectives import Objective
from dissensus.training.distributed.ranks import Communicator, Layout, Share
from dissensus.training.evaluation import Meter, MeterBatch
from dissensus.training.step import single_precision

_HEAD = 3  # numbers in front of the outputs: wants to stop, rows, a sum over the targets


class Exchange:
    """Gathers outputs over the whole mesh, or over a ``column`` of it, which has all members."""

    def __init__(self, link: Communicator, *, column: bool = False) -> None:
        self.link = link
        self.group = link.column if column else link.world
        self.rank = link.along if column else link.rank
        self.wants_to_stop = False  # this rank
        self.stopping = False  # any rank, as of the last exchange

    def gather(
        self,
        pieces: Sequence[Tensor],
        shares: Sequence[Share],
        targets: Tensor | None = None,
    ) -> list[Tensor]:
        """The whole of each piece, ``[members, rows, outputs]``.

        ``shares`` say how each is dealt out. ``targets`` have to be the same on all ranks. The
        gradient at a whole reaches a rank's own piece without an exchange: every rank evaluates the
        one loss on the same outputs.
        """
        width = pieces[0].shape[2]
        ranks = range(len(shares[0].members) * len(shares[0].rows))
        sizes = [sum(share.size(rank) for share in shares) * width for rank in ranks]
        flat = pieces[0].new_zeros(_HEAD + max(sizes))
        flat[0], flat[1] = float(self.wants_to_stop), shares[0].shape[1]
        if targets is not None:  # a number that batches in different order are unlikely to share
            flat[2] = targets.detach().double().flatten().cumsum(0).mean()
        own = torch.cat([piece.detach().flatten() for piece in pieces])
        flat[_HEAD : _HEAD + len(own)] = own
        gathered = self.link.all_gather(flat, "outputs", self.group)
        self._check(gathered[:, :_HEAD])
        wholes = [flat.new_empty(*share.shape, width) for share in shares]
        for rank in ranks:
            start = _HEAD
            for share, piece, into in zip(shares, pieces, wholes, strict=True):
                positions, rows = share.of(rank)
                part = gathered[rank, start : start + share.size(rank) * width]
                part = part.view(len(positions), len(rows), width)
                own_part = rank == self.rank and piece.requires_grad and piece.numel()
                into[positions, rows.start : rows.stop] = piece if own_part else part
                start += share.size(rank) * width
        return wholes

    def _check(self, heads: Tensor) -> None:
        rough = 1e-2 if heads.dtype.itemsize < 4 else 1e-5
        heads = heads.to("cpu", torch.float64)
        self.stopping = bool(heads[:, 0].any())
        close = torch.isclose(heads, heads[0], rtol=rough, equal_nan=True)
        unlike = (~close[:, 1:].all(1)).nonzero().flatten().tolist()
        if unlike:
            raise ValueError(
                f"rank {unlike[0]} has another batch than rank 0; give all ranks the same data"
            )


# ---- metrics ------------------------------------------------------------------------------------

_BATCHES = 64  # kept at most before they are gathered: as soon do all hear of a wish to stop


class DistributedMeter(Meter):
    """A ``Meter`` of outputs that an objective has gathered, or that it gathers itself.

    Without an ``objective``, and for one that is not coupled, steps exchange nothing, and the
    outputs of many batches are gathered at once; the parts of the objective are found then.
    """

    def __init__(
        self, exchange: Exchange, layout: Layout, combine: str, objective: Objective | None
    ) -> None:
        super().__init__(layout.members, combine)
        self.exchange, self.layout, self.objective = exchange, layout, objective
        self.gathers = objective is None or not objective.coupled
        self.collected = 0  # of the batches kept, those whose outputs are of all members

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if self.gathers:
            rows = self.layout.share(len(targets)).of(self.exchange.rank)[1]
            targets = targets[rows.start : rows.stop]
        if len(outputs) and len(targets):
            super().check(outputs, targets)

    def _size(self) -> int:
        if not self.gathers:
            return super()._size()
        if len(self.batches) - self.collected >= _BATCHES:
            self.collect()
        # The outputs of all members, of which this rank may have few or none.
        first = self.batches[0]
        return len(self.batches) * len(first.drawn) * len(first.targets) * first.outputs.shape[2]

    def flush(self) -> None:
        self.collect()
        super().flush()
        self.collected = 0

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.collect()
        return super().state()

    def load(self, tensors: dict[str, Tensor], plain: dict[str, Any], device: torch.device) -> None:
        super().load(tensors, plain, device)
        self.collected = len(self.batches)

    def collect(self) -> None:
        """Gather the outputs of batches that are not gathered yet."""
        new, self.collected = self.batches[self.collected :], len(self.batches)
        if not self.gathers or not new:
            return
        shares = [self.layout.share(len(batch.targets), batch.drawn) for batch in new]
        with torch.no_grad():
            pieces = [batch.outputs for batch in new]
            wholes = self.exchange.gather(pieces, shares, new[-1].targets)
            new = [b._replace(outputs=whole) for b, whole in zip(new, wholes, strict=True)]
            if self.objective is not None:  # its parts on outputs that no step has gathered
                new = [b._replace(parts=_parts(self.objective, b)) for b in new]
        self.batches[len(self.batches) - len(new) :] = new


def _parts(objective: Objective, batch: MeterBatch) -> dict[str, Tensor]:
    logits = single_precision(batch.outputs)
    return objective.evaluate(logits, batch.targets, None, None, batch.weights).parts

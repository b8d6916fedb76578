"""One of several processes that train an ensemble together; ``alone.Alone`` is its counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.training.alone import Callback
from dissensus.training.batches import as_batches, split_weights
from dissensus.training.distributed.batch_norm import synchronise
from dissensus.training.distributed.exchange import Exchange, to_all_members
from dissensus.training.distributed.group import Group, restarts
from dissensus.training.distributed.meter import TeamMeter
from dissensus.training.distributed.saver import TeamSaver
from dissensus.training.distributed.sharding import Shards
from dissensus.training.distributed.states import Whole, joined, packed, unpacked
from dissensus.training.distributed.trainer import TeamTrainer
from dissensus.training.distributed.watch import RankFailed
from dissensus.training.interruption import Interruption, Stopped
from dissensus.training.layout import Distributed, Layout
from dissensus.training.pacing import Pace
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.stream import Stream

__all__ = ["Team"]

_ASKED = 64  # batches after which ranks ask the first whether it is time to save


class Team:
    """This rank's part of a job: ``ens`` are its own members, an ensemble like any other.

    While it trains the ensemble that was given holds this rank's members only, too; calling it
    still gives the outputs of all, from all ranks, who must all call it. At the end it holds all of
    them, after an error none: then they are in the run folder.
    """

    alone = False

    def __init__(self, ens: Ensemble, settings: Distributed) -> None:
        self.settings, self.given = settings, ens
        self.group = Group(ens.device, settings.timeout)
        self.rank, self.first = self.group.rank, self.group.first
        self.members, self.whole = ens.members, Whole(ens)
        with self._reported():
            along, data = settings.shape(self.group.ranks, ens.members)
            self.layout = Layout(ens.members, along, data)
            self.group.lay_out(along, data)
            self.exchange = Exchange(self.group)
            self.column = Exchange(self.group, column=True)
            self.own = self.layout.own(self.rank)
            self.ens = ens.select(self.own).to(self.group.device)
            self._share_start()
            self.shards = Shards(self.ens, self.group) if settings.shard else None
            self.synchronised = synchronise(self.ens, self.group) if settings.sync_batchnorm else []
            if self.shards is not None:
                self.shards.split()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Stopped):  # all ranks have stopped at the same batch
            self.fill()
        self.whole.give_back()
        if error is None:
            self.group.all_reduce(torch.zeros(1), "decisions")  # nobody leaves before the others
        elif not isinstance(error, RankFailed | KeyboardInterrupt):
            self.group.watch.report(error)
        self.group.close(failed=error is not None)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.__exit__(type(error), error, None)
            raise

    def _share_start(self) -> None:
        """Ranks with the same members begin with the same weights, all with the same backbone."""
        if self.group.data is not None:
            holder = self.ens.stack if self.ens.stack is not None else self.ens.unlike
            assert holder is not None
            own = list(holder.state_dict().values())
            self.group.from_first_of(own, "start", self.group.data)
        if self.ens.backbone is not None:
            shared = list(self.ens.backbone.state_dict().values())
            self.group.from_first_of(shared, "start")

    def _forward(self, x: Tensor, members: Sequence[int] | None = None) -> Tensor:
        """Outputs of all members for ``x``, from the ranks along members; gradients pass to ``x``.

        Ranks along data each do it for themselves, for all rows.
        """
        if self.group.column is None:
            outputs: Tensor = self.ens(x, members)
            return outputs
        share = Layout(self.members, self.layout.along, 1).share(len(x), members)
        everyone = list(range(self.members)) if members is None else list(members)
        own = [self.own.index(everyone[place]) for place in share.members[self.group.along]]
        seen = to_all_members(x, self.group)
        # Without a member here it depends on x all the same: others wait for it on the way back.
        piece = self.ens(seen, own) if own else x.new_zeros(0, len(x), 1) * seen.sum()
        (whole,) = self.column.gather([piece], [share])
        return whole

    # ---- what the loop asks for -----------------------------------------------------------------

    def resuming(self, resume: bool, folder: RunFolder | None) -> bool:
        """Whether to go on: as asked, or where torchrun has started the processes anew."""
        return resume or (folder is not None and restarts() > 0)

    def saver(
        self, objective: Objective, recipe: Recipe, folder: RunFolder | None, stream: Stream
    ) -> TeamSaver:
        """What keeps the run: all that is written goes through the first rank."""
        return TeamSaver(self, objective, recipe, folder, stream)

    def trainer(self, objective: Objective, recipe: Recipe) -> TeamTrainer:
        """What makes the steps; from here on the ensemble that was given holds own members only."""
        self.whole.lend(self.ens, self._forward)
        return TeamTrainer(self, objective, recipe)

    def meter(self, objective: Objective) -> TeamMeter:
        """What collects an epoch's figures."""
        return TeamMeter(self.exchange, self.layout, self.ens.combine, objective)

    def tune(self, stream: Stream) -> str:
        """Let the first rank measure which execution is faster, and use it on all."""

        def measured() -> str:
            self.ens.tune(stream.first_inputs())
            return self.ens.execution

        self.ens.execution = self.group.on_first(measured)
        return self.ens.execution

    def stopping(self, interruption: Interruption) -> bool:
        """Whether any rank wanted to stop at the last exchange, where all heard of it."""
        self.exchange.wants_to_stop = interruption.wanted
        return self.exchange.stopping

    def pausing(self, pace: Pace, batch: int) -> bool:
        """Whether to save amid the epoch: all count batches alike; of time the first rank tells."""
        if pace.batches:
            return pace.due(batch)
        return batch % _ASKED == 0 and self.group.on_first(lambda: pace.due(batch))

    def settle(self) -> None:
        """Running statistics are those of the first rank that holds a member, as in DDP."""
        if self.group.data is not None:
            self.group.from_first_of(list(self.ens.buffers()), "statistics", self.group.data)

    def evaluate(self, data: Any, batch_size: int) -> dict[str, Any]:
        """The figures of a data set: each rank runs its members on its rows."""
        meter, ens, first = self.meter_of_outputs(), self.ens, True
        data, weights = split_weights(data)
        size, begin = max(batch_size, 1024), 0
        batches = as_batches(data, size, shuffle=False, device=ens.device, labelled=False)
        with torch.random.fork_rng(), torch.no_grad():
            for x, y in batches.epoch(seed=0):
                if y is None:
                    raise ValueError("validation data must be (x, y), got x alone")
                rows = self.layout.share(len(x)).of(self.rank)[1]
                # A rank without a row runs one all the same: members that are split need all ranks.
                taken = x[rows.start : rows.stop] if rows else x[:1]
                with ens.evaluating():
                    outputs = ens(taken.to(ens.device)).cpu()[:, : len(rows)]
                if first:
                    meter.check(outputs, y.cpu())
                first = False
                own = None if weights is None else weights[begin : begin + len(y)].cpu()
                meter.add(outputs, y.cpu(), {}, None, own)
                begin += len(y)
            if first:
                raise ValueError("the validation data are empty, got 0 batches")
            return meter.record()

    def weights(self) -> dict[str, Tensor]:
        """Weights and statistics of this rank's members; ranks with the same members all ask."""
        return self.ens.state_dict() if self.shards is None else self.shards.state()

    def put_weights(self, weights: dict[str, Tensor]) -> None:
        """Go on with such weights."""
        if self.shards is None:
            self.ens.load_state_dict(weights)
        else:
            self.shards.load(weights)

    def fill(self) -> None:
        """Give the ensemble that was given the weights of all members, on every rank."""
        state = {f"model.{name}": tensor for name, tensor in self.weights().items()}
        whole = self.gathered(state, everywhere=True)
        self.whole.fill({n.removeprefix("model."): t for n, t in whole.items()})

    def meter_of_outputs(self) -> TeamMeter:
        """A meter of outputs that are not gathered yet, without an objective."""
        return TeamMeter(self.exchange, self.layout, self.ens.combine, None)

    def agreed(self, record: dict[str, Any]) -> dict[str, Any]:
        """The first rank's record, so that all decide by the same bits."""
        return self.group.on_first(lambda: record)

    def called(self, callbacks: Sequence[Callback], record: dict[str, Any]) -> bool:
        """The first rank calls back, with all members in its hands; all hear the answers."""
        if not callbacks:
            return False
        state = {f"model.{name}": tensor for name, tensor in self.weights().items()}
        gathered = self.gathered(state, everywhere=False)

        def answered() -> bool:
            whole = self.whole.copy({n.removeprefix("model."): t for n, t in gathered.items()})
            answers = [callback(record, whole) for callback in callbacks]
            return any(answers)

        return self.group.on_first(answered)

    def gathered(self, tensors: dict[str, Tensor], *, everywhere: bool) -> dict[str, Tensor]:
        """The tensors of all members, named as one process does; on the first rank, or on all."""
        for name in ("model.weights", "best.weights"):
            if name in tensors and self.whole.weights is not None:
                tensors[name] = self.whole.weights
        if self.group.column is None:
            return tensors
        if self.group.across and not everywhere:  # ranks with the same members: the first will do
            self.group.stand_by()
            return {}
        parts = self.group.gather_bytes(packed(tensors), "checkpoint", everywhere=everywhere)
        return joined([unpacked(part) for part in parts], stacked=self.whole.stacked)

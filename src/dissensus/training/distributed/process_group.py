"""The process group: one of several processes that train an ensemble together.

Each holds some of the members and sees some rows of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.objectives import Objective
from dissensus.training.distributed.batch_norm import synchronize
from dissensus.training.distributed.communicator import Communicator, restarts
from dissensus.training.distributed.exchange import DistributedMeter, Exchange, to_all_members
from dissensus.training.distributed.heartbeat import RankFailed
from dissensus.training.distributed.member_tensors import (
    GivenEnsemble,
    join,
    own_part,
    pack,
    unpack,
)
from dissensus.training.distributed.sharding import Shards
from dissensus.training.distributed.step import DistributedTrainer
from dissensus.training.layout import Distributed, Layout
from dissensus.training.predict import evaluate
from dissensus.training.recipe import CheckpointInterval, Recipe
from dissensus.training.run_folder import RunFolder, read_checkpoint
from dissensus.training.single_process import Callback, Interruption, SingleProcess, Stopped
from dissensus.training.stream import Stream

T = TypeVar("T")

_ASK_EVERY = 64  # batches after which ranks ask the first whether it is time to save


class ProcessGroup(SingleProcess):
    """This rank's part of a job; ``ens`` is an ensemble of its own members.

    While training, the given ensemble also holds this rank's members only. Calling it still gives
    the outputs of all members, and all ranks must call it. At the end it holds all members; after
    an error it holds none, and they are in the run folder.
    """

    single = False

    def __init__(self, ens: Ensemble, settings: Distributed) -> None:
        self.settings, self.given = settings, GivenEnsemble(ens)
        self.link = Communicator(ens.device, settings.timeout)
        self.rank, self.first = self.link.rank, self.link.first
        self.members, self.execution = ens.members, ens.execution
        with self._reported():
            along, data = settings.shape(self.link.ranks, ens.members)
            self.layout = Layout(ens.members, along, data)
            self.link.arrange(along, data)
            self.exchange = Exchange(self.link)
            self.column = Exchange(self.link, column=True)
            self.own = self.layout.own(self.rank)
            self.ens = ens.select(self.own).to(self.link.device)
            self._share_start()
            self.shards = Shards(self.ens, self.link) if settings.shard else None
            self.batch_norms = synchronize(self.ens, self.link) if settings.sync_batchnorm else []
            if self.shards is not None:
                self.shards.split()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Stopped):  # all ranks have stopped at the same batch
            self._fill()
        self.given.give_back()
        if error is None:
            self.link.all_reduce(torch.zeros(1), "decisions")  # nobody leaves before the others
        elif not isinstance(error, RankFailed | KeyboardInterrupt):
            self.link.heartbeat.report(error)
        self.link.close(failed=error is not None)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.__exit__(type(error), error, None)
            raise

    def _share_start(self) -> None:
        """Give ranks with the same members the same weights, and all ranks the same backbone."""
        if self.link.data is not None:
            members = list(self.ens.holder.state_dict().values())
            self.link.broadcast(members, "start", self.link.data)
        if self.ens.backbone is not None:
            shared = list(self.ens.backbone.state_dict().values())
            self.link.broadcast(shared, "start")

    def _forward(self, x: Tensor, members: Sequence[int] | None = None) -> Tensor:
        """Outputs of all members for ``x``, from the ranks along members; gradients pass to ``x``.

        Ranks along data each do it for themselves, for all rows.
        """
        if self.link.column is None:
            outputs: Tensor = self.ens(x, members)
            return outputs
        share = Layout(self.members, self.layout.along, 1).share(len(x), members)
        everyone = list(range(self.members)) if members is None else list(members)
        own = [self.own.index(everyone[place]) for place in share.members[self.link.along]]
        inputs = to_all_members(x, self.link)
        # Without a member here it depends on x all the same: others wait for it on the way back.
        piece = self.ens(inputs, own) if own else x.new_zeros(0, len(x), 1) * inputs.sum()
        (whole,) = self.column.gather([piece], [share])
        return whole

    # ---- the loop -------------------------------------------------------------------------------

    def should_resume(self, resume: bool, folder: RunFolder | None) -> bool:
        """Whether to resume: if asked to, or if torchrun has restarted the processes."""
        return resume or (folder is not None and restarts() > 0)

    def make_trainer(self, objective: Objective, recipe: Recipe) -> DistributedTrainer:
        """The trainer; from here on the given ensemble holds this rank's members only."""
        self.given.lend(self.ens, self._forward)
        return DistributedTrainer(self, objective, recipe)

    def make_meter(self, objective: Objective | None) -> DistributedMeter:
        """The meter of an epoch; without an objective, it measures outputs alone."""
        return DistributedMeter(self.exchange, self.layout, self.ens.combine, objective)

    def tune(self, stream: Stream) -> str:
        """Measure on the first rank which execution is faster, and use it on all."""
        measure = super().tune
        self.ens.execution = self.on_first(lambda: measure(stream))
        return self.ens.execution

    def should_stop(self, interruption: Interruption) -> bool:
        """Whether any rank wanted to stop, as of the last exchange."""
        self.exchange.wants_to_stop = interruption.wanted
        return self.exchange.stopping

    def should_save(self, interval: CheckpointInterval, batch: int) -> bool:
        """Whether to save within the epoch: all ranks count batches, the first measures time."""
        if interval.batches:
            return interval.due(batch)
        return batch % _ASK_EVERY == 0 and self.link.on_first(lambda: interval.due(batch))

    def synchronize_statistics(self) -> None:
        """Running statistics are those of the first rank that holds a member, as in DDP."""
        if self.link.data is not None:
            self.link.broadcast(list(self.ens.buffers()), "statistics", self.link.data)

    def evaluate(self, data: Any, batch_size: int) -> dict[str, Any]:
        """The metrics of a data set: each rank runs its members on its rows."""

        def rows(count: int) -> range:
            return self.layout.share(count).of(self.rank)[1]

        return evaluate(self.ens, data, batch_size, meter=self.make_meter(None), rows=rows)

    def call(self, callbacks: Sequence[Callback], record: dict[str, Any]) -> bool:
        """Call back on the first rank, with all members; all ranks get the answer."""
        if not callbacks:
            return False
        gathered = self._gather_weights(everywhere=False)

        def call() -> bool:
            whole = self.given.copy(gathered)
            answers = [callback(record, whole) for callback in callbacks]
            return any(answers)

        return self.on_first(call)

    # ---- exchanges ------------------------------------------------------------------------------

    def on_first(self, work: Callable[[], T]) -> T:
        """The result of ``work`` on the first rank, as plain JSON values, on all ranks."""
        return self.link.on_first(work)

    def gather(self, tensors: dict[str, Tensor], *, everywhere: bool = False) -> dict[str, Tensor]:
        """The tensors of all members, named as one process does; on the first rank, or on all."""
        for name in ("model.weights", "best.weights"):
            if name in tensors and self.given.weights is not None:
                tensors[name] = self.given.weights
        if self.link.column is None:
            return tensors
        if self.link.across and not everywhere:  # ranks with the same members: the first will do
            self.link.stand_by()
            return {}
        parts = self.link.gather_bytes(pack(tensors), "checkpoint", everywhere=everywhere)
        return join([unpack(part) for part in parts], stacked=self.given.stacked)

    def _gather_weights(self, *, everywhere: bool) -> dict[str, Tensor]:
        state = {f"model.{name}": tensor for name, tensor in self.weights().items()}
        whole = self.gather(state, everywhere=everywhere)
        return {name.removeprefix("model."): tensor for name, tensor in whole.items()}

    # ---- checkpoints ----------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Weights and statistics of this rank's members; ranks with the same members all ask."""
        return self.ens.state_dict() if self.shards is None else self.shards.state()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        if self.shards is None:
            self.ens.load_state_dict(weights)
        else:
            self.shards.load(weights)

    def random_states(self) -> dict[str, Tensor]:
        """The random states of the layers on all ranks but the first."""
        layers = self.link.all_gather(torch.get_rng_state(), "checkpoint")
        return {f"layers.{rank}": layers[rank] for rank in range(1, len(layers))}

    def load_checkpoint(self, folder: RunFolder) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """This rank's part of the checkpoint in ``folder``."""
        checkpoint = read_checkpoint(folder.path)
        present = torch.tensor([checkpoint is not None])
        sees = self.link.all_gather(present, "decisions").flatten()  # of each rank
        if bool(sees[0]) and not bool(sees.all()):
            blind = (~sees).nonzero().flatten().tolist()
            raise ValueError(
                f"rank {blind[0]} cannot see the checkpoint in {folder.path}; the run folder must "
                "be on a file system that all ranks share"
            )
        if checkpoint is None or not bool(sees[0]):
            return None
        whole, values = checkpoint
        tensors = own_part(whole, self.own, stacked=self.given.stacked)
        self._choose_random_state(tensors)
        return tensors, values

    def _choose_random_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the layers' random state of this rank, if there are as many ranks as before."""
        saved = [name for name in tensors if name.startswith("random.layers.")]
        if self.rank == 0 or "random.draws" not in tensors:
            return
        tensors.pop("random.device", None)  # that of the first rank's GPU
        own = tensors.get(f"random.layers.{self.rank}")
        if len(saved) + 1 == self.link.ranks and own is not None:
            tensors["random.layers"] = own
        else:
            del tensors["random.layers"]

    def finish(self, execution: str) -> None:
        """Put the weights of all members into the ensemble that was given, on every rank."""
        self._fill()
        self.given.ens.eval()
        if execution:
            self.given.ens.execution = execution

    def _fill(self) -> None:
        self.given.fill(self._gather_weights(everywhere=True))

    def description(self) -> dict[str, Any]:
        return {"distributed": {"members": self.layout.along, "data": self.layout.data}}

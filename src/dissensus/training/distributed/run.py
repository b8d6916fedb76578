"""The training loop of one of several processes, around that of ``fit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import put_tensors, with_prefix, without_prefix
from dissensus.objectives import Objective
from dissensus.tools.files import lock_folder
from dissensus.training.callbacks import ask
from dissensus.training.distributed.exchange import DistributedMeter, Exchange
from dissensus.training.distributed.ranks import Communicator, Distributed, Layout, restarts
from dissensus.training.distributed.step import DistributedTrainer, synchronize_norms
from dissensus.training.evaluation import Meter, evaluate
from dissensus.training.fit import FitRequest, Run, Stopped
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.run_state import History

Tensors = dict[str, Tensor]

_ASK_EVERY = 64  # batches after which ranks ask the first whether it is time to save


class DistributedRun(Run):
    """This rank's part of a job; ``ens`` is an ensemble of its own members.

    While training, the ``given`` ensemble also holds this rank's members only. Calling it still
    gives the outputs of all members, and all ranks must call it. At the end it holds all members;
    after an error it holds none, and they are in the run folder.
    """

    def __init__(
        self, ens: Ensemble, objective: Objective, recipe: Recipe, settings: Distributed
    ) -> None:
        if ens.sharing:
            raise ValueError("members that share weights cannot be spread over processes")
        if recipe.own_batches:
            raise ValueError("shuffle='members' and bootstrap=True do not work across processes")
        self.held: nn.Module | None = None  # what the given ensemble held, while it is lent
        self.stacked = ens.stack is not None
        self.given, self.link = ens, Communicator(ens.device, settings.timeout)
        along, data = settings.shape(self.link.ranks, ens.members)
        self.link.arrange(along, data)
        self.layout = Layout(ens.members, along, data)
        self.own = list(self.layout.own(self.link.rank))
        self.exchange, self.column = Exchange(self.link), Exchange(self.link, column=True)
        super().__init__(ens.select(self.own).to(self.link.device), objective, recipe)
        self._share_start()
        self.batch_norms = synchronize_norms(self.ens, self.link) if settings.sync_batchnorm else []

    def _share_start(self) -> None:
        """Give ranks with the same members the same weights, and all ranks the same backbone."""
        if self.link.data is not None:
            members = self.ens.holder.state_dict().values()
            self.link.broadcast(list(members), "start", self.link.data)
        if self.ens.backbone is not None:
            self.link.broadcast(list(self.ens.backbone.state_dict().values()), "start")

    def fit(self, request: FitRequest) -> History:
        """As ``Run.fit``; the first rank alone shows progress, calls back and writes."""
        first, self.calls_back = self.link.first, bool(request.callbacks)
        own = request._replace(
            make_stream=partial(request.make_stream, rank=self.link.rank),  # type: ignore[call-arg]
            callbacks=request.callbacks if first else [],
            resume=request.resume or (request.out is not None and restarts() > 0),
            progress=request.progress and first,
        )
        try:
            history = super().fit(own)
        except Stopped:  # all ranks have stopped at the same batch
            self._fill(self._gather_members(everywhere=True))
            raise
        finally:
            self._take_back()
        self.link.all_reduce(torch.zeros(1), "decisions")  # nobody leaves before the others
        return history

    def start(self, *, resume: bool) -> None:
        super().start(resume=resume)
        self._lend()

    def finish(self) -> History:
        """Put the weights of all members into the ensemble that was given, on every rank."""
        history = super().finish()
        self._fill(self._gather_members(everywhere=True))
        self.given.eval()
        self.given.objective = self.ens.objective
        self.given.execution = self.state.execution or self.given.execution
        return history

    # ---- the parts of the loop ------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether any rank wanted to stop, as of the last exchange."""
        self.exchange.wants_to_stop = self.interruption.wanted
        return self.exchange.stopping

    def open_folder(self, out: str | Path | None) -> RunFolder | None:
        return None if out is None else SharedFolder(out, self)

    def make_trainer(self) -> DistributedTrainer:
        return DistributedTrainer(self, self.objective, self.recipe)

    def make_meter(self) -> DistributedMeter:
        return DistributedMeter(self.exchange, self.layout, self.ens.combine, self.objective)

    def measure(self, meter: Meter, train: Any, val: Any) -> dict[str, Any]:
        """The first rank's record, so that all decide by the same bits.

        Running statistics are those of the first rank that holds a member, as in DDP.
        """
        if self.link.data is not None:
            self.link.broadcast(list(self.ens.buffers()), "statistics", self.link.data)
        record = super().measure(meter, train, val)
        return self.link.on_first(lambda: record)

    def evaluate(self, data: Any) -> dict[str, Any]:
        """The metrics of a data set: each rank runs its members on its rows."""
        meter = DistributedMeter(self.exchange, self.layout, self.ens.combine, None)

        def rows(count: int) -> range:
            return self.layout.share(count).of(self.link.rank)[1]

        return evaluate(self.ens, data, self.recipe.batch_size, meter=meter, rows=rows)

    def checkpoint_due(self) -> bool:
        """Whether to save within the epoch: all ranks count batches, the first measures time."""
        if self.interval.batches or self.checkpoints.folder is None:
            return super().checkpoint_due()
        asks = self.state.batch % _ASK_EVERY == 0
        return asks and self.link.on_first(super().checkpoint_due)

    def tune(self) -> str:
        """Measure on the first rank which execution is faster, and use it on all."""
        self.ens.execution = self.link.on_first(super().tune)
        return self.ens.execution

    def call_back(self, record: dict[str, Any]) -> bool:
        """Call back on the first rank, with all members; all ranks get the answer."""
        if not self.calls_back:
            return False
        members = self._gather_members(everywhere=False)

        def call() -> bool:
            self._fill(members)
            answer = ask(self.callbacks, record, self.given)
            self._lend()
            return answer

        return self.link.on_first(call)

    # ---- the ensemble that was given ------------------------------------------------------------

    def _lend(self) -> None:
        """Let its layers be those of this rank, and free the memory of all others."""
        given = self.given
        self.held, self.backbone = given.holder, given.backbone
        for tensor in (*self.held.parameters(), *self.held.buffers()):
            tensor.data = tensor.data.new_empty(0)
        given.stack, given.unlike = self.ens.stack, self.ens.unlike
        given.backbone = self.ens.backbone
        given.forward = self._forward  # type: ignore[method-assign]

    def _take_back(self) -> None:
        """Undo :meth:`_lend`; without :meth:`_fill` the ensemble is empty."""
        held, given = self.held, self.given
        if held is not None:
            given.stack, given.unlike = (held, None) if self.stacked else (None, held)  # type: ignore[assignment]
            given.backbone, self.held = self.backbone, None
            del given.forward

    def _fill(self, members: Tensors) -> None:
        """Put the weights of all members into it."""
        self._take_back()
        prefix = "stack." if self.stacked else "unlike."

        def put(name: str, tensor: Tensor) -> Tensor:
            tensor.data = members[prefix + name].to(tensor.device)
            return tensor

        put_tensors(self.given.holder, put)

    def _forward(self, x: Tensor, members: Sequence[int] | None = None) -> Tensor:
        """Outputs of all members for ``x``, from the ranks along members; gradients pass to ``x``.

        Ranks along data each do it for themselves, for all rows.
        """
        link = self.link
        if link.column is None:
            outputs: Tensor = self.ens(x, members)
            return outputs
        share = Layout(self.layout.members, self.layout.along, 1).share(len(x), members)
        everyone = list(range(self.layout.members)) if members is None else list(members)
        own = [self.own.index(everyone[place]) for place in share.members[link.along]]
        inputs = x.view_as(x)
        if inputs.requires_grad:  # each rank's members have a part of the gradient
            inputs.register_hook(lambda g: link.all_reduce(g.clone(), "inputs", link.column))
        piece = self.ens(inputs, own) if own else x.new_zeros(0, len(x), 1)
        (whole,) = self.column.gather([piece], [share])
        # Without a member here it depends on x all the same: others wait for it on the way back.
        return whole if own else whole + 0.0 * inputs.sum()

    # ---- tensors of all members -----------------------------------------------------------------

    def _gather_members(self, *, everywhere: bool) -> Tensors:
        """The state of the ensemble that was given."""
        state = with_prefix("model.", self.ens.state_dict())
        return without_prefix("model.", self.gather(state, everywhere=everywhere))

    def gather(self, tensors: Tensors, *, everywhere: bool) -> Tensors:
        """The tensors of all members, named as one process does; on the first rank, or on all."""
        for name in ("model.weights", "best.weights"):
            if name in tensors and self.given.weights is not None:
                tensors[name] = self.given.weights
        column = self.link.column
        if column is None or (self.link.across and not everywhere):
            return tensors  # ranks with the same members: the first will do
        payload = save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()})
        parts = self.link.gather_bytes(payload, "checkpoint", column, everywhere=everywhere)
        owned = map(self.layout.own, range(0, self.link.ranks, self.layout.data))
        return join([load(part) for part in parts], list(owned), stacked=self.stacked)


class SharedFolder(RunFolder):
    """The run folder of a job, on a file system that all ranks see: the first rank writes."""

    def __init__(self, path: str | Path, run: DistributedRun) -> None:
        super().__init__(path)
        self.run, self.link = run, run.link

    def lock(self) -> AbstractContextManager[None]:
        return lock_folder(self.path, self.link.on_first)

    def start(self, config: dict[str, Any], needed: int, *, resume: bool) -> str:
        mended = self.link.on_first(partial(super().start, config, needed, resume=resume))
        return mended if self.link.first else ""

    def keep_epochs(self, epochs: int) -> list[dict[str, Any]]:
        return self.link.on_first(partial(super().keep_epochs, epochs))

    def append(self, record: dict[str, Any]) -> None:
        if self.link.first:
            super().append(record)

    def save(self, tensors: Tensors, values: dict[str, Any]) -> None:
        """Save the tensors of all members and the random numbers of all ranks' layers."""
        if "random.layers" in tensors:
            layers = self.link.all_gather(tensors["random.layers"], "checkpoint")
            ranks = len(layers)
            tensors |= {f"random.layers.{rank}/{ranks}": layers[rank] for rank in range(1, ranks)}
        whole = self.run.gather(tensors, everywhere=False)
        if self.link.first:
            super().save(whole, values)

    def read(self) -> tuple[Tensors, dict[str, Any]] | None:
        """This rank's part of the checkpoint."""
        checkpoint = super().read()
        sees = self.link.all_gather(torch.tensor([checkpoint is not None]), "decisions").flatten()
        if not bool(sees[0]):
            return None
        if checkpoint is None or not bool(sees.all()):
            blind = int((~sees).nonzero()[0])
            raise ValueError(
                f"rank {blind} cannot see the checkpoint in {self.path}; use a shared file system"
            )
        tensors = own_part(checkpoint[0], self.run.own, stacked=self.run.stacked)
        if self.link.rank and "random.draws" in tensors:  # layers go on if ranks are as many
            own = tensors.get(f"random.layers.{self.link.rank}/{self.link.ranks}")
            for name in ("random.layers", "random.device"):  # those of the first rank
                tensors.pop(name, None)
            tensors |= {} if own is None else {"random.layers": own}
        return tensors, checkpoint[1]

    def finish(self, record: dict[str, Any]) -> None:
        if self.link.first:
            mesh = {"members": self.run.layout.along, "data": self.run.layout.data}
            super().finish(record | {"distributed": mesh})


# ---- checkpoints of one process and their parts -------------------------------------------------

# In front of names: what a checkpoint keeps by member, and where in the rest of a name the number
# of a member stands if members are unlike.
_BY_MEMBER = {"model": 1, "best": 1, "optimizer": 0}


def join(parts: Sequence[Tensors], owned: Sequence[Sequence[int]], *, stacked: bool) -> Tensors:
    """The tensors of all members, as one process names them.

    ``parts`` are those of the ranks, or none on a rank that they were not sent to, and ``owned``
    the members of each.
    """
    whole: dict[str, list[Tensor]] = {}
    for part, own in zip(parts, owned, strict=False):
        for name, tensor in (part if stacked else _renumbered(part, dict(enumerate(own)))).items():
            common = _place(name, stacked) is None and name in whole
            whole.setdefault(name, []).extend([] if common else [tensor])
    return {name: t[0] if len(t) == 1 else torch.cat(t) for name, t in whole.items()}


def own_part(whole: Tensors, own: Sequence[int], *, stacked: bool) -> Tensors:
    """The tensors of the members ``own``, under the names that a rank with only these has."""
    if not stacked:
        return _renumbered(whole, {member: place for place, member in enumerate(own)})
    chosen = list(own)
    return {n: t if _place(n, True) is None else t[chosen] for n, t in whole.items()}


def _renumbered(tensors: Tensors, numbers: Mapping[int, int]) -> Tensors:
    """The tensors of unlike members under other ``numbers``, and those that all have in common."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        words, place = name.split("."), _place(name, stacked=False)
        if place is not None and int(words[place]) not in numbers:
            continue
        if place is not None:
            words[place] = str(numbers[int(words[place])])
        found[".".join(words)] = tensor
    return found


def _place(name: str, stacked: bool) -> int | None:
    """The position of the word in a name that is about members; None for a common tensor."""
    kind, _, rest = name.partition(".")
    where = _BY_MEMBER.get(kind)
    first = rest.partition(".")[0]
    if where is None or (where == 1 and first != ("stack" if stacked else "unlike")):
        return None
    return where + 1

"""Checkpoints of a distributed run: gathered and written by the first rank.

They are those of one process, whatever the number of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import put_tensors
from dissensus.objectives import Objective
from dissensus.training.checkpoints import Checkpoints
from dissensus.training.history import History
from dissensus.training.meters import Meter
from dissensus.training.recipe import Recipe
from dissensus.training.run_folder import RunFolder
from dissensus.training.step import Trainer
from dissensus.training.stream import Stream

if TYPE_CHECKING:
    from dissensus.training.distributed.process_group import ProcessGroup

__all__ = ["DistributedCheckpoints", "GivenEnsemble", "join", "own_part", "pack", "unpack"]


class DistributedCheckpoints(Checkpoints):
    """As ``Checkpoints``, with the members of this rank; files are those of one process.

    The folder has to be one that all ranks can read.
    """

    def __init__(
        self,
        process: ProcessGroup,
        objective: Objective,
        recipe: Recipe,
        folder: RunFolder | None,
        stream: Stream,
    ) -> None:
        super().__init__(process.ens, objective, recipe, folder, stream)
        self.process, self.members, self.execution = (
            process,
            process.members,
            process.given.ens.execution,
        )

    # ---- starting and going on ------------------------------------------------------------------

    def _open(self, config: dict[str, Any], *, resume: bool) -> None:
        folder = self.folder
        assert folder is not None
        settings, needed = self._config(config), self._bytes_needed()
        self.process.link.on_first(lambda: folder.start(settings, needed, resume=resume))

    def _load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        assert self.folder is not None
        checkpoint, link = self.folder.load(), self.process.link
        there = link.all_gather(torch.tensor([checkpoint is not None]), "decisions").flatten()
        if bool(there[0]) and not bool(there.all()):
            blind = (~there).nonzero().flatten().tolist()
            raise ValueError(
                f"rank {blind[0]} cannot see the checkpoint in {self.folder.path}; the run folder "
                "must be on a file system that all ranks share"
            )
        if checkpoint is None or not bool(there[0]):
            return None
        whole, values = checkpoint
        tensors = own_part(whole, self.process.own, stacked=self.process.given.stacked)
        self._pick_randomness(tensors)
        return tensors, values

    def _epochs(self, epochs: int) -> list[dict[str, Any]]:
        folder = self.folder
        assert folder is not None
        return self.process.link.on_first(lambda: folder.keep_epochs(epochs))

    def _pick_randomness(self, tensors: dict[str, Tensor]) -> None:
        """Layers go on with the random numbers of their rank, if there are as many as before."""
        rank = self.process.rank
        saved = [name for name in tensors if name.startswith("random.layers.")]
        if rank == 0 or "random.draws" not in tensors:
            return
        tensors.pop("random.device", None)  # that of the first rank's GPU
        own = tensors.get(f"random.layers.{rank}")
        if len(saved) + 1 == self.process.link.ranks and own is not None:
            tensors["random.layers"] = own
        else:
            del tensors["random.layers"]

    def _weights(self) -> dict[str, Tensor]:
        return self.process.weights()

    def _put_weights(self, weights: dict[str, Tensor]) -> None:
        self.process.put_weights(weights)

    def _meter(self) -> Meter:
        return self.process.make_meter(self.objective)

    # ---- saving ---------------------------------------------------------------------------------

    def _write(self, trainer: Trainer, extra: dict[str, Tensor], record: Any = None) -> None:
        if self.folder is None:
            return
        tensors = self._tensors(trainer)
        if not self.process.first:
            return
        if record is not None:
            self.folder.append(record)
        self.folder.save(tensors | extra, self.state.plain())

    def _within_epoch(self, meter: Meter) -> dict[str, Tensor]:
        extra = super()._within_epoch(meter)
        layers = self.process.link.all_gather(torch.get_rng_state(), "checkpoint")
        return extra | {f"random.layers.{rank}": layers[rank] for rank in range(1, len(layers))}

    def _tensors(self, trainer: Trainer) -> dict[str, Tensor]:
        return self.process.gather(super()._tensors(trainer), everywhere=False)

    def finish(self) -> History:
        """Put the best weights of all members in place, on every rank."""
        if self.best:
            self._put_weights(self.best)
        self.process.fill()
        self.process.given.ens.eval()
        if self.state.execution:
            self.process.given.ens.execution = self.state.execution  # what "tune" chose
        history = self.state.history(self.ens.resolved_execution())
        if self.folder is not None and self.process.first:
            layout = self.process.layout
            ranks = {"members": layout.along, "data": layout.data}
            self._record(history, distributed=ranks)
        return history


# ---- tensors of all members from those of each rank, and back ------------------------------------

Tensors = dict[str, Tensor]

# In front of names: what a checkpoint keeps by member, and where in the rest of a name the number
# of a member stands if members are unlike.
_BY_MEMBER = {"model.": 1, "best.": 1, "optimizer.": 0}


def pack(tensors: Tensors) -> bytes:
    """Tensors as bytes, in the format of checkpoints."""
    from safetensors.torch import save

    return bytes(save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}))


def unpack(payload: bytes) -> Tensors:
    """What :func:`pack` was given."""
    from safetensors.torch import load

    tensors: Tensors = load(payload)
    return tensors


def join(parts: Sequence[Tensors], *, stacked: bool) -> Tensors:
    """The tensors of all members, as one process names them; ``parts`` are those of the ranks."""
    whole: dict[str, list[Tensor]] = {}
    before = 0  # members on the ranks so far
    for part in parts:
        numbers = {0}
        for name, tensor in part.items():
            words, place = name.split("."), _place(name, stacked)
            if place is None:
                whole.setdefault(name, [tensor])
            elif stacked:
                whole.setdefault(name, []).append(tensor)
            else:
                numbers.add(int(words[place]) + 1)
                words[place] = str(int(words[place]) + before)
                whole[".".join(words)] = [tensor]
        before += max(numbers)
    return {name: t[0] if len(t) == 1 else torch.cat(t) for name, t in whole.items()}


def own_part(whole: Tensors, own: Sequence[int], *, stacked: bool) -> Tensors:
    """The tensors of the members ``own``, under the names that a rank with only these has."""
    part: Tensors = {}
    for name, tensor in whole.items():
        words, place = name.split("."), _place(name, stacked)
        if place is None:
            part[name] = tensor
        elif stacked:
            part[name] = tensor[list(own)]
        elif int(words[place]) in own:
            words[place] = str(list(own).index(int(words[place])))
            part[".".join(words)] = tensor
    return part


def _place(name: str, stacked: bool) -> int | None:
    """Which word of a name is about members; None where a tensor is all members' together."""
    kind, _, rest = name.partition(".")
    where = _BY_MEMBER.get(f"{kind}.")
    first = rest.partition(".")[0]
    if where is None or (where == 1 and first != ("stack" if stacked else "unlike")):
        return None
    return where + 1


class GivenEnsemble:
    """The ensemble that ``fit`` was given, which holds its members again only at the end.

    Lent out, it stands for the members of this rank; what it held of others is let go.
    """

    def __init__(self, ens: Ensemble) -> None:
        self.ens, self.stacked = ens, ens.stack is not None
        self.weights = ens.weights
        self.backbone = ens.backbone
        self._kept: nn.Module | None = None

    def lend(self, own: Ensemble, forward: Callable[..., Tensor]) -> None:
        """Let the ensemble's layers be those of ``own``, and ``forward`` run for all ranks."""
        ens = self.ens
        held = ens.stack if self.stacked else ens.unlike
        assert held is not None
        for tensor in (*held.parameters(), *held.buffers()):
            tensor.data = tensor.data.new_empty(0)
        self._kept = held
        ens.stack, ens.unlike, ens.backbone = own.stack, own.unlike, own.backbone
        ens.forward = forward  # type: ignore[method-assign]

    def give_back(self) -> None:
        """Let the ensemble be its own again; empty, unless it was filled."""
        if self._kept is None:
            return
        ens, held = self.ens, self._kept
        ens.stack, ens.unlike = (held, None) if self.stacked else (None, held)  # type: ignore[assignment]
        ens.backbone = self.backbone
        del ens.forward
        self._kept = None

    def fill(self, state: Tensors) -> None:
        """Give the ensemble the weights of all members."""
        self.give_back()
        self._put(self.ens, state)
        self.ens.weights = self.weights

    def copy(self, state: Tensors) -> Ensemble:
        """An ensemble of its own with the weights of all members."""
        assert self._kept is not None
        ens = copy.copy(self.ens)
        ens.__dict__ = {**self.ens.__dict__, "_modules": dict(self.ens._modules)}
        ens.__dict__.pop("forward", None)
        held = copy.deepcopy(self._kept)
        ens.stack, ens.unlike = (held, None) if self.stacked else (None, held)  # type: ignore[assignment]
        self._put(ens, state)
        return ens

    def _put(self, ens: Ensemble, state: Tensors) -> None:
        held, prefix = (ens.stack, "stack.") if self.stacked else (ens.unlike, "unlike.")
        assert held is not None

        def put(name: str, tensor: Tensor) -> Tensor:
            tensor.data = state[prefix + name].to(tensor.device)
            return tensor

        put_tensors(held, put)

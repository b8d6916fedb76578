"""Tensors of members: those of all from those of each rank, and back.

Checkpoints are those of one process, whatever the number of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import put_tensors

Tensors = dict[str, Tensor]

# In front of names: what a checkpoint keeps by member, and where in the rest of a name the number
# of a member stands if members are unlike.
_BY_MEMBER = {"model.": 1, "best.": 1, "optimizer.": 0}


def pack(tensors: Tensors) -> bytes:
    """Tensors as bytes, in the format of checkpoints."""
    from safetensors.torch import save

    return bytes(save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}))


def unpack(payload: bytes) -> Tensors:
    """The tensors in the bytes that :func:`pack` made."""
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
    """The position of the word in a name that is about members; None for a common tensor."""
    kind, _, rest = name.partition(".")
    where = _BY_MEMBER.get(f"{kind}.")
    first = rest.partition(".")[0]
    if where is None or (where == 1 and first != ("stack" if stacked else "unlike")):
        return None
    return where + 1


class GivenEnsemble:
    """The ensemble that ``fit`` was given, which gets its members back only at the end.

    While lent, it holds the members of this rank; the memory of the others is freed.
    """

    def __init__(self, ens: Ensemble) -> None:
        self.ens, self.stacked = ens, ens.stack is not None
        self.weights = ens.weights
        self.backbone = ens.backbone
        self._kept: nn.Module | None = None

    def lend(self, own: Ensemble, forward: Callable[..., Tensor]) -> None:
        """Let the ensemble's layers be those of ``own``, and ``forward`` run for all ranks."""
        ens, held = self.ens, self.ens.holder
        for tensor in (*held.parameters(), *held.buffers()):
            tensor.data = tensor.data.new_empty(0)
        self._kept = held
        ens.stack, ens.unlike, ens.backbone = own.stack, own.unlike, own.backbone
        ens.forward = forward  # type: ignore[method-assign]

    def give_back(self) -> None:
        """Undo :meth:`lend`; without :meth:`fill` the ensemble is empty."""
        if self._kept is None:
            return
        self._hold(self.ens, self._kept)
        self.ens.backbone = self.backbone
        del self.ens.forward
        self._kept = None

    def _hold(self, ens: Ensemble, holder: nn.Module) -> None:
        ens.stack, ens.unlike = (holder, None) if self.stacked else (None, holder)  # type: ignore[assignment]

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
        self._hold(ens, copy.deepcopy(self._kept))
        self._put(ens, state)
        return ens

    def _put(self, ens: Ensemble, state: Tensors) -> None:
        prefix = "stack." if self.stacked else "unlike."

        def put(name: str, tensor: Tensor) -> Tensor:
            tensor.data = state[prefix + name].to(tensor.device)
            return tensor

        put_tensors(ens.holder, put)

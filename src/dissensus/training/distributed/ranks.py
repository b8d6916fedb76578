"""Ranks of a distributed job: the mesh, who holds what, and how they exchange tensors."""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dissensus.tools.specs import check_numbers, number

T = TypeVar("T")

_STARTUP = 120.0  # seconds in which all processes should have started


class RankFailed(ConnectionError):
    """An exchange failed: a rank ended, or did not answer in time."""


@dataclass(frozen=True)
class Distributed:
    """The settings of :func:`dissensus.fit` across the processes that ``torchrun`` has started.

    The mesh is ``members`` × ``data`` ranks. Along the first axis each rank holds some of the
    members; along the second it takes some rows of each batch, and gradients are summed. What is
    left None follows from the number of ranks: members first, the rest goes to data.

    A rank that does not answer for ``timeout`` seconds ends the job; it must be longer than
    anything a rank does on its own, such as a callback. BatchNorm sees the rows of its rank
    only, as is usual; with ``sync_batchnorm`` it sees the whole batch.

    >>> Distributed(data=2).shape(ranks=4, members=5)
    (2, 2)
    """

    members: int | None = number(None, low=1)
    data: int | None = number(None, low=1)
    timeout: float = number(300.0, above=0.0)
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        check_numbers(self)

    def shape(self, ranks: int, members: int) -> tuple[int, int]:
        """The mesh, ranks along members and along data, for ``ranks`` processes."""
        along, data = self.members, self.data
        if along is None and data is None:
            # The most ranks along members that leave none idle; the rest share the rows.
            along = max(n for n in range(1, min(ranks, members) + 1) if ranks % n == 0)
        if along is None:
            assert data is not None
            along = ranks // data
        data = ranks // along if data is None else data
        if along * data != ranks:
            wanted = f"a mesh of {along} × {data} (members × data) needs {along * data} ranks"
            raise ValueError(f"{wanted}, got {ranks}; start as many, or leave one of them out")
        if along > members:
            raise ValueError(f"{along} ranks cannot share {members} members; use more along data")
        return along, data


def deal(count: int, parts: int) -> list[range]:
    """``count`` items in consecutive parts of equal size; the first parts may have one more.

    >>> deal(5, 2), deal(1, 2)
    ([range(0, 3), range(3, 5)], [range(0, 1), range(1, 1)])
    """
    each, more = divmod(count, parts)
    ends = [number * each + min(number, more) for number in range(parts + 1)]
    return [range(ends[number], ends[number + 1]) for number in range(parts)]


@dataclass(frozen=True)
class Share:
    """One batch dealt out: positions of members by member rank, rows by data rank."""

    members: list[list[int]]
    rows: list[range]

    @property
    def shape(self) -> tuple[int, int]:
        """Members and rows of the whole batch."""
        return sum(map(len, self.members)), self.rows[-1].stop

    def of(self, rank: int) -> tuple[list[int], range]:
        """The positions of members and the rows of ``rank``."""
        along, across = divmod(rank, len(self.rows))
        return self.members[along], self.rows[across]

    def size(self, rank: int) -> int:
        """How many (member, row) pairs ``rank`` has."""
        positions, rows = self.of(rank)
        return len(positions) * len(rows)


@dataclass(frozen=True)
class Layout:
    """``members`` members on ``along`` ranks, times ``data`` ranks; rank = along · data + across.

    >>> Layout(5, 2, 2).own(rank=2)
    [3, 4]
    >>> Layout(5, 2, 1).share(8, drawn=[1, 4]).members
    [[0], [1]]
    """

    members: int
    along: int
    data: int

    def own(self, rank: int) -> list[int]:
        """The members that ``rank`` holds."""
        return list(deal(self.members, self.along)[rank // self.data])

    def share(self, rows: int, drawn: Sequence[int] | None = None) -> Share:
        """How a batch of ``rows`` is dealt out; ``drawn`` are the members that it uses.

        No rank gets a single row while another has more to give: BatchNorm cannot train on one.
        """
        dealt = deal(self.members, self.along)
        positions = {m: p for p, m in enumerate(range(self.members) if drawn is None else drawn)}
        used = max(1, min(self.data, rows // 2))
        return Share(
            [[positions[member] for member in own if member in positions] for own in dealt],
            [*deal(rows, used), *[range(rows, rows)] * (self.data - used)],
        )


# ---- processes ----------------------------------------------------------------------------------


def launched() -> bool:
    """Whether ``torchrun``, or something like it, has started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def restarts() -> int:
    """How often ``torchrun`` has restarted the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Communicator:
    """All processes of the job, from ``torchrun``'s environment or a group that there is already.

    Uses gloo, and nccl as well where ``device`` is a GPU. ``sent`` are the bytes that this rank has
    handed over by purpose. An exchange that fails or takes longer
    than ``timeout`` seconds raises :class:`RankFailed`.
    """

    def __init__(self, device: torch.device, timeout: float) -> None:
        self.timeout, self.device = timeout, device
        if device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            _start("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.first = self.rank == 0  # the rank that shows and writes
        self.sent: Counter[str] = Counter()
        self.arrange(self.ranks, 1)

    def arrange(self, along: int, data: int) -> None:
        """Arrange the ranks as a mesh of members × data."""
        self.along, self.across = divmod(self.rank, data)  # its place in the mesh
        with self._exchange("mesh", 0):
            world: Any = dist.group.WORLD
            self.world, self.column, self.data = _groups(world, along, data, self.timeout)

    # ---- exchanges ------------------------------------------------------------------------------

    def all_gather(self, piece: Tensor, purpose: str, group: Any = None) -> Tensor:
        """``[ranks, *piece.shape]`` from pieces of one shape."""
        group = group or self.world
        whole = piece.new_empty(dist.get_world_size(group), *piece.shape)
        with self._exchange(purpose, piece.nbytes):
            dist.all_gather(list(whole.unbind(0)), piece.contiguous(), group=group)
        return whole

    def all_reduce(self, values: Tensor, purpose: str, group: Any = None) -> Tensor:
        """The sum over ranks, in place."""
        with self._exchange(purpose, values.nbytes):
            dist.all_reduce(values, group=group or self.world)
        return values

    def broadcast(self, tensors: Sequence[Tensor], purpose: str, group: Any = None) -> None:
        """Give all ranks of ``group`` the tensors of its first rank, in place."""
        group = group or self.world
        for tensor in tensors:
            with self._exchange(purpose, tensor.nbytes):
                dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)

    def gather_bytes(
        self, payload: bytes, purpose: str, group: Any, *, everywhere: bool
    ) -> list[bytes]:
        """Payloads of any length from all ranks of ``group``, on its first or on all of them."""
        own = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        sizes = self.all_gather(torch.tensor([len(own)]), purpose, group).flatten().tolist()
        padded = torch.cat([own, own.new_zeros(max(sizes) - len(own))])
        if everywhere:
            gathered = list(self.all_gather(padded, purpose, group))
        else:
            first = dist.get_global_rank(group, 0)
            gathered = [torch.empty_like(padded) for _ in sizes] if self.rank == first else []
            with self._exchange(purpose, padded.nbytes):
                dist.gather(padded, gathered or None, dst=first, group=group)
        return [t[:size].numpy().tobytes() for t, size in zip(gathered, sizes, strict=False)]

    def on_first(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which the first rank alone does, as plain JSON values.

        Where it raises a ``ValueError`` or ``OSError``, it raises on all ranks.
        """
        answer: dict[str, Any] = {}
        error: Exception | None = None
        if self.first:
            try:
                answer = {"value": work()}
            except (ValueError, OSError) as raised:
                error, answer = raised, {"error": f"{raised}"}
        payload = json.dumps(answer).encode()
        size = torch.tensor([len(payload)])
        self.broadcast([size], "decisions")
        text = torch.zeros(int(size), dtype=torch.uint8)
        if self.first:
            text = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self.broadcast([text], "decisions")
        answer = json.loads(text.numpy().tobytes())
        if "error" in answer:
            raise error or ValueError(answer["error"])
        value: T = answer["value"]
        return value

    @contextmanager
    def _exchange(self, purpose: str, sent: int) -> Iterator[None]:
        """Count an exchange, and say what its failure means."""
        self.sent[purpose] += sent
        try:
            yield
        except RuntimeError as error:  # gloo's and nccl's errors, time-outs among them
            reason = " ".join(str(error).split())
            raise RankFailed(
                f"an exchange among the ranks failed on rank {self.rank}: one of them ended, or "
                f"did not answer for {self.timeout:g} s ({reason})"
            ) from error


def _start(backend: str, timeout: float) -> None:
    """Start the process group, which lasts until this process ends.

    After a restart torchrun offers the earlier store, with the addresses of dead processes. So keys
    contain how often it has restarted them.
    """
    if not launched():
        raise ValueError(
            "distributed training needs several processes: torchrun --nproc-per-node 2 …"
        )
    wait = timedelta(seconds=max(timeout, _STARTUP))
    try:
        store, rank, ranks = next(rendezvous("env://", timeout=wait))
        store = PrefixStore(f"dissensus/{restarts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=wait)
    except RuntimeError as error:
        raise RankFailed(f"the ranks did not find each other: {error}") from error
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@cache
def _groups(world: Any, along: int, data: int, timeout: float) -> tuple[Any, Any, Any]:
    """Groups of all ranks, along members, and along data; None where there is one rank alone.

    Made once for each mesh, by all ranks: process groups live as long as ``world``.
    """
    wait, rank = timedelta(seconds=timeout), dist.get_rank(world)
    grid = torch.arange(along * data).view(along, data)
    found: list[Any] = [dist.new_group(None, wait)]
    for parts in (grid.T.tolist(), grid.tolist()):
        made = [(part, dist.new_group(part, wait)) for part in parts if len(part) > 1]
        found.append(next((group for part, group in made if rank in part), None))
    return found[0], found[1], found[2]

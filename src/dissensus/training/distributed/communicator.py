"""The communicator of a job: its processes find each other and exchange tensors.

Every exchange goes through :class:`Communicator`, which counts the bytes that are handed over, for
each purpose, and turns a failure into an error that names a rank.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import (
    PrefixStore,
    _get_default_store,
    _set_pg_timeout,
)
from torch.distributed.rendezvous import rendezvous

from dissensus.training.distributed.heartbeat import Heartbeat, RankFailed

T = TypeVar("T")

_STARTUP = 120.0  # seconds in which all processes should have started


def launched() -> bool:
    """Whether ``torchrun``, or something like it, has started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def restarts() -> int:
    """How often ``torchrun`` has restarted the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class Communicator:
    """All processes of the job, from ``torchrun``'s environment or a group that there is already.

    Uses gloo, and nccl as well where ``device`` is a GPU. ``sent`` are the bytes that this rank has
    handed over, and ``calls`` the exchanges, by purpose.
    """

    def __init__(self, device: torch.device, timeout: float) -> None:
        self.timeout = timeout
        self.started = not dist.is_initialized()
        if self.started:
            if not launched():
                raise ValueError(
                    "distributed training needs several processes: start the program with "
                    "torchrun --nproc-per-node 2 …, or call torch.distributed.init_process_group"
                )
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            _start(backend, timedelta(seconds=max(timeout, _STARTUP)))
        _set_pg_timeout(timedelta(seconds=timeout), dist.group.WORLD)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = _own_device(device)
        store = PrefixStore(f"dissensus/{next(_turns)}", _get_default_store())
        self.heartbeat = Heartbeat(store, self.rank, self.ranks)
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.mesh: DeviceMesh | None = None

    def arrange(self, along: int, data: int) -> None:
        """Arrange the ranks as a mesh of members × data."""
        with self._exchange("mesh", 0):
            self.mesh = _mesh(self.device.type, along, data)
        self.along, self.across = divmod(self.rank, data)  # its place in the mesh
        self.data = self.mesh.get_group("data") if data > 1 else None
        self.column = self.mesh.get_group("members") if along > 1 else None
        for group in (self.data, self.column):
            if group is not None:  # the groups of a mesh would wait for half an hour
                _set_pg_timeout(timedelta(seconds=self.timeout), group)

    @property
    def first(self) -> bool:
        """Whether this rank is the one that shows and writes."""
        return self.rank == 0

    def close(self, *, failed: bool = False) -> None:
        """Leave; the process group ends if it was started here."""
        self.heartbeat.close()
        stuck = failed and self.device.type == "cuda"  # nccl would wait for those who are gone
        if self.started and dist.is_initialized() and not stuck:
            _meshes.clear()
            dist.destroy_process_group()

    # ---- exchanges ------------------------------------------------------------------------------

    def all_gather(self, piece: Tensor, purpose: str, group: Any = None) -> Tensor:
        """``[ranks, *piece.shape]`` from pieces of one shape."""
        ranks = dist.get_world_size(group)
        whole = piece.new_empty(ranks, *piece.shape)
        with self._exchange(purpose, piece.nbytes):
            dist.all_gather(list(whole.unbind(0)), piece.contiguous(), group=group)
        return whole

    def all_reduce(self, values: Tensor, purpose: str, group: Any = None) -> Tensor:
        """The sum over ranks, in place."""
        with self._exchange(purpose, values.nbytes):
            dist.all_reduce(values, group=group)
        return values

    def broadcast(self, tensors: list[Tensor], purpose: str, group: Any = None) -> None:
        """Give all ranks of ``group`` the tensors of its first rank, in place."""
        source = 0 if group is None else dist.get_global_rank(group, 0)
        for tensor in tensors:
            with self._exchange(purpose, tensor.nbytes):
                dist.broadcast(tensor, source, group=group)

    def gather_bytes(self, payload: bytes, purpose: str, *, everywhere: bool) -> list[bytes]:
        """Payloads of any length from the ranks along members, on the first of them or on all."""
        own = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        sizes = self.all_gather(torch.tensor([len(own)]), purpose, self.column).flatten().tolist()
        padded = torch.cat([own, own.new_zeros(max(sizes) - len(own))])
        if everywhere:
            gathered = list(self.all_gather(padded, purpose, self.column))
        else:
            gathered = [torch.empty_like(padded) for _ in sizes] if self.first else []
            with self._exchange(purpose, padded.nbytes):
                dist.gather(padded, gathered or None, dst=0, group=self.column)
        return [t[:size].numpy().tobytes() for t, size in zip(gathered, sizes, strict=False)]

    def stand_by(self) -> None:
        """Count the exchanges of a :meth:`gather_bytes` that other ranks make."""
        self.heartbeat.entered += 2

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
        answer = json.loads(self._broadcast_bytes(json.dumps(answer).encode()))
        if error is not None:
            raise error
        if "error" in answer:
            raise ValueError(answer["error"])
        value: T = answer["value"]
        return value

    def _broadcast_bytes(self, payload: bytes) -> bytes:
        size = torch.tensor([len(payload)])
        self.broadcast([size], "decisions")
        text = torch.zeros(int(size), dtype=torch.uint8)
        if self.first:
            text = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        self.broadcast([text], "decisions")
        return text.numpy().tobytes()

    @contextmanager
    def _exchange(self, purpose: str, sent: int) -> Iterator[None]:
        """Count an exchange; if it fails, name the rank to blame."""
        self.heartbeat.entered += 1
        self.sent[purpose] += sent
        self.calls[purpose] += 1
        try:
            yield
        except RuntimeError as error:  # gloo's and nccl's errors, time-outs among them
            raise self.heartbeat.blame(error, self.timeout) from error


def _start(backend: str, wait: timedelta) -> None:
    """Start the process group.

    After a restart torchrun offers the earlier store, with the addresses of dead processes. So keys
    contain how often this rank has started.
    """
    try:
        store, rank, ranks = next(rendezvous("env://", timeout=wait))
        turn = f"turn/{restarts()}/{ranks}"
        fresh = PrefixStore(f"{turn}/{store.add(f'{turn}/{rank}', 1)}", store)
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=ranks, timeout=wait)
    except RuntimeError as error:
        raise RankFailed(f"the ranks did not find each other: {error}") from error


def _own_device(device: torch.device) -> torch.device:
    """The GPU of this process, where GPUs are meant."""
    if device.type != "cuda":
        return device
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(own)
    return own


_meshes: dict[tuple[str, int, int], tuple[Any, DeviceMesh]] = {}


def _mesh(kind: str, along: int, data: int) -> DeviceMesh:
    """The mesh of that shape, made once: each has process groups, which live as long as all."""
    world, key = dist.group.WORLD, (kind, along, data)
    if key not in _meshes or _meshes[key][0] is not world:
        names = ("members", "data")
        _meshes[key] = world, init_device_mesh(kind, (along, data), mesh_dim_names=names)
    return _meshes[key][1]


#: Trainings of this process: all ranks count them alike, so that none reads the keys of another.
_turns = count(1)

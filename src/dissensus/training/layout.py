"""Layout of a distributed job: members and rows of a batch, dealt out to the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dissensus.tools.specs import check_numbers, number


@dataclass(frozen=True)
class Distributed:
    """The settings of :func:`dissensus.fit` across the processes that ``torchrun`` has started.

    The mesh is ``members`` × ``data`` ranks. Along the first axis each rank holds some of the
    members; along the second it takes some rows of each batch, and gradients are summed. What is
    left None follows from the number of ranks: members first, the rest goes to data.

    A rank that does not answer for ``timeout`` seconds ends the job; it must be longer than
    anything a rank does on its own, such as a callback. BatchNorm sees the rows of its rank
    only, as is usual; with ``sync_batchnorm`` it sees the whole batch. ``shard`` splits the
    parameters of each member over the ranks of the data axis (FSDP2), for members that are too
    large for one device.

    >>> Distributed(data=2).shape(ranks=4, members=5)
    (2, 2)
    """

    members: int | None = number(None, low=1)
    data: int | None = number(None, low=1)
    timeout: float = number(300.0, above=0.0)
    sync_batchnorm: bool = False
    shard: bool = False

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
            raise ValueError(
                f"a mesh of {along} × {data} (members × data) needs {along * data} ranks, got "
                f"{ranks}; start as many with torchrun --nproc-per-node, or leave one of them out"
            )
        if along > members:
            raise ValueError(
                f"{along} ranks cannot share {members} members; use at most {members} along members"
                " and the rest along data"
            )
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

    @property
    def ranks(self) -> int:
        return self.along * self.data

    def own(self, rank: int) -> list[int]:
        """The members that ``rank`` holds."""
        return list(deal(self.members, self.along)[rank // self.data])

    def owner(self, member: int) -> int:
        """The first rank that holds ``member``."""
        return next(rank for rank in range(self.ranks) if member in self.own(rank))

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

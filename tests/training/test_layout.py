"""The layout of a job: members and rows of a batch, dealt out to ranks."""

import pytest
import torch

from dissensus import Ensemble, fit
from dissensus.training.distributed.ranks import Distributed, Layout


def test_fit_says_how_to_start_several_processes() -> None:
    ens = Ensemble(lambda: torch.nn.Linear(2, 2), 2)
    data = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2"):
        fit(ens, data, distributed=True, progress=False)


@pytest.mark.parametrize(
    ("settings", "ranks", "members", "shape"),
    [
        ({}, 4, 5, (4, 1)),
        ({}, 4, 3, (2, 2)),
        ({}, 3, 2, (1, 3)),
        ({}, 8, 1, (1, 8)),
        ({"data": 4}, 8, 20, (2, 4)),
        ({"members": 3}, 6, 20, (3, 2)),
    ],
)
def test_the_mesh_leaves_no_rank_idle(
    settings: dict[str, int], ranks: int, members: int, shape: tuple[int, int]
) -> None:
    assert Distributed(**settings).shape(ranks, members) == shape


@pytest.mark.parametrize("rows", range(1, 12))
def test_every_row_of_every_member_has_one_owner_and_none_is_left_alone(rows: int) -> None:
    layout = Layout(5, 2, 3)
    share = layout.share(rows, drawn=[0, 3, 4])
    pairs = []
    for rank in range(layout.along * layout.data):
        positions, own = share.of(rank)
        assert len(own) != 1 or rows == 1
        assert share.size(rank) == len(positions) * len(own)
        pairs += [(position, row) for position in positions for row in own]
    assert sorted(pairs) == [(position, row) for position in range(3) for row in range(rows)]

"""Metrics of a fleet, against NumPy: whatever the batches, and however often they are measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dissensus.training import fleet


@pytest.mark.parametrize("kept", [1, 60, 1 << 20])
@pytest.mark.parametrize("sizes", [(4, 4, 2), (1, 7, 30, 2)], ids=["equal", "growing"])
def test_records_of_a_fleet_do_not_depend_on_how_batches_are_kept(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], kept: int
) -> None:
    monkeypatch.setattr(fleet, "KEPT", kept)
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(2, 3, sum(sizes), 1))  # ensembles, members, rows, outputs
    targets, part = rng.normal(size=(2, sum(sizes), 1)), rng.normal(size=(len(sizes), 2))
    meter, begin = fleet.FleetMeter("mean"), 0
    for size, own in zip(sizes, part, strict=True):
        rows = slice(begin, begin + size)
        batch = torch.tensor(outputs[:, :, rows])
        meter.add(batch, torch.tensor(targets[:, rows]), {"term": torch.tensor(own)})
        batch.zero_()  # its memory may be used again
        begin += size
    for place, record in enumerate(meter.records()):
        members = ((outputs[place] - targets[place]) ** 2).sum(-1).mean(1)
        whole = ((outputs[place].mean(0) - targets[place]) ** 2).sum(-1).mean()
        assert record["ensemble_error"] == pytest.approx(whole, rel=1e-9)
        assert record["per_member_error"] == pytest.approx(members, rel=1e-9)
        assert record["member_error"] == pytest.approx(members.mean(), rel=1e-9)
        assert record["part/term"] == pytest.approx(
            np.average(part[:, place], weights=sizes), rel=1e-9
        )

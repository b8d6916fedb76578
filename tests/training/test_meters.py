"""Metrics against NumPy: whatever the batches, and however often they are measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dissensus.training import evaluation, fleet
from dissensus.training.evaluation import Meter


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


@pytest.mark.parametrize("kept", [1, 100, 1 << 20])
@pytest.mark.parametrize("weighed", [False, True])
def test_each_example_counts_for_the_members_that_were_drawn_for_it(
    monkeypatch: pytest.MonkeyPatch, weighed: bool, kept: int
) -> None:
    """Also where the meter is saved and loaded between two batches, as within an epoch."""
    monkeypatch.setattr(evaluation, "KEPT", kept)
    rng, sums, shares = np.random.default_rng(1), np.zeros((2, 5)), np.zeros(5)
    ensemble = member = hits = total = 0.0
    meter = Meter(5, "probability")
    for drawn, size in (([1, 4], 6), ([0, 1], 3), ([1, 4], 5)):
        logits, y = rng.normal(size=(2, size, 3)), rng.integers(3, size=size)
        weights = rng.uniform(0.5, 2, size) if weighed else np.ones(size)
        probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        errors = -np.log(probs[:, range(size), y])
        ensemble -= weights @ np.log(probs.mean(0)[range(size), y])
        member += weights @ errors.mean(0)
        hits += weights @ (probs.mean(0).argmax(-1) == y)
        sums[:, drawn] += np.stack([errors @ weights, (logits.argmax(-1) == y) @ weights])
        total, shares[drawn] = total + weights.sum(), shares[drawn] + weights.sum()
        given = torch.tensor(weights) if weighed else None
        meter.add(torch.tensor(logits), torch.tensor(y), {}, drawn, given)
        state, meter = meter.state(), Meter(5, "probability")
        meter.load(*state, torch.device("cpu"))
    record = meter.record()
    assert record["examples"] == pytest.approx(total)
    assert record["ensemble_error"] == pytest.approx(ensemble / total)
    assert record["member_error"] == pytest.approx(member / total)
    assert record["diversity"] == pytest.approx((member - ensemble) / total)
    assert record["accuracy"] == pytest.approx(hits / total)
    for name, own in zip(("per_member_error", "per_member_accuracy"), sums, strict=True):
        wanted = [
            value / count if count else None for value, count in zip(own, shares, strict=True)
        ]
        assert record[name] == [None if v is None else pytest.approx(v) for v in wanted]

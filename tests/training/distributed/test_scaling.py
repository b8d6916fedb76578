"""The model of a step against values by hand."""

import pytest

from benchmarks.scaling import Devices, Work, bytes_per_step, predict_step

WORK = Work(members=6, batch=64, outputs=10, parameters=1000, seconds=0.5)
DEVICES = Devices(latency=1e-3, bandwidth=1e6, memory=1e9, passes=10)


def test_a_step_on_a_mesh_is_the_sum_of_its_parts() -> None:
    """4 × 2: two members and 32 rows each; 3 + 640 numbers to 7 others, 2,000 gradients in two."""
    found = predict_step(WORK, DEVICES, along=4, data=2)
    assert found.compute == pytest.approx(2 * 0.5 * 32 / 64)
    assert found.objective == pytest.approx(10 * 6 * 64 * 10 * 4 / 1e9)
    assert found.outputs == pytest.approx(7 * (1e-3 + 643 * 4 / 1e6))
    assert found.gradients == pytest.approx(2 * (1e-3 + 2000 * 4 / 2 / 1e6))
    parts = found.compute + found.objective + found.outputs + found.gradients
    assert found.total == pytest.approx(parts)
    assert bytes_per_step(WORK, 4, 2) == {"outputs": 643 * 4, "gradients": 2000 * 4}


def test_members_that_are_not_coupled_scale_without_loss_until_they_run_out() -> None:
    free = Work(members=6, batch=64, outputs=10, parameters=1000, seconds=0.5, coupled=False)
    times = [predict_step(free, DEVICES, along, 1).compute for along in (1, 2, 3, 4, 6)]
    assert times == [3.0, 1.5, 1.0, 1.0, 0.5]  # four ranks are no faster than three
    assert all(predict_step(free, DEVICES, along, 1).outputs == 0 for along in (2, 6))

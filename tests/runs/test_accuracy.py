"""Accuracy under shift against counting by hand: soups, oracle, members, groups, intervals."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.runs import Candidates, accuracies, mean_estimate


def ensemble(members: int = 3, combine: str = "probability") -> Ensemble:
    return Ensemble(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), members, 0, combine
    )


def data(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator)
    return x, (x[:, :3] + 0.5 * torch.randn(rows, 3, generator=generator)).argmax(-1)


def share(predicted: Tensor, y: Tensor) -> float:
    return sum(int(a) == int(b) for a, b in zip(predicted, y, strict=True)) / len(y)


@pytest.mark.parametrize("combine", ["probability", "score"])
def test_every_way_to_decide_is_counted(combine: str) -> None:
    ens, (x, y), val = ensemble(combine=combine), data(101, 1), data(60, 2)
    ens.set_weights(torch.tensor([0.2, 0.3, 0.5]))
    result = accuracies(Candidates.of(ens, val), x, y, batch_size=7)
    alone = [ens.member(j)(x).argmax(-1) for j in range(3)]
    members = [share(predicted, y) for predicted in alone]
    assert result.members == pytest.approx(members)
    assert result.overall["ensemble"] == pytest.approx(share(ens.predict(x).argmax(-1), y))
    assert result.overall["mean_member"] == pytest.approx(sum(members) / 3)
    assert result.overall["oracle"] == pytest.approx(max(members))
    assert result.overall["uniform_soup"] == pytest.approx(share(ens.soup()(x).argmax(-1), y))
    # The greedy soup is chosen on val alone: best member first, others where they do not harm.
    by_val = sorted(range(3), key=lambda j: -share(ens.member(j)(val[0]).argmax(-1), val[1]))
    greedy_members: list[int] = []
    best = -1.0
    for member in by_val:
        tried = share(ens.soup(members=[*greedy_members, member])(val[0]).argmax(-1), val[1])
        if tried >= best:
            greedy_members, best = [*greedy_members, member], tried
    assert result.greedy_members == greedy_members
    greedy = share(ens.soup(members=greedy_members)(x).argmax(-1), y)
    assert result.overall["greedy_soup"] == pytest.approx(greedy)
    assert result.examples == 101


def test_the_worst_group() -> None:
    ens, (x, y) = ensemble(), data(120, 3)
    groups = torch.arange(120) % 4 * 10
    result = accuracies(Candidates.of(ens), x, y, groups=groups)
    assert "greedy_soup" not in result.overall  # nothing to choose it by

    def worst(predicted: Tensor) -> tuple[float, int]:
        return min(
            (share(predicted[groups == g], y[groups == g]), g) for g in groups.unique().tolist()
        )

    value, group = worst(ens.predict(x).argmax(-1))
    assert (result.worst_group["ensemble"].worst, result.worst_group["ensemble"].group) == (
        pytest.approx(value),
        group,
    )
    oracle = max(worst(ens.member(j)(x).argmax(-1))[0] for j in range(3))
    assert result.worst_group["oracle"].worst == pytest.approx(oracle)
    found = result.worst_group["ensemble"]
    assert set(found.by_group) == {0, 10, 20, 30}
    assert min(found.by_group.values()) == found.worst
    with pytest.raises(ValueError, match=r"groups must be whole numbers \[batch\] = \(120,\)"):
        accuracies(Candidates.of(ens), x, y, groups=groups.double())


def test_the_interval_is_that_of_resampled_rows() -> None:
    values = torch.tensor([0.0] * 30 + [0.5] * 20 + [1.0] * 50, dtype=torch.float64)
    result = mean_estimate(values, bootstrap=4000)
    rng = np.random.default_rng(1)
    means = rng.choice(values.numpy(), size=(4000, 100)).mean(1)
    assert result.value == pytest.approx(0.6)
    assert [result.low, result.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.012)
    assert np.isnan(mean_estimate(values, bootstrap=0).low)


def test_unlike_members_have_no_soup_and_regression_no_accuracy() -> None:
    unlike = Ensemble.from_members(
        [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))]
    )
    result = accuracies(Candidates.of(unlike, data(20, 2)), *data(20, 1))
    assert set(result.overall) == {"ensemble", "mean_member", "oracle"}
    with pytest.raises(ValueError, match="accuracy is for classifiers"):
        Candidates.of(ensemble(combine="mean"))


def test_labels_that_are_no_classes_are_refused() -> None:
    x, y = data(20, 1)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\)"):
        accuracies(Candidates.of(ensemble()), x, y + 5)

"""Adversarial training: one batch and its twin, for any objective and execution."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dissensus as ds
from dissensus.models import make_factory
from dissensus.robustness import PGD, AdversarialBatches, Attack, attack


def made(execution: str = "auto") -> ds.Ensemble:
    return ds.Ensemble(make_factory("mlp", (6,), 3, hidden=(16,)), members=3, execution=execution)


def data() -> tuple[Tensor, Tensor]:
    x = torch.rand(96, 6, generator=torch.Generator().manual_seed(1))
    return x, (3 * x[:, 0]).long()


@pytest.mark.parametrize(
    ("how", "eps", "limits"),
    [
        ("fgsm", None, (0.01, 0.05)),
        ("fgsm:eps=0.2", None, (0.2, 0.2)),
        ("pgd:steps=2,eps=0.1/0.3", None, (0.1, 0.3)),
        (PGD(eps=0.15, steps=2), None, (0.15, 0.15)),
        ("fgsm:eps=0.2", (0.3, 0.4), (0.3, 0.4)),
    ],
)
def test_what_the_size_is_drawn_from(
    how: str | Attack, eps: tuple[float, float] | None, limits: tuple[float, float]
) -> None:
    ens, (x, y) = made(), data()
    batches = AdversarialBatches(ens, how, eps=eps)
    assert batches.eps == limits
    generator = torch.Generator().manual_seed(0)
    pairs = [batches(x, y, generator) for _ in range(20)]
    assert all(torch.equal(both[:96], x) for both, _ in pairs)
    assert all(torch.equal(labels, torch.cat([y, y])) for _, labels in pairs)
    sizes = [float((both[96:] - x).abs().max()) for both, _ in pairs]
    assert limits[0] - 1e-6 <= min(sizes) <= max(sizes) <= limits[1] + 1e-6
    # ε is drawn anew for each batch, from the whole of its limits.
    assert max(sizes) - min(sizes) >= 0.7 * (limits[1] - limits[0]) - 1e-6


def test_the_twin_is_the_attack_on_the_ensemble_as_it_is() -> None:
    ens = made()
    x, y = data()
    both, _ = AdversarialBatches(ens, "bim:eps=0.1")(x, y, torch.Generator())
    found = attack(ens, x, y, "bim:eps=0.1,early=false", progress=False)
    right = found.clean_predictions == y
    torch.testing.assert_close(both[96:][right], found.adversarial[right])


@pytest.mark.parametrize("objective", ["ldr:strength=0.1", "learner_dropout/joint"])
def test_fit_takes_it_with_any_objective(objective: str) -> None:
    ens = made()
    batches = AdversarialBatches(ens, "fgsm")
    history = ds.fit(ens, data(), objective, augment=batches, epochs=2, progress=False)
    assert len(history.epochs) == 2


def test_executions_agree_and_unlike_members_work() -> None:
    weights = []
    for execution in ("stacked", "looped"):
        ens = made(execution)
        ds.fit(ens, data(), augment=AdversarialBatches(ens, "fgsm"), epochs=2, progress=False)
        weights.append(next(ens.parameters()).detach())
    torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-3)
    unlike = ds.Ensemble.from_members([nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 3), nn.ReLU())])
    ds.fit(unlike, data(), augment=AdversarialBatches(unlike), epochs=1, progress=False)


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def train(out: Path, epochs: int, resume: bool) -> Tensor:
        ens = made()
        batches = AdversarialBatches(ens, "pgd:steps=2")
        where = {"out": out, "resume": resume, "batch_size": 32, "progress": False}
        ds.fit(ens, data(), augment=batches, epochs=epochs, **where)
        return next(ens.parameters()).detach()

    whole = train(tmp_path / "whole", 4, False)
    train(tmp_path / "parts", 2, False)
    assert torch.equal(train(tmp_path / "parts", 4, True), whole)


def test_statistics_of_batches_are_the_trainings_alone() -> None:
    """The attack runs in evaluation mode: its passes do not move BatchNorm's running means."""
    make = lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))  # noqa: E731
    ens = ds.Ensemble(make, members=2).train()
    before = {name: value.clone() for name, value in ens.named_buffers()}
    AdversarialBatches(ens, "pgd:steps=3")(*data(), torch.Generator())
    for name, value in ens.named_buffers():
        assert torch.equal(value, before[name]), name


def test_it_makes_an_ensemble_more_robust() -> None:
    digits = ds.data.load("digits", seed=0)
    left = []
    for adversarial in (False, True):
        make = make_factory("mlp", digits.input_shape, 10, hidden=(32,))
        ens = ds.Ensemble(make, members=2, seed=0)
        batches = AdversarialBatches(ens, "fgsm", eps=(0.1, 0.2)) if adversarial else None
        ds.fit(ens, digits.train, augment=batches, epochs=15, batch_size=64, progress=False)
        x, y = digits.test[0][:100], digits.test[1][:100]
        left.append(float(attack(ens, x, y, "pgd:eps=0.12,steps=20", progress=False).accuracy))
    assert left[1] > left[0] + 0.05


def test_mistakes() -> None:
    ens = made()
    with pytest.raises(ValueError, match="an untargeted gradient attack, got square"):
        AdversarialBatches(ens, "square")
    with pytest.raises(ValueError, match="0 < low ≤ high"):
        AdversarialBatches(ens, eps=(0.2, 0.1))
    with pytest.raises(ValueError, match="eps must be a number or low/high, got 'a/b'"):
        AdversarialBatches(ens, "fgsm:eps=a/b")
    x, y = data()
    with pytest.raises(ValueError, match=r"got inputs from .* normalise inside the model"):
        AdversarialBatches(ens)(x * 3, y, torch.Generator())
    with pytest.raises(ValueError, match="x must be finite, got 6 NaN"):
        AdversarialBatches(ens)(x.index_fill(0, torch.tensor(0), torch.nan), y, torch.Generator())
    with pytest.raises(ValueError, match="needs integer class labels"):
        AdversarialBatches(ens)(x, x[:, :3], torch.Generator())

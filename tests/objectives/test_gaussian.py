"""Gaussian members: values by hand, and networks that learn how much noise there is where."""

import math

import pytest
import torch
from torch import nn

import dissensus as ds
from dissensus.objectives import Gaussian, gaussian_moments


def test_two_members_by_hand() -> None:
    """N(0; 0, 1) and N(0; 2, 1), each with the density of a normal law at 0 and at 2."""
    outputs = torch.tensor([[[0.0, 0.0]], [[2.0, 0.0]]], dtype=torch.float64)
    terms = Gaussian(weighting=0.0)(outputs, torch.zeros(1, 1, dtype=torch.float64))
    near, far = 0.5 * math.log(2 * math.pi), 0.5 * math.log(2 * math.pi) + 2
    assert float(terms.loss) == pytest.approx((near + far) / 2, abs=1e-5)
    mixture = -math.log((math.exp(-near) + math.exp(-far)) / 2)
    assert float(terms.parts["ensemble_error"]) == pytest.approx(mixture, abs=1e-5)
    half = Gaussian()(outputs, torch.zeros(1, 1, dtype=torch.float64)).loss
    assert float(half / terms.loss) == pytest.approx(0.5**0.5)  # σ² / (1 + σ²) = ½


def test_an_odd_number_of_outputs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"two outputs for each target; double \(3, 4, 3\)"):
        Gaussian()(torch.zeros(3, 4, 3), torch.zeros(4, 1))


@pytest.mark.parametrize("shuffle", ["shared", pytest.param("members", marks=pytest.mark.slow)])
def test_members_learn_the_noise_and_metrics_are_of_the_mixture(shuffle: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(800, 1, generator=generator)
    y = torch.randn(800, 1, generator=generator) * (0.1 + 0.9 * (x > 0.5))

    def member() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))

    ens = ds.Ensemble(member, 3, 0, "mean")
    history = ds.fit(
        ens, (x, y), "gaussian", val=(x, y), epochs=60, batch_size=100, shuffle=shuffle,
        optimizer=ds.Optimizer("adamw", lr=0.03), progress=False,
    )  # fmt: skip
    with torch.no_grad():
        outputs = ens(x)
    record = history.epochs[history.best_epoch - 1]["val"]
    known = Gaussian()(outputs, y).parts
    for name in ("ensemble_error", "member_error", "diversity"):
        assert record[name] == pytest.approx(float(known[name]), rel=1e-4, abs=1e-6)
    deviations = (gaussian_moments(outputs)[1] / 2).exp().mean(0).squeeze(1)
    quiet, loud = deviations[x[:, 0] < 0.4].mean(), deviations[x[:, 0] > 0.6].mean()
    assert float(quiet) < 0.2
    assert float(loud) == pytest.approx(1.0, rel=0.15)

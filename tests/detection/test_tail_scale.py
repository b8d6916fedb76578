"""Tail scales and their combination: a slow loop, planted unknowns, monotony, exponential tails."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from dissensus.detection import TailScale, combine_tails, evaluate


def test_a_combination_finds_what_either_of_its_scores_finds() -> None:
    """Planted: one kind of unknown that only the score sees, one that only the distance sees."""
    rng = np.random.default_rng(0)
    known, val = (rng.exponential(size=(400, 2)) * [1.0, 1e6] for _ in range(2))
    kinds = rng.exponential(size=(2, 400, 2))
    kinds[0, :, 0] += 8
    kinds[1, :, 1] += 8
    kinds *= [1.0, 1e6]
    first, second = (TailScale.fit(torch.from_numpy(val[:, i])) for i in range(2))

    def combined(x: np.ndarray) -> Tensor:
        score, distance = torch.from_numpy(x).T
        return combine_tails([score, distance], (first, second))

    for kind in range(2):
        auroc = evaluate(combined(known), combined(kinds[kind]), bootstrap=0).auroc
        blind = evaluate(*map(torch.from_numpy, (known[:, 1 - kind], kinds[kind, :, 1 - kind])))
        assert auroc > 0.99
        assert blind.auroc < 0.6


def slow_combination(parts: np.ndarray, val: np.ndarray) -> list[float]:
    """Row by row: p below the 90% quantile by interpolation, beyond it by an exponential tail."""
    weights = [0.25, 0.5, 0.25]
    levels = np.linspace(0, 0.9, 91)
    combined = []
    for row in parts.T:
        total = 0.0
        for value, known, weight in zip(row, val, weights, strict=True):
            edges = np.quantile(known, levels)
            p = 1 - np.interp(value, edges, levels)
            if value > edges[-1]:
                excess = known[known > edges[-1]].mean() - edges[-1]
                p = 0.1 * np.exp(-(value - edges[-1]) / excess)
            total += weight / p
        combined.append(np.log(total))
    return combined


def test_a_combination_agrees_with_a_slow_loop_and_rises_with_each_part() -> None:
    rng = np.random.default_rng(0)
    val, parts = rng.gamma(2.0, size=(3, 200)), 3 * rng.gamma(2.0, size=(3, 50))
    scales = [TailScale.fit(torch.from_numpy(each)) for each in val]
    combined = combine_tails(list(torch.from_numpy(parts)), scales)
    np.testing.assert_allclose(combined, slow_combination(parts, val), rtol=1e-9)
    for part in range(3):
        more = torch.from_numpy(parts).clone()
        more[part] += 0.5
        assert (combine_tails(list(more), scales) > combined).all()


@pytest.mark.parametrize("useless", [0, 1, 2])
def test_a_useless_part_does_little_harm(useless: int) -> None:
    """Planted: one part is noise, the others see the unknown rows."""
    rng = np.random.default_rng(useless)
    known, val, unknown = torch.from_numpy(rng.exponential(size=(3, 3, 800)))
    unknown += 5.0
    unknown[useless] -= 5.0
    scales = [TailScale.fit(each) for each in val]
    both, alone = (
        evaluate(*(combine_tails([x[i] for i in kept], [scales[i] for i in kept])
                   for x in (known, unknown)), bootstrap=0).auroc.value
        for kept in ([0, 1, 2], [i for i in range(3) if i != useless])
    )  # fmt: skip
    assert alone > 0.95
    assert both > alone - 0.01


def test_known_inputs_have_exponential_tails() -> None:
    generator = torch.Generator().manual_seed(0)
    for power in (1, 4):  # the second is nearly 0 for most, as mutual information is
        draws = torch.rand(2, 4000, generator=generator).log().neg().pow(power)
        tails = TailScale.fit(draws[0])(draws[1])
        for level in (0.5, 0.1, 0.01)[: 3 if power == 1 else 2]:
            share = float((tails > -np.log(level)).double().mean())
            assert share == pytest.approx(level, rel=0.25)


@pytest.mark.parametrize("ties", [False, True])
def test_a_scale_is_monotone_continues_beyond_the_data_and_comes_back(ties: bool) -> None:
    known = torch.linspace(0, 1, 101).pow(3)
    known = (known * 4).round() / 4 if ties else known
    scale = TailScale.fit(known)
    tails = scale(torch.linspace(-1, 9, 2001))
    assert (tails.diff() >= 0).all()
    assert tails[0] == 0
    assert (tails[-100:].diff() > 0).all()
    assert TailScale.from_dict(json.loads(json.dumps(scale.to_dict()))) == scale


def test_what_has_no_scale_says_why() -> None:
    with pytest.raises(ValueError, match="pds is 1 for all validation rows"):
        TailScale.fit(torch.ones(50), "pds")
    with pytest.raises(ValueError, match="needs 20 validation rows"):
        TailScale.fit(torch.rand(9))
    with pytest.raises(ValueError, match="holds 91 rising quantiles"):
        TailScale.from_dict({"quantiles": [1.0], "excess": 1.0})

"""The search: it finds, repeats itself to the letter, and never trains the same twice."""

import math
from itertools import product
from typing import Any

import pytest

from dissensus.sweeps import Trial, best_trial, search

SPACE: dict[str, list[Any]] = {
    "lr": [10 ** (quarter / 4 - 4) for quarter in range(13)],
    "width": [4, 8, 16, 32, 64, 128, 256, 512],
    "kind": ["a", "b"],
}


def error(choice: dict[str, Any]) -> float:
    """Least, 0, at lr = 0.01, width = 32, kind b."""
    far = math.log10(choice["lr"] / 0.01) ** 2 + math.log2(choice["width"] / 32) ** 2 / 4
    return far + (choice["kind"] == "a")


@pytest.mark.parametrize("batch", [1, 5])
def test_it_is_better_than_chance(batch: int) -> None:
    """Of 208 settings, 30 draws at random have the sixth best on average (rank 4.9)."""
    every = sorted(
        error(dict(zip(SPACE, values, strict=True))) for values in product(*SPACE.values())
    )
    ranks = []
    for seed in range(5):
        found = search(SPACE, lambda cs: [error(c) for c in cs], trials=30, batch=batch, seed=seed)
        assert len(found) == 30
        ranks.append(every.index(best_trial(found).value))
    assert sum(ranks) / len(ranks) < 2, ranks


def test_it_follows_from_seed_and_values_alone() -> None:
    def run(seed: int, shift: float = 0.0) -> list[Trial]:
        return search(SPACE, lambda cs: [error(c) + shift for c in cs], batch=4, seed=seed)

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert [t.choice for t in run(3)] == [t.choice for t in run(3, shift=1.0)]  # ranks decide


def test_nothing_is_evaluated_twice() -> None:
    seen: list[tuple[Any, ...]] = []

    def evaluate(choices: list[dict[str, Any]]) -> list[float]:
        assert 0 < len(choices) <= 6
        seen.extend(tuple(choice.values()) for choice in choices)
        return [choice["x"] for choice in choices]

    found = search({"x": [1, 2, 3]}, evaluate, trials=18, batch=6)
    assert len(found) == 18
    assert len(seen) == len(set(seen)) <= 3


def test_a_failed_trial_is_no_choice() -> None:
    def evaluate(choices: list[dict[str, Any]]) -> list[float]:
        return [math.nan if choice["x"] == 1 else float(choice["x"]) for choice in choices]

    found = search({"x": [1, 2, 3]}, evaluate, trials=12, batch=3)
    assert best_trial(found).choice == {"x": 2}
    assert any(math.isnan(trial.value) for trial in found)
    with pytest.raises(ValueError, match="all 4 trials failed"):
        best_trial(search({"x": [1, 2]}, lambda cs: [math.inf for _ in cs], trials=4))


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="values to choose from"):
        search({"x": []}, lambda cs: [0.0])
    with pytest.raises(ValueError, match="trials and batch must be at least 1, got 0 and 1"):
        search({"x": [1]}, lambda cs: [0.0], trials=0)

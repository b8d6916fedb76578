"""Members with settings of their own: the greedy choice, candidates that end, and the result."""

import math
import pickle
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1
from torch import Tensor

from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from dissensus.sklearn.greedy_choice import GreedyChoice, greedy_selection
from dissensus.sklearn.sampled_members import draw_settings
from dissensus.training import Recipe

QUICK: dict[str, Any] = {
    "n_estimators": 3,
    "members": "sampled",
    "hidden_layer_sizes": 8,
    "max_iter": 12,
    "learning_rate_init": 0.03,
    "random_state": 0,
}
IRIS = load_iris(return_X_y=True)
FRIEDMAN = make_friedman1(120, noise=0.5, random_state=0)


# ---- the greedy choice --------------------------------------------------------------------------


def slow_error(outputs: Tensor, targets: Tensor, weights: Tensor, combine: str) -> float:
    """The weighted error of an ensemble, by loops over rows, members and outputs."""
    total = 0.0
    for row, weight in enumerate(weights.tolist()):
        own = outputs[:, row].tolist()
        if combine == "probability":
            own = [[math.exp(v) / sum(map(math.exp, logits)) for v in logits] for logits in own]
        mean = [sum(column) / len(own) for column in zip(*own, strict=True)]
        if combine == "mean":
            y = targets[row].tolist()
            loss = sum((a - b) ** 2 for a, b in zip(mean, y, strict=True))
        elif combine == "probability":
            loss = -math.log(mean[int(targets[row])])
        else:
            loss = math.log(sum(map(math.exp, mean))) - mean[int(targets[row])]
        total += weight * loss
    return total


@pytest.mark.parametrize("combine", ["mean", "probability", "score"])
def test_each_choice_lowers_the_error_most(combine: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        outputs = torch.randn(5, 6, 3, generator=generator)
        targets = torch.randn(6, 3, generator=generator)
        if combine != "mean":
            targets = torch.randint(3, (6,), generator=generator)
        weights = torch.rand(6, generator=generator)
        found = greedy_selection(outputs, targets, weights, 4, combine)
        for count in range(1, 5):  # against every other candidate that could have come next
            before = found[: count - 1]
            errors = {
                other: slow_error(outputs[[*before, other]], targets, weights, combine)
                for other in range(5)
                if other not in before
            }
            assert found[count - 1] == min(errors, key=errors.__getitem__)


def test_equal_candidates_are_chosen_in_order_and_tiny_probabilities_count() -> None:
    same = torch.zeros(4, 2, 3)
    assert greedy_selection(same, torch.tensor([0, 1]), torch.ones(2), 3, "probability") == [
        0,
        1,
        2,
    ]
    # Worst first: all are certain of a wrong class but the last one.
    sure = torch.tensor([[[-4e3, 4e3]], [[-5e3, 5e3]], [[1.0, 0.0]]])
    for order in permutations(range(3)):
        found = greedy_selection(
            sure[list(order)], torch.tensor([0]), torch.ones(1), 1, "probability"
        )
        assert order[found[0]] == 2
    with pytest.raises(ValueError, match="count must be from 1 to 4 candidates, got 5"):
        greedy_selection(same, torch.tensor([0, 1]), torch.ones(2), 5, "probability")


def test_what_is_passed_over_twice_and_worse_than_all_chosen_is_ended() -> None:
    """Best is +1; −2 cancels it; 1.2 is better than −2 by itself, and so is not ended; 9 is."""
    choice = GreedyChoice((torch.zeros(1, 1), torch.zeros(1, 1)), 2, "mean")
    outputs = {number: torch.full((1, 1, 1), value) for number, value in enumerate((9, -2, 1, 1.2))}
    ended = [choice.end({number: own.double() for number, own in outputs.items()})]
    ended += [choice.end({}) for _ in range(9)]
    assert ended == [[]] * 9 + [[0]]  # chosen after 5 and 10 epochs
    choice.end({0: torch.zeros(1, 1, 1, dtype=torch.float64)})  # it has become the best
    assert [choice.end({}) for _ in range(4)] == [[]] * 3 + [[3]]  # −2 was chosen the last time
    assert choice.missed == {0: 0, 1: 1, 2: 0, 3: 3}


# ---- candidates ---------------------------------------------------------------------------------


def test_settings_are_drawn_from_the_seed_in_their_ranges() -> None:
    recipe = Recipe(optimizer="adamw:lr=5e-3,weight_decay=1", seed=3)
    drawn = draw_settings(400, 64, recipe)
    assert drawn[:8] == draw_settings(8, 64, recipe) != draw_settings(8, 64, Recipe())
    assert len({(own.hidden_layer_sizes, own.embedding) for own in drawn}) <= 4
    assert {own.embedding for own in drawn} == {"piecewise", "linear"}
    for own in drawn:
        assert len(own.hidden_layer_sizes) in (1, 2, 3)
        assert set(own.hidden_layer_sizes) <= {32, 64, 128}
    for name, low, high in (("learning_rate_init", 1e-4, 5e-3), ("alpha", 1e-3, 1.0)):
        logs = np.log([getattr(own, name) for own in drawn])
        assert np.log(low) <= logs.min() < logs.max() <= np.log(high)
        middle = (np.log(low) + np.log(high)) / 2
        assert abs(logs.mean() - middle) < 0.1 * (np.log(high) - np.log(low))


# ---- the estimators -----------------------------------------------------------------------------


def test_the_regressor_chooses_members_and_everything_goes_on_from_them() -> None:
    X, y = FRIEDMAN
    model = DiverseRegressor(**QUICK, candidates=6).fit(X, y)
    assert model.ensemble_.members == len(model.settings_) == len(model.histories_) == 3
    found = [
        tuple(layer.weight.shape[0] for layer in list(member.children())[:-1:2])
        for member in model.estimators_
    ]
    assert found == [own["hidden_layer_sizes"] for own in model.settings_]
    assert model.score(X, y) > 0.6
    assert model.held_out_.outputs.shape == (3, 24, 1)  # a fifth, as rows are few
    # The members were chosen in the order in which they help.
    held = model.held_out_
    chosen = greedy_selection(held.outputs, held.targets, held.weights, 3, "mean")
    assert chosen == [0, 1, 2]
    assert np.isfinite(model.predict_interval(X)).all()
    assert np.isfinite(model.ood_score(X)).all()
    parts = model.decompose(X, y)
    assert parts.diversity == pytest.approx(parts.member_error - parts.ensemble_error)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    same = clone(model).fit(X, y)
    np.testing.assert_array_equal(same.predict(X), model.predict(X))
    assert same.settings_ == model.settings_


def test_the_classifier_takes_frames_weights_and_a_number_of_candidates() -> None:
    X, y = IRIS
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(kind=np.where(X[:, 2] > 2, "x", "y"))
    rng = np.random.default_rng(0)
    times = rng.integers(0, 3, len(y))
    index = np.arange(len(y)).repeat(times)
    make = QUICK | {"candidates": 5, "max_iter": 4}
    weighed = DiverseClassifier(**make).fit(frame, y, sample_weight=times)
    repeated = DiverseClassifier(**make).fit(frame.iloc[index], y[index])
    np.testing.assert_array_equal(weighed.predict_proba(frame), repeated.predict_proba(frame))
    assert weighed.score(frame, y) > 0.6
    single = DiverseClassifier(**make | {"n_estimators": 1, "candidates": 1}).fit(X, y)
    assert single.ensemble_.members == 1


def test_inputs_that_a_member_does_not_see_do_not_move_it() -> None:
    X, y = FRIEDMAN
    model = DiverseRegressor(**QUICK | {"n_estimators": 4, "candidates": 4, "max_iter": 2}).fit(
        X, y
    )
    linear = [own["embedding"] == "linear" for own in model.settings_]
    assert sum(linear) == 2
    x = model.standard_.inputs(X, np.float64)
    first = torch.zeros(x.shape[1], dtype=torch.bool)
    first[np.cumsum([0, *map(len, model.standard_.x.edges[:-1])])] = True
    outputs = model.ensemble_(x)
    moved = model.ensemble_(torch.where(first, x, x + 1.0))
    changed = (outputs != moved).any(2).any(1).tolist()
    assert changed == [not own for own in linear]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"members": "unlike"}, "members must be one of alike, sampled, got 'unlike'"),
        ({"candidates": 2}, r"must be at least 3 \(n_estimators\), got 2"),
        ({"candidates": 2.5}, "candidates must be an integer of at least 1, got 2.5"),
        ({"objective": "joint"}, "they have the objective 'independent', got 'joint"),
        ({"loss": "gaussian"}, "they have the objective 'independent', got 'gaussian"),
        ({"beta": "auto"}, "no β couples them, got beta='auto'"),
        ({"sharing": "adapters"}, "they share no weights, got sharing='adapters'"),
        ({"shuffle": "members"}, "an order of rows of its own anyway"),
        ({"bootstrap": True}, "all learn from the same rows, got bootstrap=True"),
        ({"early_stopping": False}, "they are chosen on held-out rows, got early_stopping=False"),
        ({"validation": "members"}, "all hold out the same rows, got validation="),
        ({"warm_start": True}, "they cannot be trained further, got warm_start=True"),
        ({"learning_rate_init": "fast"}, "learning_rate_init must be a finite number"),
        (
            {"learning_rate_init": 1e30, "candidates": 4},
            r"of 4 candidates failed: .*\. Lower the learning rate",
        ),
    ],
)
def test_what_does_not_go_with_it_is_explained(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DiverseRegressor(**QUICK | settings).fit(*FRIEDMAN)


def test_there_is_no_partial_fit() -> None:
    assert not hasattr(DiverseRegressor(**QUICK), "partial_fit")

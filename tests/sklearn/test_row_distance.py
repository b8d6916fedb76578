"""Distances of rows: against a slow reference, what members miss, and where there are none."""

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import roc_auc_score

from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from dissensus.sklearn.strange_rows import MOST_INPUTS

SMALL = {"n_estimators": 3, "hidden_layer_sizes": 16, "max_iter": 12, "random_state": 0}
KINDS = {DiverseClassifier: load_breast_cancer, DiverseRegressor: load_diabetes}


def tail(known: NDArray[Any], scores: NDArray[Any]) -> NDArray[Any]:
    """−log P(S > s) by hand: linear between percentiles up to 90%, exponential above."""
    levels = np.linspace(0, 0.9, 91)
    edges = np.quantile(known, levels)
    excess = (known[known > edges[-1]] - edges[-1]).mean()
    body = -np.log(1 - np.interp(scores, edges, levels))
    return body + np.maximum(scores - edges[-1], 0) / excess


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_score_is_that_of_its_formula(kind: type[Any]) -> None:
    x, y = KINDS[kind](return_X_y=True)
    model = kind(**SMALL).fit(x[:200], y[:200])
    own = "variance" if kind is DiverseRegressor else "mutual_information"

    inputs = model.standard_.inputs(x, np.float64).numpy()
    distance = LedoitWolf().fit(inputs[:200]).mahalanobis(inputs)
    np.testing.assert_allclose(model.ood_score(x, "mahalanobis"), distance, rtol=1e-6)
    tails = [
        tail(model.ood_score(x[:200], score), model.ood_score(x, score))
        for score in (own, "mahalanobis")
    ]
    expected = np.logaddexp(*tails) - np.log(2)  # log ½ (1 / p + 1 / q)
    np.testing.assert_allclose(model.ood_score(x), expected, rtol=1e-6)
    np.testing.assert_array_equal(model.ood_score(x), model.ood_score(x, "combined"))


@pytest.mark.parametrize("kind", list(KINDS))
def test_values_that_never_come_together_stand_out(kind: type[Any]) -> None:
    x, y = KINDS[kind](return_X_y=True)
    train, test = x[::2], x[1::2]
    model = kind(**SMALL).fit(train, y[::2])
    chance = np.random.default_rng(0)
    strange = np.stack([chance.permutation(column) for column in test.T], 1)

    def auroc(score: str | None) -> float:
        both = np.concatenate([model.ood_score(rows, score) for rows in (test, strange)])
        return float(roc_auc_score(np.repeat([0, 1], len(test)), both))

    own = "variance" if kind is DiverseRegressor else "mutual_information"
    assert auroc(None) > max(auroc(own) + 0.1, 0.75)


def test_it_is_kept_and_does_not_depend_on_the_order_or_on_weights() -> None:
    x, y = load_diabetes(return_X_y=True)
    model = DiverseRegressor(**SMALL).fit(x, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.ood_score(x), again.ood_score(x))
    turned = DiverseRegressor(**SMALL).fit(x[::-1], y[::-1])
    np.testing.assert_allclose(turned.ood_score(x), model.ood_score(x), rtol=1e-6)
    twice = DiverseRegressor(**SMALL).fit(np.concatenate([x, x]), np.concatenate([y, y]))
    weighted = DiverseRegressor(**SMALL).fit(x, y, sample_weight=np.full(len(x), 2.0))
    np.testing.assert_allclose(twice.ood_score(x), weighted.ood_score(x), rtol=1e-6)


def test_where_there_is_no_distance_members_score_alone() -> None:
    chance = np.random.default_rng(0)
    tables = {
        "few rows": chance.normal(size=(19, 2)),
        "wide": chance.normal(size=(60, MOST_INPUTS // 16)),
        "constant": np.ones((60, 2)),
        "copies": np.stack([np.arange(60) % 2] * 2, 1),
        "balanced": np.stack([np.arange(60) % 2, np.arange(60) // 2 % 2], 1),  # all equally far
    }
    for name, x in tables.items():
        model = DiverseRegressor(**SMALL, validation="common").fit(x, chance.normal(size=len(x)))
        assert model.distance_ is None, name
        np.testing.assert_array_equal(model.ood_score(x), model.ood_score(x, "variance"))
        with pytest.raises(ValueError, match="score='mahalanobis' needs distance_"):
            model.ood_score(x, "mahalanobis")

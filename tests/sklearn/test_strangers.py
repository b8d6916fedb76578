"""Estimators with strangers: the same predictions, and a score of tuned members."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.metrics import roc_auc_score

from dissensus.sklearn import DiverseClassifier, DiverseRegressor

SMALL = {"n_estimators": 3, "hidden_layer_sizes": 16, "max_iter": 12, "random_state": 0}


def auroc(model: Any, known: pd.DataFrame, unknown: pd.DataFrame) -> float:
    """Of the members alone: distances of rows are the same with and without tuning."""
    score = "variance" if isinstance(model, DiverseRegressor) else "mutual_information"
    scores = [model.ood_score(x, score) for x in (known, unknown)]
    labels = np.repeat([0, 1], [len(known), len(unknown)])
    return float(roc_auc_score(labels, np.concatenate(scores)))


@pytest.mark.parametrize("kind", [DiverseClassifier, DiverseRegressor])
def test_predictions_stay_and_unknown_rows_stand_out(kind: type) -> None:
    load = load_wine if kind is DiverseClassifier else load_diabetes
    x, y = load(return_X_y=True, as_frame=True)
    x["part"] = np.where(x.iloc[:, 0] > x.iloc[:, 0].median(), "high", "low")  # a category
    train, test = x[::2], x[1::2]
    plain = kind(**SMALL).fit(train, y[::2])
    tuned = kind(**SMALL, strangers=True).fit(train, y[::2])
    np.testing.assert_array_equal(plain.predict(test), tuned.predict(test))
    assert not hasattr(plain, "tuned_")
    chance = np.random.default_rng(0)
    unknown = pd.DataFrame({name: chance.permutation(test[name]) for name in test})
    assert auroc(tuned, test, unknown) > max(auroc(plain, test, unknown), 0.6)


def test_what_does_not_go_together_says_so() -> None:
    x, y = np.arange(40.0).reshape(-1, 1), np.arange(40.0)
    with pytest.raises(ValueError, match="strangers=True does not go with loss='gaussian'"):
        DiverseRegressor(**SMALL, loss="gaussian", strangers=True).fit(x, y)
    with pytest.raises(AttributeError, match="partial_fit"):
        DiverseRegressor(**SMALL, strangers=True).partial_fit(x, y)

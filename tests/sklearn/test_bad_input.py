"""Bad input: a clear error or a finite answer, and never NaN."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dissensus.sklearn import DiverseClassifier, DiverseRegressor

QUICK: dict[str, Any] = {
    "n_estimators": 2,
    "hidden_layer_sizes": 8,
    "max_iter": 3,
    "learning_rate_init": 0.03,
    "random_state": 0,
}
X = np.random.default_rng(0).normal(size=(50, 2))
Y = X[:, 0] + 3.0
LABELS = (Y > 3).astype(int)


def regressor() -> DiverseRegressor:
    return DiverseRegressor(**QUICK)


def classifier() -> DiverseClassifier:
    return DiverseClassifier(**QUICK)


@pytest.mark.parametrize(("value", "text"), [(np.nan, "contains NaN"), (np.inf, "contains inf")])
def test_targets_that_are_missing_or_infinite(value: float, text: str) -> None:
    bad = np.arange(50) == 7
    with pytest.raises(ValueError, match=f"Input y {text}"):
        regressor().fit(X, np.where(bad, value, Y))
    with pytest.raises(ValueError, match=f"Input y {text}"):
        classifier().fit(X, np.where(bad, value, LABELS))
    with pytest.raises(ValueError, match="y holds None, a missing label; leave these rows out"):
        classifier().fit(X, np.where(bad, None, LABELS.astype(object)))


@pytest.mark.parametrize("size", [1e-100, 1e-9, 1e9, 1e100])
def test_targets_of_any_size_are_predicted_in_their_units(size: float) -> None:
    plain, scaled = regressor().fit(X, Y), regressor().fit(X, Y * size)
    np.testing.assert_allclose(scaled.predict(X), plain.predict(X) * size, rtol=1e-3)
    bounds = scaled.predict_interval(X)
    assert np.isfinite(bounds).all()
    assert (bounds[:, 1] > bounds[:, 0]).all()


@pytest.mark.parametrize("size", [1e300, 1e-200])
def test_targets_that_cannot_be_squared(size: float) -> None:
    with pytest.raises(ValueError, match="whose square is beyond float64; rescale y"):
        regressor().fit(X, Y * size)
    with pytest.raises(ValueError, match=r"y holds 1e\+300, whose square"):
        regressor().fit(X, np.full(50, 1e300))


@pytest.mark.parametrize("constant", [0.0, 7.0, 1e-300, 1e20])
def test_a_constant_target(constant: float) -> None:
    model = regressor().fit(X, np.full(50, constant))
    np.testing.assert_allclose(model.predict(X), constant, rtol=1e-9, atol=0.5)
    assert np.isfinite(model.predict_interval(X)).all()


def test_one_class_and_few_rows() -> None:
    with pytest.raises(ValueError, match="y has one class only, 0; give two or more"):
        classifier().fit(X, np.zeros(50, dtype=int))
    for rows in (1, 2, 3, 19):  # fewer than folds need: held out by all members together, if at all
        model = regressor().fit(X[:rows], Y[:rows])
        assert np.isfinite(model.predict(X)).all()
        assert (model.held_out_ is None) == (rows == 1)
        with pytest.raises(ValueError, match=r"predict_interval needs rows|needs 19 held-out"):
            model.predict_interval(X)
    assert np.isfinite(classifier().fit(X[[0, 1]], [0, 1]).predict_proba(X)).all()
    with pytest.raises(ValueError, match="cv must be from 2 to n_samples = 4, got 5"):
        DiverseRegressor(**QUICK, beta="auto").fit(X[:4], Y[:4])


def test_constant_and_empty_columns() -> None:
    same = np.full((50, 2), 3.0)
    model = regressor().fit(same, Y)
    assert np.ptp(model.predict(same)) < 1e-12
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(classifier().fit(same, LABELS).predict_proba(X)).all()
    with pytest.raises(ValueError, match="no column is left to learn from: x0: dropped, it is em"):
        regressor().fit(same * np.nan, Y)


def test_columns_and_levels_at_predict_that_were_not_there_in_fit() -> None:
    table = pd.DataFrame({"size": X[:, 0], "town": np.where(LABELS, "Bonn", "Ulm")})
    numbers = pd.DataFrame(X, columns=["a", "b"])
    for frame in (table, numbers):
        model = regressor().fit(frame, Y)
        first = frame.columns[0]
        with pytest.raises(ValueError, match="unseen at fit time:\n- new"):
            model.predict(frame.assign(new=1.0))
        with pytest.raises(ValueError, match=f"yet now missing:\n- {first}"):
            model.predict(frame.drop(columns=first))
    with pytest.raises(ValueError, match="X has 3 features, but DiverseRegressor is expecting 2"):
        regressor().fit(X, Y).predict(np.c_[X, X[:, 0]])
    model = regressor().fit(table, Y)
    assert np.isfinite(model.predict(table.assign(town="Rome"))).all()


def test_numbers_at_the_ends_of_float32_and_beyond() -> None:
    with pytest.raises(ValueError, match=r"column 'x1' holds 1e\+39, which is beyond float32"):
        regressor().fit(X + np.array([0.0, 1e39]), Y)
    outlier = X.copy()
    outlier[0, 0] = 3e38
    for model in (regressor().fit(X, Y), regressor().fit(outlier, Y)):
        with pytest.raises(ValueError, match=r"column 'x0' holds -1e\+39, which is beyond float32"):
            model.predict(X - np.array([1e39, 0.0]))
        with pytest.raises(ValueError, match="Input X contains infinity"):
            model.predict(np.full((1, 2), np.inf))
        far = np.array([[3e38, -3e38], [np.nan, 5e-324]])
        assert np.abs(model.predict(far)).max() < 1e3
        assert np.isfinite(model.ood_score(far)).all()

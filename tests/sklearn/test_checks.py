"""scikit-learn's own suite, complete, in every way the estimators train."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dissensus.sklearn import DiverseClassifier, DiverseRegressor

SMALL = {"n_estimators": 2, "hidden_layer_sizes": 8, "max_iter": 5, "batch_size": 32}
AUTO = SMALL | {"beta": "auto", "betas": (0.0, 0.5), "cv": 2}


@parametrize_with_checks([DiverseClassifier(**SMALL, learning_rate_init=0.03)])
def test_scikit_learn_is_satisfied(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([DiverseRegressor(**SMALL, learning_rate_init=0.03)])
def test_it_is_satisfied_with_the_regressor(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        DiverseClassifier(**AUTO, learning_rate_init=0.1, early_stopping=True),
        DiverseRegressor(**AUTO, learning_rate_init=0.03, early_stopping=False),
        # Members drawn for each batch: not the fleet but the ordinary loop. Where one class has all
        # the weight, members of a stronger LDR disagree by naming the other one.
        DiverseClassifier(
            **SMALL | {"n_estimators": 3}, objective="ldr:strength=0.1", learning_rate_init=0.1
        ),
    ]
)
def test_it_is_satisfied_with_a_search_and_with_drawn_members(estimator: Any, check: Any) -> None:
    check(estimator)

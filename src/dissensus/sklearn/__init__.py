"""Scikit-learn estimators: diverse ensembles for tables.

:class:`DiverseClassifier` and :class:`DiverseRegressor` are ordinary scikit-learn estimators: they
go into a ``Pipeline``, a ``GridSearchCV`` and ``cross_val_score``, take arrays, DataFrames and
``sample_weight``, and can be cloned and pickled.
"""

from __future__ import annotations

from dissensus.sklearn.estimators import DiverseClassifier, DiverseRegressor

__all__ = ["DiverseClassifier", "DiverseRegressor"]

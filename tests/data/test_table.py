"""Tables: statistics of the training rows alone, one-hot columns and constants left in peace."""

import numpy as np
import pytest
import torch
from scipy.stats import skew

from dissensus.data import Table, load_table
from dissensus.data.preparation import Column, Preparation
from dissensus.data.table import Scaler


def toy(rows: int = 200, log_skew: float | None = None) -> Table:
    rng = np.random.default_rng(0)
    numbers = np.stack([rng.normal(5, 3, rows), np.exp(rng.normal(0, 1.5, rows))], 1)
    columns = (
        Column("plain", "number"),
        Column("skewed", "number"),
        Column("kind", "category", ("0", "1", "2")),
    )
    return Table(
        "toy",
        "regression",
        np.concatenate([numbers, np.eye(3)[np.arange(rows) % 3]], 1),
        rng.normal(100, 20, rows),
        Preparation(columns),
        np.arange(rows),
        log_skew=log_skew,
    )


def test_statistics_come_from_the_training_rows_alone() -> None:
    """Whatever happens to validation and test rows, the training split stays as it is."""
    table = toy(log_skew=1.0)
    before = table.split(seed=1)
    held = np.concatenate([before.rows["val"], before.rows["test"]])
    table.x[held] *= 1000
    table.y[held] -= 1e6
    after = table.split(seed=1)
    assert torch.equal(before.train[0], after.train[0])
    assert torch.equal(before.train[1], after.train[1])
    assert not torch.equal(before.test[0], after.test[0])


def test_a_split_is_the_plain_formula() -> None:
    table = toy()
    data = table.split(seed=2, val=0.25, test=0.5)
    train, test = data.rows["train"].numpy(), data.rows["test"].numpy()
    x = table.x[:, :2]
    expected = (x[test] - x[train].mean(0)) / x[train].std(0)
    assert np.allclose(data.test[0][:, :2], expected, atol=1e-5)
    assert np.array_equal(data.test[0][:, 2:], table.x[test][:, 2:])
    assert np.allclose(data.original(data.test[1])[:, 0], table.y[test])
    assert data.preprocessing["target_mean"] == [pytest.approx(table.y[train].mean())]


def test_skewed_columns_are_logged_and_only_they() -> None:
    table = toy(log_skew=1.0)
    data = table.split(seed=0)
    train = data.rows["train"].numpy()
    assert data.preprocessing["log_features"] == ["skewed"]
    logged = np.log1p(table.x[:, 1])
    expected = (logged[train] - logged[train].mean()) / logged[train].std()
    assert np.allclose(data.train[0][:, 1], expected, atol=1e-5)
    assert toy(log_skew=None).split().preprocessing["log_features"] == []


def test_skewness_is_scipys_and_negative_columns_are_never_logged() -> None:
    rng = np.random.default_rng(1)
    x = np.stack([rng.exponential(1, 500), rng.exponential(1, 500) - 0.01], 1)
    limit = float(skew(x[:, 0]))
    both = np.array([True, True])
    assert Scaler.fit(x, both, limit - 1e-9).log.tolist() == [True, False]
    assert Scaler.fit(x, both, limit + 1e-9).log.tolist() == [False, False]


def test_a_negative_value_in_the_test_rows_stays_finite_under_the_log() -> None:
    x = np.array([[0.0], [0.0], [0.0], [0.0], [50.0]])
    scaler = Scaler.fit(x, np.array([True]), 1.0)
    assert scaler.log.tolist() == [True]
    assert np.isfinite(scaler(np.array([[-5.0]]))).all()


def test_constants_have_unit_scale_and_one_hot_columns_none() -> None:
    """Bioconcentration's trap: a level that no training row has must not blow up."""
    x = np.array([[7.0, 0.0, 1e9], [7.0, 0.0, 1e9], [7.0, 0.0, 1e9]])
    scaler = Scaler.fit(x, np.array([True, False, True]))
    assert scaler.scale.tolist() == [1, 1, 1]
    assert scaler(np.array([[8.0, 1.0, 1e9 + 1]])).tolist() == [[1.0, 1.0, 1.0]]


def test_gaps_are_filled_with_the_training_mean() -> None:
    x = np.array([[1.0], [3.0], [np.nan]])
    scaler = Scaler.fit(x, np.array([True]))
    assert scaler.fill.tolist() == [2.0]
    assert scaler(np.array([[np.nan]])).tolist() == [[0.0]]


def test_a_weight_fills_as_a_repetition_does() -> None:
    x = np.array([[1.0, np.nan], [np.nan, np.nan], [5.0, np.nan]])
    weighed = Scaler.fit(x, np.ones(2, bool), weights=np.array([3.0, 1.0, 1.0]))
    repeated = Scaler.fit(x[[0, 0, 0, 1, 2]], np.ones(2, bool))
    assert weighed.fill.tolist() == repeated.fill.tolist() == [2.0, 0.0]
    assert np.allclose(weighed.scale, repeated.scale)


def test_columns_of_a_large_table_are_estimated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bits as all at once, for any number of columns."""
    x = np.exp(np.random.default_rng(0).normal(size=(60, 11)))
    x[::7, 3] = np.nan
    for columns in (1, 4, 7, 11):
        given = x[:, :columns], np.arange(columns) % 3 > 0, 1.0, x[:, 0]
        whole = Scaler.fit(*given)
        monkeypatch.setattr("dissensus.data.table._AT_ONCE", 100)
        parts = Scaler.fit(*given)
        monkeypatch.undo()
        for name, values in vars(whole).items():
            np.testing.assert_array_equal(getattr(parts, name), values, err_msg=name)


def test_without_standardisation_numbers_stay_raw() -> None:
    table = load_table("wine")
    data = table.split(seed=0, standardize=False)
    assert np.allclose(data.train[0], table.x[data.rows["train"].numpy()])


def test_load_table_knows_its_tables() -> None:
    with pytest.raises(ValueError, match=r"no table 'wines'; did you mean 'wine'\?"):
        load_table("wines")
    with pytest.raises(ValueError, match="'wine' has no option 'verify'; known are standardize"):
        load_table("wine", verify=False)

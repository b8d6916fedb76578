"""Tables: raw columns, splits whose statistics come from the training rows alone, scaling."""

import json

import numpy as np
import pytest
import torch

from dissensus.data import Encoder, Preparation, Scaler, Table, load_table
from dissensus.sklearn import DiverseClassifier, DiverseRegressor


def toy(rows: int = 200) -> Table:
    rng = np.random.default_rng(0)
    columns = {
        "plain": rng.normal(5, 3, rows),
        "skewed": np.exp(rng.normal(0, 1.5, rows)),
        "kind": np.array(["a", "b", None], dtype=object)[np.arange(rows) % 3],
        "when": np.datetime64("2024-01-01") + rng.integers(0, 900, rows),
    }
    columns["plain"][::7] = np.nan
    return Table("toy", "regression", columns, rng.normal(100, 20, rows), np.arange(rows))


def test_statistics_come_from_the_training_rows_alone() -> None:
    """Whatever happens to validation and test rows, the training split stays as it is."""
    table = toy()
    before = table.split(seed=1)
    held = np.concatenate([before.rows["val"], before.rows["test"]])
    table.columns["skewed"][held] *= 1000
    table.columns["kind"][held] = "unseen"
    table.y[held] -= 1e6
    after = table.split(seed=1)
    assert before.preprocessing == after.preprocessing
    assert torch.equal(before.train[0], after.train[0])
    assert torch.equal(before.train[1], after.train[1])
    assert not torch.equal(before.test[0], after.test[0])


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_split_and_an_estimator_encode_a_table_alike(task: str) -> None:
    """The same rows become the same inputs, whichever way they come."""
    import pandas as pd

    table = toy()
    if task == "classification":
        labels = (table.y > 100).astype(np.int64)
        table = Table("toy", task, table.columns, labels, table.ids, classes=("low", "high"))
    data = table.split(seed=2)
    train, test = (data.rows[part].numpy() for part in ("train", "test"))
    frame = pd.DataFrame(dict(table.columns))
    kind = DiverseRegressor if task == "regression" else DiverseClassifier
    model = kind(n_estimators=2, hidden_layer_sizes=4, max_iter=1).fit(
        frame.iloc[train], table.y[train]
    )
    assert model.columns_.to_dict() == data.preprocessing["preparation"]
    inputs = torch.cat(list(model._inputs(frame.iloc[test])))
    torch.testing.assert_close(inputs.float(), data.test[0])
    if task == "regression":
        target = model.standard_.targets(table.y[test, None])
        torch.testing.assert_close(target, data.test[1])


def test_what_a_split_keeps_is_plain_json_and_encodes_new_rows() -> None:
    table = toy()
    data = table.split(seed=2, val=0.25, test=0.5)
    kept = json.loads(json.dumps(dict(data.preprocessing)))
    preparation = Preparation.from_dict(kept["preparation"])
    encoder = Encoder.from_dict(kept["encoder"])
    x = encoder(preparation.encode(table.columns), np.float32)
    assert np.array_equal(x[data.rows["test"]], data.test[0])
    assert data.features == preparation.features
    assert len(data.groups or ()) == data.input_shape[0] == encoder.inputs
    test = data.rows["test"].numpy()
    assert np.allclose(data.original(data.test[1])[:, 0], table.y[test])
    # The formula of an exported graph, in one step from columns to inputs.
    column, start, width, low, high = encoder.pieces
    raw = preparation.encode(table.columns)
    raw = np.where(np.isnan(raw), encoder.scaler.fill, raw)[:, column]
    direct = (np.clip((raw - start) / width, low, high) - encoder.mean) / encoder.scale
    np.testing.assert_allclose(direct, encoder(preparation.encode(table.columns)), atol=1e-11)


def test_constants_have_unit_scale_and_one_hot_columns_none() -> None:
    """Bioconcentration's trap: a level that no training row has must not blow up."""
    x = np.array([[7.0, 0.0, 1e9], [7.0, 0.0, 1e9], [7.0, 0.0, 1e9]])
    scaler = Scaler.fit(x, np.array([True, False, True]))
    assert scaler.scale.tolist() == [1, 1, 1]
    assert scaler(np.array([[8.0, 1.0, 1e9 + 1]])).tolist() == [[1.0, 1.0, 1.0]]


def test_gaps_are_filled_with_the_weighted_mean() -> None:
    x = np.array([[1.0, np.nan], [np.nan, np.nan], [5.0, np.nan]])
    both = np.ones(2, bool)
    weighed = Scaler.fit(x, both, np.array([3.0, 1.0, 1.0]))
    repeated = Scaler.fit(x[[0, 0, 0, 1, 2]], both)
    assert weighed.fill.tolist() == repeated.fill.tolist() == [2.0, 0.0]
    assert weighed(np.full((1, 2), np.nan)).tolist() == [[0.0, 0.0]]
    assert np.allclose(weighed.scale, repeated.scale)


def test_columns_of_a_large_table_are_estimated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bits as all at once, for any number of columns."""
    x = np.exp(np.random.default_rng(0).normal(size=(60, 11)))
    x[::7, 3] = np.nan
    for columns in (1, 4, 7, 11):
        given = x[:, :columns], np.arange(columns) % 3 > 0, x[:, 0]
        whole = Scaler.fit(*given)
        monkeypatch.setattr("dissensus.data.encoder._AT_ONCE", 100)
        parts = Scaler.fit(*given)
        monkeypatch.undo()
        for name, values in vars(whole).items():
            np.testing.assert_array_equal(getattr(parts, name), values, err_msg=name)


def test_load_table_knows_its_tables() -> None:
    with pytest.raises(ValueError, match=r"no data set 'wines'; did you mean 'wine'\?"):
        load_table("wines")
    with pytest.raises(ValueError, match="digits is no table; known are breast_cancer, wine"):
        load_table("digits")
    with pytest.raises(ValueError, match="'wine' has no option 'verify'"):
        load_table("wine", verify=False)

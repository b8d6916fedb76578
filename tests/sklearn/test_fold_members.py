"""Members that hold out folds of their own: what they have seen, what is kept, what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, make_friedman1

from dissensus.sklearn import DiverseClassifier, DiverseRegressor, fold_members
from dissensus.training import Training, fit_fleet

QUICK: dict[str, Any] = {"hidden_layer_sizes": 8, "max_iter": 2, "random_state": 0}
X, Y = make_friedman1(61, random_state=0)
IRIS = load_iris(return_X_y=True)


def regressor(**settings: Any) -> DiverseRegressor:
    return DiverseRegressor(**QUICK | settings)


def row_numbers(model: DiverseRegressor) -> np.ndarray:
    """Which row of ``(X, Y)`` each held-out row is; targets are all different."""
    assert model.held_out_ is not None
    found = np.argmin(np.abs(model.held_out_.targets.numpy() - Y), 1)
    assert sorted(found) == list(range(len(Y)))
    return found


@pytest.mark.parametrize("members", [2, 3, 8, 11, 17])
def test_no_member_has_seen_the_rows_of_its_fold(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of members: unequal folds, one member a fold, a fold trained alone."""
    seen: list[Training] = []

    def watched(trainings: Any, **settings: Any) -> Any:
        seen.extend(trainings)
        return fit_fleet(trainings, **settings)

    monkeypatch.setattr(fold_members, "fit_fleet", watched)
    model = regressor(n_estimators=members, max_iter=1).fit(X, Y)
    held_out, order = model.held_out_, row_numbers(model)
    assert held_out is not None
    own = members // min(members, fold_members.FOLDS)
    assert held_out.outputs.shape == (own, 61, 1)
    assert (held_out.total, model.ensemble_.members) == (members, members)
    first = 0
    for training in seen:
        fold = torch.nonzero(held_out.members[0] == first).squeeze(1)
        learnt = training.rows
        assert learnt is not None
        assert not set(fold.tolist()) & set(learnt.tolist())
        assert len(set(learnt.tolist())) == len(learnt) >= 61 - len(fold) - 1
        assert len(fold) - 1 <= len(training.val[0]) <= len(fold)  # type: ignore[index]
        torch.testing.assert_close(
            training.val[0],  # type: ignore[index]
            training.train[0][fold[: len(training.val[0])]],  # type: ignore[index]
        )
        first += training.ens.members
    assert first == members
    outputs = model.member_outputs(X)[:, order]  # in the order of the held-out rows
    index = held_out.members[..., None]
    torch.testing.assert_close(held_out.outputs, outputs.gather(0, index), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("members", [2, 3, 11, 16])
def test_large_folds_train_by_twos_and_end_the_same(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets: list[int] = []

    def watched(trainings: Any, **settings: Any) -> Any:
        fleets.append(len(trainings))
        return fit_fleet(trainings, **settings)

    monkeypatch.setattr(fold_members, "fit_fleet", watched)
    together = regressor(n_estimators=members).fit(X, Y)
    monkeypatch.setattr(fold_members, "_LARGE", 0)
    apart = regressor(n_estimators=members).fit(X, Y)
    folds = min(members, fold_members.FOLDS)
    assert (fleets[0], fleets[1:]) == (folds, [2] * (folds // 2) if folds % 2 == 0 else [3])
    np.testing.assert_allclose(together.predict(X), apart.predict(X), rtol=1e-4)
    assert together.held_out_ is not None
    assert apart.held_out_ is not None
    torch.testing.assert_close(
        together.held_out_.outputs, apart.held_out_.outputs, rtol=1e-4, atol=1e-4
    )
    assert torch.equal(together.held_out_.members, apart.held_out_.members)
    assert len(apart.histories_) == folds


def test_targets_of_a_fold_do_not_reach_its_members() -> None:
    """Two targets swapped within a fold: its members stay as they are, the others do not."""
    settings = {"n_estimators": 4, "max_iter": 1}
    before = regressor(**settings).fit(X, Y)
    fold = np.flatnonzero(before.held_out_.members[0] == 2)
    one, two = row_numbers(before)[fold[:2]]
    y = Y.copy()
    y[[one, two]] = Y[[two, one]]
    after = regressor(**settings).fit(X, y)
    change = (after.member_outputs(X) - before.member_outputs(X)).abs().amax((1, 2))
    assert float(change[2]) < 1e-4
    assert float(change[[0, 1, 3]].min()) > 1e-3


def test_classes_are_in_proportion_and_all_is_reproducible() -> None:
    data = IRIS[0][::2], IRIS[1][::2]
    models = [DiverseClassifier(5, **QUICK).fit(*data) for _ in range(2)]
    first, second = (model.held_out_ for model in models)
    assert first is not None
    assert second is not None
    assert torch.equal(first.outputs, second.outputs)
    for fold in range(5):
        labels = first.targets[first.members[0] == fold]
        assert labels.bincount().tolist() == [5, 5, 5]
    assert len(models[0].histories_) == 5
    other = DiverseClassifier(5, **QUICK | {"random_state": 1}).fit(*data).held_out_
    assert other is not None
    assert not torch.equal(first.members, other.members)


def test_held_out_weights_are_those_of_rows() -> None:
    weights = np.linspace(1, 3, 61)
    model = regressor(n_estimators=2).fit(X, Y, weights)
    held_out = model.held_out_
    assert held_out is not None
    np.testing.assert_allclose(held_out.weights.numpy(), weights[row_numbers(model)])
    common = regressor(n_estimators=2, validation="common", validation_fraction=0.3).fit(X, Y)
    assert common.held_out_ is not None
    assert common.held_out_.outputs.shape == (2, 18, 1)
    assert set(common.held_out_.targets.numpy().ravel().round(3)) <= set(Y.round(3))


def test_the_best_epoch_of_each_fold_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    model = regressor(n_estimators=4, max_iter=12, n_iter_no_change=2, learning_rate_init=0.1)
    model.set_params(verbose=True).fit(X, Y)
    assert any(h.best_epoch < len(h.epochs) for h in model.histories_)
    assert model.n_iter_ == max(len(h.epochs) for h in model.histories_)
    lines = [line for line in capsys.readouterr().out.splitlines() if "Iteration" in line]
    curves = zip(model.loss_curve_, model.validation_loss_curve_, strict=True)
    assert lines == [
        f"Iteration {n}, loss = {loss:.8f}, validation loss = {val:.8f}"
        for n, (loss, val) in enumerate(curves, 1)
    ]
    last = [h.epochs[0]["val"]["ensemble_error"] for h in model.histories_]
    assert model.validation_loss_curve_[0] == pytest.approx(np.mean(last))


@pytest.mark.parametrize("validation", ["members", "common"])
def test_members_may_share_weights(validation: str) -> None:
    settings = {"n_estimators": 4, "hidden_layer_sizes": (8, 8), "sharing": "adapters"}
    model = regressor(**settings, validation=validation).fit(X, Y)
    assert model.held_out_ is not None
    assert np.isfinite(model.predict(X)).all()
    further = regressor(**settings, warm_start=True).fit(X, Y).fit(X, Y)
    assert (further.n_iter_, further.ensemble_.sharing) == (4, "adapters")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"objective": "joint:loss=mse"}, "members learn together by 'joint:loss=mse"),
        ({"beta": 0.5}, "members learn together by 'augmented"),
        ({"bootstrap": True}, "bootstrap=True give members batches of their own"),
        ({"warm_start": True}, "warm_start=True trains members further"),
        ({"n_estimators": 1}, "n_estimators is 1, and each fold needs one"),
    ],
)
def test_what_has_no_folds_says_so(settings: dict[str, Any], why: str) -> None:
    model = regressor(**{"n_estimators": 2, "max_iter": 1} | settings)
    with pytest.raises(ValueError, match=f"validation='members' does not go here: .*{why}"):
        model.set_params(validation="members").fit(X, Y)
    assert not hasattr(model.set_params(validation="auto").fit(X, Y), "histories_")


def test_validation_is_checked() -> None:
    with pytest.raises(ValueError, match="validation must be one of auto, members, common"):
        regressor(validation="folds").fit(X, Y)
    with pytest.raises(ValueError, match="there are 12 different rows, fewer than 20"):
        regressor(validation="members").fit(X[:12].repeat(9, 0), Y[:12].repeat(9))
    assert regressor(n_estimators=2).fit(X[:20], Y[:20]).histories_


@pytest.mark.parametrize("kind", [DiverseClassifier, DiverseRegressor])
def test_members_may_have_no_hidden_layer(kind: type[Any]) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = 2 * x[:, 0] - x[:, 1]
    y = y > 0 if kind is DiverseClassifier else y
    model = kind(n_estimators=4, hidden_layer_sizes=(), random_state=0).fit(x[:150], y[:150])
    assert model.score(x[150:], y[150:]) > 0.9

"""The estimators beyond scikit-learn's own checks: what they promise, and what they refuse."""

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline

from dissensus.objectives import ADP, LDR
from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from dissensus.sklearn.rows import Standard
from dissensus.sklearn.trainings import settle
from dissensus.training import fit_fleet

QUICK = {
    "n_estimators": 3,
    "hidden_layer_sizes": 8,
    "max_iter": 8,
    "batch_size": 32,
    "learning_rate_init": 0.03,
    "random_state": 0,
}
IRIS = load_iris(return_X_y=True)
FRIEDMAN = make_friedman1(159, noise=0.5, random_state=0)


def classifier(**settings: Any) -> DiverseClassifier:
    return DiverseClassifier(**QUICK | settings)


def regressor(**settings: Any) -> DiverseRegressor:
    return DiverseRegressor(**QUICK | settings)


# ---- weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"early_stopping": True},
        {"objective": "ldr"},
        {"beta": "auto", "cv": 2, "betas": (0, 1)},
    ],
    ids=["plain", "early stopping", "ldr", "auto"],
)
def test_a_weight_is_a_repetition_and_zero_is_absence(settings: dict[str, Any]) -> None:
    """To the bit, in batches smaller than the data, with the rows in another order."""
    X, y = IRIS
    rng = np.random.default_rng(0)
    times = rng.integers(0, 4, len(X))
    order = rng.permutation(np.arange(len(X)).repeat(times))
    make = {**settings, "batch_size": 32, "max_iter": 4}
    repeated = classifier(**make).fit(X[order], y[order])
    weighed = classifier(**make).fit(X, y, sample_weight=times)
    doubled = classifier(**make).fit(X, y, sample_weight=2.5 * times)
    np.testing.assert_array_equal(repeated.predict_proba(X), weighed.predict_proba(X))
    np.testing.assert_allclose(repeated.predict_proba(X), doubled.predict_proba(X), rtol=1e-4)
    plain = classifier(**make).fit(X, y)
    assert np.abs(plain.predict_proba(X) - weighed.predict_proba(X)).max() > 1e-3


def test_weights_move_a_constant_prediction_to_the_weighted_mean() -> None:
    """Two rows that only weights tell apart: the best prediction is their weighted mean."""
    X, y = np.zeros((2, 1)), np.array([0.0, 1.0])
    model = regressor(early_stopping=False, max_iter=200, alpha=0).fit(X, y, [1.0, 4.0])
    assert model.predict([[0.0]]) == pytest.approx(0.8, abs=1e-3)


def test_class_weights_multiply_those_of_rows() -> None:
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.arange(100), rng.choice(np.arange(100, 150), 10)])
    own = rng.integers(1, 4, len(rows))
    asked = {"setosa": 2, "virginica": 5}  # 1 for the rest
    factor = np.array([2, 1, 5])[y[rows]]
    weighed = classifier(class_weight=asked, max_iter=4).fit(X[rows], names[rows], own)
    same = classifier(max_iter=4).fit(X[rows], names[rows], own * factor)
    np.testing.assert_array_equal(weighed.predict_proba(X), same.predict_proba(X))
    # Balanced: what is weighed and what is repeated are one, and each class has the same in total.
    totals = np.array([own[y[rows] == label].sum() for label in range(3)])
    balanced = classifier(class_weight="balanced", max_iter=4).fit(X[rows], names[rows], own)
    by_hand = classifier(max_iter=4).fit(
        X[rows], names[rows], own * (own.sum() / 3 / totals)[y[rows]]
    )
    repeated = classifier(class_weight="balanced", max_iter=4).fit(
        X[rows].repeat(own, 0), names[rows].repeat(own)
    )
    np.testing.assert_allclose(balanced.predict_proba(X), by_hand.predict_proba(X), rtol=1e-5)
    np.testing.assert_allclose(balanced.predict_proba(X), repeated.predict_proba(X), rtol=1e-5)
    assert "class_weight" not in regressor().get_params()


# ---- training further ---------------------------------------------------------------------------


def test_a_warm_start_goes_on_from_the_weights() -> None:
    X, y = IRIS
    settings: dict[str, Any] = {"max_iter": 10, "early_stopping": False, "objective": "independent"}
    cold = classifier(**settings).fit(X, y)
    warm = classifier(**settings, warm_start=True).fit(X, y)
    np.testing.assert_array_equal(warm.predict_proba(X), cold.predict_proba(X))
    first = warm.loss_
    warm.set_params(max_iter=5).fit(X + 100.0, y)  # standardised as the first rows were
    assert warm.n_iter_ == len(warm.loss_curve_) == 15
    np.testing.assert_array_equal(warm.standard_.x.mean, cold.standard_.x.mean)
    warm = classifier(**settings, warm_start=True).fit(X, y).fit(X, y)
    assert warm.loss_curve_[10] < 0.5 * warm.loss_curve_[0]
    assert warm.loss_ < first
    assert cold.fit(X, y).n_iter_ == 10  # a cold one begins anew
    with pytest.raises(ValueError, match="n_estimators and hidden_layer_sizes must stay as"):
        warm.set_params(n_estimators=4).fit(X, y)
    with pytest.raises(ValueError, match="y holds 7; the classes in training were 0, 1, 2"):
        warm.set_params(n_estimators=3).fit(X, np.where(y == 2, 7, y))
    other = warm.set_params(warm_start=False).fit(X, np.where(y == 2, 7, y))
    assert list(other.classes_) == [0, 1, 7]


def test_a_falling_rate_takes_forty_epochs_unless_training_goes_to_its_end() -> None:
    params = DiverseClassifier().get_params()
    asked = ("hidden_layer_sizes", "schedule", "max_iter")

    def settled(rows: int, **changes: Any) -> list[Any]:
        found = settle(params | changes, rows)
        return [found[name] for name in asked]

    assert settled(10_000) == [(64, 64), "constant", 200]
    assert settled(10_001) == [(128, 128), "cosine", 40]
    assert settled(10_001, max_iter=7) == [(128, 128), "cosine", 7]
    assert settled(10_001, early_stopping=False) == [(128, 128), "constant", 200]
    assert settled(10_001, schedule="constant", hidden_layer_sizes=9) == [9, "constant", 200]


def test_partial_fit_learns_from_pieces() -> None:
    X, y = IRIS
    rng = np.random.default_rng(0)
    model = classifier(n_estimators=2, batch_size=32)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    for _ in range(10):
        for piece in np.array_split(rng.permutation(len(X)), 3):
            model.partial_fit(X[piece], y[piece], classes=[0, 1, 2])
    assert model.score(X, y) > 0.93
    assert model.n_iter_ == len(model.loss_curve_) == 30
    back, bare = (pickle.loads(pickle.dumps(model)) for _ in range(2))
    del bare._moments  # the optimiser's: a pass goes on with those of the last one
    probs = [m.partial_fit(X, y).predict_proba(X) for m in (model, back, bare)]
    np.testing.assert_array_equal(probs[0], probs[1])
    assert np.abs(probs[0] - probs[2]).max() > 1e-3
    with pytest.raises(ValueError, match="y holds 9; the classes in training"):
        model.partial_fit(X, np.full(150, 9))
    with pytest.raises(ValueError, match="X has 2 features, but DiverseClassifier is expecting 4"):
        model.partial_fit(X[:, :2], y)
    # One pass is one epoch of fit at a constant rate; a class may be missing from a piece.
    once = classifier(max_iter=1, early_stopping=False).fit(X, y)
    same = classifier().partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_array_equal(once.predict_proba(X), same.predict_proba(X))
    same.partial_fit(X[:50], y[:50], sample_weight=np.ones(50))
    same.set_params(shuffle="members", bootstrap=True).partial_fit(X, y)
    assert np.isfinite(same.loss_curve_).all()
    assert clone(same).partial_fit(X[:50], y[:50], classes=[0, 1, 2]).n_iter_ == 1


def test_partial_fit_of_a_regression() -> None:
    X, y = FRIEDMAN
    model = regressor(beta=0.5)
    for _ in range(30):
        model.partial_fit(X, y)
    assert (model.beta_, model.n_iter_, model.validation_loss_curve_) == (0.5, 30, None)
    assert model.held_out_ is model.distance_ is None
    assert model.score(X, y) > 0.7
    with pytest.raises(ValueError, match="y must have 1 columns as before, got 2"):
        model.partial_fit(X, np.column_stack([y, y]))
    X, y = frame()
    model = regressor().partial_fit(X.head(80), y[:80]).partial_fit(X.tail(40), y[80:])
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("early_stopping", [True, False])
def test_verbose_prints_the_loss_of_each_epoch(
    early_stopping: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = classifier(max_iter=3, verbose=True, early_stopping=early_stopping, warm_start=True)
    model.fit(*IRIS).fit(*IRIS).partial_fit(*IRIS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    for number, (line, loss) in enumerate(zip(lines, model.loss_curve_, strict=True), 1):
        assert line.startswith(f"Iteration {number}, loss = {loss:.8f}")
        assert ("validation loss" in line) == (early_stopping and number < 7)
    classifier(beta="auto", betas=(0.0,), cv=2, max_iter=1, verbose=True).fit(*IRIS)
    assert "beta = 0: the lowest error\nIteration 1, loss = " in capsys.readouterr().out


# ---- beta ---------------------------------------------------------------------------------------


def test_auto_chooses_the_beta_that_a_loop_over_folds_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the same folds and β one after the other, with the estimator itself."""
    X, y = FRIEDMAN
    splits = list(KFold(3, shuffle=True, random_state=1).split(X))
    betas = (0.0, 0.5, 1.0)
    auto = regressor(beta="auto", betas=betas, cv=splits, early_stopping=False).fit(X, y)
    found = auto.cv_results_
    whole = auto.standard_
    monkeypatch.setattr(Standard, "fit", lambda *_: whole)  # columns encoded alike
    for place, beta in enumerate(betas):
        for fold, (train, test) in enumerate(splits):
            alone = regressor(beta=beta, early_stopping=False).fit(X[train], y[train])
            scale = alone.standard_.y.scale[0]
            error = ((alone.predict(X[test]) - y[test]) ** 2).mean() / scale**2
            score = found[f"split{fold}_test_score"][place]
            assert score == pytest.approx(-error, rel=1e-3)
    errors = -np.array([found[f"split{fold}_test_score"] for fold in range(3)]).T
    best = errors[errors.mean(1).argmin()]
    within = errors.mean(1) <= best.mean() + best.std(ddof=1) / np.sqrt(3)
    assert auto.beta_ == betas[int(np.argmax(within))]
    np.testing.assert_allclose(found["se_test_score"], errors.std(1, ddof=1) / np.sqrt(3))
    assert found["status"][betas.index(auto.beta_)] == "chosen"
    same = regressor(beta=auto.beta_, early_stopping=False).fit(X, y)
    np.testing.assert_array_equal(auto.predict(X), same.predict(X))
    assert not hasattr(auto.set_params(beta=None).fit(X, y), "cv_results_")


def test_auto_judges_the_members_of_each_fold() -> None:
    """Verdicts equal those of ``diagnose`` on the same folds."""
    X, y = FRIEDMAN
    splits = list(KFold(2).split(X))
    settings = {"early_stopping": False, "max_iter": 60, "n_estimators": 5}
    auto = regressor(beta="auto", betas=(0.0, 1.0), cv=splits, **settings).fit(X, y)
    for place, beta in enumerate((0.0, 1.0)):
        for fold, (train, test) in enumerate(splits):
            alone = regressor(beta=beta, **settings).fit(X[train], y[train])
            word = alone.diagnose(X[test], y[test], X[train], y[train]).verdict.word
            assert auto.cv_results_[f"split{fold}_verdict"][place] == word
    assert set(auto.cv_results_["verdict"]) == {"healthy", "colluding"}


def test_auto_trains_all_folds_and_betas_as_one_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 rows in 4 folds: training sets of unlike size, filled up, of one kind all the same."""
    from dissensus.sklearn import beta_choice
    from dissensus.training.fit_fleet import kind

    kinds, tables = [], []

    def seen(trainings: Any, **settings: Any) -> Any:
        kinds.append([kind(training) for training in trainings])
        tables.extend(training.train[0].data_ptr() for training in trainings)
        return fit_fleet(trainings, **settings)

    monkeypatch.setattr(beta_choice, "fit_fleet", seen)
    model = classifier(beta="auto", cv=4, early_stopping=True).fit(*IRIS)
    (together,) = kinds
    assert len(together) == 4 * 5
    assert len(set(together)) == 1
    assert together[0] is not None
    assert len(set(tables)) == 4  # the β of a fold learn from one copy of its rows
    assert 0 <= model.beta_ <= 1


# ---- DataFrames ---------------------------------------------------------------------------------


def frame() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(3)
    colour = rng.choice(["red", "green", "blue"], 120)
    X = pd.DataFrame(
        {
            "size": rng.normal(50, 10, 120),
            "colour": pd.Series(colour, dtype="category"),
            "town": np.where(colour == "red", "Bonn", None),
            "count": pd.array(rng.integers(0, 5, 120), dtype="Int64"),
            "open": rng.random(120) < 0.5,
        }
    )
    y = np.where(colour == "red", 5.0, -5.0) + X["count"].to_numpy(float)
    return X, y


def test_categories_are_one_hot_and_names_are_kept() -> None:
    X, y = frame()
    model = regressor(max_iter=30).fit(X, y)
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.n_features_in_ == 5
    size, count = (model.standard_.x.edges[place] for place in (0, 6))
    assert (size is None, count is None) == (False, False)
    inputs = len(size) + 3 + 2 + len(count) + 1  # None is a level of its own
    assert model.ensemble_.stack[0].weight.shape[-1] == inputs
    assert model.score(X, y) > 0.95
    unknown = X.head(4).assign(colour="violet")  # no level of it: not an error, and not any level
    assert np.isfinite(model.predict(unknown)).all()
    as_text = X.assign(colour=X["colour"].astype(str))
    np.testing.assert_array_equal(model.predict(as_text), model.predict(X))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(X[list(X.columns[::-1])])
    with pytest.raises(ValueError, match="X must be a DataFrame as in training, got ndarray"):
        model.predict(X.to_numpy())
    with pytest.raises(ValueError, match="column 'size' must hold numbers: could not convert"):
        model.predict(X.assign(size="large"))


def test_missing_numbers_and_dates_are_learnt_from() -> None:
    """The target is whether a number is missing, and the season: nothing else tells it."""
    rng = np.random.default_rng(0)
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, 300), "D")
    size = np.where(rng.random(300) < 0.3, np.nan, rng.normal(size=300))
    y = 3.0 * np.isnan(size) + np.sin(2 * np.pi * days.day_of_year.to_numpy() / 365.25)
    X = pd.DataFrame({"size": size, "day": days})
    model = regressor(max_iter=30).fit(X, y)
    assert model.score(X, y) > 0.95
    np.testing.assert_allclose(model.predict(X.assign(day=X["day"].astype(str))), model.predict(X))
    gaps = np.column_stack([size, rng.normal(size=300)])
    alone = classifier(max_iter=10).fit(gaps, np.isnan(size))
    assert alone.score(gaps, np.isnan(size)) > 0.97
    full = classifier(max_iter=5).fit(np.nan_to_num(gaps), np.isnan(size))
    assert np.isfinite(full.predict_proba(gaps)).all()  # filled, though training saw no gaps


def test_a_weight_is_a_repetition_with_gaps_and_levels_too() -> None:
    rng = np.random.default_rng(1)
    X, y = frame()
    X.loc[rng.random(len(X)) < 0.2, "size"] = np.nan
    times = rng.integers(0, 4, len(X))
    order = rng.permutation(np.arange(len(X)).repeat(times))
    weighed = regressor(max_iter=4).fit(X, y, sample_weight=times)
    repeated = regressor(max_iter=4).fit(X.iloc[order], y[order])
    np.testing.assert_array_equal(weighed.predict(X), repeated.predict(X))


# ---- inside scikit-learn ------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_nothing_global_moves() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()  # noqa: NPY002
    first = classifier().fit(*IRIS)
    second = clone(first).fit(*IRIS)
    other = classifier(random_state=1).fit(*IRIS)
    back = pickle.loads(pickle.dumps(first))
    X = IRIS[0]
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    np.testing.assert_array_equal(first.predict_proba(X), back.predict_proba(X))
    assert np.abs(first.predict_proba(X) - other.predict_proba(X)).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.get_num_threads() == before[2]


def test_members_predictions_are_columns_with_names() -> None:
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = classifier(n_estimators=2, early_stopping=False, max_iter=5)
    model.set_output(transform="pandas").fit(X, y)
    columns = model.transform(X)
    assert list(columns.columns)[:4] == [
        *(f"diverseclassifier_member0_{label}" for label in range(3)),
        "diverseclassifier_member1_0",
    ]
    assert list(columns.index) == list(X.index)
    probs = model.member_outputs(X).softmax(-1).numpy()
    np.testing.assert_allclose(columns.to_numpy().reshape(150, 2, 3), probs.transpose(1, 0, 2))
    np.testing.assert_allclose(
        columns.to_numpy().reshape(150, 2, 3).mean(1), model.predict_proba(X)
    )
    stacked = make_pipeline(classifier(max_iter=5), classifier(max_iter=5)).fit(X, y)
    assert stacked[-1].n_features_in_ == 9
    one = regressor(n_estimators=2, max_iter=2).fit(X, y)
    two = regressor(n_estimators=2, max_iter=2).fit(X, np.column_stack([y, y]))
    assert list(one.get_feature_names_out()) == [f"diverseregressor_member{m}" for m in (0, 1)]
    assert list(two.get_feature_names_out())[-1] == "diverseregressor_member1_target1"
    np.testing.assert_allclose(one.transform(X).mean(1), one.predict(X))


# ---- what an ensemble is for --------------------------------------------------------------------


def test_members_probabilities_and_their_decomposition_agree() -> None:
    X, y = IRIS
    model = classifier(early_stopping=False).fit(X, y)
    logits = model.member_outputs(X).numpy()
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), probs.mean(0), rtol=1e-12)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probs.mean(0), rtol=1e-12)
    found = model.decompose(X, y)
    error = -np.log(probs.mean(0)[np.arange(len(y)), y]).mean()
    assert float(found.ensemble_error) == pytest.approx(error)
    assert float(found.diversity) == pytest.approx(float(found.member_error) - error)
    assert model.diagnose(X, y).judged_on == "test"
    assert model.diagnose(X, y, X, y).gap is not None
    inputs = model.standard_.inputs(X, np.float64)
    np.testing.assert_allclose(model.estimators_[1](inputs).numpy(), logits[1], rtol=1e-10)
    assert model.n_iter_ == len(model.loss_curve_) == 8
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_regression_is_in_the_units_of_each_target() -> None:
    X, y = FRIEDMAN
    both = np.column_stack([y, 1000 * y + 5e4])
    model = regressor(max_iter=20).fit(X, both)
    outputs = model.member_outputs(X).numpy()
    np.testing.assert_allclose(model.predict(X), outputs.mean(0))
    np.testing.assert_allclose(model.predict_std(X), outputs.std(0))
    assert model.predict(X).shape == (159, 2)
    assert model.score(X, both) > 0.8
    found = model.decompose(X, both)
    assert float(found.ensemble_error) == pytest.approx(
        ((model.predict(X) - both) ** 2).sum(1).mean()
    )
    assert float(found.diversity) == pytest.approx((model.predict_std(X) ** 2).sum(1).mean())
    # Both targets say the same: their standardised spread counts alike.
    spread = (outputs / model.standard_.y.scale).var(0).sum(1)
    ranks = [np.argsort(scores) for scores in (model.ood_score(X, "variance"), spread)]
    np.testing.assert_array_equal(*ranks)
    single = regressor().fit(X, y)
    assert single.predict(X).shape == single.predict_std(X).shape == (159,)
    assert model.validation_loss_curve_ is not None


@pytest.mark.parametrize(
    "objective", ["joint", "augmented:beta=0.3", "gncl", "jsd", ADP(alpha=1.0), LDR(active=None)]
)
def test_objectives_by_name_and_as_objects(objective: Any) -> None:
    X, y = IRIS
    model = classifier(objective=objective, n_estimators=2, max_iter=15).fit(X, y)
    assert model.score(X, y) > 0.9
    weights = np.linspace(1, 2, len(X))
    assert classifier(objective=objective, n_estimators=2, max_iter=2).fit(X, y, weights).n_iter_


def test_objectives_for_regression_take_its_loss() -> None:
    X, y = FRIEDMAN
    for objective in ("learner_dropout:drop=0.4/joint", "ncl", "gat:alpha=0.5"):
        model = regressor(objective=objective, max_iter=20).fit(X, y)
        assert model.ensemble_.combine == "mean"
        assert model.score(X, y) > 0.6
    with pytest.raises(ValueError, match="logits must have two classes or more"):
        regressor(objective="jsd").fit(X, y)
    with pytest.raises(ValueError, match="regression targets must be"):
        classifier(objective="ncl").fit(*IRIS)
    mixed = classifier(objective="joint:combine=score").fit(*IRIS)
    outputs = mixed.member_outputs(IRIS[0]) / mixed.temperature_
    probs = outputs.mean(0).softmax(-1).numpy()
    np.testing.assert_allclose(mixed.predict_proba(IRIS[0]), probs)


@pytest.mark.parametrize("own", [{"shuffle": "members"}, {"bootstrap": True}])
def test_members_may_have_an_order_and_rows_of_their_own(own: dict[str, Any]) -> None:
    plain, apart = (regressor(**settings, max_iter=5).fit(*FRIEDMAN) for settings in ({}, own))
    assert not torch.equal(plain.member_outputs(FRIEDMAN[0]), apart.member_outputs(FRIEDMAN[0]))
    assert apart.loss_curve_ == apart.history_.column("train/member_error")


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"objective": "a2d"}, "needs unlabelled data; objective='ldr'"),
        ({"objective": 3}, "objective must be a name such as"),
        ({"objective": "adp", "beta": 0.5}, "beta goes with objective='independent'"),
        ({"beta": 1.2}, r"beta must be a finite number in \[0, 1\], got 1.2"),
        ({"beta": "best"}, r"beta must be None, a number in \[0, 1\] or 'auto', got 'best'"),
        ({"beta": "auto", "betas": ()}, "needs some betas"),
        ({"beta": "auto", "cv": 1}, "cv must be from 2 to n_samples = "),
        ({"n_estimators": 0}, "n_estimators must be an integer of at least 1, got 0"),
        ({"hidden_layer_sizes": (8, -1)}, "hidden_layer_sizes must be an integer"),
        ({"hidden_layer_sizes": "wide"}, "hidden_layer_sizes must be an integer"),
        ({"alpha": -1}, "alpha must be a finite number of at least 0, got -1"),
        ({"batch_size": "all"}, "batch_size must be an integer of at least 1, got 'all'"),
        ({"early_stopping": True, "validation_fraction": 1.0}, "validation_fraction must be"),
        ({"learning_rate_init": 1e30}, "Lower the learning rate"),
        ({"bootstrap": True, "beta": 0.5}, "Augmented compares members"),
        ({"shuffle": True}, "shuffle must be one of shared, members, got True"),
        ({"class_weight": "even"}, "class_weight must be a dict, 'balanced' or None, got 'even'"),
        ({"class_weight": {0: -1}}, "class_weight must be at least 0 and not all zero"),
    ],
)
def test_parameters_that_do_not_work_are_explained(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        classifier(**settings).fit(*IRIS)


def test_the_device_may_be_found_by_itself() -> None:
    model, found = classifier().fit(*IRIS), classifier(device="auto").fit(*IRIS)
    np.testing.assert_allclose(found.predict_proba(IRIS[0]), model.predict_proba(IRIS[0]), atol=0.1)
    with pytest.raises(ValueError, match="there is no device 'tpu9'; use cpu, cuda or auto"):
        classifier(device="tpu9").fit(*IRIS)


def test_data_that_do_not_work_are_explained() -> None:
    X, y = IRIS
    with pytest.raises(ValueError, match="y has one class only, 1"):
        classifier().fit(X, y, sample_weight=y == 1)
    with pytest.raises(ValueError, match="must be at least 0"):
        classifier().fit(X, y, sample_weight=np.full(150, -1.0))
    with pytest.raises(ValueError, match="Input X contains infinity"):
        classifier().fit(np.where(X > 7, np.inf, X), y)
    with pytest.raises(ValueError, match=r"column 'x0' holds 1e\+39, which is beyond float32"):
        classifier().fit(np.where(X > 7, 1e39, X), y)
    with pytest.raises(ValueError, match="'balanced' needs all rows at once; pass a dict"):
        classifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as caught:
        regressor(beta="auto").partial_fit(X, y)
    assert "partial_fit cannot search for beta='auto'" in str(caught.value.__cause__)
    model = classifier().fit(X, y)
    of_sparse = classifier().fit(sparse.csr_array(X), y)
    np.testing.assert_array_equal(of_sparse.predict(sparse.csr_array(X)), model.predict(X))
    with pytest.raises(ValueError, match="y holds 7; the classes in training were 0, 1, 2"):
        model.decompose(X, np.full(150, 7))
    with pytest.raises(NotFittedError):
        _ = classifier().estimators_
    with pytest.raises(NotFittedError):
        classifier().ood_score(X)
    with pytest.raises(NotFittedError):
        regressor().decompose(X, y)
    with pytest.raises(NotFittedError):
        regressor().diagnose(X, y)

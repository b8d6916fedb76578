"""Uncertainty from held-out rows: coverage, sharpness, shapes, tails, and what is refused.

Members are made up, so that the truth is known and no network has to be trained: most tests ask an
estimator whose members' outputs were replaced.
"""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from dissensus.calibration import ece
from dissensus.sklearn import DiverseClassifier, DiverseRegressor
from dissensus.sklearn.held_out import HeldOut
from dissensus.sklearn.uncertainty import (
    ErrorModel,
    intervals,
    quantiles,
    spread_bias,
    total_std,
)

TOTAL, OWN = 12, 6


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def simulate(rows: int, kind: str = "plain", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs of all members ``[12, rows, 1]``, and targets ``[rows, 1]``.

    Noise has deviation 1, grows with the prediction ("size"), grows where members disagree
    ("spread"), or is skewed.
    """
    signal = draw(rows, 1, seed=seed + 1)
    noise = draw(rows, 1, seed=seed + 2)
    spread = draw(rows, 1, seed=seed + 3).exp()
    if kind == "size":
        noise = noise * signal.exp()
    if kind == "skewed":
        noise = noise.exp() - np.exp(0.5)
    wide = {"plain": 0.5, "spread": 0.5 * spread}.get(kind, 0.1)
    if kind == "spread":
        noise = noise * spread
    return signal + wide * draw(TOTAL, rows, 1, seed=seed + 4), signal + noise


def hold_out(outputs: Tensor, targets: Tensor, own: int = OWN, **more: Any) -> HeldOut:
    rows = outputs.shape[1]
    members = (torch.arange(own)[:, None] + own * torch.arange(rows)) % len(outputs)
    chosen = outputs.gather(0, members[..., None].expand(-1, -1, outputs.shape[2]))
    weights = more.pop("weights", torch.ones(rows, dtype=torch.float64))
    return HeldOut(chosen, targets, weights, members, len(outputs), **more)


def covered(bounds: Tensor, targets: Tensor) -> Tensor:
    return ((bounds[:, 0] <= targets) & (targets <= bounds[:, 1])).double()


# ---- intervals and quantiles --------------------------------------------------------------------


@pytest.mark.parametrize("own", [1, OWN])
@pytest.mark.parametrize("kind", ["plain", "size", "spread", "skewed"])
def test_intervals_cover_what_they_promise(kind: str, own: int) -> None:
    """2,000 rows of each: 88 to 92% of new rows, below and above alike."""
    outputs, targets = simulate(2000, kind)
    new, truth = simulate(2000, kind, seed=100)
    # One member does not tell how much better twelve are; give it nothing to be better at.
    if own == 1:
        outputs, new = outputs.mean(0, keepdim=True), new.mean(0, keepdim=True)
    found = intervals(hold_out(outputs, targets, own), new, 0.9)
    assert found.shape == (2000, 2, 1)
    assert 0.88 <= float(covered(found, truth).mean()) <= 0.92
    for bound, way in ((0, truth < found[:, 0]), (1, truth > found[:, 1])):
        assert float(way.double().mean()) == pytest.approx(0.05, abs=0.02), bound


@pytest.mark.parametrize(("kind", "gain"), [("plain", 0.99), ("size", 1.5), ("spread", 1.2)])
def test_intervals_are_wide_where_errors_are_large(kind: str, gain: float) -> None:
    """Against intervals of one width: shorter in the median, right among the large and small."""
    outputs, targets = simulate(2000, kind)
    new, truth = simulate(2000, kind, seed=100)
    found = intervals(hold_out(outputs, targets), new, 0.9)
    width = (found[:, 1] - found[:, 0]).squeeze(1)
    errors = (targets - outputs.mean(0)).squeeze(1)
    constant = errors.quantile(0.95) - errors.quantile(0.05)
    assert float(constant / width.median()) > gain
    if kind != "plain":
        ends = width.argsort()[[*range(500), *range(-500, 0)]].reshape(2, 500)
        for rows in ends:
            assert float(covered(found[rows], truth[rows]).mean()) == pytest.approx(0.9, abs=0.08)
    else:  # nothing is learnt where there is nothing to learn
        assert float(width.max() / width.min()) < 1.15


def test_quantiles_rise_cross_nothing_and_match_the_law() -> None:
    outputs, targets = simulate(2000)
    new, truth = simulate(500, seed=100)
    levels = [1e-5, 0.05, 0.5, 0.9, 0.99999]
    held_out = hold_out(outputs, targets)
    found = quantiles(held_out, new, levels)[..., 0]
    assert found.shape == (500, 5)
    assert bool((found.diff(dim=1) > 0).all())
    assert bool(found.isfinite().all())
    below = (truth <= found).double().mean(0)
    torch.testing.assert_close(below, torch.tensor(levels).double(), atol=0.04, rtol=0.0)
    std = total_std(held_out, new).squeeze(1)
    assert float(std.mean()) == pytest.approx((1 + 0.25 / TOTAL) ** 0.5, rel=0.04)


def test_few_rows_are_sane() -> None:
    """30 rows: the whole range of errors; 18: an error that says how many it takes."""
    outputs, targets = simulate(30)
    new, _ = simulate(200, seed=100)
    found = intervals(hold_out(outputs, targets), new, 0.9)
    width = found[:, 1] - found[:, 0]
    assert float(width.std()) < 1e-12
    errors = hold_out(outputs, targets).residuals
    assert float(width[0]) == pytest.approx(float(errors.max() - errors.min()))
    shares = [
        float(covered(intervals(hold_out(*simulate(30, seed=s)), new, 0.9), truth).mean())
        for s in range(200, 1200, 10)
        for truth in [simulate(200, seed=100)[1]]
    ]
    assert np.mean(shares) == pytest.approx(1 - 2 / 31, abs=0.02)
    few = hold_out(*(part[..., :18, :] for part in (outputs, targets)))
    with pytest.raises(ValueError, match=r"coverage=0\.9 needs 19 held-out rows, got 18"):
        intervals(few, new, 0.9)
    assert bool(intervals(few, new, 0.8).isfinite().all())
    assert bool(quantiles(few, new, [0.001, 0.999]).isfinite().all())
    for coverage in (0.0, 1, 90, "0.9", float("nan")):
        with pytest.raises(ValueError, match="coverage must be a finite number greater than 0"):
            intervals(few, new, coverage)  # type: ignore[arg-type]


def test_weights_move_intervals_as_repetitions_do() -> None:
    """Rows with large noise and much weight; scaling all weights changes nothing."""
    outputs, targets = simulate(1000)
    loud = torch.arange(1000) % 2 == 0
    targets = torch.where(loud[:, None], outputs.mean(0) + 5 * (targets - outputs.mean(0)), targets)
    for weight, share in ((9.0, 0.9), (1 / 9, 0.1)):
        weights = torch.where(loud, weight, 1.0).double()
        found = intervals(hold_out(outputs, targets, weights=weights), outputs, 0.8)
        hit = covered(found, targets).squeeze(1)
        assert float(hit[loud].mean() * share + hit[~loud].mean() * (1 - share)) == pytest.approx(
            0.8, abs=0.025
        )
        again = intervals(hold_out(outputs, targets, weights=7 * weights), outputs, 0.8)
        torch.testing.assert_close(again, found)


def test_several_targets_and_a_constant_one() -> None:
    outputs, targets = simulate(400)
    scale = torch.tensor([1.0, 1000.0, 0.0], dtype=torch.float64)
    found = intervals(hold_out(outputs * scale + 7, targets * scale + 7), outputs * scale + 7, 0.9)
    assert found.shape == (400, 2, 3)
    torch.testing.assert_close(found[..., 1] - 7, (found[..., 0] - 7) * 1000)
    torch.testing.assert_close(found[..., 2], torch.full((400, 2), 7.0).double())


def test_a_model_of_errors_is_used_only_where_it_helps() -> None:
    rows = 1000
    residuals, weights = draw(rows, seed=1), torch.ones(rows, dtype=torch.float64)
    prediction = draw(rows, seed=2)
    noise_only = ErrorModel(residuals, weights, prediction)
    assert len(set(noise_only.size(prediction).tolist())) == 1
    growing = ErrorModel(residuals * prediction.exp(), weights, prediction)
    small, large = growing.size(torch.tensor([-1.5, 1.5], dtype=torch.float64)).tolist()
    assert large / small == pytest.approx(np.exp(3), rel=0.4)
    # Beyond the rows it has seen it says what it says at their end.
    far = torch.tensor([float(prediction.max()), 1e9], dtype=torch.float64)
    assert growing.size(far)[1] == growing.size(far)[0]


@pytest.mark.parametrize("members", [2, 5, 16])
def test_the_bias_of_a_spread_is_that_of_normal_members(members: int) -> None:
    logs = draw(members, 200_000, seed=members).std(0).log()
    assert spread_bias(members) == pytest.approx(float(logs.mean().exp()), rel=0.01)


# ---- the estimators -----------------------------------------------------------------------------


def with_held_out(model: Any, own: int = 3, rows: int = 600, classes: int = 1) -> Any:
    """A quickly fitted estimator with made-up held-out rows of its own scale."""
    seed = torch.Generator().manual_seed(0)
    X = np.random.default_rng(0).normal(size=(rows, 2))
    if classes > 1:
        logits = torch.from_numpy(np.stack([X[:, 0], -X[:, 0], X[:, 1]], 1))
        y = torch.multinomial(logits.softmax(-1), 1, generator=seed).squeeze(1).numpy()
    else:
        y = X[:, 0] + 0.5 * torch.randn(rows, generator=seed).numpy()
    half = rows // 2
    model.fit(X[:half], y[:half])
    outputs = model.member_outputs(X[half:])
    members = torch.arange(own)[:, None].expand(-1, rows - half)
    targets = torch.from_numpy(y[half:])
    weights = torch.ones(rows - half, dtype=torch.float64)
    model.held_out_ = HeldOut(outputs[:own], targets, weights, members, len(outputs))
    return model


QUICK: dict[str, Any] = {"n_estimators": 4, "hidden_layer_sizes": 16, "max_iter": 30}


def test_the_regressor_predicts_intervals_quantiles_and_deviations() -> None:
    model = with_held_out(DiverseRegressor(**QUICK, random_state=0))
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 2))
    y = X[:, 0] + 0.5 * rng.normal(size=1000)
    found = model.predict_interval(X)
    assert found.shape == (1000, 2)
    inside = (found[:, 0] <= y) & (y <= found[:, 1])
    assert inside.mean() == pytest.approx(0.9, abs=0.04)
    three = model.predict_quantiles(X)
    assert three.shape == (1000, 3)
    np.testing.assert_allclose(three[:, [0, 2]], found, atol=0.06)
    parts = {kind: model.predict_std(X, kind) for kind in ("members", "noise", "total")}
    np.testing.assert_array_equal(parts["members"], model.predict_std(X))
    np.testing.assert_allclose(
        parts["total"] ** 2, parts["noise"] ** 2 + parts["members"] ** 2 / 3, rtol=1e-9
    )
    assert np.sqrt(np.mean(parts["total"] ** 2)) == pytest.approx(0.5, rel=0.15)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.predict_interval(X), found)
    with pytest.raises(ValueError, match="kind must be 'members', 'noise' or 'total', got 'all'"):
        model.predict_std(X, "all")

    result = model.evaluate(X, y)
    error = y - model.predict(X)
    assert result["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert result["r2"] == pytest.approx(model.score(X, y))
    assert result["coverage"] == inside.mean()
    z = error / parts["total"]  # CRPS of a normal law (Gneiting and Raftery, 2007)
    law = z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)
    assert result["crps"] == pytest.approx(np.mean(parts["total"] * law), rel=0.03)
    assert result.held_out["verdict"] in ("healthy", "suspicious")
    assert result.held_out["rmse"] == pytest.approx(result["rmse"], rel=0.15)
    assert result.held_out["ensemble_error"] == pytest.approx(result.held_out["rmse"] ** 2)
    assert repr(result).startswith("<Evaluation: rmse 0.")
    assert "<table>" in result._repr_html_()
    assert set(result.to_frame()["data"]) == {"given", "held out"}


def test_the_classifier_is_calibrated_and_predicts_sets() -> None:
    model = with_held_out(
        # Sure of itself by far, as members that fit every row are.
        DiverseClassifier(
            **QUICK | {"max_iter": 100},
            objective="independent",
            alpha=0,
            early_stopping=False,
            random_state=0,
        ),
        classes=3,
    )
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 2))
    logits = np.stack([X[:, 0], -X[:, 0], X[:, 1]], 1)
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    sure = torch.from_numpy(model.predict_proba(X))
    held_out, model.held_out_ = model.held_out_, None
    raw = torch.from_numpy(model.predict_proba(X))
    assert model.temperature_ == 1.0
    assert not model.evaluate(X, y).held_out
    with pytest.raises(ValueError, match="predict_set needs rows that were held out"):
        model.predict_set(X)
    model.held_out_ = held_out
    assert model.temperature_ > 1.1
    labels = torch.from_numpy(y)
    assert ece(sure, labels) < 0.7 * ece(raw, labels)
    chosen = model.predict_set(X, 0.8)
    assert chosen[np.arange(1500), y].mean() == pytest.approx(0.8, abs=0.04)
    assert chosen.any(1).all()
    assert 1 < chosen.sum(1).mean() < 2.5
    result = model.evaluate(X, y)
    assert result["ece"] == pytest.approx(float(ece(sure, labels)))
    assert result["error"] == pytest.approx(1 - model.score(X, y))
    assert result.held_out["error"] == pytest.approx(result["error"], abs=0.06)
    assert result.held_out["ensemble_error"] == pytest.approx(result["nll"], rel=0.15)
    assert result.held_out["diversity"] > 0


# ---- fitted, with folds that members held out ---------------------------------------------------


def heteroscedastic(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise that only the first column tells of."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows, 2))
    return X, X[:, 1] + np.where(X[:, 0] > 0, 1.0, 0.1) * rng.normal(size=rows)


SMALL: dict[str, Any] = {"n_estimators": 4, "hidden_layer_sizes": 16, "max_iter": 40}


def test_gaussian_members_of_an_estimator_know_where_the_noise_is() -> None:
    X, y = heteroscedastic(400)
    new, truth = heteroscedastic(1000, seed=1)
    loud = new[:, 0] > 0
    widths = {}
    for loss in ("mse", "gaussian"):
        model = DiverseRegressor(**SMALL, loss=loss, random_state=0).fit(X, 10 * y)
        found = model.predict_interval(new)
        inside = (found[:, 0] <= 10 * truth) & (10 * truth <= found[:, 1])
        assert inside.mean() == pytest.approx(0.9, abs=0.04)
        widths[loss] = (found[:, 1] - found[:, 0]).mean()
    assert widths["gaussian"] < 0.8 * widths["mse"]
    assert model.member_outputs(new).shape == (4, 1000, 1)
    noise = model.predict_std(new, "noise")
    assert np.median(noise[loud]) == pytest.approx(10.0, rel=0.3)
    assert np.median(noise[~loud]) < 4.0
    assert np.sqrt(np.mean((model.predict(new) - 10 * new[:, 1]) ** 2)) < 2.5
    assert model.held_out_.noise.shape == model.held_out_.outputs.shape
    assert model.evaluate(new, 10 * truth)["r2"] == pytest.approx(model.score(new, 10 * truth))
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.predict_interval(new), found)


@pytest.mark.parametrize("settings", [{"validation": "common"}, {"early_stopping": False}])
def test_gaussian_members_go_with_every_way_to_validate(settings: dict[str, Any]) -> None:
    X, y = heteroscedastic(200)
    both = np.column_stack([y, -y])
    model = DiverseRegressor(**SMALL | {"max_iter": 3}, objective="gaussian", **settings)
    model.fit(X, both)
    assert model.predict(X).shape == model.predict_std(X, "noise").shape == (200, 2)
    if model.held_out_ is None:
        assert not settings["early_stopping"]
    else:
        assert model.predict_interval(X).shape == (200, 2, 2)
    model.partial_fit(X, both)
    assert model.predict_std(X).shape == (200, 2)


def test_gaussian_members_are_refused_where_they_make_no_sense() -> None:
    X, y = heteroscedastic(40)
    with pytest.raises(ValueError, match="loss='gaussian' goes with 'independent'"):
        DiverseRegressor(loss="gaussian", objective="ncl").fit(X, y)
    with pytest.raises(ValueError, match="beta goes with objective='independent'"):
        DiverseRegressor(loss="gaussian", beta=0.5).fit(X, y)
    with pytest.raises(ValueError, match="DiverseRegressor: loss must be"):
        DiverseRegressor(loss="huber").fit(X, y)
    with pytest.raises(ValueError, match="regression targets must be"):
        DiverseClassifier(objective="gaussian").fit(X, y > 0)

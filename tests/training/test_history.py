"""What a run reports, which epoch it keeps, and when it or a member of it stops."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from dissensus.ensemble import Ensemble
from dissensus.training import fit, predict
from tests.training.problems import blobs, dense_mlp, norm_mlp, same_bits, state

TRAIN, VAL = blobs(24, seed=1), blobs(60, seed=2)
FAST = {"optimizer": "adam:lr=0.05", "batch_size": 8, "progress": False}


class Snapshots:
    """A callback that keeps the weights of every epoch and may end training."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.states: list[dict[str, Tensor]] = []
        self.stop_after = stop_after

    def __call__(self, record: dict[str, Any], ens: Ensemble) -> bool | None:
        self.states.append(state(ens))
        assert record["epoch"] == len(self.states)
        return None if self.stop_after is None else len(self.states) >= self.stop_after


def figures(ens: Ensemble, data: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The figures of a data set in NumPy, from the outputs alone."""
    logits = predict(ens, data).outputs.double().numpy()
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    y = data[1].numpy()
    mixed = probs.mean(0)
    if ens.combine == "score":
        mixed = np.exp(logits.mean(0)) / np.exp(logits.mean(0)).sum(-1, keepdims=True)
    error = -np.log(mixed[np.arange(len(y)), y]).mean()
    members = -np.log(probs[:, np.arange(len(y)), y]).mean(-1)
    return {
        "examples": len(y),
        "ensemble_error": error,
        "member_error": members.mean(),
        "diversity": members.mean() - error,
        "per_member_error": members.tolist(),
        "accuracy": (mixed.argmax(-1) == y).mean(),
        "per_member_accuracy": (logits.argmax(-1) == y).mean(-1).tolist(),
    }


@pytest.mark.parametrize("combine", ["probability", "score"])
@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_validation_and_exact_training_figures(combine: str, kind: str) -> None:
    seen = Snapshots()
    ens = Ensemble(norm_mlp, members=3, combine=combine)
    train: Any = TRAIN
    val: Any = VAL
    if kind == "loader":
        train = DataLoader(TensorDataset(*TRAIN), batch_size=8, shuffle=True)
        val = DataLoader(TensorDataset(*VAL), batch_size=13)
    history = fit(ens, train, val=val, epochs=3, exact_train=True, callbacks=[seen], **FAST)
    for record, then in zip(history.epochs, seen.states, strict=True):
        ens.load_state_dict(then)
        for part, data in (("val", VAL), ("train_exact", TRAIN)):
            wanted = figures(ens, data)
            assert record[part].keys() == wanted.keys()
            for name, value in wanted.items():
                assert record[part][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert history.column("val/accuracy") == [r["val"]["accuracy"] for r in history.epochs]
    assert history.seconds > 0


@pytest.mark.parametrize("select_by", ["ensemble_error", "member_error", "accuracy"])
def test_the_ensemble_ends_with_the_weights_of_the_best_epoch(select_by: str) -> None:
    seen = Snapshots()
    ens = Ensemble(norm_mlp, members=2, seed=1)
    history = fit(ens, TRAIN, val=VAL, epochs=25, select_by=select_by, callbacks=[seen], **FAST)
    values = history.column(f"val/{select_by}")
    best = max(values) if select_by == "accuracy" else min(values)
    assert history.best_epoch == values.index(best) + 1  # the first of equals
    assert 1 < history.best_epoch < 25
    assert same_bits(state(ens), seen.states[history.best_epoch - 1])
    assert history.ended == "epochs"
    assert not ens.training


@pytest.mark.parametrize("patience", [1, 4])
def test_patience_ends_a_run_that_no_longer_improves(patience: int) -> None:
    long = fit(Ensemble(norm_mlp, members=2, seed=1), TRAIN, val=VAL, epochs=25, **FAST)
    errors = long.column("val/ensemble_error")
    best, waited = 0, 0
    for epoch, error in enumerate(errors):
        best, waited = (epoch, 0) if error < errors[best] or not epoch else (best, waited + 1)
        if waited == patience:
            break
    ens = Ensemble(norm_mlp, members=2, seed=1)
    history = fit(ens, TRAIN, val=VAL, epochs=25, patience=patience, **FAST)
    assert history.ended == "patience"
    assert len(history.epochs) == epoch + 1 < 25
    assert history.best_epoch == best + 1
    assert history.epochs == long.epochs[: epoch + 1]


def test_a_callback_ends_a_run() -> None:
    seen, others = Snapshots(stop_after=2), Snapshots()
    ens = Ensemble(norm_mlp, members=2)
    history = fit(ens, TRAIN, epochs=9, callbacks=[seen, others], **FAST)
    assert (history.ended, len(history.epochs)) == ("callback", 2)
    assert len(others.states) == 2  # every callback gets every epoch
    assert same_bits(state(ens), seen.states[-1])


@pytest.mark.parametrize("kind", ["dense", "norms", "unlike"])
@pytest.mark.parametrize("select_by", ["ensemble_error", "last"])
def test_a_member_that_has_converged_is_frozen_while_others_go_on(
    kind: str, select_by: str
) -> None:
    """Algorithm 1 of adp; its statistics stay as well, or it would go on changing."""
    make = norm_mlp if kind == "norms" else dense_mlp
    modules = [make() for _ in range(4)]
    if kind == "unlike":
        modules[2] = norm_mlp()
    ens, seen = Ensemble.from_members(modules), Snapshots()
    history = fit(
        ens,
        TRAIN,
        val=VAL,
        epochs=60,
        freeze_patience=3,
        select_by=select_by,
        callbacks=[seen],
        **FAST | {"optimizer": "adam:lr=0.2/0.1/0.05/0.03"},
    )
    frozen_at = {
        j: first_frozen([e[j] for e in history.column("val/per_member_error")], 3) for j in range(4)
    }
    assert history.ended == "patience"  # all four at last
    assert len(set(frozen_at.values())) > 1
    assert max(frozen_at.values()) == len(history.epochs)
    for before, after, epoch in zip(seen.states, seen.states[1:], range(1, 99), strict=False):
        for j in range(4):
            own = [key for key in before if kind != "unlike" or key.startswith(f"unlike.{j}.")]
            pick = (lambda t: t) if kind == "unlike" else (lambda t, j=j: t[j])
            stays = all(torch.equal(pick(before[key]), pick(after[key])) for key in own)
            assert stays == (epoch >= frozen_at[j])


def first_frozen(errors: list[float], patience: int) -> int:
    """The epoch at whose end a member with these validation errors is frozen."""
    best, at = float("inf"), 0
    for epoch, error in enumerate(errors, 1):
        if error < best:
            best, at = error, epoch
        elif epoch - at >= patience:
            return epoch
    return 10**6

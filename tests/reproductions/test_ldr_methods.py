"""Every method of the ldr studies trains what it says, on equal footing."""

from typing import Any

import numpy as np
import pytest
import torch

from dissensus.training import fit
from reproductions.cells import make_cell
from reproductions.ldr import methods
from reproductions.ldr.contenders import SMOKE
from reproductions.ldr.data import load_data
from reproductions.ldr.measurements import _groups, dropout_passes, outputs_of
from reproductions.ldr.methods import METHODS, _recipe, train_ensemble
from reproductions.ldr.planted import HIGH_LOSS, high_loss_disagreement

SMALL = {**SMOKE, "train": 120, "epochs": 1, "members": 3, "strength": 0.5}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_members_that_differ(method: str) -> None:
    cell = make_cell("x", SMALL, method=method)
    data = load_data(cell)
    ens = train_ensemble(cell, data)
    outputs = outputs_of(ens, data.test[0])
    alone = method in ("dropout", "distances")
    assert outputs.shape == (1 if alone else 3, SMALL["test"], 10)
    for first in range(1, len(outputs)):
        assert not torch.allclose(outputs[0], outputs[first])


def test_members_get_as_many_updates_whatever_is_drawn() -> None:
    def epochs(**changes: object) -> int:
        return _recipe(make_cell("x", SMOKE, epochs=8, members=5, **changes)).epochs

    assert epochs(method="deep-ensemble") == 8
    assert epochs(method="ldr", active=2) == 20
    assert epochs(method="ldr", active=None) == 8
    assert epochs(method="ldr", active=2, footing="epochs") == 8


def test_the_second_stage_disagrees_on_the_least_confident_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = make_cell("x", SMALL, method="two-stage")
    data = load_data(cell)
    calls = []

    def record(ens: Any, train: Any, objective: Any, **options: Any) -> None:
        calls.append((train, options))
        fit(ens, train, objective, **options)

    monkeypatch.setattr(methods, "fit", record)
    train_ensemble(cell, data)
    _, (train, options) = calls
    x = data.train[0]
    first = METHODS["single"]({**cell, "members": 1, "method": "deep-ensemble"}, data)
    confidence = outputs_of(first, x)[0].softmax(-1).amax(-1).numpy()
    hardest = np.argsort(confidence)[:2]  # 1.4% of 120
    assert torch.equal(options["disagreement"], x[hardest])
    assert len(train[0]) == len(x) - 2


def test_diverse_members_have_rates_and_decays_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}
    monkeypatch.setattr(methods, "fit", lambda *args, recipe, **rest: seen.update(recipe=recipe))
    cell = make_cell(
        "x", SMALL, method="diverse-hyperparameters", optimizer="adamw:lr=1e-3,weight_decay=0.1"
    )
    train_ensemble(cell, load_data(cell))
    assert seen["recipe"].optimizer.lr == pytest.approx((1e-3 / 3, 1e-3, 3e-3))
    assert seen["recipe"].optimizer.weight_decay == pytest.approx((1.0, 0.1, 0.01))


def test_dropout_passes_repeat_and_need_dropout() -> None:
    options = {"hidden": [32], "dropout": 0.3}
    cell = make_cell("x", SMALL, method="dropout", model_options=options)
    data = load_data(cell)
    passes = dropout_passes(train_ensemble(cell, data), 4, seed=0)
    x = data.test[0]
    assert passes(x).shape == (4, len(x), 10)
    assert torch.equal(passes(x), passes(x))
    assert not torch.allclose(passes(x)[0], passes(x)[1])
    plain = train_ensemble(make_cell("x", SMALL, method="dropout"), data)
    with pytest.raises(ValueError, match="network with dropout"):
        dropout_passes(plain, 4, seed=0)


def test_high_loss_rows_against_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 40, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (40,), generator=generator)
    planted = torch.rand(40, generator=generator) < 0.3
    facts = high_loss_disagreement(logits, y, planted)

    probs = np.exp(logits.numpy())
    probs /= probs.sum(-1, keepdims=True)
    loss = -np.log(probs[:, np.arange(40), y.numpy()]).sum(0)
    hardest = np.argsort(-loss)[: round(HIGH_LOSS * 40)]
    votes = probs.argmax(-1)[:, hardest]
    pairs = [(votes[a] != votes[b]).mean() for a in range(3) for b in range(a)]
    differ = np.array([len(set(column)) > 1 for column in votes.T])
    assert facts["delta"] == pytest.approx(np.mean(pairs))
    assert facts["planted_share"] == pytest.approx(planted.numpy()[hardest].mean())
    assert facts["rho"] == pytest.approx(planted.numpy()[hardest][differ].mean())


def test_group_accuracies_by_hand() -> None:
    # Two members, four inputs of two groups; member 1 is right but on the last.
    right = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    logits = torch.where(right[..., None], torch.tensor([4.0, 0.0]), torch.tensor([0.0, 3.0]))
    found = _groups(logits, torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 1]))
    assert found["oracle"] == [1.0, 0.5]
    assert found["mean_member"] == [0.75, 0.25]
    assert found["ensemble"] == [1.0, 0.5]  # confident and right outweighs unsure and wrong

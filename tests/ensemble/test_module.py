"""What an ensemble answers: combinations, votes, some members, a shared backbone."""

import math

import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from tests.ensemble.networks import Wrapped, batch_norm_mlp, mlp

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(5))


def by_hand(ens: Ensemble, x: Tensor, combine: str, weights: list[float]) -> list[list[float]]:
    """The combined prediction in plain Python, example by example."""
    outputs = [ens.member(j).eval()(x).tolist() for j in range(ens.members)]
    rows = []
    for n in range(len(x)):
        members = [outputs[j][n] for j in range(ens.members)]
        if combine == "probability":
            members = [softmax(row) for row in members]
        row = [
            sum(w * member[k] for w, member in zip(weights, members, strict=True))
            for k in range(len(members[0]))
        ]
        rows.append(softmax(row) if combine == "score" else row)
    return rows


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("combine", ["probability", "score", "mean"])
def test_predictions_are_combined_as_asked(combine: str) -> None:
    ens = Ensemble(batch_norm_mlp, members=3, combine=combine)
    ens(X)  # in training mode: moves the statistics
    statistics = [buffer.clone() for buffer in ens.buffers()]
    got = ens.predict(X)
    assert not got.requires_grad
    assert ens.training  # as it was
    assert all(map(torch.equal, statistics, ens.buffers()))
    equal = [1 / 3] * 3
    torch.testing.assert_close(got, torch.tensor(by_hand(ens, X, combine, equal)))
    weights = [0.5, 0.2, 0.3]
    torch.testing.assert_close(
        ens.predict(X, torch.tensor(weights)), torch.tensor(by_hand(ens, X, combine, weights))
    )
    assert ens.set_weights(torch.tensor(weights)) is ens
    torch.testing.assert_close(ens.predict(X), torch.tensor(by_hand(ens, X, combine, weights)))
    torch.testing.assert_close(ens.set_weights(None).predict(X), got)


def test_selection_keeps_order_weights_and_statistics() -> None:
    ens = Ensemble(batch_norm_mlp, members=4).set_weights(torch.tensor([0.4, 0.1, 0.3, 0.2]))
    ens(X)
    pruned = ens.select([3, -4])
    assert pruned.members == 2
    torch.testing.assert_close(pruned.weights, torch.tensor([1 / 3, 2 / 3]))
    assert torch.equal(pruned.eval()(X), ens.eval()(X)[[3, 0]])
    nothing = ens.set_weights(torch.tensor([1.0, 0.0, 0.0, 0.0])).select([1, 2])
    assert nothing.weights is None
    with torch.no_grad():
        next(pruned.parameters()).zero_()
    assert torch.equal(ens(X), ens.select(range(4))(X))


def test_a_member_is_a_copy_in_the_mode_of_the_ensemble() -> None:
    ens = Ensemble(batch_norm_mlp, members=2).eval()
    member = ens.member(-1)
    assert not member.training
    torch.testing.assert_close(member(X), ens(X)[1])
    assert all(p.is_leaf and p.requires_grad for p in member.parameters())
    with torch.no_grad():
        member[0].weight.zero_()
    assert ens.train().member(1)[0].weight.abs().sum() > 0
    assert ens.member(1).training


@pytest.mark.parametrize("members", [[], [2], [-3], [0, 0], [1, -1]])
def test_wrong_members(members: list[int]) -> None:
    ens = Ensemble(mlp, members=2)
    with pytest.raises(ValueError, match="members must"):
        ens(X, members)
    with pytest.raises(ValueError, match="members must"):
        ens.select(members)


def test_outputs_must_be_rows() -> None:
    flat = Ensemble(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), members=2)
    with pytest.raises(ValueError, match=r"or \[batch, 1\], got \(6,\)"):
        flat(X)
    with pytest.raises(ValueError, match=r"outputs of one shape, got \[\(6, 2\), \(6, 3\)\]"):
        Ensemble.from_members([nn.Linear(4, 2), nn.Linear(4, 3)])(X)
    with pytest.raises(ValueError, match="combine must be one of"):
        Ensemble(mlp, members=2, combine="average")


# ---- a shared, frozen backbone ------------------------------------------------------------------


class Counting(nn.Module):
    """A backbone that counts how often and in which mode it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.calls: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.layers[1].training)
        features: Tensor = self.layers(x)
        return features


@pytest.mark.parametrize("make_head", [lambda: nn.Linear(8, 3), lambda: Wrapped(nn.Linear(8, 3))])
@pytest.mark.parametrize("execution", ["stacked", "looped"])
def test_a_backbone_runs_once_frozen_and_in_evaluation_mode(
    execution: str, make_head: type[nn.Module]
) -> None:
    backbone = Counting()
    ens = Ensemble.on_features(backbone, make_head, members=4, seed=2, execution=execution)
    ens.train()
    outputs = ens(X)
    assert backbone.calls == [False]
    outputs.sum().backward()
    assert all(p.grad is None and not p.requires_grad for p in backbone.parameters())
    assert all(p.grad is not None for p in ens.stack.parameters())
    torch.testing.assert_close(outputs, Ensemble(make_head, members=4, seed=2)(backbone(X)))
    ens.predict(X)
    ens(X, [1])
    assert backbone.calls == [False] * 4
    assert ens.training
    assert not backbone.training
    torch.testing.assert_close(ens.member(2)(X), outputs[2])
    torch.testing.assert_close(ens.select([2, 0])(X), outputs[[2, 0]])
    assert any(key.startswith("backbone.") for key in ens.state_dict())


def test_inputs_that_ask_for_a_gradient_get_it_through_the_backbone() -> None:
    """Attacks need it; the backbone's own weights still get none, whoever turned them on."""
    ens = Ensemble.on_features(Counting(), lambda: nn.Linear(8, 3), members=2)
    x = X.clone().requires_grad_()
    ens(x).sum().backward()
    slow = X.clone().requires_grad_()
    sum(ens.member(j)(slow).sum() for j in range(2)).backward()
    torch.testing.assert_close(x.grad, slow.grad)
    assert x.grad.abs().sum() > 0
    ens.backbone.requires_grad_(True)
    ens(X).sum().backward()
    assert all(p.grad is None for p in ens.backbone.parameters())

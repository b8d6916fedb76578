"""Training on strangers: the same in every execution and after every interruption, and it helps."""

import pytest
import torch
from torch import Generator, Tensor, nn

import dissensus as ds


def make_ensemble(members: int = 3, execution: str = "auto") -> ds.Ensemble:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    return ds.Ensemble(make, members=members, seed=0, execution=execution)


def rows(count: int = 96) -> tuple[Tensor, Tensor]:
    """Three classes on a line through four equal columns: a permuted row lies off that line."""
    y = torch.arange(count) % 3
    noise = 0.1 * torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return (y[:, None] - 1.0).expand(count, 4) + noise, y


def weights(ens: ds.Ensemble) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in ens.parameters()])


def test_strangers_are_made_from_each_batch_in_both_executions() -> None:
    trained, seen = [], []

    def record(x: Tensor, generator: Generator) -> Tensor:
        seen.append(x.clone())
        return ds.strangers.permuted_columns(x, generator)

    for execution, disagreement in [
        ("stacked", "strangers"),
        ("looped", "strangers:permute=1"),
        ("stacked", record),
    ]:
        ens = make_ensemble(execution=execution)
        ds.fit(
            ens,
            rows(),
            "a2d",
            disagreement=disagreement,
            epochs=2,
            batch_size=32,
            progress=False,
        )
        trained.append(weights(ens))
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(trained[0], trained[2])
    assert [len(x) for x in seen] == [32] * 6
    x, _ = rows()
    assert bool((torch.cat(seen[:3])[:, None] == x).all(-1).any(1).all())  # rows of the data


def test_members_disagree_on_unknown_inputs_and_still_agree_on_known_ones() -> None:
    x, y = rows(240)
    unknown = torch.tensor([[-1.0, 1.0, -1.0, 1.0], [1.0, -1.0, 0.0, 1.0], [0.0, 1.0, 1.0, -1.0]])
    information = ds.scores.SCORES["mutual_information"]
    settings = {"epochs": 40, "batch_size": 48, "optimizer": "adam:lr=0.01", "progress": False}
    plain, tuned = make_ensemble(), make_ensemble()
    ds.fit(plain, (x, y), **settings)
    ds.fit(tuned, (x, y), "a2d:strength=0.3", disagreement="strangers", **settings)
    accuracy = (tuned.predict(x).argmax(-1) == y).float().mean()
    assert float(accuracy) == 1.0
    with torch.no_grad():
        assert bool((information(tuned(unknown)) > information(plain(unknown)) + 0.2).all())
        assert float(information(tuned(x)).mean()) < 0.05


def normalized(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


@pytest.mark.parametrize("held", ["stacked", "looped", "unlike"])
def test_running_statistics_are_those_of_the_training_data(held: str) -> None:
    """With strangers in them, BatchNorm would normalise known inputs by another distribution."""
    trained = []
    for objective, disagreement in (("independent", None), ("a2d", "strangers")):
        if held == "unlike":
            torch.manual_seed(0)
            ens = ds.Ensemble.from_members([normalized(8), normalized(16)])
        else:
            ens = ds.Ensemble(normalized, members=2, seed=0, execution=held)
        ds.fit(ens, rows(), objective, disagreement=disagreement, epochs=1, batch_size=96,
               optimizer="sgd:lr=0.1", progress=False)  # fmt: skip
        trained.append({name: b.clone() for name, b in ens.named_buffers() if "running" in name})
    assert trained[0]
    for name, values in trained[0].items():
        torch.testing.assert_close(trained[1][name], values)

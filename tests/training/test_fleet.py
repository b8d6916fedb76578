"""A fleet: every ensemble ends as if it had been trained alone, and stops costing when it ends."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble
from dissensus.training import History, NonFiniteLoss, Recipe, Training, fit, fit_fleet
from dissensus.training.fit_fleet import kind
from dissensus.training.fleet import Fleet


def perceptron(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, outputs)
    )


class Residual(nn.Module):
    """A network that only vmap can batch."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.last = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        result: Tensor = self.last(hidden + nn.functional.gelu(self.norm(hidden)) / 2)
        return result


def data(seed: int, count: int, outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    y = x[:, :1].sin() + x[:, 1:2] * x[:, 2:3] + 0.3 * torch.randn(count, 1, generator=generator)
    if outputs == 1:
        return x, y
    return x, (y.squeeze(1) * 2).round().long().clamp(-1, 2) + 1


def sweep(
    spec: str,
    count: int = 5,
    outputs: int = 4,
    make: Callable[[int], nn.Module] = perceptron,
    **settings: object,
) -> list[Training]:
    """Trainings that differ in all that may differ; ``{}`` in ``spec`` is their number / 10."""
    combine = "mean" if outputs == 1 else "probability"
    recipe = Recipe.of({"epochs": 8, "batch_size": 16, "patience": 2, **settings})
    optimizers = [
        "adam:lr=0.01",
        "adam:lr=0.003,weight_decay=0.01",
        "adam:lr=0.01,weight_decay=0.1",
    ]
    return [
        Training(
            Ensemble(lambda: make(outputs), 3, seed=number, combine=combine),
            data(number, 65, outputs),  # 65: the last one joins the batch before it
            spec.format(number / 10),
            data(100 + number % 2, 40, outputs),
            replace(
                recipe,
                seed=number,
                **({} if "optimizer" in settings else {"optimizer": optimizers[number % 3]}),
            ),
        )
        for number in range(count)
    ]


def alone(trainings: list[Training]) -> list[History]:
    return [
        fit(
            t.ens,
            t.train,
            t.objective,
            val=t.val,
            disagreement=t.disagreement,
            recipe=t.recipe,
            progress=False,
        )
        for t in trainings
    ]


def assert_same(fleet: list[Training], histories: list[History], others: list[Training]) -> None:
    expected = alone(others)
    for mine, history, other, wanted in zip(fleet, histories, others, expected, strict=True):
        assert (history.best_epoch, history.ended) == (wanted.best_epoch, wanted.ended)
        assert len(history.epochs) == len(wanted.epochs)
        for record, reference in zip(history.epochs, wanted.epochs, strict=True):
            assert record.keys() == reference.keys()
            for part in record.keys() - {"epoch"}:
                assert record[part].keys() == reference[part].keys()
                for name, value in record[part].items():
                    assert value == pytest.approx(reference[part][name], rel=1e-4, abs=1e-5), name
        for name, parameter in other.ens.named_parameters():
            torch.testing.assert_close(
                dict(mine.ens.named_parameters())[name], parameter, rtol=1e-3, atol=2e-5
            )
        assert not mine.ens.training


SPECS = [
    ("independent", 4),
    ("joint:combine=score", 4),
    ("augmented:beta={}", 4),
    ("augmented:beta={},loss=mse", 1),
    ("augmented:beta={},label_smoothing=0.1", 4),
    ("gat:alpha={},others_only=true", 1),
    ("ncl:strength={}", 1),
    ("gncl:strength={}", 4),
    ("adp:alpha={},beta=0.5", 4),
    ("jsd:strength={}", 4),
]


@pytest.mark.parametrize(("spec", "outputs"), SPECS)
def test_each_ends_as_if_it_were_alone(spec: str, outputs: int) -> None:
    ours, others = (sweep(spec, 3, outputs) for _ in range(2))
    assert len({kind(training) for training in ours}) == 1
    assert_same(ours, fit_fleet(ours, progress=False), others)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd:lr=0.05,momentum=0.9", "schedule": "cosine", "clip": 0.5},
        {"optimizer": "adam:lr=0.01,weight_decay=0.1"},
        {"optimizer": "adamw:lr=0.01,weight_decay=0.1", "schedule": "multistep:at=3,factor=0.1"},
        {"select_by": "accuracy", "exact_train": True},
        {"select_by": "last", "patience": None},
    ],
    ids=str,
)
def test_the_whole_recipe_counts(settings: dict[str, object]) -> None:
    ours, others = (sweep("augmented:beta={}", 3, **settings) for _ in range(2))
    assert_same(ours, fit_fleet(ours, progress=False), others)


@pytest.mark.parametrize("exact_train", [False, True])
def test_parts_of_one_data_set_are_picked_by_their_rows(exact_train: bool) -> None:
    """As if each had been trained on its rows alone; they share the memory of all."""
    x, y, weights = *data(0, 90, 4), torch.linspace(0.5, 2, 90)
    parts = [torch.randperm(90, generator=torch.Generator().manual_seed(n))[:71] for n in range(3)]
    ours, others = (
        [
            replace(training, train=(x, y, weights), rows=rows)
            for training, rows in zip(
                sweep("independent", 3, exact_train=exact_train, epochs=3), parts, strict=True
            )
        ]
        for _ in range(2)
    )
    assert [len(training) for training in ours] == [71] * 3
    assert len({kind(training) for training in ours}) == 1
    others = [replace(training, train=training.train_rows(), rows=None) for training in others]
    assert_same(ours[:2], fit_fleet(ours[:2], progress=False), others[:2])
    assert_same(ours[2:], fit_fleet(ours[2:], progress=False), others[2:])  # alone, by fit
    for rows in (torch.arange(0), torch.tensor([90]), torch.tensor([-1]), torch.tensor([0.5])):
        with pytest.raises(ValueError, match="rows must be int64"):
            replace(ours[0], rows=rows)


def test_rows_may_be_unpacked_a_batch_at_a_time() -> None:
    """As if the inputs had been there all the time, in a fleet and alone."""
    ours, others = (sweep("independent", 3, exact_train=True, epochs=3) for _ in range(2))

    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    def doubled(part: tuple[torch.Tensor, ...] | None) -> tuple[torch.Tensor, ...] | None:
        return None if part is None else (2 * part[0], *part[1:])

    ours = [replace(training, unpack=twice) for training in ours]
    others = [replace(t, train=doubled(t.train), val=doubled(t.val)) for t in others]
    assert_same(ours[:2], fit_fleet(ours[:2], progress=False), others[:2])
    assert_same(ours[2:3], fit_fleet(ours[2:3], progress=False), others[2:3])


def test_networks_without_an_engine_go_through_vmap() -> None:
    ours, others = (sweep("augmented:beta={}", 3, make=Residual) for _ in range(2))
    fleet = Fleet(ours)
    assert fleet.engine is None
    assert_same(ours, fit_fleet(ours, progress=False), others)


@pytest.mark.parametrize("spec", ["a2d:strength={}", "divdis:strength={},balance=0.5"])
@pytest.mark.parametrize("make", [perceptron, Residual])
def test_strangers_are_those_of_each_ensemble_alone(
    spec: str, make: Callable[[int], nn.Module]
) -> None:
    ours, others = (
        [replace(t, disagreement="strangers") for t in sweep(spec, 3, make=make, epochs=4)]
        for _ in range(2)
    )
    assert len({kind(training) for training in ours}) == 1
    assert_same(ours, fit_fleet(ours, progress=False), others)
    data_of_ones_own = replace(ours[0], disagreement=ours[0].train[0])
    assert kind(data_of_ones_own) is None


def test_what_has_finished_is_compacted_away(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    epoch = Fleet.epoch

    def watched(self: Fleet, number: int) -> list[dict[str, object]]:
        rows.append(len(next(iter(self.tensors.values()))))
        return epoch(self, number)

    monkeypatch.setattr(Fleet, "epoch", watched)
    trainings = [
        replace(training, recipe=replace(training.recipe, epochs=epochs, patience=None))
        for training, epochs in zip(sweep("independent"), (1, 2, 2, 4, 1), strict=True)
    ]
    ended: list[tuple[int, int]] = []
    fit_fleet(
        trainings,
        progress=False,
        on_end=lambda index, history: ended.append((index, len(history.epochs))),
    )
    assert rows == [15, 9, 3, 3]
    assert sorted(ended) == [(0, 1), (1, 2), (2, 2), (3, 4), (4, 1)]


def test_unlike_trainings_are_sorted_into_fleets() -> None:
    wide = Ensemble(lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 4)), 3)
    trainings = [*sweep("augmented:beta={}", 2), *sweep("adp:alpha={}", 2)]
    trainings.insert(1, replace(trainings[0], ens=wide))
    trainings.append(replace(trainings[0], ens=Ensemble(lambda: perceptron(4), 2, seed=9)))
    assert len({kind(training) for training in trainings}) == 4
    others = [
        replace(t, ens=Ensemble.from_members([t.ens.member(j) for j in range(t.ens.members)]))
        for t in trainings
    ]
    assert_same(trainings, fit_fleet(trainings, progress=False), others)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, objective="ldr"),
        lambda t: replace(t, objective="learner_dropout:drop=0.4/joint"),
        lambda t: replace(t, recipe=replace(t.recipe, freeze_patience=1)),
        lambda t: replace(t, recipe=replace(t.recipe, optimizer="adam:lr=0.1/0.01/0.001")),
        lambda t: replace(
            t,
            ens=Ensemble(
                lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 4)), 3
            ),
        ),
        lambda t: replace(
            t,
            ens=Ensemble(
                lambda: nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4)), 3
            ),
        ),
    ],
    ids=["LDR", "learner dropout", "frozen members", "rates of members", "dropout", "batch norm"],
)
def test_what_cannot_be_batched_is_trained_alone(change: Callable[[Training], Training]) -> None:
    ours, others = (change(sweep("independent", 1)[0]) for _ in range(2))
    assert kind(ours) is None
    (history,) = fit_fleet([ours], progress=False)
    (expected,) = alone([others])
    assert history.epochs == expected.epochs  # to the last bit: it is the same function


@pytest.mark.parametrize("spec", ["independent:loss=mse", "ldr:strength=1"])
def test_one_that_diverges_ends_alone(spec: str) -> None:
    def trainings() -> list[Training]:
        outputs = 4 if "ldr" in spec else 1
        bad = {"optimizer": "sgd:lr=1e38"}
        good = sweep(spec, 3, outputs, optimizer="sgd:lr=0.01")
        return [good[0], sweep(spec, 2, outputs, **bad)[1], good[2]]

    ours, others = trainings(), trainings()
    histories = fit_fleet(ours, progress=False, keep_failed=True)
    assert "failed" in histories[1].ended
    assert_same([ours[0], ours[2]], [histories[0], histories[2]], [others[0], others[2]])
    with pytest.raises(NonFiniteLoss, match="training 1: failed: the"):
        fit_fleet(trainings(), progress=False)


def test_bad_targets_are_refused_before_any_work() -> None:
    trainings = sweep("augmented:beta={}", 3)
    before = [p.clone() for p in trainings[0].ens.parameters()]
    x, y = trainings[2].train
    trainings[2] = replace(trainings[2], train=(x, torch.where(y == 3, 7, y)))
    with pytest.raises(ValueError, match="7"):
        fit_fleet(trainings, progress=False)
    for parameter, value in zip(trainings[0].ens.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    with pytest.raises(ValueError, match="must be tensors"):
        replace(trainings[0], train=[(x, y)])
    with pytest.raises(ValueError, match="need validation data"):
        replace(trainings[0], val=None)

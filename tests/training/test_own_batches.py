"""Members with batches of their own: another order, other rows, or both."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dissensus.ensemble import Ensemble
from dissensus.objectives import Independent
from dissensus.robustness import AdversarialBatches
from dissensus.training import History, Recipe, Training, fit, fit_fleet
from dissensus.training.batches import bootstrap_rows, derived_seed, shuffled
from dissensus.training.stream import ORDER, Stream
from tests.training.problems import blobs, dense_mlp, norm_mlp, rows, same_bits, state

MEMBERS, EXAMPLES, SIZE, EPOCHS, SEED = 3, 41, 16, 2, 5
X, Y = blobs(EXAMPLES, dtype=torch.float64)
ASKED: list[dict[str, Any]] = [
    {"shuffle": "members"},
    {"bootstrap": True},
    {"shuffle": "members", "bootstrap": True},
]
KINDS = ["dense", "stacked", "looped", "unlike", "backbone"]


def ensemble(kind: str) -> Ensemble:
    if kind == "unlike":
        made = Ensemble.from_members([norm_mlp(), dense_mlp(), nn.Linear(4, 3)])
    elif kind == "backbone":
        made = Ensemble.on_features(nn.Linear(4, 4), lambda: norm_mlp(), members=MEMBERS)
    elif kind == "dense":
        made = Ensemble(dense_mlp, members=MEMBERS)
    else:
        made = Ensemble(norm_mlp, members=MEMBERS, execution=kind)
    return made.double()


def train(ens: Ensemble, data: Any = (X, Y), objective: Any = None, **settings: Any) -> History:
    plain = {"epochs": EPOCHS, "batch_size": SIZE, "seed": SEED, "optimizer": "sgd:lr=0.1"}
    return fit(ens, data, objective, progress=False, **{**plain, **settings})


def rows_of(member: int, epoch: int, shuffle: str = "shared", bootstrap: bool = False) -> Tensor:
    """The rows that a member sees in an epoch, worked out again."""
    seed = derived_seed(SEED, epoch, ORDER)
    own = shuffled(EXAMPLES, derived_seed(seed, member) if shuffle == "members" else seed)
    drawn = bootstrap_rows(EXAMPLES, MEMBERS, derived_seed(SEED, 6))[member]
    return drawn[own] if bootstrap else own


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_each_member_is_trained_alone_on_its_own_rows(
    kind: str, asked: dict[str, Any], weighted: bool
) -> None:
    ens = ensemble(kind)
    alone = [ens.member(j).train() for j in range(MEMBERS)]
    if kind == "backbone":
        alone = [nn.Sequential(module[0].eval(), module[1]) for module in alone]
    weights = torch.linspace(0.5, 1.5, EXAMPLES).double() if weighted else torch.ones(EXAMPLES)
    history = train(ens, (X, Y, weights) if weighted else (X, Y), clip=0.5, **asked)
    for j, module in enumerate(alone):
        head = module[1] if kind == "backbone" else module
        stepper = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(EPOCHS):
            error = hits = 0.0
            order = rows_of(j, epoch, **asked)
            for index in order.split(SIZE):
                logits, w = module(X[index]), weights[index]
                loss = nn.functional.cross_entropy(logits, Y[index], reduction="none") * w
                stepper.zero_grad()
                loss.mean().backward()
                nn.utils.clip_grad_norm_(head.parameters(), 0.5)
                stepper.step()
                error += float(loss.detach().sum())
                hits += float((w * (logits.argmax(-1) == Y[index])).sum())
            metrics, count = history.epochs[epoch]["train"], float(weights[order].sum())
            assert metrics["per_member_error"][j] == pytest.approx(error / count, rel=1e-6)
            assert metrics["per_member_accuracy"][j] == pytest.approx(hits / count, rel=1e-6)
        wanted = module[1] if kind == "backbone" else module
        got = rows(ens, j) if kind != "backbone" else state(ens.member(j)[1])
        for name, tensor in state(wanted).items():
            torch.testing.assert_close(got[name], tensor, rtol=1e-7, atol=1e-9)
    if not weighted:
        means = [sum(record["train"]["per_member_error"]) / MEMBERS for record in history.epochs]
        assert history.column("train/member_error") == pytest.approx(means)
        assert history.column("train/part/member_error") == pytest.approx(means)
    absent = {"ensemble_error", "diversity", "accuracy", "part/ensemble_error", "part/diversity"}
    assert not absent & history.epochs[0]["train"].keys()


def test_bootstrap_rows_are_drawn_once_and_differ_between_members() -> None:
    seen: list[list[list[float]]] = [[] for _ in range(MEMBERS)]
    x = torch.arange(40.0)[:, None]
    recipe = Recipe(batch_size=SIZE, bootstrap=True, seed=SEED)
    stream = Stream(
        (x, torch.zeros(40)), Independent(), None, None, recipe, MEMBERS, torch.device("cpu")
    )
    for epoch in range(2):
        batches = list(stream.epoch(epoch))
        for member in range(MEMBERS):
            seen[member].append(
                torch.cat([batch.x[member] for batch in batches]).flatten().tolist()
            )
    for first, second in seen:
        assert first != second
        assert sorted(first) == sorted(second)  # the same rows in another order
        assert 15 < len(set(first)) < 35  # about 63% of them
    assert len({tuple(sorted(first)) for first, _ in seen}) == MEMBERS


def test_members_that_a_batch_draws_get_their_own_rows() -> None:
    """Dropped members sit a batch out; executions agree to the last digits."""
    left, right = ensemble("stacked"), ensemble("looped")
    for ens in (left, right):
        train(ens, objective="learner_dropout:drop=0.4/independent", shuffle="members")
    torch.testing.assert_close(left.state_dict(), right.state_dict(), rtol=1e-8, atol=1e-10)
    whole = ensemble("stacked")
    train(whole, shuffle="members")
    assert not same_bits(state(left), state(whole))


def test_regression_validation_and_the_fleet() -> None:
    y = X[:, :1]
    settings = {"epochs": EPOCHS, "batch_size": SIZE, "bootstrap": True}
    ensembles = [
        Ensemble(lambda: nn.Linear(4, 1), members=2, combine="mean").double() for _ in range(3)
    ]
    spec = "independent:loss=mse"
    data, recipe = (X, y), Recipe(**settings)
    history = fit(ensembles[0], data, spec, val=data, progress=False, recipe=recipe)
    assert history.best_epoch
    assert {"ensemble_error", "diversity"} <= history.epochs[0]["val"].keys()
    trainings = [Training(ens, data, spec, data, recipe) for ens in ensembles[1:]]
    for other, training in zip(fit_fleet(trainings, progress=False), trainings, strict=True):
        assert other.epochs == history.epochs
        assert same_bits(state(training.ens), state(ensembles[0]))


@pytest.mark.parametrize(
    ("objective", "asked", "words"),
    [
        ("adp", {"shuffle": "members"}, "shuffle='members' gives .* ADP compares members"),
        ("augmented:beta=0", {"bootstrap": True}, "bootstrap=True gives .* Augmented compares"),
        ("learner_dropout/joint", {"bootstrap": True}, "use 'independent'"),
    ],
)
def test_coupled_objectives_say_why_not(objective: str, asked: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(ensemble("dense"), objective=objective, **asked)


def test_what_else_cannot_have_batches_of_its_own() -> None:
    ens = ensemble("dense")
    with pytest.raises(ValueError, match="tensors in memory alone, and got a DataLoader"):
        train(ens, DataLoader(TensorDataset(X, Y), 8), shuffle="members")
    with pytest.raises(ValueError, match="adversarial examples are made for all"):
        train(ens, augment=AdversarialBatches(ens, "fgsm"), bootstrap=True)
    with pytest.raises(ValueError, match="do not work across processes"):
        train(ens, distributed=True, bootstrap=True)
    with pytest.raises(ValueError, match="shuffle must be one of shared, members, got 'member'"):
        train(ens, shuffle="member")

"""Training gives what plain PyTorch gives, whatever the network, the data or the execution."""

import functools
import math
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from dissensus.ensemble import Ensemble
from dissensus.objectives import A2D, Independent, Joint
from dissensus.training import NonFiniteLoss, fit, predict
from tests.ensemble.networks import NETWORKS, Odd, Wrapped
from tests.training.problems import (
    batches,
    blobs,
    dense_mlp,
    norm_mlp,
    plain_training,
    rows,
    same_bits,
    state,
)

EPOCHS = 2
DATA = batches(dtype=torch.float64)


def close(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            got[name], tensor, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


def quiet_fit(ens: Ensemble, train: Any, objective: Any = None, **settings: Any) -> Any:
    return fit(ens, train, objective, progress=False, **settings)


# ---- members trained together are members trained alone -----------------------------------------


def sgd(parameters: list[Tensor]) -> Any:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, nesterov=True, weight_decay=1e-2)


def adam(parameters: list[Tensor]) -> Any:
    return torch.optim.Adam(parameters, lr=0.02, weight_decay=1e-2)


def adamw(parameters: list[Tensor]) -> Any:
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.3)


RECIPES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "sgd": (
        sgd,
        {"optimizer": "sgd:lr=0.5,momentum=0.9,nesterov=true,weight_decay=1e-2", "clip": 0.05},
        {"clip": 0.05},
    ),
    "adam": (
        adam,
        {"optimizer": "adam:lr=0.02,weight_decay=1e-2", "schedule": "cosine:factor=0.1"},
        {"factor": lambda time: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * time / EPOCHS))},
    ),
    "adamw": (
        adamw,
        {"optimizer": "adamw:lr=0.02,weight_decay=0.3", "schedule": "multistep:at=1.5,factor=0.2"},
        {"factor": lambda time: 0.2 if time >= 1.5 else 1.0},
    ),
}


def cnn() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.Flatten(), norm_mlp())


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "dense": dense_mlp,
    "repeated_activation": NETWORKS["repeated_activation"].make,
    "tied_weights": NETWORKS["tied_weights"].make,
    "layer_norm_mlp": NETWORKS["layer_norm_mlp"].make,
    "batch_norm": norm_mlp,
    "vmap": lambda: Wrapped(dense_mlp()),
    "cnn": cnn,
    "odd": Odd,
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("execution", ["stacked", "looped"])
@pytest.mark.parametrize("network", TRAINED)
def test_independent_members_are_members_trained_alone(
    network: str, execution: str, recipe: str
) -> None:
    make_optimizer, settings, plain = RECIPES[recipe]
    ens = Ensemble(TRAINED[network], members=3, seed=4, execution=execution).double()
    alone = [ens.member(j) for j in range(3)]
    history = quiet_fit(ens, DATA, Independent(), epochs=EPOCHS, **settings)
    outputs = plain_training(alone, DATA, EPOCHS, make_optimizer, **plain)
    for j, module in enumerate(alone):
        # A layer that is never called has no gradient: torch leaves it, here it may decay.
        close(
            {n: t for n, t in rows(ens, j).items() if "idle" not in n},
            {n: t for n, t in state(module).items() if "idle" not in n},
        )
    compare_figures(history, outputs, torch.cat([y for _, y in DATA]))


def compare_figures(history: Any, outputs: list[Tensor], y: Tensor) -> None:
    """An epoch's training figures, worked out again from the outputs of plain training."""
    for record, logits in zip(history.epochs, outputs, strict=True):
        probs = logits.softmax(-1)
        examples = torch.arange(len(y))
        error = -probs.mean(0)[examples, y].log().mean()
        member = -probs[:, examples, y].log().mean(-1)
        train = record["train"]
        assert train["examples"] == len(y)
        assert train["ensemble_error"] == pytest.approx(float(error), rel=1e-6)
        assert train["per_member_error"] == pytest.approx(member.tolist(), rel=1e-6)
        assert train["member_error"] == pytest.approx(float(member.mean()), rel=1e-6)
        assert train["diversity"] == pytest.approx(float(member.mean() - error), abs=1e-7)
        assert train["part/member_error"] == pytest.approx(float(member.mean()), rel=1e-6)
        assert train["part/ensemble_error"] == pytest.approx(float(error), rel=1e-6)
        assert train["accuracy"] == float((probs.mean(0).argmax(-1) == y).double().mean())
        hits = (logits.argmax(-1) == y).double().mean(-1)
        assert train["per_member_accuracy"] == pytest.approx(hits.tolist())


def test_unlike_members_are_members_trained_alone() -> None:
    modules = [dense_mlp(), norm_mlp(), Wrapped(nn.Linear(4, 3))]
    ens = Ensemble.from_members(modules).double()
    alone = [ens.member(j) for j in range(3)]
    history = quiet_fit(
        ens, DATA, epochs=EPOCHS, optimizer="adam:lr=0.02,weight_decay=1e-2", clip=0.05
    )
    outputs = plain_training(alone, DATA, EPOCHS, adam, clip=0.05)
    for j, module in enumerate(alone):
        close(rows(ens, j), state(module))
    compare_figures(history, outputs, torch.cat([y for _, y in DATA]))


@pytest.mark.parametrize("alike", [True, False], ids=["stacked", "unlike"])
def test_members_have_learning_rates_and_decays_of_their_own(alike: bool) -> None:
    modules = [dense_mlp(), dense_mlp() if alike else norm_mlp()]
    ens = Ensemble.from_members(modules).double()
    alone = [ens.member(j) for j in range(2)]
    quiet_fit(ens, DATA, epochs=EPOCHS, optimizer="sgd:lr=0.1/0.4,weight_decay=0/0.1,momentum=0")
    for j, (lr, decay) in enumerate([(0.1, 0.0), (0.4, 0.1)]):
        plain_training(
            [alone[j]],
            DATA,
            EPOCHS,
            lambda p, lr=lr, decay=decay: torch.optim.SGD(p, lr=lr, weight_decay=decay),
        )
        close(rows(ens, j), state(alone[j]))


class FirstThree(nn.Module):
    """A member without anything to train."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


def test_members_without_anything_to_train_are_left_alone() -> None:
    fixed = norm_mlp().requires_grad_(False)
    ens = Ensemble.from_members([fixed, dense_mlp(), FirstThree()])
    before = [rows(ens, j) for j in range(3)]
    quiet_fit(ens, batches(), epochs=1, clip=1.0)
    assert [same_bits(rows(ens, j), before[j]) for j in range(3)] == [True, False, True]


def test_nothing_to_train() -> None:
    for ens in (
        Ensemble(lambda: dense_mlp().requires_grad_(False), members=2),
        Ensemble.from_members([dense_mlp(), norm_mlp()]).requires_grad_(False),
    ):
        with pytest.raises(ValueError, match="nothing to train"):
            quiet_fit(ens, batches(), epochs=1)


# ---- objectives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense_mlp, norm_mlp], ids=["dense", "vmap"])
@pytest.mark.parametrize("alike", [True, False], ids=["stacked", "unlike"])
def test_a_coupled_objective_with_disagreement_data_is_plain_gradient_descent(
    make: Callable[[], nn.Module], alike: bool
) -> None:
    modules = [make(), make() if alike else nn.Sequential(make(), nn.Tanh())]
    ens = Ensemble.from_members(modules).double()
    alone = [ens.member(j).train() for j in range(2)]
    extra = [(x, y) for x, y in batches(40, 10, seed=8, dtype=torch.float64)]
    assert len(extra) < len(DATA)  # so that they begin anew in the middle of an epoch
    objective = A2D(strength=0.7, label_smoothing=0.1)
    history = quiet_fit(
        ens,
        DATA,
        objective,
        disagreement=extra,
        epochs=2,
        optimizer="sgd:lr=0.2,momentum=0.5",
    )
    optimizer = torch.optim.SGD(
        [p for module in alone for p in module.parameters()], lr=0.2, momentum=0.5
    )
    for _ in range(2):
        losses = []
        for number, (x, y) in enumerate(DATA):
            outputs = torch.stack([module(x) for module in alone])
            known = [{n: b.clone() for n, b in module.named_buffers()} for module in alone]
            unlabelled = torch.stack([module(extra[number % 4][0]) for module in alone])
            for module, buffers in zip(alone, known, strict=True):  # statistics of labelled inputs
                for name, buffer in module.named_buffers():
                    buffer.data.copy_(buffers[name])
            smooth = [cross_entropy(out, y, label_smoothing=0.1) for out in outputs]
            p, q = log_softmax(unlabelled, -1).exp()
            terms = [pair_term(p, q), pair_term(q, p)]
            loss = torch.stack(smooth).mean() + 0.7 * torch.stack(terms).mean()
            optimizer.zero_grad()
            (2 * loss).backward()  # the members' own losses, not their mean
            optimizer.step()
            losses.append(float(torch.stack(smooth).mean().detach()) * len(x))
    for j, module in enumerate(alone):
        close(rows(ens, j), state(module))
    assert history.column("train/part/cross_entropy")[-1] == pytest.approx(sum(losses) / 70)


def pair_term(p: Tensor, q: Tensor) -> Tensor:
    """Equation 3 of ldr as it stands in the paper."""
    top = p.argmax(-1)[:, None]
    p, q = p.gather(1, top), q.gather(1, top)
    return -torch.log(p * (1 - q) + q * (1 - p)).mean()


def test_regression() -> None:
    x, _ = blobs(60, dtype=torch.float64)
    y = torch.stack([x.sum(-1), x[:, 0] - x[:, 1]], -1)
    data = [(x[:32], y[:32]), (x[32:], y[32:])]
    make = lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))  # noqa: E731
    ens = Ensemble(make, members=3, combine="mean").double()
    alone = [ens.member(j) for j in range(3)]
    history = quiet_fit(
        ens, data, "independent:loss=mse", val=(x, y), epochs=EPOCHS, optimizer="adam:lr=0.02"
    )
    # Squared distances are summed over outputs, torch's mean is over them as well.
    plain_training(
        alone,
        data,
        EPOCHS,
        lambda p: torch.optim.Adam(p, lr=0.02),
        loss=lambda out, y: 2 * mse_loss(out, y),
    )
    for j, module in enumerate(alone):
        close(rows(ens, j), state(module))
    prediction = torch.stack([module(x) for module in alone]).detach()
    error = (prediction.mean(0) - y).square().sum(-1).mean()
    member = (prediction - y).square().sum(-1).mean(-1)
    val = history.epochs[-1]["val"]
    assert val["ensemble_error"] == pytest.approx(float(error), rel=1e-6)
    assert val["per_member_error"] == pytest.approx(member.tolist(), rel=1e-6)
    assert "accuracy" not in val
    torch.testing.assert_close(ens.predict(x), prediction.mean(0))


# ---- data ---------------------------------------------------------------------------------------


class Recording:
    """An augmentation that notes what it saw and changes it with its own random numbers."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        self.seen.append(x.clone())
        return x + torch.randn(x.shape, generator=generator)


def as_loader(x: Tensor, y: Tensor) -> Any:
    return DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)


@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_every_epoch_shows_every_example_once_in_another_order(kind: str) -> None:
    x, y = blobs(70)
    train = (x, y) if kind == "tensors" else as_loader(x, y)
    augment = Recording()
    ens = Ensemble(dense_mlp, members=2)
    quiet_fit(ens, train, epochs=2, batch_size=20, augment=augment)
    assert [len(batch) for batch in augment.seen] == [20, 20, 20, 10] * 2
    first, second = torch.cat(augment.seen[:4]), torch.cat(augment.seen[4:])
    assert not torch.equal(first, second)
    order = [tuple(row) for row in x.tolist()]
    for epoch in (first, second):
        assert sorted(map(tuple, epoch.tolist())) == sorted(order)
        assert list(map(tuple, epoch.tolist())) != order


def test_a_single_example_that_is_left_over_goes_with_the_others() -> None:
    """BatchNorm could not be trained on it."""
    for examples, sizes in ((41, [20, 21]), (40, [20, 20]), (42, [20, 20, 2]), (21, [21])):
        augment = Recording()
        quiet_fit(
            Ensemble(norm_mlp, members=2), blobs(examples), epochs=1, batch_size=20, augment=augment
        )
        assert [len(batch) for batch in augment.seen] == sizes
    quiet_fit(Ensemble(dense_mlp, members=2), blobs(1), epochs=1)
    quiet_fit(Ensemble(dense_mlp, members=2), blobs(3), epochs=1, batch_size=1)


def test_a_backbone_runs_once_a_batch_and_is_not_trained() -> None:
    backbone = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6))
    backbone = nn.Sequential(backbone, nn.Flatten(), nn.Dropout(0.5)).double()
    before, calls = state(backbone), []
    backbone.register_forward_hook(lambda module, *_: calls.append(module.training))
    ens = Ensemble.on_features(backbone, lambda: nn.Linear(6, 3), members=3).double()
    heads = [ens.member(j)[1] for j in range(3)]
    quiet_fit(ens, DATA, epochs=EPOCHS, optimizer="adam:lr=0.02,weight_decay=1e-2")
    assert calls == [False] * (len(DATA) * EPOCHS)
    assert same_bits(state(backbone), before)
    features = [(backbone(x), y) for x, y in DATA]
    plain_training(heads, features, EPOCHS, adam)
    for j, head in enumerate(heads):
        close(state(ens.member(j)[1]), state(head))


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:this processor has no instructions for bfloat16")
@pytest.mark.parametrize("alike", [True, False], ids=["stacked", "unlike"])
def test_lower_precision_trains_and_keeps_its_weights_in_full(alike: bool) -> None:
    modules = [dense_mlp(), dense_mlp() if alike else norm_mlp()]
    ens, full = Ensemble.from_members(modules), Ensemble.from_members(modules)
    data = blobs(96)
    history = quiet_fit(ens, data, Joint(), val=data, epochs=5, amp=True, optimizer="adam:lr=0.02")
    exact = quiet_fit(full, data, Joint(), val=data, epochs=5, optimizer="adam:lr=0.02")
    assert all(p.dtype == torch.float32 for p in ens.parameters())
    errors, wanted = history.column("train/ensemble_error"), exact.column("train/ensemble_error")
    assert errors == pytest.approx(wanted, rel=0.05)
    assert errors != wanted  # it did compute in bfloat16
    assert errors[-1] < errors[0]


def test_bfloat16_that_would_be_emulated_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(amp: bool, **features: bool) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
        quiet_fit(Ensemble(dense_mlp, members=2), blobs(16), epochs=1, amp=amp)

    with pytest.warns(UserWarning, match="no instructions for bfloat16 .* leave out amp"):
        train(True, avx2=True, avx512_bf16=False)
    train(False, avx2=True, avx512_bf16=False)
    train(True, avx2=True, amx_bf16=True)
    train(True)  # an older torch cannot be asked


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_training_gives_the_same_numbers(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real on a small network; on a larger one traced, without the minute of a compiler."""
    if backend == "inductor" and shutil.which("c++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    make, objective = (norm_mlp, "ldr:active=2")
    if backend == "inductor":
        make, objective = (lambda: nn.Linear(4, 3), "joint")
    results = []
    for compiled in (True, False):
        ens = Ensemble(make, members=3)
        settings = {"optimizer": "sgd:lr=0.1", "batch_size": 16, "compile": compiled}
        history = quiet_fit(ens, blobs(64), objective, epochs=2, **settings)
        results.append((state(ens), history.column("train/ensemble_error")))
    for name, tensor in results[0][0].items():
        torch.testing.assert_close(tensor, results[1][0][name], rtol=1e-4, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4)


def test_predict_gives_all_outputs_in_order() -> None:
    x, y = blobs(50)
    ens = Ensemble(norm_mlp, members=2)
    for data in ((x, y), DataLoader(TensorDataset(x, y), batch_size=7)):
        found = predict(ens, data, batch_size=16, meta={"of": "test"})
        assert torch.equal(found.targets, y)
        assert found.meta == {"of": "test"}
        torch.testing.assert_close(found.outputs, ens.eval()(x).detach())
        ens.train()
    alone = predict(ens, x)
    assert alone.targets is None
    torch.testing.assert_close(alone.outputs, found.outputs)
    assert ens.training


@pytest.mark.parametrize(
    ("train", "objective", "settings", "error"),
    [
        (torch.zeros(3, 4), None, {}, r"training data must be \(x, y\), got x alone"),
        ((torch.zeros(3, 4), torch.zeros(2)), None, {}, "one length, got 3 and 2"),
        ((torch.zeros(0, 4), torch.zeros(0)), None, {}, "empty, got 0 examples"),
        (([[0.0]], [1]), None, {}, "a batch must be"),
        ((torch.zeros(3, 4).numpy(), [1]), None, {}, "got a pair of Tensor and list"),
        (blobs(6), None, {"lr": 0.1}, "no lr=; it belongs to the optimizer: .*'adam:lr=0.1'"),
        (blobs(6), None, {"device": "cuda"}, r"where the ensemble is: ens.to\('cuda'\)"),
        (blobs(6), None, {"amp": "fp16"}, "True or 'bf16', which train in bfloat16, got 'fp16'"),
        (7, None, {}, "tensors or a DataLoader, got int"),
        (iter([]), None, {}, "the loader must have a length"),
        ([], None, {}, "the training data are empty, got 0 batches"),
        ([torch.zeros(3, 4)], None, {}, r"a training batch must be \(x, y\), got x alone"),
        (batches(), "a2d", {}, "A2D needs disagreement="),
        (batches(), "a2d", {"disagreement": []}, "the disagreement data are empty"),
        (batches(), "ldr", {"disagreement": batches()}, "LDR takes no disagreement data"),
        (batches(), "ldr:active=4", {}, "cannot draw active=4 members from 3"),
        (batches(), None, {"patience": 2}, "need validation data, val="),
        (batches(), None, {"freeze_patience": 2}, "need validation data, val="),
        (batches(), None, {"val": torch.zeros(3, 4)}, r"validation data must be \(x, y\)"),
        (batches(), None, {"val": [torch.zeros(3, 4)]}, r"validation data must be \(x, y\)"),
        (batches(), None, {"val": 7}, "tensors or a DataLoader, got int"),
        (batches(), None, {"resume": True}, "resume=True needs out="),
        (batches(), None, {"optimizer": "adam:lr=1/2"}, "lr has 2 values for 3 members"),
    ],
)
def test_what_does_not_fit_together_is_said_first(
    train: Any, objective: str | None, settings: dict[str, Any], error: str
) -> None:
    ens = Ensemble(dense_mlp, members=3)
    before = state(ens)
    with pytest.raises(ValueError, match=error):
        quiet_fit(ens, train, objective, epochs=1, **settings)
    assert same_bits(state(ens), before) or "val" in settings


@pytest.mark.parametrize(
    ("combine", "loss", "y", "error"),
    [
        ("probability", "mse", torch.zeros(6, 1), "make the ensemble with combine='mean'"),
        ("mean", "cross_entropy", torch.zeros(6).long(), "combine='probability' for classif"),
    ],
)
def test_a_task_and_an_ensemble_for_another_one(
    combine: str, loss: str, y: Tensor, error: str
) -> None:
    make = lambda: nn.Linear(4, 1 if loss == "mse" else 2)  # noqa: E731
    ens = Ensemble(make, members=2, combine=combine)
    with pytest.raises(ValueError, match=error):
        quiet_fit(ens, (torch.randn(6, 4), y), Independent(loss=loss), epochs=1)


def test_the_labels_of_every_example_are_checked() -> None:
    x, y = blobs(40)
    y[-1] = 3
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\)"):
        quiet_fit(Ensemble(dense_mlp, members=2), (x, y), epochs=1, batch_size=8)


# ---- numbers that are none ----------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_before_it_does_harm() -> None:
    x, y = blobs(64)
    data = [(x[:32], y[:32]), (x[32:], y[32:])]
    bad = [*data[:1], (x[32:] * math.inf, y[32:])]
    ens, good = Ensemble(dense_mlp, members=2), Ensemble(dense_mlp, members=2)
    text = "loss of Joint is nan at epoch 1, batch 2 .not finite: member_error, ensemble_error, div"
    with pytest.raises(NonFiniteLoss, match=text):
        quiet_fit(ens, bad, Joint(), epochs=3)
    quiet_fit(good, data[:1], Joint(), epochs=1)
    assert same_bits(state(ens), state(good))  # as they were after the first batch


def test_weights_that_are_not_finite_stop_though_the_loss_is() -> None:
    ens, (x, y) = Ensemble(dense_mlp, members=2), blobs(64)
    with pytest.raises(NonFiniteLoss, match=r"stack\.\d\.\w+ is not finite after epoch 1, batch 1"):
        quiet_fit(ens, (1e3 * x, y), epochs=1, optimizer="sgd:lr=1e38,momentum=0")


def test_validation_data_that_are_not_finite() -> None:
    x, y = blobs(64)
    ens = Ensemble(dense_mlp, members=2)
    with pytest.raises(NonFiniteLoss, match="error on val data is nan at epoch 1"):
        quiet_fit(ens, (x, y), val=(x * math.nan, y), epochs=2)


@pytest.mark.filterwarnings("ignore:this processor has no instructions for bfloat16")
def test_numpy_arrays_train_as_tensors_do() -> None:
    """float64 and int32, as other libraries make them, give the bits of float32 and int64."""
    (x, y), (vx, vy) = blobs(30), blobs(12, seed=1)
    arrays = (x.double().numpy(), y.int().numpy()), (vx.double().numpy(), vy.numpy())
    ends = []
    for train, val in (((x, y), (vx, vy)), arrays):
        ens = Ensemble(dense_mlp, members=2)
        fit(ens, train, val=val, epochs=2, amp="bf16", progress=False)
        ends.append((state(ens), predict(ens, val).outputs))
    assert same_bits(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    with pytest.raises(ValueError, match="must hold numbers, got an array of <U1"):
        fit(Ensemble(dense_mlp, members=2), (arrays[0][0], np.array(["a"] * 30)), epochs=1)

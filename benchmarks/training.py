"""Training steps against the plain loop over members that published scripts use.

A limit is a ratio of times: 0.25 means four times as fast as the baseline. Other libraries take
part where they are installed (``pip install "dissensus[bench]"``).
"""

import contextlib
import io
import logging
import shutil
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import Contender, Result, compare
from dissensus.data.strangers import Strangers
from dissensus.ensemble import Ensemble
from dissensus.ensemble.execution import channels_last
from dissensus.models import make_factory
from dissensus.objectives import Objective, parse
from dissensus.training import Recipe, fit
from dissensus.training.step import Trainer, computes_bfloat16
from dissensus.training.stream import TrainingBatch


def run(quick: bool) -> list[Result]:
    """All comparisons; one thread unless ``--threads`` says otherwise."""
    repeats = 3 if quick else 15
    small = partial(_dense, repeats=repeats)
    return [
        small((16, 30, 30, 1), batch=32, members=5, limit=1 / 4),
        small((16, 30, 30, 1), batch=32, members=20, limit=1 / 10),
        small((64, 128, 128, 10), batch=128, members=5, limit=1 / 1.6),
        small((64, 128, 128, 10), batch=128, members=20, limit=1 / 1.6),
        _sharing((20, 256, 256, 1), batch=128, members=32, repeats=repeats),
        _convolutional("small_cnn", (1, 28, 28), 64, 0.85, repeats),
        _convolutional("resnet20", (3, 32, 32), 32, 1.0, max(3, repeats // 2)),
        _strangers("small_cnn", (1, 28, 28), 128, repeats),
        _drawn(repeats),
        _loop(6 * repeats),  # a small difference
        _epoch(repeats),
        _adp(3, 2 * repeats),
        _adp(5, max(5, repeats // 2)),
    ]


# ---- contenders ---------------------------------------------------------------------------------


def plain_loop(
    make: Callable[[], nn.Module], members: int, x: Tensor, y: Tensor, lr: float = 1e-3
) -> Callable[[], None]:
    """A step as scripts write it: members one after the other, one optimiser over all of them."""
    nets = [make() for _ in range(members)]
    optimizer = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=lr)
    loss_of = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy

    def step() -> None:
        optimizer.zero_grad()
        losses = [loss_of(net(x), y) for net in nets]
        (torch.stack(losses).sum() / members).backward()
        optimizer.step()

    return step


def ours(
    make: Callable[[], nn.Module],
    members: int,
    x: Tensor,
    y: Tensor,
    objective: Objective | None = None,
    execution: str = "auto",
    sharing: str | None = None,
    **recipe: Any,
) -> Callable[[], object]:
    """A step of the library."""
    combine = "mean" if y.is_floating_point() else "probability"
    ens = Ensemble(make, members, combine=combine, execution=execution, sharing=sharing).train()
    chosen = objective or parse("independent:loss=mse" if combine == "mean" else "independent")
    trainer = Trainer(ens, chosen, Recipe(**recipe))
    return partial(trainer.step, TrainingBatch(x, y, None, None), set(), 1.0, check=False)


# ---- comparisons --------------------------------------------------------------------------------


def _dense(
    sizes: tuple[int, ...], *, batch: int, members: int, limit: float, repeats: int
) -> Result:
    *hidden, outputs = sizes[1:]
    make = make_factory("mlp", sizes[:1], outputs, hidden=tuple(hidden))
    x = torch.randn(batch, sizes[0])
    y = torch.randn(batch, 1) if outputs == 1 else torch.randint(outputs, (batch,))
    name = "-".join(map(str, sizes))
    return compare(
        f"MLP {name}, {members} members, batch {batch}: one step, ratio to the plain loop",
        Contender("plain loop", plain_loop(make, members, x, y)),
        [
            Contender("dissensus", ours(make, members, x, y), limit),
            Contender("dissensus, looped", ours(make, members, x, y, execution="looped")),
            *_tabm(sizes, members, x, y),
        ],
        repeats=repeats,
        min_sample=0.02,  # many steps in a row, as training runs them
    )


def _tabm(sizes: tuple[int, ...], members: int, x: Tensor, y: Tensor) -> list[Contender]:
    """TabM's batched linear layers, trained as its examples do, where the package is there."""
    if find_spec("tabm") is None:
        return []
    from tabm import EnsembleView, LinearEnsemble

    layers: list[nn.Module] = [EnsembleView(k=members)]
    for a, b in pairwise(sizes):
        layers += [LinearEnsemble(a, b, k=members), nn.ReLU()]
    return [Contender("TabM layers", _tabm_step(nn.Sequential(*layers[:-1]), members, x, y))]


def _tabm_step(net: nn.Module, members: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_of = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy
    targets = y.repeat_interleave(members, 0)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(net(x).flatten(0, 1), targets).backward()
        optimizer.step()

    return step


def _sharing(sizes: tuple[int, int, int, int], *, batch: int, members: int, repeats: int) -> Result:
    """Members that share weights: as many products as separate ones, and hardly more weights."""
    columns, *hidden, outputs = sizes
    make = make_factory("mlp", (columns,), outputs, hidden=tuple(hidden))
    x, y = torch.randn(batch, columns), torch.randn(batch, outputs)
    contenders = [
        Contender("dissensus, adapters", ours(make, members, x, y, sharing="adapters")),
        Contender("dissensus, separate members", ours(make, members, x, y)),
    ]
    if find_spec("tabm") is not None:
        from tabm import TabM

        shape = {"n_num_features": columns, "n_blocks": 2, "d_block": hidden[0], "d_out": outputs}
        net = TabM.make(**shape, k=members, dropout=0.0)
        contenders.append(Contender("TabM", _tabm_step(net, members, x, y)))
    name = "-".join(map(str, sizes))
    return compare(
        f"MLP {name}, {members} members that share weights, batch {batch}: one step, ratio to one",
        Contender("dissensus, one member", ours(make, 1, x, y)),
        contenders,
        repeats=repeats,
    )


def _convolutional(
    name: str, shape: tuple[int, ...], batch: int, limit: float, repeats: int
) -> Result:
    """Images are put with channels last; the loop in that format shows what torch gains by it.

    On ResNet-20 that was 4 to 7% on an EPYC with AVX2, 14% on one with AVX-512 and 19% on a Xeon
    with AVX-512. A step is made of torch's own convolutions, so that ours comes out where that loop
    does, and its limit is the plain loop itself. What compiling or bfloat16 add is shown without a
    limit: it depends on the network and on the processor.
    """
    members = 3
    make = make_factory(name, shape, 10)
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))

    def make_last() -> nn.Module:
        network: nn.Module = make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    last = plain_loop(make_last, members, channels_last(x), y)
    more = []
    if computes_bfloat16(x.device):
        more += [Contender("dissensus, bfloat16", ours(make, members, x, y, amp=True))]
    if repeats > 3 and shutil.which("c++"):
        more += [Contender("dissensus, compiled", ours(make, members, x, y, compile=True))]
    return compare(
        f"{name} on {list(shape)}, {members} members, batch {batch}: one step, ratio to the loop",
        Contender("plain loop", plain_loop(make, members, x, y)),
        [
            Contender("plain loop, channels last", last),
            Contender("dissensus", ours(make, members, x, y), limit),
            Contender("dissensus, stacked", ours(make, members, x, y, execution="stacked")),
            *more,
        ],
        repeats=repeats,
    )


def _drawn(repeats: int) -> Result:
    """LDR draws two members a batch: an epoch should cost the same however many there are."""
    make = make_factory("mlp", (64,), 10, hidden=(128, 128))
    x, y = torch.randn(1280, 64), torch.randint(10, (1280,))

    def epoch(members: int) -> Callable[[], object]:
        ens = Ensemble(make, members)
        return lambda: fit(ens, (x, y), "ldr", epochs=10, progress=False)

    return compare(
        "LDR with 2 active members: 10 epochs, ratio to 5 members",
        Contender("5 members", epoch(5)),
        [Contender("50 members", epoch(50), 1.1)],
        repeats=repeats,
    )


def _loop(repeats: int) -> Result:
    """What batching, history and checks add to the bare steps.

    A step takes about 2.1 ms here, and an epoch 11 of them: the epoch's metrics, of every member
    and of the ensemble, are 5 to 6% of that, picking shuffled rows and the loop around them 3%, and
    what is done once in a call 2%. So the limit is 1.2; larger steps come closer to 1.
    """
    make = make_factory("mlp", (64,), 10, hidden=(128, 128))
    x, y = torch.randn(1408, 64), torch.randint(10, (1408,))
    ens = Ensemble(make, 5).train()
    trainer = Trainer(ens, parse("independent"), Recipe())
    other = Ensemble(make, 5)
    batches = list(zip(x.split(128), y.split(128), strict=True))

    def bare() -> None:
        for _ in range(5):
            for a, b in batches:
                trainer.step(TrainingBatch(a, b, None, None), set(), 1.0, check=False)

    return compare(
        "fit, 5 epochs of an MLP on 1,408 digits, 5 members: ratio to the bare steps",
        Contender("bare steps", bare),
        [Contender("fit", lambda: fit(other, (x, y), epochs=5, progress=False), 1.2)],
        repeats=repeats,
    )


def _strangers(model: str, shape: tuple[int, ...], batch: int, repeats: int) -> Result:
    """Making strangers of a batch, without the forward pass on them, beside the whole step."""
    x, y = torch.rand(batch, *shape), torch.randint(10, (batch,))
    generator, make = torch.Generator().manual_seed(0), Strangers()
    trainer = Trainer(Ensemble(make_factory(model, shape, 10), 5).train(), parse("a2d"), Recipe())
    whole = TrainingBatch(x, y, make(x, generator), None)
    return compare(
        f"{model} {shape}, 5 members, batch {batch}: making strangers, ratio to a step of a2d",
        Contender("step of a2d", partial(trainer.step, whole, set(), 1.0, check=False)),
        [Contender("making strangers", lambda: make(x, generator), 0.1)],
        repeats=repeats,
    )


def _epoch(repeats: int) -> Result:
    """A whole epoch from a DataLoader, as users run it, beside other libraries."""
    x, y = torch.randn(1408, 64), torch.randint(10, (1408,))
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)
    make = make_factory("mlp", (64,), 10, hidden=(128, 128))
    nets = [make() for _ in range(5)]
    optimizer = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=1e-3)

    def plain() -> None:
        for a, b in loader:
            optimizer.zero_grad()
            losses = [nn.functional.cross_entropy(net(a), b) for net in nets]
            torch.stack(losses).sum().backward()
            optimizer.step()

    from_loader, from_tensors = Ensemble(make, 5), Ensemble(make, 5)
    contenders = [
        Contender(
            "dissensus, DataLoader", lambda: fit(from_loader, loader, epochs=1, progress=False)
        ),
        Contender(
            "dissensus, tensors",
            lambda: fit(from_tensors, (x, y), epochs=1, progress=False),
        ),
        *_torchensemble(loader),
    ]
    return compare(
        "An epoch on 1,408 digits, 5 × MLP 64-128-128-10, ratio to the plain loop",
        Contender("plain loop, DataLoader", plain),
        contenders,
        repeats=repeats,
    )


def _torchensemble(loader: DataLoader[tuple[Tensor, ...]]) -> list[Contender]:
    if find_spec("torchensemble") is None:
        return []
    import torchensemble

    logging.disable(logging.INFO)
    make = partial(make_factory("mlp", (64,), 10, hidden=(128, 128)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.net(x)
            return outputs

    contenders = []
    for name in ("VotingClassifier", "FusionClassifier"):
        model = getattr(torchensemble, name)(estimator=Net, n_estimators=5, cuda=False)
        model.set_criterion(nn.CrossEntropyLoss())
        model.set_optimizer("Adam", lr=1e-3)

        def epoch(model: Any = model) -> None:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                model.fit(loader, epochs=1, log_interval=10**9, save_model=False)

        contenders.append(Contender(f"TorchEnsemble {name.removesuffix('Classifier')}", epoch))
    return contenders


def _adp(members: int, repeats: int) -> Result:
    make = make_factory("resnet20", (3, 32, 32), 10)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    return compare(
        f"ADP on ResNet-20, {members} members, batch 32: one step, ratio to cross-entropy",
        Contender("independent", ours(make, members, x, y)),
        [Contender("adp", ours(make, members, x, y, parse("adp")), 1.03)],
        repeats=repeats,
    )

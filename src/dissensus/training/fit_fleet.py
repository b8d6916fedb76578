"""Fleets: many ensembles of one architecture trained at once, each as if it were alone.

A sweep over β is dozens of small ensembles; one after another, they leave a processor mostly idle
between tiny operations. Here they share every operation, with one more leading axis, and yet each
has its own data, order of batches, hyperparameters, learning rate, weight decay, seed and early
stopping, and ends with the numbers (to float tolerance) that ``fit`` gives it alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.ensemble.stack import tensors_of
from dissensus.objectives import FunctionObjective, Independent, Objective, as_objective
from dissensus.tools.progress import ProgressBar
from dissensus.training.batches import Augmentation, as_tensors, split_weights
from dissensus.training.fit import NonFiniteLoss, fit
from dissensus.training.fleet import Fleet
from dissensus.training.optim import Optimizer
from dissensus.training.recipe import Recipe
from dissensus.training.run_state import History, RunState
from dissensus.training.stream import as_strangers

OnEnd = Callable[[int, History], None]


@dataclass(frozen=True)
class Training:
    """One ensemble to train, on what, and how: the arguments of ``fit`` for tensors in memory.

    ``train`` and ``val`` are ``(x, y)`` or ``(x, y, weights)``. ``rows`` are the numbers of the
    rows of ``train`` to learn from, so that trainings on parts of one data set share its memory;
    None: all. ``disagreement`` is what ``fit`` takes by this name. ``unpack`` makes inputs of rows
    of x, a batch at a time, where these are much larger than the rows; None: they are the same.
    """

    ens: Ensemble
    train: tuple[Tensor, ...]
    objective: Objective | Callable[..., Any] | str = field(default_factory=Independent)
    val: tuple[Tensor, ...] | None = None
    recipe: Recipe = field(default_factory=Recipe)
    rows: Tensor | None = None
    disagreement: Any = None
    unpack: Callable[[Tensor], Tensor] | None = None

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs of the network from rows of x."""
        return x if self.unpack is None else self.unpack(x)

    @property
    def strangers(self) -> Augmentation | None:
        """A function that makes strangers of each batch; None where there are none."""
        return as_strangers(self.disagreement)

    def __len__(self) -> int:
        return len(self.train[0] if self.rows is None else self.rows)

    def train_rows(self) -> tuple[Tensor, ...]:
        """The rows of ``train`` to learn from."""
        return self.train if self.rows is None else tuple(part[self.rows] for part in self.train)

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", as_objective(self.objective))
        for name in ("train", "val"):
            object.__setattr__(self, name, as_tensors(getattr(self, name)))
        if not _pair(self.train) or not (self.val is None or _pair(self.val)):
            raise ValueError(
                "train and val must be tensors (x, y) of one length; for a DataLoader use fit"
            )
        if self.rows is not None and not _rows_of(self.rows, len(self.train[0])):
            raise ValueError(
                f"rows must be int64 [count] from 0 to {len(self.train[0]) - 1}, got {self.rows}"
            )
        if len(self.train) == 3 and self.objective.needs_disagreement:  # type: ignore[union-attr]
            raise ValueError("objectives with unlabelled data take no example weights")
        self.recipe.check_validation(self.val, self.ens.combine)


def _pair(data: Any) -> bool:
    if not isinstance(data, tuple | list) or not all(isinstance(item, Tensor) for item in data):
        return False
    pair, _ = split_weights(data)
    return len(pair) == 2 and len(pair[0]) == len(pair[1]) > 0


def _rows_of(rows: Any, count: int) -> bool:
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
        return False
    return len(rows) > 0 and int(rows.min()) >= 0 and int(rows.max()) < count


def fit_fleet(
    trainings: Sequence[Training],
    *,
    on_end: OnEnd | None = None,
    progress: bool = True,
    keep_failed: bool = False,
) -> list[History]:
    """Train every ensemble in place and return its history, as ``fit`` would one by one.

    Those that are alike (architecture, members, batch size, number of examples, kind of objective
    and of optimiser) train together; an ensemble that has finished costs nothing more. What cannot
    be batched (see :func:`kind`) goes through ``fit``. ``on_end(index, history)`` is called as soon
    as one has finished, with its best weights in place. A loss that is not finite ends that one
    ensemble alone; after all others have finished it is raised, unless ``keep_failed``.

    >>> import torch
    >>> from torch import nn
    >>> x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    >>> def ensemble():
    ...     return Ensemble(lambda: nn.Linear(4, 1), members=3, combine="mean")
    >>> sweep = [
    ...     Training(ensemble(), (x, x[:, :1]), f"augmented:beta={beta},loss=mse",
    ...              recipe=Recipe(epochs=2, batch_size=16))
    ...     for beta in (0, 0.5, 1)
    ... ]
    >>> [len(history.epochs) for history in fit_fleet(sweep, progress=False)]
    [2, 2, 2]
    """
    histories: dict[int, History] = {}

    def end(index: int, history: History) -> None:
        histories[index] = history
        bar.advance()
        if on_end is not None:
            on_end(index, history)

    with ProgressBar("ensembles", len(trainings), show=progress) as bar:
        for group in _fleets(trainings):
            if len(group) == 1:
                end(group[0], _train_alone(trainings[group[0]]))
                continue
            fleet = _RunningFleet(trainings, group)
            while fleet.running:
                fleet.train_epoch()
                fleet.leave(end)
                bar.update(note=f"{len(fleet.running)} running, epoch {fleet.epoch}")
    failed = {i: h.ended for i, h in histories.items() if h.ended.startswith("failed")}
    if failed and not keep_failed:
        which = "; ".join(f"training {index}: {why}" for index, why in failed.items())
        raise NonFiniteLoss(f"{which}. Lower the learning rate or clip gradients (clip=1.0)")
    return [histories[index] for index in range(len(trainings))]


def _train_alone(training: Training) -> History:
    x, *others = training.train_rows()
    val = training.val
    try:
        return fit(
            training.ens,
            (training.inputs(x), *others),
            training.objective,
            val=None if val is None else (training.inputs(val[0]), *val[1:]),
            disagreement=training.disagreement,
            recipe=training.recipe,
            progress=False,
        )
    except NonFiniteLoss as error:
        return History(ended=f"failed: {error}")


class _RunningFleet:
    """A fleet, and where each of its trainings stands."""

    def __init__(self, trainings: Sequence[Training], group: list[int]) -> None:
        self.started = time.perf_counter()
        self.trainings = trainings
        self.fleet = Fleet([trainings[index] for index in group])
        self.running = [(index, RunState()) for index in group]
        self.epoch = 0

    def train_epoch(self) -> None:
        """Train one epoch, and remember the weights of those that it is best for."""
        records = self.fleet.epoch(self.epoch)
        self.epoch += 1
        better = []
        for place, ((index, state), record) in enumerate(zip(self.running, records, strict=True)):
            recipe = self.trainings[index].recipe
            state.epoch = self.epoch
            failure = record.pop("failure", None)
            if failure is not None:
                state.ended = f"failed: {failure}"
                continue
            if state.add(record, recipe):
                better.append(place)
        self.fleet.keep_best(better)

    def leave(self, on_end: OnEnd) -> None:
        """Put the best weights of finished trainings in place, and continue without them."""
        left = []
        for place, (index, state) in enumerate(self.running):
            if not state.ended:
                left.append(place)
                continue
            has_best = state.best_value is not None
            if has_best or not state.ended.startswith("failed"):
                self.fleet.unload(place, best=has_best)
            self.trainings[index].ens.eval()
            state.seconds = time.perf_counter() - self.started
            on_end(index, state.history("stacked"))
        if left and len(left) < len(self.running):
            self.fleet.compact(left)
        self.running = [self.running[place] for place in left]


# ---- grouping -----------------------------------------------------------------------------------

#: Bytes of weights, gradients and moments that one fleet may touch at each step: what a
#: processor's last cache holds, as beyond it memory is what a step waits for.
_CACHE = 24 << 20


def _fleets(trainings: Sequence[Training]) -> list[list[int]]:
    """Indices of trainings that go together, in fleets that a cache holds."""
    kinds: dict[Hashable, list[int]] = {}
    for index, training in enumerate(trainings):
        key = kind(training)
        kinds.setdefault(index if key is None else key, []).append(index)
    fleets = []
    for indices in kinds.values():
        # Equal learning rates side by side: each is one call of the optimiser.
        ordered = sorted(indices, key=lambda index: _rates(trainings[index]))
        size = sum(p.numel() * p.element_size() for p in trainings[indices[0]].ens.parameters())
        most = max(1, _CACHE // (4 * size))
        count = -(-len(ordered) // most)
        share = -(-len(ordered) // count)
        fleets += [ordered[begin : begin + share] for begin in range(0, len(ordered), share)]
    return fleets


def _rates(training: Training) -> tuple[Any, ...]:
    optimizer = training.recipe.optimizer
    if not isinstance(optimizer, Optimizer):
        return ()
    return optimizer.lr, optimizer.weight_decay, training.recipe.epochs


def kind(training: Training) -> Hashable | None:
    """The key that trainings must share to be batched; None for one that must train alone.

    Alone are: members that cannot be stacked or would be slower stacked (convolutions on a CPU), or
    that have buffers or dropout, or a backbone, or frozen parts; objectives that draw members, or
    have unlabelled data that are no strangers; a learning rate of each member's own, optimisers and
    schedulers of torch, ``freeze_patience``, ``amp``, ``compile``, and batches of each member's own
    (``shuffle="members"``, ``bootstrap``).
    """
    ens, objective, recipe = training.ens, training.objective, training.recipe
    assert isinstance(objective, Objective)
    optimizer = recipe.optimizer
    if not isinstance(optimizer, Optimizer) or not recipe.named:
        return None
    if isinstance(optimizer.lr, tuple) or isinstance(optimizer.weight_decay, tuple):
        return None
    if recipe.freeze_patience or recipe.amp or recipe.compile or recipe.own_batches:
        return None
    if not _batchable(ens, training.train[0]):
        return None
    if isinstance(objective, FunctionObjective):  # vmap may not run through it
        return None
    if objective.sample_members(ens.members) is not None:
        return None
    if objective.needs_disagreement != (training.strangers is not None):  # fit says what is wrong
        return None
    assert ens.stack is not None
    names = [f.name for f in fields(objective) if f.name not in objective.hyperparameters]
    shapes = [
        None if data is None else tuple((t.shape, t.dtype, t.device) for t in data)
        for data in (training.train, training.val)
    ]
    tensors = tuple((name, p.shape, p.dtype) for name, p in ens.stack.named_parameters())
    others = {**vars(optimizer), "lr": None, "weight_decay": None}
    return (
        (repr(ens.stack), tensors, ens.device, ens.combine),
        (type(objective), tuple((name, getattr(objective, name)) for name in names)),
        (len(training), tuple(shapes), training.unpack),
        (recipe.batch_size, recipe.clip, recipe.exact_train, tuple(others.items())),
    )


def _batchable(ens: Ensemble, x: Tensor) -> bool:
    if ens.stack is None or ens.backbone is not None or ens.resolved_execution() != "stacked":
        return False
    parameters, buffers = tensors_of(ens.stack)
    random = any(type(module).__name__.startswith(_RANDOM) for module in ens.stack.modules())
    trained = all(p.requires_grad for p in parameters.values())
    return not buffers and not random and trained and x.device == ens.device


#: Layers that draw random numbers: each ensemble would draw others than alone.
_RANDOM = ("Dropout", "AlphaDropout", "FeatureAlphaDropout", "RReLU")

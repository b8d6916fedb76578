"""The one tensor: every member's output for a batch, ``[members, batch, outputs]``.

It is called ``logits`` for classification and ``outputs`` where regression is meant too. This
module holds the checks that the public functions run on it, the ways to combine it into one
prediction, and :class:`Predictions`, the same tensor on disk.

The functions whose names begin with ``check_`` look at shapes and values and raise; everything else
is pure and has no branch that depends on data. Inside ``torch.func.vmap`` and while
``torch.export`` traces, values cannot be read, so there only shapes are checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from dissensus.files import parse_json, read_npz, read_safetensors, write_safetensors
from dissensus.guards import describe, formula, guarded, unreadable

__all__ = [
    "COMBINATIONS",
    "FLOATS",
    "KEY_HINT",
    "SPACES",
    "Predictions",
    "array_names",
    "check_combination",
    "check_finite",
    "check_floats",
    "check_labels",
    "check_logits",
    "check_outputs",
    "check_regression_targets",
    "check_targets",
    "check_tensor",
    "check_weights",
    "combine",
    "combined_log_probs",
    "log_mean_exp",
    "looks_like_probs",
    "majority_vote",
    "stored_space",
    "to_logits",
    "weighted_mean",
]

#: How members become one prediction. ``decompose`` also knows ``"vote"`` for the 0-1 loss.
COMBINATIONS: dict[str, str] = {
    "probability": "mean of the members' softmax probabilities",
    "score": "softmax of the members' mean logits",
    "mean": "mean of the members' outputs (regression)",
}

#: What a classifier's outputs may be; all but logits are converted by :func:`to_logits`.
SPACES: dict[str, str] = {
    "logits": "scores whose softmax are probabilities",
    "log_probs": "logarithms of probabilities",
    "probs": "probabilities",
}

#: What outputs may be stored as. Torch has little arithmetic for 8 bits.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: Probabilities below the smallest normal float32 number, zero among them, count as that.
_SMALLEST_PROB = 2.0**-126


# ---- checks -------------------------------------------------------------------------------------


@formula
def check_outputs(outputs: Tensor, *, name: str = "outputs", finite: bool = True) -> None:
    """Raise unless ``outputs`` is a non-empty floating ``[members, batch, outputs]`` tensor."""
    last = "classes" if name == "logits" else "outputs"
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{name} must be a torch.Tensor [members, batch, {last}], got "
            f"{type(outputs).__name__}; convert it with torch.as_tensor"
        )
    shape = tuple(outputs.shape)
    if outputs.ndim != 3:
        hint = f"; for one model pass {name}[None]" if outputs.ndim == 2 else ""
        raise ValueError(f"{name} must be [members, batch, {last}], got {shape}{hint}")
    if 0 in shape:
        raise ValueError(
            f"{name} must hold at least one member, one example and one output, got {shape}"
        )
    check_floats(outputs, name=name)
    if finite:
        check_finite(outputs, name=name)


def check_floats(values: Tensor, *, name: str) -> None:
    """Raise unless ``values`` is a dense tensor of float16, bfloat16, float32 or float64."""
    if not isinstance(values, Tensor) or values.dtype not in FLOATS:
        tensor = isinstance(values, Tensor)
        more = " of 16 bits or more" if tensor and values.is_floating_point() else ""
        got = values.dtype if tensor else describe(values)
        raise ValueError(
            f"{name} must be floating point{more}, got {got}; convert it with {name}.float()"
        )
    if values.layout is not torch.strided or values.is_meta:
        raise ValueError(f"{name} must be dense and have values, got {describe(values)}")


@formula
def check_logits(logits: Tensor, *, finite: bool = True) -> None:
    """Raise unless ``logits`` is a ``[members, batch, classes]`` tensor of two or more classes."""
    check_outputs(logits, name="logits", finite=finite)
    if logits.shape[-1] < 2:
        raise ValueError(
            f"logits must have at least two classes, got {tuple(logits.shape)}; a single-logit "
            "binary classifier is stacked as torch.cat([torch.zeros_like(z), z], -1)"
        )
    if finite:
        _refuse_probs(logits)


@formula
def looks_like_probs(outputs: Tensor) -> bool:
    """Whether every row is non-negative and sums to 1: probabilities, passed for logits.

    >>> looks_like_probs(torch.tensor([[[0.2, 0.8]]])), looks_like_probs(torch.zeros(1, 1, 2))
    (True, False)
    """
    if outputs.shape[-1] < 2 or unreadable(outputs):
        return False
    first = outputs[(0,) * (outputs.ndim - 1)]  # of logits, one row shows it
    return all(
        bool((rows >= 0).all()) and bool(((rows.double().sum(-1) - 1).abs() < 1e-3).all())
        for rows in (first, outputs)
    )


def _refuse_probs(logits: Tensor) -> None:
    if looks_like_probs(logits.detach()):
        raise ValueError(
            "the outputs look like probabilities, as every row is non-negative and sums to 1, but "
            'logits are expected; pass space="probs" (--probs on the command line), or convert '
            'them with dissensus.outputs.to_logits(probs, "probs")'
        )


@formula
def check_finite(values: Tensor, *, name: str) -> None:
    """Raise with a count if ``values`` holds a NaN or an infinity."""
    if unreadable(values):
        return
    # A sum is finite if its terms are (short of overflow), and costs a thirtieth of isfinite.
    if bool(torch.isfinite(values.detach().sum())):
        return
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise ValueError(
            f"{name} must be finite, got {bad} NaN or infinite of {values.numel()} values; "
            "find the member or example that produced them before going on"
        )


@formula
def check_labels(targets: Tensor, batch: int, classes: int) -> None:
    """Raise unless ``targets`` are integer labels ``[batch]`` in ``[0, classes)``."""
    if tuple(targets.shape) != (batch,):
        raise ValueError(
            f"integer targets must be [batch] = ({batch},), got {tuple(targets.shape)}"
        )
    if targets.dtype == torch.bool or targets.is_complex():
        raise ValueError(
            f"integer targets must be class labels, got {targets.dtype}; pass targets.long()"
        )
    if unreadable(targets):
        return
    low, high = (int(value) for value in torch.aminmax(targets))
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must lie in [0, {classes}) for {classes} classes, got values from {low} to "
            f"{high}; renumber the labels from 0"
        )


def check_tensor(targets: Tensor) -> None:
    """Raise unless ``targets`` is a tensor."""
    if not isinstance(targets, Tensor):
        raise ValueError(
            f"targets must be a torch.Tensor, got {type(targets).__name__}; "
            "convert them with torch.as_tensor"
        )


@formula
def check_targets(targets: Tensor, batch: int, classes: int) -> None:
    """Raise unless ``targets`` are labels ``[batch]`` or probabilities ``[batch, classes]``."""
    check_tensor(targets)
    if not targets.is_floating_point():
        check_labels(targets, batch, classes)
        return
    check_floats(targets, name="soft targets")
    if tuple(targets.shape) != (batch, classes):
        raise ValueError(
            f"soft targets must be [batch, classes] = ({batch}, {classes}), got "
            f"{tuple(targets.shape)}; integer class labels must have an integer dtype"
        )
    if unreadable(targets):
        return
    check_finite(targets, name="soft targets")
    sums = targets.sum(-1)
    tolerance = 1e-3 if targets.dtype in (torch.float16, torch.bfloat16) else 1e-5
    off = float((sums - 1).abs().max())
    if bool((targets < 0).any()) or off > tolerance * max(1.0, math.sqrt(classes)):
        raise ValueError(
            "soft targets must be probabilities: not negative, summing to 1 for each example; got "
            f"a smallest value of {float(targets.min()):.4g} and sums from "
            f"{float(sums.min()):.6g} to {float(sums.max()):.6g}"
        )


@formula
def check_regression_targets(targets: Tensor, outputs: Tensor) -> None:
    """Raise unless ``targets`` are finite floats of the shape of one member's outputs."""
    check_tensor(targets)
    wanted = tuple(outputs.shape[1:])
    if tuple(targets.shape) != wanted:
        hint = "; pass targets[:, None]" if tuple(targets.shape) == wanted[:1] else ""
        raise ValueError(
            f"regression targets must be [batch, outputs] = {wanted}, got "
            f"{tuple(targets.shape)}{hint}"
        )
    if not targets.is_floating_point():
        raise ValueError(
            f"regression targets must be floating point, got {targets.dtype}; "
            "pass targets.float(), or choose a classification loss"
        )
    check_floats(targets, name="regression targets")
    check_finite(targets, name="targets")


@formula
def check_weights(weights: Tensor | None, members: int) -> None:
    """Raise unless ``weights`` is None or ``[members]``, not negative, summing to 1."""
    if weights is None:
        return
    if not isinstance(weights, Tensor) or tuple(weights.shape) != (members,):
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"weights must be a tensor [members] = ({members},), got {got}")
    check_floats(weights, name="weights")
    if unreadable(weights):
        return
    check_finite(weights, name="weights")
    weights = weights.detach()
    total = float(weights.double().sum())
    if bool((weights < 0).any()) or abs(total - 1) > 1e-5:
        raise ValueError(
            "weights must not be negative and must sum to 1, got a smallest of "
            f"{float(weights.min()):.4g} and a sum of {total:.6g}; pass weights / weights.sum()"
        )


@formula
def check_combination(combine: str) -> None:
    """Raise unless ``combine`` is one of :data:`COMBINATIONS`."""
    if combine not in COMBINATIONS:
        known = ", ".join(repr(name) for name in COMBINATIONS)
        raise ValueError(f"combine must be one of {known}, got {combine!r}")


# ---- probabilities into logits ------------------------------------------------------------------


@formula
def to_logits(values: Tensor, space: str = "logits") -> Tensor:
    """Logits from outputs ``[members, batch, classes]`` that are what ``space`` says.

    ``"logits"`` come back as they are, unless they look like probabilities: then this raises. Of
    ``"probs"`` it takes the logarithm, which is a logit up to a constant for each row; that is what
    ``"log_probs"`` are already. A probability of 0 has no finite logarithm, so whatever is below
    the smallest normal float32 number, 1.2e-38, counts as that: its cross-entropy is 87. Half
    precision becomes float32.

    >>> to_logits(torch.tensor([[[0.0, 1.0]]]), "probs").round(decimals=2)
    tensor([[[-87.3400,   0.0000]]])
    """
    if space not in SPACES:
        raise ValueError(f"space must be one of {', '.join(map(repr, SPACES))}, got {space!r}")
    check_outputs(values, name=space, finite=False)
    if space == "logits":
        _refuse_probs(values)
        return values
    values = values.float() if values.element_size() < 4 else values
    probs = values if space == "probs" else values.exp()
    if not unreadable(values) and not looks_like_probs(probs):
        raise ValueError(
            f"space={space!r} (--probs for probabilities) needs rows that are non-negative and sum "
            f"to 1{'' if space == 'probs' else ' after exp'}, got values from "
            f"{float(values.min()):.4g} to {float(values.max()):.4g}"
        )
    if space == "probs":
        return probs.clamp_min(_SMALLEST_PROB).log()
    return values.clamp_min(math.log(_SMALLEST_PROB))


# ---- members into one prediction ----------------------------------------------------------------


@formula
def weighted_mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """``Σ_j w_j values_j`` over the first axis; equal weights where none are given."""
    if weights is None:
        return values.mean(0)
    mean: Tensor = torch.tensordot(weights.to(values.dtype), values, dims=1)
    return mean


@formula
def combined_log_probs(
    logits: Tensor, combine: str = "probability", weights: Tensor | None = None
) -> Tensor:
    """The ensemble's log-probabilities ``[batch, classes]``, computed in log space.

    ``probability``: ``log Σ_j w_j softmax(f_j) = logsumexp_j(log_softmax(f_j) + log w_j)``
    (collusion, Section 4.2 ②). ``score``: ``log_softmax(Σ_j w_j f_j)`` (Section 4.2 ①). Never the
    log of a mean of softmaxes, which is −∞ with NaN gradients once the members are confident.
    """
    if combine == "score":
        return log_softmax(weighted_mean(logits, weights), -1)
    if combine == "probability":
        return log_mean_exp(log_softmax(logits, -1), weights)
    raise ValueError(f"combine={combine!r} has no probabilities; use 'probability' or 'score'")


@formula
def log_mean_exp(log_values: Tensor, weights: Tensor | None = None) -> Tensor:
    """``log Σ_j w_j exp(log_values_j)`` over the first axis, in log space."""
    if weights is None:
        return log_values.logsumexp(0) - math.log(log_values.shape[0])
    log_weights = weights.to(log_values.dtype).log()
    return (log_values + log_weights.reshape(-1, *[1] * (log_values.ndim - 1))).logsumexp(0)


@guarded
def combine(
    outputs: Tensor,
    how: str = "probability",
    weights: Tensor | None = None,
    space: str = "logits",
) -> Tensor:
    """One prediction from all members: ``[members, batch, outputs]`` to ``[batch, outputs]``.

    ``how`` is ``"probability"`` or ``"score"`` (both return probabilities) or ``"mean"`` (returns
    the mean output, for regression). ``weights`` ``[members]`` are not negative and sum to 1.
    ``space="probs"`` takes probabilities in place of logits.

    >>> logits = torch.tensor([[[0.0, 0.0]], [[0.0, math.log(3.0)]]])
    >>> combine(logits)                                   # mean of (½, ½) and (¼, ¾)
    tensor([[0.3750, 0.6250]])
    >>> combine(logits, "score").round(decimals=4)        # softmax of the mean logit ½ log 3
    tensor([[0.3660, 0.6340]])
    """
    check_combination(how)
    if how == "mean":
        check_outputs(outputs)
        check_weights(weights, outputs.shape[0])
        return weighted_mean(outputs, weights)
    outputs = to_logits(outputs, space)
    check_logits(outputs)
    check_weights(weights, outputs.shape[0])
    return combined_log_probs(outputs, how, weights).exp()


@formula
def majority_vote(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """The class that most members predict, ``[batch]``; ties go to the lowest class number.

    >>> majority_vote(torch.eye(3)[[0, 1, 1]][:, None])   # votes 0, 1, 1
    tensor([1])
    """
    labels = logits.argmax(-1)
    votes = (
        torch.ones_like(labels) if weights is None else weights.double()[:, None].expand_as(labels)
    )
    counts = votes.new_zeros(logits.shape[1:]).scatter_add(-1, labels.T, votes.T)
    return counts.argmax(-1)


# ---- the tensor on disk -------------------------------------------------------------------------

_FORMAT = "dissensus.predictions/1"


@dataclass(frozen=True, repr=False)
class Predictions:
    """Member outputs, their targets, and what is known about them; saved as safetensors.

    ``outputs`` is ``[members, batch, outputs]``; ``targets`` is ``[batch]`` integer labels,
    ``[batch, outputs]`` floats, or None where the truth is not known; ``meta`` is a JSON mapping.
    ``meta={"space": "probs"}`` says that the outputs are probabilities; an ``.npz`` says it with an
    array called ``space``.
    A file never holds code: safetensors, or an ``.npz`` read with ``allow_pickle=False``.
    """

    outputs: Tensor
    targets: Tensor | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_outputs(self.outputs, finite=False)
        if self.targets is None:
            return
        check_tensor(self.targets)
        if self.targets.ndim not in (1, 2) or len(self.targets) != len(self):
            raise ValueError(
                f"targets must be [batch] or [batch, outputs] with a batch of {len(self)}, got "
                f"{tuple(self.targets.shape)}"
            )

    @property
    def members(self) -> int:
        """How many members there are."""
        return self.outputs.shape[0]

    @property
    def space(self) -> str:
        """What the outputs of a classifier are, a key of :data:`SPACES`."""
        return str(self.meta.get("space", "logits"))

    def __len__(self) -> int:
        return self.outputs.shape[1]

    def __repr__(self) -> str:
        targets = "None" if self.targets is None else str(list(self.targets.shape))
        return f"Predictions(outputs={list(self.outputs.shape)}, targets={targets})"

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, replacing ``path`` atomically."""
        tensors = {"outputs": self.outputs}
        if self.targets is not None:
            tensors["targets"] = self.targets
        try:
            meta = json.dumps(dict(self.meta), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"meta must be plain JSON values: {error}") from error
        write_safetensors(path, tensors, {"format": _FORMAT, "meta": meta})

    @classmethod
    def load(cls, path: str | Path, keys: Mapping[str, str] | None = None) -> Predictions:
        """Read safetensors, or an ``.npz`` with ``outputs`` and ``targets``.

        ``keys`` gives their names in a file that has others: ``{"outputs": "logits"}``.
        """
        path, names = Path(path), array_names(keys)
        if not path.is_file():
            raise ValueError(f"no predictions at {path}: there is no such file")
        tensors, meta = (
            _read_npz(path, names.values()) if path.suffix == ".npz" else _read_safetensors(path)
        )
        for name in ("outputs", *(keys or {})):
            if names[name] not in tensors:
                raise ValueError(
                    f"{path} is not a predictions file: it must hold {names['outputs']!r} "
                    f"[members, batch, outputs] and may hold {names['targets']!r}, got "
                    f"{', '.join(sorted(tensors)) or 'nothing'}; {KEY_HINT}"
                )
        try:
            return cls(tensors[names["outputs"]], tensors.get(names["targets"]), meta)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


#: What to do where a file has other names for its arrays.
KEY_HINT = "if they have other names there, pass --key outputs=NAME or --key targets=NAME (keys=)"


def array_names(keys: Mapping[str, str] | None = None) -> dict[str, str]:
    """The names that outputs and targets have in a file, their own or those in ``keys``."""
    names = {"outputs": "outputs", "targets": "targets"}
    for key in keys or {}:
        if key not in names:
            raise ValueError(f"keys names outputs or targets, got {key!r}")
    return names | dict(keys or {})


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, header = read_safetensors(path)
    return tensors, _read_meta(path, header)


def _read_meta(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    meta = parse_json(header.get("meta", "{}"), f"{path}: its metadata")
    return meta if isinstance(meta, dict) else {"meta": meta}


def _read_npz(path: Path, wanted: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a file, those that are ``wanted`` as tensors; others are not read."""
    names: list[str] = []

    def choose(headers: Iterable[str]) -> list[str]:
        names.extend(headers)
        return [name for name in names if name in {*wanted, "space"}]

    read = read_npz(path, choose=choose)
    arrays: dict[str, Any] = {name: read.get(name) for name in names}
    try:
        tensors = {name: torch.as_tensor(arrays[name]) for name in wanted if name in arrays}
    except TypeError as error:
        raise ValueError(f"{path} must hold numbers: {error}") from error
    return arrays | tensors, {"space": str(arrays["space"])} if "space" in arrays else {}


def stored_space(path: str | Path) -> str:
    """What a file of predictions says that its outputs are; ``"logits"`` where it says nothing."""
    path = Path(path)
    meta: dict[str, Any] = {}
    if path.is_file() and path.suffix == ".npz":
        _, meta = _read_npz(path, ())
    elif path.is_file():
        meta = _read_meta(path, read_safetensors(path, ())[1])
    return str(meta.get("space", "logits"))

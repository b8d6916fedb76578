"""Class probabilities: NLL, Brier score, reliability and calibration error of an ensemble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dissensus.losses import check_loss, check_loss_inputs, errors, zero_one
from dissensus.outputs import (
    check_targets,
    check_weights,
    combined_log_probs,
    to_logits,
)
from dissensus.tools.guards import check_finite, check_shape, guarded
from dissensus.tools.specs import check_choice, check_integer
from dissensus.tools.tabular import Tabular


@guarded
def nll(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    weights: Tensor | None = None,
    space: str = "logits",
) -> Tensor:
    """The ensemble's mean negative log-likelihood ``−mean_n log p̄(y_n | x_n)``, a scalar.

    ``logits`` is ``[members, batch, classes]``; ``targets`` are labels ``[batch]`` or
    probabilities ``[batch, classes]``. Computed in log space: finite at logits of ±1e4.

    >>> nll(torch.zeros(3, 4, 10), torch.arange(4)).exp()
    tensor(10.)
    """
    logits = check_inputs(logits, targets, combine, weights, space)
    return errors(logits, targets, "cross_entropy", combine, weights).ensemble.mean()


@guarded
def brier_score(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    weights: Tensor | None = None,
    space: str = "logits",
) -> Tensor:
    """The ensemble's mean Brier score ``mean_n ‖p̄(x_n) − y_n‖²``, a scalar in [0, 2].

    It sums over classes (Brier's own form), so for two classes it is twice the square of the error
    in one of them.

    >>> brier_score(torch.zeros(3, 4, 2), torch.zeros(4, dtype=torch.long))
    tensor(0.5000)
    """
    logits = check_inputs(logits, targets, combine, weights, space)
    return errors(logits, targets, "brier", combine, weights).ensemble.mean()


@dataclass(frozen=True, repr=False)
class Reliability(Tabular):
    """Confidence and accuracy by bin, for a reliability diagram.

    Bin k holds the examples with a confidence in ``(edges[k], edges[k + 1]]``; ``count``,
    ``confidence`` and ``accuracy`` are ``[bins]``, the last two means that are NaN for empty bins.
    All but the counts are float64, whatever the probabilities were.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def ece(self) -> Tensor:
        """``Σ_k (count_k / batch) |accuracy_k − confidence_k|``."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return (gaps * self.count).sum() / self.count.sum()

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each bin."""
        columns = {"above": self.edges[:-1], "up_to": self.edges[1:], "count": self.count}
        columns |= {"confidence": self.confidence, "accuracy": self.accuracy}
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def headline(self) -> str:
        """ECE, and over how many bins and examples."""
        return f"ECE {self.ece:.4f}, {len(self.count)} bins, {int(self.count.sum())} examples"


@guarded
def reliability(
    probs: Tensor, targets: Tensor, bins: int = 15, scheme: str = "width"
) -> Reliability:
    """Group examples by confidence (the largest probability) and compare it with accuracy.

    ``probs`` is ``[batch, classes]``. ``scheme="width"``: bins ``((k−1)/bins, k/bins]``, the edges
    rounded to the type of ``probs``, so that a confidence of 0.2 in float32 lies on the edge 3/15.
    ``scheme="mass"``: the same half-open bins with edges at the order statistics number
    ``⌈k·batch/bins⌉`` of the confidences. Equal confidences then always share a bin, whatever the
    order of the examples; ties can leave bins empty, and without ties counts differ by at most 1.

    >>> table = reliability(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), bins=2)
    >>> table.count, table.accuracy
    (tensor([0, 2]), tensor([   nan, 0.5000], dtype=torch.float64))
    """
    _check_probs(probs)
    check_targets(targets, *probs.shape)
    check_integer("bins", bins)
    check_choice("reliability", "scheme", scheme, BINNINGS)
    confidence = probs.amax(-1).double()
    correct = 1 - zero_one(probs.argmax(-1), targets).double()
    inner = BINNINGS[scheme](confidence, bins, probs.dtype)
    index = torch.bucketize(confidence, inner)
    count = torch.bincount(index, minlength=bins)
    sums = inner.new_zeros(2, bins).index_add(1, index, torch.stack([confidence, correct]))
    edges = torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])
    return Reliability(edges, count, *(sums / count))


@guarded
def ece(probs: Tensor, targets: Tensor, bins: int = 15, scheme: str = "width") -> Tensor:
    """Expected calibration error of the predicted class: the mean gap over bins, a scalar.

    ``Σ_k (n_k / n) |accuracy_k − confidence_k|`` with the bins of :func:`reliability`. Its value
    depends on the bins and is biased upwards on little data: compare only like with like.

    >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    >>> ece(probs, torch.tensor([0, 1, 0, 1]))      # ½·|½ − 0.9| + ½·|1 − 0.6|
    tensor(0.4000, dtype=torch.float64)
    """
    return reliability(probs, targets, bins, scheme).ece


@dataclass(frozen=True, repr=False)
class Calibration(Tabular):
    """What :func:`calibration` measured: five numbers, and the tables behind the two ECEs."""

    accuracy: float
    nll: float
    brier: float
    ece_width: float
    ece_mass: float
    width: Reliability
    mass: Reliability

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each measure."""
        names = ("accuracy", "nll", "brier", "ece_width", "ece_mass")
        return [{"measure": name, "value": getattr(self, name)} for name in names]

    def headline(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """One line to read."""
        return (
            f"accuracy {self.accuracy:.4f}, NLL {self.nll:.4f}, Brier {self.brier:.4f}, "
            f"ECE {self.ece_width:.4f} (equal width) and {self.ece_mass:.4f} (equal mass)"
        )


@guarded
def calibration(
    logits: Tensor,
    targets: Tensor,
    combine: str = "probability",
    weights: Tensor | None = None,
    bins: int = 15,
    space: str = "logits",
) -> Calibration:
    """Accuracy, NLL, Brier score and both ECEs of the ensemble, with their reliability tables.

    >>> print(calibration(torch.zeros(2, 4, 2), torch.tensor([0, 0, 0, 1])).summary())
    accuracy 0.7500, NLL 0.6931, Brier 0.5000, ECE 0.2500 (equal width) and 0.2500 (equal mass)
    """
    logits = check_inputs(logits, targets, combine, weights, space).detach()
    probs = combined_log_probs(logits, combine, weights).exp()
    width, mass = (reliability(probs, targets, bins, scheme) for scheme in ("width", "mass"))
    return Calibration(
        accuracy=float(1 - zero_one(probs.argmax(-1), targets).double().mean()),
        nll=float(nll(logits, targets, combine, weights)),
        brier=float(brier_score(logits, targets, combine, weights)),
        ece_width=float(width.ece),
        ece_mass=float(mass.ece),
        width=width,
        mass=mass,
    )


def _equal_width(confidence: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return edges.to(dtype).double()


def _equal_mass(confidence: Tensor, bins: int, dtype: torch.dtype) -> Tensor:
    ranks = [-(-k * len(confidence) // bins) for k in range(1, bins)]
    return confidence.sort().values[[rank - 1 for rank in ranks]]


#: How :func:`reliability` may choose its inner edges, ``[bins − 1]``, from the confidences.
BINNINGS: dict[str, Callable[[Tensor, int, torch.dtype], Tensor]] = {
    "width": _equal_width,
    "mass": _equal_mass,
}


def check_inputs(
    logits: Tensor, targets: Tensor, combine: str, weights: Tensor | None, space: str
) -> Tensor:
    """The logits of outputs in ``space``; raises unless they, targets and weights fit together."""
    check_loss("cross_entropy", combine)
    logits = to_logits(logits, space)
    check_loss_inputs(logits, targets, "cross_entropy")
    check_weights(weights, logits.shape[0])
    return logits


def _check_probs(probs: Tensor) -> None:
    check_shape(probs, name="probs", batch=None, classes=None)
    check_finite(probs, name="probs")
    sums = probs.double().sum(-1)
    if bool((probs < 0).any()) or float((sums - 1).abs().max()) > 1e-2:
        got = f"a smallest of {float(probs.min()):.4g} and a largest sum of {float(sums.max()):.4g}"
        raise ValueError(f"probs must be probabilities, got {got}; take dissensus.combine(logits)")

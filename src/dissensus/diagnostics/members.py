"""Members beside each other: the ensemble without some of them, and every two of them.

Codependence is of *collusion*, Section 6.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.func import vmap

from dissensus.diagnostics.split import Split, ratio
from dissensus.losses import errors
from dissensus.outputs import combined_log_probs, majority_vote
from dissensus.tools.specs import check_integer, check_number

FRACTIONS = (0.2, 0.4, 0.6)  # Section 6.1, Fig. 4
BUDGET = 2**23  # entries of the largest tensor made at a time; 64 MB in double precision


@dataclass(frozen=True)
class Drop:
    """The increase of ERR when ``dropped`` members are missing: mean and deviation over draws.

    ``relative`` is the mean increase divided by ERR. ``every`` says that all subsets were tried.
    """

    fraction: float
    dropped: int
    draws: int
    every: bool
    increase: float
    spread: float
    relative: float


@dataclass(frozen=True)
class Codependence:
    """How much the ensemble suffers without some members; see :func:`codependence`."""

    ensemble_error: float
    drops: tuple[Drop, ...]
    index: float

    @property
    def sentence(self) -> str:
        changes = [f"{d.relative:+.0%} without {d.dropped}" for d in self.drops if d.dropped]
        if not changes:
            return "There are too few members to leave any out."
        text = f"Random members left out change ERR by {', '.join(changes)} (mean over draws)."
        if math.isnan(self.index):
            return text
        return (
            f"{text} The codependence index is {self.index:.3g}; members whose errors have nothing "
            "in common have 1."
        )


def codependence(
    split: Split,
    *,
    fractions: tuple[float, ...] = FRACTIONS,
    draws: int = 100,
    seed: int = 0,
) -> Codependence:
    """The increase of ERR when random members are missing (collusion, Section 6.1, Fig. 4).

    For each fraction p, ``int(M · p)`` members are dropped in each of ``draws`` random draws; the
    weights of the others are scaled up. Where there are no more subsets than draws, each is tried
    once. At least one member stays.

    ``index`` is the mean increase when one member is missing, over what it would be if errors were
    unrelated: ``Σ_j (ERR_{−j} − ERR) / (ERR Σ_j (s_j / s − 1))`` with ``s = Σ_k w_k²`` and s_j the
    same without j; for equal weights ``(M − 1) · mean increase / ERR``. With squared error and
    equal weights it is ``(DIV / ERR) / (M − 1)``, because the mean over subsets of m members is
    ``ERR_m − ERR = DIV / (M − 1) · (M − m) / m``. Members that do not know each other have 1 at
    most: their errors correlate in no other direction than upwards. Above 1 errors cancel. It is
    NaN for one member and where one holds so much weight that leaving it out would help.

    >>> outputs = torch.tensor([[[2.0]], [[-2.0]], [[3.0]]])             # ERR = 1, DIV = 14/3
    >>> result = codependence(Split.of((outputs, torch.zeros(1, 1))), fractions=(0.4,))
    >>> round(result.index, 4), result.drops[0].draws                      # 14/3 / 2
    (2.3333, 3)
    """
    check_integer("draws", draws)
    generator = torch.Generator().manual_seed(seed)
    error = float(split.decompose().ensemble_error)
    drops = []
    for fraction in fractions:
        check_number("a fraction of members", fraction, 0, below=1)
        # int(M · p) as meant: 0.29 · 100 is 28.999… in floating point.
        count = min(int(split.members * fraction + 1e-9), split.members - 1)
        missing, every = _draw_missing(split.members, count, draws, generator)
        increase = errors_without(split, missing) - error
        mean = float(increase.mean()) if count else 0.0
        spread = float(increase.std(correction=0))
        drops.append(Drop(fraction, count, len(missing), every, mean, spread, ratio(mean, error)))
    return Codependence(error, tuple(drops), _index(split, error))


def errors_without(split: Split, missing: Tensor, budget: int = BUDGET) -> Tensor:
    """ERR for each row of ``missing`` ``[draws, members]``, True where a member is left out.

    Many rows are computed at once, as many as keep the largest tensor below ``budget`` entries.
    """
    weights = split.shares * ~missing.to(split.outputs.device)
    weights = weights / weights.sum(1, keepdim=True)

    def error(share: Tensor) -> Tensor:
        losses = errors(split.outputs, split.targets, split.loss, split.combine, share)
        return losses.ensemble.double().mean()

    if callable(split.loss):  # it may not be one that vmap can follow
        return torch.stack([error(share) for share in weights])
    rows = max(1, budget // split.outputs.numel())
    values: Tensor = vmap(error, chunk_size=rows)(weights)
    return values


def _draw_missing(
    members: int, count: int, draws: int, generator: torch.Generator
) -> tuple[Tensor, bool]:
    """Which members to leave out: every subset if they are no more than ``draws``, else random."""
    every = math.comb(members, count) <= draws
    if every:
        chosen = torch.tensor(list(combinations(range(members), count)), dtype=torch.long)
    else:
        chosen = torch.rand(draws, members, generator=generator).argsort(1)[:, :count]
    missing = torch.zeros(len(chosen), members, dtype=torch.bool)
    return missing.scatter(1, chosen.reshape(len(chosen), count), True), every


def _index(split: Split, error: float) -> float:
    if split.members == 1:
        return math.nan
    each = torch.eye(split.members, dtype=torch.bool)
    increase = float((errors_without(split, each) - error).sum())
    shares = split.shares
    squares = shares.square().sum()
    without = (squares - shares.square()) / (1 - shares).square()
    unrelated = float((without / squares - 1).sum())
    return math.nan if unrelated <= 1e-9 else ratio(increase, error * unrelated)


@dataclass(frozen=True)
class Dominance:
    """How unequal the members are; see :func:`dominance`. ``member`` decides most, ``share``."""

    per_member: tuple[float, ...]
    best: float
    worst: float
    spread: float
    share: float
    member: int
    regression: bool

    @property
    def sentence(self) -> str:
        range_ = f"Members' own errors run from {self.best:.4g} to {self.worst:.4g}"
        if math.isnan(self.share):
            return f"{range_}; with one member there is nothing to compare."
        if self.regression:
            return f"{range_}; leaving out member {self.member} changes ERR by {self.share:.0%}."
        return (
            f"{range_}; leaving out member {self.member} changes the predicted class of "
            f"{self.share:.1%} of the examples, no other more."
        )


def dominance(split: Split) -> Dominance:
    """The spread of the members' errors, and how much one member alone decides.

    ``share`` for a classifier: the largest share of examples whose predicted class changes when
    one member is left out. For a regression: the largest ``|ERR_{−j} − ERR| / ERR``. (collusion,
    Section 6, calls the symptom *model dominance* and measures the spread.) NaN for one member.

    >>> logits = torch.tensor([[[9.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]])
    >>> result = dominance(Split.of((logits, torch.tensor([0]))))
    >>> result.share, result.member                             # without the first, class 1 wins
    (1.0, 0)
    """
    parts = split.decompose()
    each = torch.eye(split.members, dtype=torch.bool)
    if split.members == 1:
        changes = torch.tensor([math.nan])
    elif split.regression:
        error = float(parts.ensemble_error)
        moved = (errors_without(split, each) - error).abs()
        changes = torch.tensor([ratio(value, error) for value in moved.tolist()])
    else:
        whole = _classes(split, split.shares)
        changes = torch.stack(
            [(_classes(split, split.shares * ~out) != whole).double().mean() for out in each]
        )
    own_errors = parts.per_member
    top = int(changes.argmax())
    return Dominance(
        per_member=tuple(own_errors.tolist()),
        best=float(own_errors.min()),
        worst=float(own_errors.max()),
        spread=float(own_errors.std(correction=0)),
        share=float(changes[top]),
        member=split.names[top],
        regression=split.regression,
    )


def _classes(split: Split, weights: Tensor) -> Tensor:
    weights = weights / weights.sum()
    if split.combine == "vote":
        return majority_vote(split.outputs, weights)
    return combined_log_probs(split.outputs, split.combine, weights).argmax(-1)


# ---- pairs --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Matrices ``[members, members]``, NaN where a cell is undefined; see :func:`pairwise`."""

    disagreement: Tensor
    error_correlation: Tensor
    q_statistic: Tensor | None
    unique_predictions: float
    undefined: int

    @property
    def sentence(self) -> str:
        members = len(self.disagreement)
        if members == 1:
            return "With one member there are no pairs."
        off = ~torch.eye(members, dtype=torch.bool)
        parts = [
            f"On average two members disagree by {self.disagreement[off].nanmean():.3g}",
            f"their errors correlate by {self.error_correlation[off].nanmean():.2f}",
        ]
        if self.q_statistic is not None:
            parts.append(f"Q is {self.q_statistic[off].nanmean():.2f}")
        unique = f"an example gets {self.unique_predictions:.2f} different predictions"
        text = f"{', '.join(parts)}; {unique}."
        if self.undefined:
            text += (
                f" {self.undefined} of {members * (members - 1) // 2} pairs have an undefined "
                "correlation or Q (a member that is never or always wrong) and are left out."
            )
        return text


def pairwise(split: Split) -> Pairwise:
    """Every pair of members compared; each member counts the same, whatever its weight.

    - ``disagreement``: for classes the share of examples with different predictions, for a
      regression the mean squared distance of the outputs;
    - ``error_correlation``: Pearson's correlation of being wrong (0 or 1), for a regression of the
      errors f − y, all outputs together; undefined where a member's errors do not vary;
    - ``q_statistic`` (Yule's Q): :func:`q_statistic`, for classes only;
    - ``unique_predictions``: the mean number of different predictions an example gets.

    >>> logits = 2 * torch.eye(2)[torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])]   # predicted classes
    >>> pairs = pairwise(Split.of((logits, torch.tensor([0, 0, 0, 1]))))
    >>> float(pairs.disagreement[0, 1]), pairs.unique_predictions
    (0.25, 1.25)
    """
    if split.regression:
        flat = split.outputs.flatten(1)
        distance = torch.stack([(flat - row).square().sum(1) for row in flat]) / split.examples
        correlation = _correlation(split.residuals()[0].flatten(1))
        q = None
        unique = _distinct(split.outputs)
    else:
        labels = split.outputs.argmax(-1)
        distance = torch.stack([(labels != row).double().mean(1) for row in labels])
        wrong = labels != split.labels()
        correlation, q = _correlation(wrong.double()), q_statistic(wrong)
        unique = _distinct(labels[..., None])
    cells = correlation.isnan() if q is None else correlation.isnan() | q.isnan()
    undefined = int(cells.triu(1).sum())
    return Pairwise(distance, correlation, q, unique, undefined)


def q_statistic(wrong: Tensor) -> Tensor:
    """Yule's Q of every pair, ``[members, members]``, from who is wrong, ``[members, batch]``.

    ``(n₁₁ n₀₀ − n₀₁ n₁₀) / (n₁₁ n₀₀ + n₀₁ n₁₀)`` with n₁₀ the number of examples that the first
    member gets right and the second wrong. 1: wrong together; 0: unrelated; −1: never together.
    NaN where both products are 0, as when a member is never wrong.

    >>> q_statistic(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]).bool())[0, 1]     # 1·2 − 1·0
    tensor(1., dtype=torch.float64)
    """
    no, yes = wrong.double(), (~wrong).double()
    same = (yes @ yes.T) * (no @ no.T)
    cross = (yes @ no.T) * (no @ yes.T)
    return (same - cross) / (same + cross)


def _correlation(values: Tensor) -> Tensor:
    """Pearson's correlation of the rows; NaN where a row is constant, to rounding."""
    centred = values - values.mean(1, keepdim=True)
    length = centred.square().sum(1).sqrt()
    scale = values.abs().amax(1) * math.sqrt(values.shape[1]) * 1e-14
    length = torch.where(length > scale, length, math.nan)
    return (centred @ centred.T / (length[:, None] * length)).clamp(-1, 1)


def _distinct(values: Tensor) -> float:
    """The mean number of different rows among the members, over ``[members, batch, outputs]``."""
    different = torch.ones(values.shape[:2], dtype=torch.double, device=values.device)
    for number in range(1, len(values)):
        repeated = (values[:number] == values[number]).all(-1).any(0)
        different[number] = (~repeated).double()
    return float(different.sum(0).mean())

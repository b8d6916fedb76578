"""ResNet-20 on all of CIFAR-10, as the adp authors train it, and attacked along the way.

One seed at scale ``cpu``: a finding about these networks, not about training. The paper trains for
180 epochs with decays after 120 and 160; a few epochs reach the accuracy that the question needs if
the rate first rises and then falls along a cosine. A training that was interrupted goes on from its
last checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dissensus.ensemble import Ensemble
from dissensus.robustness import parse
from dissensus.training import History
from reproductions import regime
from reproductions.adp import ensembles, measurements
from reproductions.adp.accuracy import (
    GRADIENT,
    accuracy_claim,
    accuracy_table,
    attack_title,
    keeps_half,
    read_bits,
    under,
    worst_case,
)
from reproductions.adp.ensembles import ADP_RUNS, BASELINE
from reproductions.adp.published import published_changes
from reproductions.adp.settings import RESNET20
from reproductions.cells import ImageData, load_images, seed_cells, seeds_of
from reproductions.comparisons import Finding, Quantity, Runs, exact, group_by_data, larger
from reproductions.experiment import Claim, Experiment
from reproductions.figures import Panel, Plot, Series, estimates
from reproductions.statistics import CANNOT, images_interval, over_images
from reproductions.study import Cell, Record, Study

#: The contenders of each scale; the pair comes first.
_CONTENDERS = {
    "smoke": ("plain", "adp"),
    "cpu": ("plain", "adp", "smoothed", "adp-entropy"),
    "paper": ("plain", "adp"),
}


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """Every contender for each seed, the pair of all seeds first."""
    settings = RESNET20[scale]
    changes = regime.epochs_of(settings, options)
    variants = {name: {**settings, "contender": name, **changes} for name in _CONTENDERS[scale]}
    seeds, pair = seeds_of(options, 1), ensembles.PAIR
    rest = {name: own for name, own in variants.items() if name not in pair}
    return seed_cells({name: variants[name] for name in pair}, seeds) + seed_cells(rest, seeds)


def run(cell: Cell) -> dict[str, Any]:
    """Train the ensemble of ``cell``, attack it along the way, and measure it at the end."""
    data, folder = load_images(cell), regime.work_folder(cell, "adp")
    keep = regime.keep_checkpoints(folder, cell["every"])
    ens, history = ensembles.train(cell, data, folder, (keep,))
    end = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    result = {"epochs": _curves(history), "along": _attack_along(ens, cell, data, folder)}
    ens.load_state_dict(end)
    return result | ensembles.measure(ens, cell, data, folder / "measured")


def _curves(history: History) -> dict[str, list[float]]:
    """What each epoch left: errors and losses, as ``fit`` has them."""
    names = ("train/accuracy", "val/accuracy", "val/member_error", "val/ensemble_error")
    return {name: history.column(name) for name in names}


def _attack_along(ens: Ensemble, cell: Cell, data: ImageData, folder: Path) -> list[dict[str, Any]]:
    """Clean error and accuracy under attack of every checkpoint, each kept once it is measured."""
    images = ensembles.test_images(cell, data)
    return [
        _attack_checkpoint(ens, cell, images, regime.checkpoint_path(folder, epoch), epoch)
        for epoch in range(cell["every"], cell["epochs"] + 1, cell["every"])
    ]


def _attack_checkpoint(
    ens: Ensemble, cell: Cell, images: tuple[Tensor, Tensor], path: Path, epoch: int
) -> dict[str, Any]:
    def attack() -> dict[str, Any]:
        regime.load_checkpoint(ens, path)
        few = tuple(part[: cell["along_images"]] for part in images)
        return {
            "epoch": epoch,
            "clean": measurements.errors(ens, images),
            "attacks": measurements.attack_each(ens, few[0], few[1], cell["along"]),
        }

    return dict(regime.cached(path.with_suffix(".json"), cell, attack))


STUDY = Study(
    "resnet20",
    cells,
    run,
    options=regime.OPTIONS,
    cost={"smoke": "20 s", "cpu": "2.5 h per ensemble", "paper": "GPU days"},
)


# ---- checks, figure and table -------------------------------------------------------------------


def _accurate(records: list[Record]) -> Finding:
    """Whether the baseline comes near the published accuracy."""
    right = [1 - row["result"]["clean"]["error"] for row in BASELINE.of(records)]
    if not right:
        return Finding(CANNOT)
    return exact(min(right) >= 0.88, ", ".join(f"{share:.1%}" for share in right))


def _rise(record: Record) -> np.ndarray[Any, Any]:
    """Of each image, accuracy at the last checkpoint less that at the first, mean over attacks."""
    first, last = (
        np.mean([read_bits(one["right"]) for one in checkpoint["attacks"].values()], axis=0)
        for checkpoint in (record["result"]["along"][0], record["result"]["along"][-1])
    )
    return np.asarray(last - first)


_RISE = Quantity("accuracy under attack, last checkpoint less the first", _rise, "{:.1%}")


def plot(records: list[Record]) -> Plot:
    """Accuracy on clean images and under attack against epochs, for each contender."""
    panels = [Panel("epoch", "accuracy", _lines(records, None), "no attack")]
    along = [one for record in records for one in record["result"]["along"]]
    for spec in sorted({spec for one in along for spec in one["attacks"]}):
        lines = _lines(records, spec)
        panels.append(Panel("epoch", "accuracy", lines, attack_words(spec), from_zero=True))
    return Plot(panels, "Accuracy under attack along training", len(panels), (3.8, 3.0))


def attack_words(spec: str) -> str:
    """``"PGD, ε = 0.01, 10 steps"``.

    >>> attack_words("pgd:eps=0.01,steps=40,loss=margin")
    'PGD, ε = 0.01, 40 steps'
    """
    return f"{attack_title(spec)}, {getattr(parse(spec), 'steps', 1)} steps"


def _lines(records: list[Record], spec: str | None) -> list[Series]:
    """A line for each run; under attack with a band over the images of each checkpoint."""
    lines = []
    for runs in ensembles.contenders_in(records):
        style = ensembles.style_of(runs)
        for row in runs.of(records):
            along = row["result"]["along"]
            epochs = [one["epoch"] for one in along]
            if spec is None:
                shares = [1 - one["clean"]["error"] for one in along]
                lines.append(Series(runs.name, epochs, shares, style))
            else:
                bits = [read_bits(one["attacks"][spec]["right"]) for one in along]
                right = [images_interval([some]) for some in bits]
                lines.append(estimates(runs.name, epochs, right, style, limits=(0, 1)))
    return lines


# ---- the experiment -----------------------------------------------------------------------------

_ENTROPY, _SMOOTHED = map(ensembles.runs_of, ("adp-entropy", "smoothed"))
_WEAK, _WORST = under(*GRADIENT), worst_case("smaller")


def _here(text: str, sides: tuple[Runs, Runs], quantity: Quantity, where: str = "") -> Claim:
    """A claim about these runs; one of the paper's has its numbers of both contenders."""
    names = [str(side.settings["contender"]) for side in sides]
    changes = published_changes(GRADIENT, names[0], names[1], "cifar10") if where else None
    return accuracy_claim(text, sides, quantity, where=where, changes=changes, interval=over_images)


_PAIR, _SMOOTHER = (ADP_RUNS, BASELINE), (ADP_RUNS, _SMOOTHED)
_TABLE_2 = "Section 4.3, Table 2"

RESNET20_RUNS = Experiment(
    "adp/resnet20",
    "Tables 1 and 2, along training",
    "ResNet-20 on all of CIFAR-10 in the regime of the authors' code",
    STUDY,
    (
        Claim(
            "The baseline is at least 88% accurate on clean images",
            "clean images",
            _accurate,
            "93.22%",
            ours=True,
        ),
        _here("ADP is more accurate than the baseline, paper's attacks", _PAIR, _WEAK, _TABLE_2),
        Claim(
            "Accuracy under attack rises more along training with ADP than without",
            "two kinds of PGD",
            larger(_RISE, ADP_RUNS, BASELINE, group_by_data, interval=over_images),
            ours=True,
        ),
        _here("ADP is more accurate than the baseline, worst case, smaller ε", _PAIR, _WORST),
        Claim(
            "ADP keeps half of its clean accuracy in the worst case at the larger ε",
            "worst case",
            keeps_half(over_images),
            ours=True,
        ),
        _here("ADP is more accurate than label smoothing, paper's attacks", _SMOOTHER, _WEAK),
        _here("ADP is more accurate than label smoothing, worst case", _SMOOTHER, _WORST),
        _here(
            "The entropy alone helps: ADP₂,₀ is more accurate than the baseline",
            (_ENTROPY, BASELINE),
            _WEAK,
            _TABLE_2,
        ),
        _here(
            "ADP₂,₀ is more accurate than label smoothing, paper's attacks",
            (_ENTROPY, _SMOOTHED),
            _WEAK,
        ),
        _here(
            "The determinant helps beyond it: ADP is more accurate than ADP₂,₀",
            (ADP_RUNS, _ENTROPY),
            _WEAK,
            _TABLE_2,
        ),
        _here(
            "ADP is more accurate than ADP₂,₀, worst case, smaller ε", (ADP_RUNS, _ENTROPY), _WORST
        ),
    ),
    accuracy_table,
    plot,
)

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
from dissensus.show import Panel, Plot, Series
from dissensus.training import History
from reproductions import regime
from reproductions.adp import ensembles, measurements
from reproductions.adp.accuracy import (
    GRADIENT,
    accuracy_table,
    attack_title,
    read_bits,
    weak,
    worst_case,
)
from reproductions.adp.comparable import paper_experiment
from reproductions.adp.ensembles import ADP_RUNS, BASELINE
from reproductions.adp.published import effects, gains, published_row
from reproductions.adp.settings import RESNET20, WEAK_PROTOCOL
from reproductions.adp.white_box import WITHSTANDS, KeepsHalf, brief
from reproductions.cells import ImageData, load_images, seed_cells, seeds_of
from reproductions.figures import estimates
from reproductions.old.base import CANNOT, Cell, Claim, Finding, Record, Study, Table
from reproductions.old.comparisons import decide
from reproductions.old.per_image import ImageValues, InTheseRuns, PerImage, images_interval

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


# ---- reading ------------------------------------------------------------------------------------


def _accurate(records: list[Record]) -> Finding:
    """Whether the baseline comes near the published accuracy."""
    rows = BASELINE.of(records)
    if not rows:
        return Finding(CANNOT, "the baseline was not run")
    right = [1 - row["result"]["clean"]["error"] for row in rows]
    shown = ", ".join(f"{share:.1%}" for share in right)
    return decide(min(right) >= 0.88, f"test accuracy of the baseline: {shown}", "93.2%")


def _rise(record: Record) -> ImageValues:
    """Of each image, accuracy at the last checkpoint less that at the first, mean over attacks."""
    first, last = (
        np.mean([read_bits(one["right"]) for one in checkpoint["attacks"].values()], axis=0)
        for checkpoint in (record["result"]["along"][0], record["result"]["along"][-1])
    )
    return np.asarray(last - first)


_RISE = PerImage("accuracy under attack, last checkpoint less the first", lambda _: _rise)


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


def table(records: list[Record]) -> Table:
    """Accuracies in % at the end, ours and in round brackets the published ones."""
    everybody = [runs.settings["contender"] for runs in ensembles.contenders_in(records)]
    return accuracy_table(records, everybody, published=published_row)


_HERE = "In these runs, "
_ENTROPY, _SMOOTHED = map(ensembles.runs_of, ("adp-entropy", "smoothed"))
_TABLE_2 = f"Section 4.3, Table 2; {WEAK_PROTOCOL}"

RESNET20_RUNS = paper_experiment(
    "adp/resnet20",
    "Tables 1 and 2, along training",
    "ResNet-20 on all of CIFAR-10 in the regime of the authors' code",
    STUDY,
    (
        Claim("The baseline is at least 88 % accurate on clean images", "our check", _accurate),
        Claim(
            f"{_HERE}ADP₂,₀.₅ is more accurate than the baseline under the paper's attacks",
            _TABLE_2,
            InTheseRuns(ADP_RUNS, BASELINE, weak(GRADIENT), gains("pgd"), effects(GRADIENT)),
        ),
        Claim(
            f"{_HERE}the gain comes late: accuracy under attack rises more along training with "
            "ADP₂,₀.₅ than without",
            "our question; two kinds of PGD",
            InTheseRuns(ADP_RUNS, BASELINE, _RISE),
        ),
        Claim(
            f"{_HERE}ADP₂,₀.₅ is more accurate than the baseline in the worst case",
            "our question; standard protocol",
            InTheseRuns(ADP_RUNS, BASELINE, worst_case(0)),
        ),
        Claim(
            f"{_HERE}{WITHSTANDS}",
            "our question; standard protocol",
            KeepsHalf(here=True),
        ),
        Claim(
            f"{_HERE}ADP₂,₀.₅ is more accurate than label smoothing with the F_y of Eq. 7",
            f"our question; {WEAK_PROTOCOL}",
            InTheseRuns(ADP_RUNS, _SMOOTHED, weak(GRADIENT)),
        ),
        Claim(
            f"{_HERE}in the worst case, ADP₂,₀.₅ is more accurate than label smoothing with the "
            "F_y of Eq. 7",
            "our question; standard protocol",
            InTheseRuns(ADP_RUNS, _SMOOTHED, worst_case(0)),
        ),
        Claim(
            f"{_HERE}the entropy alone helps: ADP₂,₀ is more accurate than the baseline",
            _TABLE_2,
            InTheseRuns(
                _ENTROPY,
                BASELINE,
                weak(GRADIENT),
                gains("pgd", "adp-entropy"),
                effects(GRADIENT, "adp-entropy"),
            ),
        ),
        Claim(
            f"{_HERE}ADP₂,₀ is more accurate than label smoothing with the F_y of Eq. 7",
            f"our question; {WEAK_PROTOCOL}",
            InTheseRuns(_ENTROPY, _SMOOTHED, weak(GRADIENT)),
        ),
        Claim(
            f"{_HERE}the determinant helps beyond the entropy: ADP₂,₀.₅ against ADP₂,₀",
            _TABLE_2,
            InTheseRuns(
                ADP_RUNS,
                _ENTROPY,
                weak(GRADIENT),
                gains("pgd", "adp", "adp-entropy"),
                effects(GRADIENT, "adp", "adp-entropy"),
            ),
        ),
        Claim(
            f"{_HERE}in the worst case, ADP₂,₀.₅ is more accurate than ADP₂,₀",
            "our question; standard protocol",
            InTheseRuns(ADP_RUNS, _ENTROPY, worst_case(0)),
        ),
    ),
    plot,
    table,
    brief,
)

"""All of MNIST with three scalings of the input: baseline, ADP and label smoothing; raw digits too.

On small subsets the scaling of the input alone moved the baseline's accuracy under PGD by tens of
points and turned the sign of ADP's gain. These networks come near the published accuracy, so that
they can say which scaling the paper's claim needs. Attacks live in [0, 1]; the scaling is a fixed
first layer of each member.

Whether members' losses are added up or averaged needs no run: see
:mod:`reproductions.regime`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproductions import regime
from reproductions.adp.accuracy import (
    GRADIENT,
    accuracy_claim,
    accuracy_table,
    gains,
    on,
    under,
    worst_case,
)
from reproductions.adp.ensembles import (
    ADP_RUNS,
    BASELINE,
    PAIR,
    run,
    runs_of,
)
from reproductions.adp.published import TABLE1, published_changes
from reproductions.adp.settings import (
    AUTHORS,
    CPU_DIGITS,
    DATA_SETTINGS,
    FEW_STEPS,
    MNIST_WEAK,
    SMOKE,
    standard,
)
from reproductions.cells import make_cell, seeds_of
from reproductions.comparisons import (
    BySeed,
    Groups,
    Larger,
    Quantity,
    Runs,
    data_title,
    filter_records,
    group_records,
    larger,
)
from reproductions.experiment import Claim, Experiment, Table
from reproductions.study import Cell, Record, Study

_MNIST: Mapping[str, Any] = {
    **AUTHORS,
    "data": "mnist",
    "scaling": "raw",
    "model": "reproductions.networks:small_vgg",
    "model_options": {"width": 16},
    "optimizer": "adam:lr=2e-3",
    "schedule": "cosine:warmup=1",
    "epochs": 5,
    "augment": "none",
    "attacks": MNIST_WEAK,
    "standard": standard((0.1,), 200),
}
#: As in the study of the other ensembles, but for the scaling: nothing decays.
_DIGITS: Mapping[str, Any] = {
    **CPU_DIGITS,
    "scaling": "raw",
    "kernel_decay": 0.0,
    "attacks": MNIST_WEAK,
    "images": 400,
    "standard": standard((0.1,), 100),
}
_SMOKE: Mapping[str, Any] = {
    **SMOKE,
    "scaling": "raw",
    "kernel_decay": AUTHORS["kernel_decay"],
    "attacks": MNIST_WEAK,
    "images": 20,
    "standard": standard((0.1,), 10, **FEW_STEPS),
}
_PAPER: Mapping[str, Any] = {
    **DATA_SETTINGS["paper"]["mnist"],
    **{key: AUTHORS[key] for key in ("curve", "transfer", "detection", "features")},
    "data": "mnist",
    "scaling": "raw",
}

#: Images of digits at each scale, of MNIST where it is not for tests.
SETTINGS = {"smoke": _SMOKE, "cpu": _MNIST, "paper": _PAPER}

#: The data of each scale: settings, scalings and the first seed. Earlier runs on digits had seeds
#: from 0 on; these are fresh.
_DATA: dict[str, tuple[tuple[Mapping[str, Any], tuple[str, ...], int], ...]] = {
    scale: ((settings, tuple(regime.SCALINGS), 0),) for scale, settings in SETTINGS.items()
}
_DATA["cpu"] += ((_DIGITS, ("raw",), 10),)


def cells(scale: str, options: Mapping[str, Any]) -> list[Cell]:
    """The pair with every scaling, seed by seed, then label smoothing: partial records compare."""
    return [
        make_cell(
            f"{settings['data']}-{scaling}-{contender}-seed={first + number}",
            settings,
            scaling=scaling,
            contender=contender,
            seed=first + number,
            **regime.epochs_of(settings, options),
        )
        for settings, scalings, first in _DATA[scale]
        for contenders in (PAIR, ("smoothed",))
        for number in seeds_of(options, {"smoke": 2, "cpu": 5, "paper": 5}[scale])
        for scaling in scalings
        for contender in contenders
    ]


STUDY = Study(
    "mnist",
    cells,
    run,
    options=regime.OPTIONS,
    cost={"smoke": "20 s", "cpu": "30 min per ensemble", "paper": "GPU days"},
)


# ---- reading ------------------------------------------------------------------------------------

#: The scalings as pages call them.
TITLES = {
    "mean": "mean image subtracted",
    "raw": "raw pixels",
    "standardised": "standardised pixels",
}
_SMOOTHED = runs_of("smoothed")
#: The contenders as claims call them.
_NAMES = {ADP_RUNS.name: "ADP", BASELINE.name: "the baseline", _SMOOTHED.name: "label smoothing"}
_FOUR, _PGD, _WORST = under(*GRADIENT), under("pgd"), worst_case("smaller")


def _scaling(record: Record) -> str:
    return str(record["cell"]["scaling"])


def _scaled(data: str, scaling: str) -> Groups:
    """The runs on a data set with one scaling of the input."""
    return lambda records: {data_title(data): filter_records(records, data=data, scaling=scaling)}


def _plain(scaling: str) -> Runs:
    """The baseline with one scaling."""
    return Runs(TITLES[scaling], {**BASELINE.settings, "scaling": scaling})


def _by_scaling(records: list[Record]) -> dict[str, list[Record]]:
    """The runs on MNIST, by the title of their scaling."""
    some = filter_records(records, data="mnist")
    return group_records(some, lambda record: TITLES[_scaling(record)])


def _larger_gain(first: str, second: str) -> Larger:
    """A check that ADP gains more on MNIST with the ``first`` scaling than with the ``second``."""

    def pairs(records: list[Record]) -> dict[str, tuple[BySeed, BySeed]]:
        groups = _by_scaling(records)
        sides = [gains(groups.get(TITLES[one], []), _PGD) for one in (first, second)]
        return {"": (sides[0], sides[1])}

    names = (TITLES[first], TITLES[second])
    return Larger(f"gain of ADP, {_PGD.name}", names, pairs, "{:.1%}", share=True)


# ---- table --------------------------------------------------------------------------------------


def table(records: list[Record]) -> Table:
    """Accuracies in % with each scaling, in round brackets the published ones."""

    def name(record: Record) -> str:
        return f"{data_title(record['cell']['data'])}, {TITLES[_scaling(record)]}"

    return accuracy_table(records, lambda some: group_records(some, name))


# ---- the experiment -----------------------------------------------------------------------------

_ACCURACY = Quantity("accuracy", lambda record: 1 - record["result"]["clean"]["error"], "{:.2%}")


MNIST = Experiment(
    "adp/mnist",
    "Tables 1 and 2, MNIST",
    "All of MNIST with three scalings of the input, and raw digits on fresh seeds",
    STUDY,
    (
        Claim(
            "The baseline is more than 99.4% accurate on clean images of MNIST with each scaling",
            "clean images",
            larger(
                _ACCURACY,
                BASELINE,
                Runs("needed", BASELINE.settings),
                _by_scaling,
                against=Quantity("needed", lambda _: 0.994),
            ),
            f"{1 - TABLE1['mnist']['plain'][-1] / 100:.2%}",
            ours=True,
        ),
        *(
            accuracy_claim(
                f"MNIST, {title}: ADP is more accurate than {_NAMES[other.name]}, {words}",
                (ADP_RUNS, other),
                quantity,
                _scaled("mnist", scaling),
                where="Section 4.3, Table 2" if changes else "",
                changes=changes,
            )
            for other, quantity, words, changes in (
                (BASELINE, _FOUR, "paper's attacks", published_changes(GRADIENT, data="mnist")),
                (BASELINE, _WORST, "worst case", None),
                (_SMOOTHED, _FOUR, "paper's attacks", None),
                (_SMOOTHED, _WORST, "worst case", None),
            )
            for scaling, title in TITLES.items()
        ),
        *(
            Claim(
                f"MNIST: the baseline keeps more under PGD with {TITLES['standardised']} than "
                f"with {TITLES[other]}",
                "paper's attacks",
                larger(_PGD, _plain("standardised"), _plain(other), on("mnist"), share=True),
                ours=True,
            )
            for other in ("raw", "mean")
        ),
        *(
            Claim(
                f"MNIST: ADP gains more under PGD with {TITLES[other]} than with "
                f"{TITLES['standardised']}",
                "paper's attacks",
                _larger_gain(other, "standardised"),
                ours=True,
            )
            for other in ("raw", "mean")
        ),
        *(
            accuracy_claim(
                f"digits, raw pixels: {_NAMES[first.name]} is more accurate than "
                f"{_NAMES[second.name]}, {words}",
                (first, second),
                quantity,
                _scaled("digits", "raw"),
            )
            for quantity, words in ((_PGD, "PGD"), (_WORST, "worst case"))
            for first, second in ((ADP_RUNS, BASELINE), (_SMOOTHED, ADP_RUNS))
        ),
    ),
    table,
)

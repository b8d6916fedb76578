"""Architectures other than ResNets: the vanilla CNN (Figure 15) and a VGG on SVHN (Figure 16)."""

from __future__ import annotations

from collections.abc import Sequence

from reproductions.collusion import images
from reproductions.comparisons import (
    Finding,
    Quantity,
    at,
    cell_values,
    filter_records,
    larger,
    pooled,
)
from reproductions.experiment import Claim, Experiment
from reproductions.statistics import CANNOT
from reproductions.study import Record

# ---- the vanilla CNN ----------------------------------------------------------------------------

#: Section G.4: Adam 1e-3 and early stopping with a patience of 5; else as the other sweeps.
_ADAM = {"optimizer": "adam:lr=1e-3", "schedule": "constant", "patience": 5}


_CPU = {
    **images.CPU,
    **_ADAM,
    "model": "cnn",
    "model_options": {},
    "optimizer": "adam:lr=2e-3",
    "epochs": 20,
}
_PAPER = {**images.PAPER_SWEEP, **_ADAM, "model": "cnn"}
_SMOKE = {
    **images.SMOKE,
    **_ADAM,
    "model": "small_cnn",
    "model_options": {"width": 4, "hidden": 16},
}

CNNS = images.beta_study(
    "cnn",
    {
        "smoke": {f"members={m}": ({**_SMOKE, "members": m}, (0.0, 0.5, 1.0)) for m in (2, 3)},
        "cpu": {
            "members=5": (_CPU, images.BETAS),
            "members=10": ({**_CPU, "members": 10}, (0.0, 0.4, 1.0)),
        },
        "paper": {f"members={m}": ({**_PAPER, "members": m}, images.BETAS) for m in (5, 10)},
    },
    seeds=(2, 10, 3),
    cost=("5 s", "40 min", "GPU hours"),
)


def _by_size(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {
        f"M = {size}": filter_records(records, members=size)
        for size in cell_values(records, "members")
    }


def _best_between(records: list[Record]) -> Finding:
    """Whether some β between 0 and 1 has a lower test ERR than both ends.

    That β is the one with the least mean ERR on validation data, so the test data do not choose.
    """
    inner = [images.at_beta(beta) for beta in cell_values(records, "beta") if 0 < beta < 1]
    if not inner:
        return Finding(CANNOT, "no β between 0 and 1 was run")
    validated = Quantity("validation ERR", at("val", "error"))
    best = min(inner, key=lambda runs: validated.estimate(runs.of(records)).mean)
    error = images.QUANTITIES["error"]
    return pooled(
        {
            f"against {end.name}": larger(error, end, best)(records)
            for end in (images.INDEPENDENT, images.JOINT)
        }
    )


_KEYS = ("accuracy", "error", "member_accuracy", "diversity")

CNN = Experiment(
    "collusion/cnn",
    "Figure 15",
    "Ensembles of the vanilla CNN of Table 3 over β",
    CNNS,
    (
        Claim(
            "Joint training has the largest test loss of all β",
            "Section G.4, Figure 15",
            images.InEach(_by_size, images.JointWorst("error")),
        ),
        Claim(
            "Joint training is less accurate than independent training",
            "Section G.4, Figure 15",
            images.independent_larger("accuracy", _by_size),
        ),
        Claim(
            "The lowest test loss is at a β between 0 and 1",
            "Section G.4, Figure 15",
            images.InEach(_by_size, _best_between),
        ),
    ),
    lambda records: images.beta_table(_by_size(records), _KEYS),
    lambda records: images.plot_beta_curves(_by_size(records), _KEYS[:3]),
)


# ---- VGG on SVHN --------------------------------------------------------------------------------


_SMALL_VGG = f"{images.NETWORKS}:small_vgg"
_CPU_VGG = {
    **images.CPU,
    "data": "fashion_mnist",
    "size": 14,
    "train": 2000,
    "model": _SMALL_VGG,
    "model_options": {"width": 8, "groups": 2, "dropout": 0.1},
    "schedule": "multistep:at=6/8,factor=0.2",
    "epochs": 10,
}
_SMOKE_VGG = {**images.SMOKE, "model": _SMALL_VGG, "model_options": {"width": 4, "groups": 2}}

VGGS = images.beta_study(
    "vgg-svhn",
    {
        "smoke": {"vgg": (_SMOKE_VGG, (0.0, 0.5, 1.0))},
        "cpu": {"vgg": (_CPU_VGG, images.BETAS)},
        "paper": {"vgg": ({**images.PAPER_SWEEP, "data": "svhn", "model": "vgg"}, images.BETAS)},
    },
    seeds=(2, 10, 3),
    cost=("5 s", "15 min", "GPU days"),
)

_DATA = {"svhn": "VGG on SVHN", "digits": "tiny VGG on digits"}


def _stand_in(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records under a name that says what was trained, in front of every number."""
    data = records[0]["cell"]["data"] if records else "svhn"
    stand_in = f"small VGG on {data.replace('_', '-')}"
    return {_DATA.get(data, stand_in): list(records)}


VGG_SVHN = Experiment(
    "collusion/vgg-svhn",
    "Figure 16",
    "The sweep over β with a VGG-style network on SVHN",
    VGGS,
    (
        Claim(
            "Joint training is less accurate than independent training",
            "Section G.5, Figure 16",
            images.independent_larger("accuracy", _stand_in),
        ),
        Claim(
            "Joint training (β = 1) has the worst test accuracy of all β",
            "Section G.5, Figure 16",
            images.InEach(_stand_in, images.JointWorst("accuracy")),
        ),
        Claim(
            "Joint training (β = 1) has the largest test loss of all β",
            "Section G.5, Figure 16",
            images.InEach(_stand_in, images.JointWorst("error")),
        ),
        Claim(
            "Members are less accurate under joint training",
            "Section 6.3",
            images.independent_larger("member_accuracy", _stand_in),
        ),
    ),
    lambda records: images.beta_table(_stand_in(records), _KEYS),
    lambda records: images.plot_beta_curves(_stand_in(records), _KEYS[:3]),
)

"""Settings of the adp studies: data, training and attacks of each scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus.robustness import paper
from reproductions import regime

NETWORK = "reproductions.networks:strided_cnn"

#: Sections 4.1 to 4.5, at the sizes of the paper; what the text leaves open is the authors' code's.
PAPER: Mapping[str, Any] = {
    "data": "cifar10",
    "train": None,
    "val": 0,
    "test": None,
    "size": None,
    "model": "resnet20",
    "model_options": {},
    "members": 3,
    "execution": "auto",
    "contender": "plain",
    "optimizer": "adam:lr=1e-3",
    "schedule": "multistep:at=120/160,factor=0.1",
    "epochs": 180,
    "batch_size": 64,
    "augment": "adp",
    "trained_on": "pgd:steps=10,step=0.1",
    "attacks": [],
    "images": 1000,
    "slow_attacks": [],
    "slow_images": 1000,
    "standard": None,
    "curve": None,
    "transfer": None,
    "detection": None,
    "features": 0,
    "seed": 0,
}

#: What a core can train in seconds and attack in minutes.
CPU: Mapping[str, Any] = {
    **PAPER,
    "train": 4000,
    "test": 2000,
    "model": NETWORK,
    "execution": "stacked",
    "optimizer": "adam:lr=2e-3",
    "schedule": "multistep:at=12,factor=0.2",
    "epochs": 15,
    "augment": "none",
    "trained_on": "pgd:steps=2,step=0.7",
    "images": 200,
    "slow_images": 12,
}

#: Scikit-learn's digits, all of them, with max-pools and until they are learnt by heart.
CPU_DIGITS: Mapping[str, Any] = {
    **CPU,
    "data": "digits",
    "train": None,
    "test": 400,
    "model": "small_cnn",
    "model_options": {"width": 16, "hidden": 64},
    "schedule": "multistep:at=32,factor=0.2",
    "epochs": 40,
}

#: Scikit-learn's digits, to see that everything works.
SMOKE: Mapping[str, Any] = {
    **CPU,
    "data": "digits",
    "train": 300,
    "test": 100,
    "model_options": {"width": 4, "hidden": 32},
    "optimizer": "adam:lr=1e-2",
    "schedule": "constant",
    "epochs": 8,
    "batch_size": 32,
    "trained_on": "pgd:steps=2,step=0.5",
    "images": 40,
    "slow_images": 5,
}


def gradient_attacks(fgsm: tuple[float, ...], iterative: tuple[float, ...]) -> list[str]:
    """FGSM, BIM, PGD and MIM as in Table 2: ten steps of ε/10."""
    ten = "steps=10,step=0.1,early=false"
    return [f"fgsm:eps={eps}" for eps in fgsm] + [
        f"{name}:eps={eps},{ten}" for name in ("bim", "pgd", "mim") for eps in iterative
    ]


def slow_attacks(like: str) -> list[str]:
    """JSMA, C&W and EAD as in Table 2."""
    specs = [attack.spec() for attack in paper(like).attacks]
    return [spec for spec in specs if spec.split(":")[0] in ("jsma", "cw", "ead")]


#: The rows of Table 2 that are worth a core's time, and a JSMA that does not get stuck.
MNIST_SLOW = [
    *[
        spec
        for spec in slow_attacks("mnist")
        if any(row in spec for row in ("gamma=0.3", "cw:c=1,", "ead:c=10,"))
    ],
    "jsma:theta=0.2,gamma=0.3,direction=both",
]


def standard(eps: tuple[float, ...], images: int, **changes: Any) -> dict[str, Any]:
    """The settings of the strong attacks: 100 steps, five restarts."""
    shared = {"steps": 100, "restarts": 5, "autoattack_steps": 50, "queries": 500}
    return {"eps": list(eps), "images": images, **shared, **changes}


#: The strong attacks of scale ``smoke``, and of scale ``paper``.
FEW_STEPS = {"steps": 4, "restarts": 2, "autoattack_steps": 4, "queries": 20}
MORE_STEPS = {"autoattack_steps": 100, "queries": 5000}

#: The weak attacks of each data set. For CIFAR and MNIST the paper's ε.
MNIST_WEAK = gradient_attacks((0.1, 0.2), (0.1, 0.15))
FASHION_WEAK = gradient_attacks((0.04, 0.08), (0.04, 0.06))
CIFAR10_WEAK = gradient_attacks((0.02, 0.04), (0.01, 0.02))
CIFAR100_WEAK = gradient_attacks((), (0.005, 0.01))

#: The measurements of digits, MNIST's or scikit-learn's, at scale ``cpu``.
_CPU_ON_DIGITS: Mapping[str, Any] = {
    "attacks": MNIST_WEAK,
    "standard": standard((0.1, 0.15), 40),
    "curve": {"eps": [0.025, 0.05, 0.1, 0.15, 0.2], "images": 60},
    "transfer": {"eps": 0.2, "steps": 50, "images": 80},
    "detection": {"eps": 0.3, "images": 120},
    "features": 300,
}
_PAPER_ON_CIFAR: Mapping[str, Any] = {
    "transfer": {"eps": 0.05, "steps": 100, "images": 1000},
    "features": 2000,
}

#: The regime of the authors' code, with nothing measured yet.
AUTHORS: Mapping[str, Any] = {**PAPER, **regime.AUTHORS}

#: ResNet-20 on all of CIFAR-10; checkpoints are attacked too.
_ALONG = ["pgd:eps=0.01,steps=10,step=0.1,early=false", "pgd:eps=0.01,steps=40,loss=margin"]
RESNET20: Mapping[str, Mapping[str, Any]] = {
    "smoke": {
        **PAPER,
        **regime.RESNET20["smoke"],
        "attacks": gradient_attacks((0.1,), (0.1,)),
        "images": 20,
        "standard": standard((0.1, 0.2), 10, **FEW_STEPS),
        "transfer": {"eps": 0.2, "steps": 5, "images": 10},
        "features": 50,
        "along": ["pgd:eps=0.1,steps=3,step=0.3,early=false"],
        "along_images": 20,
    },
    "cpu": {
        **PAPER,
        **regime.RESNET20["cpu"],
        "attacks": CIFAR10_WEAK,
        "images": 500,
        "standard": standard((0.01, 0.02), 200),
        "curve": {"eps": [0.0025, 0.005, 0.01, 0.02], "images": 100},
        "transfer": {"eps": 0.05, "steps": 50, "images": 100},
        "detection": {"eps": 0.1, "images": 300},
        "features": 500,
        "along": _ALONG,
        "along_images": 200,
    },
    "paper": {
        **PAPER,
        **regime.RESNET20["paper"],
        "attacks": CIFAR10_WEAK,
        "standard": standard((0.01, 0.02), 1000, **MORE_STEPS),
        "along": _ALONG,
        "along_images": 1000,
    },
}

#: The data sets of each scale, with their settings.
DATA_SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "smoke": {
        "digits": {
            **SMOKE,
            "attacks": MNIST_WEAK,
            "slow_attacks": [
                "jsma:theta=0.2,gamma=0.1,variant=original,early=false",
                "cw:c=1.0,searches=1,steps=10",
                "ead:c=5.0,searches=1,steps=10",
            ],
            "standard": standard((0.1, 0.2), 20, **FEW_STEPS),
            "curve": {"eps": [0.05, 0.1, 0.2], "images": 20},
            "transfer": {"eps": 0.2, "steps": 20, "images": 30},
            "detection": {"eps": 0.3, "images": 40},
            "features": 60,
        }
    },
    "cpu": {
        "mnist": {**CPU, **_CPU_ON_DIGITS, "slow_attacks": MNIST_SLOW},
        "fashion_mnist": {
            **CPU,
            "attacks": FASHION_WEAK,
            "standard": standard((0.04, 0.06), 40),
            "curve": {"eps": [0.01, 0.02, 0.04, 0.06, 0.08], "images": 60},
            "transfer": {"eps": 0.08, "steps": 50, "images": 80},
            "detection": {"eps": 0.12, "images": 120},
            "features": 300,
        },
        "digits": {**CPU_DIGITS, **_CPU_ON_DIGITS},
        "cifar10": {
            **CPU,
            "attacks": CIFAR10_WEAK,
            "standard": standard((0.01, 0.02), 40),
            "transfer": {"eps": 0.05, "steps": 50, "images": 80},
            "features": 300,
        },
    },
    "paper": {
        "mnist": {
            **AUTHORS,
            "epochs": 40,
            "schedule": "multistep:at=15/30,factor=0.1",
            "augment": "none",
            "attacks": MNIST_WEAK,
            "standard": standard((0.1, 0.15, 0.2), 1000, **MORE_STEPS),
            "curve": {"eps": [0.025, 0.05, 0.075, 0.1, 0.125, 0.15], "images": 1000},
            "transfer": {"eps": 0.2, "steps": 100, "images": 1000},
            "detection": {"eps": 0.3, "images": 1000},
            "features": 2000,
        },
        "cifar10": {
            **AUTHORS,
            **_PAPER_ON_CIFAR,
            "attacks": CIFAR10_WEAK,
            "standard": standard((0.01, 0.02, 8 / 255), 1000, **MORE_STEPS),
            "curve": {"eps": [0.0025, 0.005, 0.01, 0.015, 0.02, 0.03], "images": 1000},
            "detection": {"eps": 0.1, "images": 1000},
        },
        "cifar100": {
            **AUTHORS,
            **_PAPER_ON_CIFAR,
            "attacks": CIFAR100_WEAK,
            "standard": standard((0.005, 0.01), 1000, **MORE_STEPS),
        },
    },
}

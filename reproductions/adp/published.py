"""Published numbers of the adp paper, in %, as it prints them, and the gains that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reproductions.comparisons import data_title

#: Two numbers, before and after, by the title of the data set.
Changes = Mapping[str, tuple[float, float]]

#: Error rates by data set and contender: Net 1 to 3, then the ensemble.
TABLE1: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mnist": {
        "plain": (0.44, 0.39, 0.43, 0.32),
        "adp-entropy": (0.43, 0.45, 0.37, 0.32),
        "adp": (0.36, 0.47, 0.47, 0.28),
    },
    "cifar10": {
        "plain": (8.30, 8.52, 8.67, 6.78),
        "adp-entropy": (9.01, 9.15, 9.14, 6.74),
        "adp": (9.34, 9.34, 9.92, 6.56),
    },
    "cifar100": {
        "plain": (35.25, 35.91, 36.03, 30.35),
        "adp": (39.04, 40.86, 39.00, 29.80),
    },
}

_THREE = ("plain", "adp-entropy", "adp")

#: Accuracies of Tables 2 and 3 by data set, attack and parameter, for ``plain``, ``adp-entropy``
#: and ``adp`` (CIFAR-100: ``plain`` and ``adp``).
TABLE2: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]] = {
    "mnist": {
        "fgsm": {0.1: (78.3, 95.5, 96.3), 0.2: (21.5, 50.6, 52.8)},
        "bim": {0.1: (52.3, 86.4, 88.5), 0.15: (12.2, 69.5, 73.6)},
        "pgd": {0.1: (50.7, 73.4, 82.8), 0.15: (6.3, 36.2, 41.0)},
        "mim": {0.1: (58.3, 89.7, 92.0), 0.15: (16.1, 73.3, 77.5)},
        "jsma": {0.3: (84.0, 88.0, 95.0), 0.6: (74.0, 85.0, 91.0)},
        "cw": {0.1: (91.6, 95.9, 97.3), 1.0: (30.6, 75.0, 78.1), 10.0: (5.9, 20.2, 23.8)},
        "ead": {5.0: (29.8, 91.3, 93.4), 10.0: (7.3, 87.4, 89.5)},
    },
    "cifar10": {
        "fgsm": {0.02: (36.5, 57.4, 61.7), 0.04: (19.4, 41.9, 46.2)},
        "bim": {0.01: (18.5, 44.0, 46.6), 0.02: (6.1, 28.2, 31.0)},
        "pgd": {0.01: (23.4, 43.2, 48.4), 0.02: (6.6, 26.8, 30.4)},
        "mim": {0.01: (23.8, 49.6, 52.1), 0.02: (7.4, 32.3, 35.9)},
        "jsma": {0.05: (29.5, 33.0, 43.5), 0.1: (27.5, 32.0, 37.0)},
        "cw": {0.001: (71.3, 76.3, 80.6), 0.01: (45.2, 50.3, 54.9), 0.1: (18.8, 19.2, 25.6)},
        "ead": {1.0: (17.5, 64.5, 67.3), 5.0: (2.4, 23.4, 29.6)},
    },
    "cifar100": {
        "bim": {0.005: (21.6, 26.1), 0.01: (10.1, 14.8)},
        "pgd": {0.005: (26.6, 32.1), 0.01: (11.7, 18.3)},
        "mim": {0.005: (24.2, 29.4), 0.01: (11.2, 17.1)},
    },
}

#: Table 4 (CIFAR-10): FGSM at ε = 0.04; BIM, PGD and MIM at 0.02.
TABLE4: Mapping[str, Sequence[float]] = {
    "fgsm": (39.3, 19.9, 24.2, 24.5),
    "fgsm-adp": (56.1, 25.7, 26.7, 30.6),
    "pgd": (43.2, 27.8, 32.8, 32.7),
    "pgd-adp": (52.8, 34.0, 36.2, 38.8),
}

#: Table 5 (CIFAR-10, five members): baseline and ADP.
TABLE5: Mapping[str, tuple[float, float]] = {
    "no attack": (93.6, 93.8),
    "fgsm": (42.0, 58.4),
    "bim": (31.6, 41.8),
    "pgd": (37.4, 44.2),
    "mim": (37.1, 47.5),
    "cw": (52.3, 56.5),
    "ead": (20.4, 65.3),
}


def published_row(data: str, attack: str, parameter: float, contender: str) -> float | None:
    """The number of Table 2 or 3 for a contender; None where they print nothing.

    >>> published_row("mnist", "pgd", 0.1, "adp")
    82.8
    """
    row = TABLE2.get(data, {}).get(attack, {}).get(parameter)
    order = _THREE if row is not None and len(row) == 3 else ("plain", "adp")
    return None if row is None or contender not in order else row[order.index(contender)]


def published_changes(
    attacks: Sequence[str], after: str = "adp", before: str = "plain", data: str | None = None
) -> Changes:
    """The accuracy of two contenders, mean over the rows of these attacks; on ``data``, or all.

    >>> published_changes(("pgd",), data="mnist")
    {'MNIST': (28.5, 61.9)}
    """
    changes = {}
    for name, table in TABLE2.items():
        rows = [
            [published_row(name, attack, parameter, one) for one in (before, after)]
            for attack in attacks
            for parameter in table.get(attack, {})
        ]
        both = [row for row in rows if None not in row]
        if both and data in (None, name):
            low, high = np.mean(np.asarray(both, dtype=float), axis=0).round(6).tolist()
            changes[data_title(name)] = low, high
    return changes


def changes_text(changes: Changes, form: str = "{:.1f} → {:.1f}") -> str:
    """The changes in words.

    >>> changes_text(published_changes(("ead",)))
    'MNIST 18.6 → 91.5; CIFAR-10 9.9 → 48.5'
    """
    return "; ".join(f"{title} {form.format(*pair)}" for title, pair in changes.items())


def effects(changes: Changes) -> dict[str, float]:
    """After minus before, as fractions."""
    return {title: (after - before) / 100 for title, (before, after) in changes.items()}

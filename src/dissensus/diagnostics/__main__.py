"""Rates of right verdicts: on planted ensembles, and with ``--trained`` on networks too.

The thresholds were chosen with other seeds (planted: 0 and 1; trained: 0 to 5 and 100 to 109) than
are printed here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import torch

from dissensus.diagnostics.planted_ensembles import COLLUDING, INDEPENDENT, Rates, calibrate

PLANTED_SEED = 3
TRAINED_SEEDS = range(300, 310)


def show(title: str, tables: Iterable[Mapping[str, Rates]]) -> None:
    """One table, its rows printed as they come."""
    print(f"{title:<36}{'healthy':>10}{'suspicious':>12}{'colluding':>11}")
    for table in tables:
        for family, rates in table.items():
            cells = f"{rates.healthy:>10.0%}{rates.suspicious:>12.0%}{rates.colluding:>11.0%}"
            print(f"  {family:<34}{cells}", flush=True)


def main(trained: bool) -> None:
    """Print two tables, or four."""
    for title, planted in (
        ("planted, independent", INDEPENDENT),
        ("planted, colluding", COLLUDING),
    ):
        show(title, [calibrate(planted, seed=PLANTED_SEED)])
    if trained:
        from dissensus.diagnostics.trained_ensembles import JOINT, SEPARATE, rates

        torch.set_num_threads(1)  # networks this small are slower on two
        for title, families in (("trained independently", SEPARATE), ("trained jointly", JOINT)):
            show(title, (rates({name: f}, TRAINED_SEEDS) for name, f in families.items()))


if __name__ == "__main__":
    main(trained="--trained" in sys.argv[1:])

"""Print how often the verdict is right on planted ensembles."""

from __future__ import annotations

from dissensus.diagnostics.planted import COLLUDING, INDEPENDENT, calibrate

if __name__ == "__main__":
    for title, families in (("independent", INDEPENDENT), ("colluding", COLLUDING)):
        print(f"{title:<36}{'healthy':>10}{'suspicious':>12}{'colluding':>11}")
        for family, rates in calibrate(families).items():
            told = f"{rates.healthy:>10.0%}{rates.suspicious:>12.0%}{rates.colluding:>11.0%}"
            print(f"  {family:<34}{told}")

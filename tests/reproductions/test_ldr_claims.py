"""How the claims of ldr are decided: which strength counts, and on what side an interval lies."""

import pytest

from dissensus.show import draw
from dissensus.sweeps import LocalEngine
from reproductions.ldr.records import choose_runs, contender_of
from reproductions.ldr.weights import clashes, gradients_differ_by
from reproductions.registry import EXPERIMENTS
from reproductions.study import Record, run_study


def record(
    name: str, strength: float, seed: int, accuracy: float, val: float, test: float = 0.5
) -> Record:
    return {
        "name": f"digits-{name}-strength={strength:g}-seed={seed}",
        "cell": {"data": "digits", "strength": strength, "seed": seed},
        "result": {
            "parts": {"val": {"accuracy": accuracy}},
            "val_auroc": {"mixed": {"pds": 1 - val}, "permute": {"pds": val}},
            "auroc": {"far": {"pds": test}},
        },
    }


def test_validation_chooses_the_strength() -> None:
    runs = [
        record("ldr", 0.0, 0, 0.95, 0.99),  # no LDR at all: not eligible
        record("ldr", 0.1, 0, 0.90, 0.60),
        record("ldr", 1.0, 0, 0.895, 0.70),  # less accurate, but within a point, and detects better
        record("ldr", 3.0, 0, 0.80, 0.90),  # detects best, at too great a price
        record("ldr-all", 5.0, 0, 0.99, 0.99),  # another contender
    ]
    assert choose_runs(runs, "digits", "ldr")[0]["cell"]["strength"] == 1.0
    assert contender_of(runs[-1]) == "ldr-all"
    assert choose_runs(runs, "features", "ldr") == []


def test_the_gradients_of_the_appendix() -> None:
    assert gradients_differ_by() < 1e-12
    found = clashes()
    assert found["flips_constant"] > 0.5
    assert found["flips_inverse"] == 0
    assert 0 <= found["least_c"] <= found["largest_c"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ldr/weights", "ldr/flow", "ldr/examples", "ldr/worst-group", "ldr/planted", "ldr/published"],
)
def test_a_small_run_decides_draws_and_tables(name: str, tmp_path: object) -> None:
    experiment = EXPERIMENTS[name]
    study, engine = experiment.study, LocalEngine(1)
    found = run_study(
        study, "ldr", "smoke", {"seeds": 2}, str(tmp_path), engine=engine, progress=False
    )
    assert not found.failed
    for claim in experiment.claims:
        claim.check(found.cells)
    if experiment.table is not None:
        assert experiment.table(found.cells).by_row()
    if experiment.draw is not None:
        assert draw(experiment.draw(found.cells)).axes

"""How the claims of ldr are decided: which strength counts, and on what side an interval lies."""

import pytest

from dissensus.show import draw
from dissensus.sweeps import LocalEngine
from reproductions.ldr import factors
from reproductions.ldr.records import auroc, choose_runs, contender_of
from reproductions.ldr.weights import clashes, gradients_differ_by
from reproductions.old.base import Record
from reproductions.old.comparisons import LargerInAll
from reproductions.old.registry import EXPERIMENTS
from reproductions.study import run_study


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


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.1, "holds"), (-0.1, "contradicted"), (0.0, "undecided")]
)
def test_a_comparison_follows_the_interval(gain: float, verdict: str) -> None:
    noise = (0.001, -0.001, 0.0005)
    quantity = auroc("far", "pds")
    left = quantity.values(record("a", 1, s, 1, 1, 0.5 + gain + noise[s]) for s in range(3))
    right = quantity.values(record("b", 1, seed, 1, 1, 0.5) for seed in range(3))

    def check(first: dict[int, float], **options: float) -> str:
        larger = LargerInAll(lambda _: {"far": (first, right)}, ("a", "b"), "AUROC", **options)
        return larger([]).verdict

    assert check(left) == verdict
    assert check({0: left[0]}) == "not tested at this scale"
    assert check(left, margin=0.2) == "contradicted"


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
        assert claim.check(found.records).measured
    if experiment.table is not None:
        header, rows = experiment.table(found.records)
        assert rows
        assert all(len(row) == len(header) for row in rows)
    pytest.importorskip("matplotlib")
    assert experiment.draw is not None
    assert draw(experiment.draw(found.records)).axes


def test_short_sentences_count_the_settings_where_ldr_helps() -> None:
    """LDR gains 0.1 in the usual settings, loses 0.1 with few rows, and moves nothing planted."""
    gains = {"as elsewhere": 0.1, "2,000 training rows": -0.1, "5% planted": 0.0}

    def runs(name: str, factor: str, gain: float) -> list[Record]:
        cell = {**factors.CONTENDERS[name], "factor": factor}
        return [
            {"cell": {**cell, "seed": seed}, "result": {"auroc": {"far": {"pds": 0.5 + moved}}}}
            for seed, moved in enumerate((gain - 0.01, gain, gain + 0.01))
        ]

    records = [
        record
        for factor, gain in gains.items()
        for record in (
            *runs("deep-ensemble", factor, 0.0),
            *runs("ldr", factor, 2 * gain),
            *runs("ldr-divdis", factor, gain),
        )
    ]
    assert factors.brief_when(records)[0] == (
        "PDS of LDR detects better than a deep ensemble's in 1 of 3 settings "
        "(usual settings +0.200 [+0.200, +0.200]), worse in 1."
    )
    assert factors.brief_when([])[0].endswith("in 0 of 0 settings, worse in 0.")

"""JSMA, C&W and EAD on networks that come near the published accuracy: plan, runs, claims."""

from pathlib import Path
from typing import Any

import pytest

from reproductions import regime
from reproductions.adp import distortion, measurements, mnist, resnet20
from reproductions.adp.accuracy import attack_family, attack_parameter
from reproductions.adp.ensembles import ADP_RUNS, BASELINE
from reproductions.adp.published import TABLE2

CLAIMS = distortion.DISTORTION.claims
UNTESTED = "not tested at this scale"


# ---- the plan -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_networks_are_trained_as_in_other_studies(scale: str) -> None:
    """All that a training reads, and the folder that it goes on from."""
    theirs = {regime.work_folder(c, "adp"): c for c in mnist.cells(scale, {})}
    theirs |= {regime.work_folder(c, "adp"): c for c in resnet20.cells(scale, {})}
    plan = distortion.cells(scale, {})
    assert len({cell["name"] for cell in plan}) == len(plan) == 10 + 2 + 5
    measured = ("attacks", "standard", "slow_attacks", "slow_images", "images", "name")
    measured += ("curve", "transfer", "detection", "features", "along", "along_images")
    for cell in plan:
        other = theirs[distortion.work_folder(cell)]
        assert {key: cell[key] for key in cell if key not in measured} == {
            key: other[key] for key in other if key not in measured
        }


def test_every_row_of_table_2_is_attacked() -> None:
    for cell in distortion.cells("cpu", {"seeds": 1}):
        rows = [(attack_family(spec), attack_parameter(spec)) for spec in cell["slow_attacks"]]
        printed = {
            (kind, at) for kind in ("jsma", "cw", "ead") for at in TABLE2[cell["data"]][kind]
        }
        assert set(rows) == printed
        assert len(rows) == len(printed) + (cell["data"] == "mnist")  # a JSMA that cannot stick


# ---- a run --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kill_costs_one_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cell = distortion.cells("smoke", {"seeds": 1, "epochs": 1})[0]
    cell |= {"slow_attacks": ["cw:c=1,searches=1,steps=5", "jsma:theta=1,gamma=0.1"]}
    cell["slow_images"] = 3
    attack_each, attacked = measurements.attack_each, list[str]()

    def counted(ens: Any, x: Any, y: Any, specs: list[str]) -> dict[str, Any]:
        attacked.extend(specs)
        if len(attacked) == 2:
            raise KeyboardInterrupt
        return attack_each(ens, x, y, specs)

    monkeypatch.setattr(measurements, "attack_each", counted)
    with pytest.raises(KeyboardInterrupt):
        distortion.run(cell)
    result = distortion.run(cell)
    assert attacked == [cell["slow_attacks"][0], *2 * [cell["slow_attacks"][1]]]
    assert list(result["slow"]) == cell["slow_attacks"]
    assert [len(one["right"]) for one in result["slow"].values()] == [3, 3]
    assert result["clean"]["examples"] == cell["test"]


# ---- claims -------------------------------------------------------------------------------------


def records(shares: dict[str, float], error: float = 0.004) -> list[dict[str, Any]]:
    """Finished cells in which every attack leaves the contender's share of images, seed by seed."""
    made = []
    for cell in distortion.cells("cpu", {}):
        ones = round(100 * shares[cell["contender"]]) + cell["seed"] % 2
        slow = {"right": "1" * ones + "0" * (100 - ones), "l2": 1.0 + cell["seed"]}
        result = {"clean": {"error": error}, "slow": dict.fromkeys(cell["slow_attacks"], slow)}
        made.append({"name": cell["name"], "cell": cell, "result": result, "seconds": 1.0})
    return made


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "contradicted")])
def test_claims_follow_the_records(sign: int, verdict: str) -> None:
    some = records({"plain": 0.5 - 0.3 * sign, "smoothed": 0.5, "adp": 0.5 + 0.3 * sign})
    for seed, record in enumerate(some):  # runs that are not all alike
        one = next(iter(record["result"]["slow"].values()))
        one["right"] = one["right"][: 100 - seed % 3] + "0" * (seed % 3)
    assert [claim.check(some).verdict for claim in CLAIMS] == [verdict] * 9


def test_one_run_on_cifar10_is_judged_by_its_images_and_one_on_mnist_decides_nothing() -> None:
    shares = {"plain": 0.2, "smoothed": 0.5, "adp": 0.8}
    first = [record for record in records(shares) if record["cell"]["seed"] == 0]
    verdicts = [claim.check(first).verdict for claim in CLAIMS]
    assert verdicts == [UNTESTED] * 3 + ["holds"] * 3 + [UNTESTED] * 3
    assert "over 100 images of 1 run" in CLAIMS[3].check(first).measured
    assert [claim.check([]).verdict for claim in CLAIMS] == [UNTESTED] * 9


def test_weak_networks_cannot_test_the_paper() -> None:
    some = records({"plain": 0.2, "smoothed": 0.3, "adp": 0.8}, error=0.14)
    assert {claim.check(some).verdict for claim in CLAIMS[:6]} == {UNTESTED}


@pytest.mark.parametrize(("share", "verdict"), [(0.98, UNTESTED), (0.9, "contradicted")])
def test_an_attack_that_leaves_no_room_for_the_effect_tests_nothing(
    share: float, verdict: str
) -> None:
    """The printed gains of JSMA are 11 and 17 points: half of their mean does not fit on 98 %."""
    some = records({"plain": share, "smoothed": share, "adp": share})
    for record in ADP_RUNS.of(some):  # one image ahead or behind the baseline, seed by seed
        ones = round(100 * share) + (record["cell"]["seed"] + 1) % 2
        slow = {"right": "1" * ones + "0" * (100 - ones), "l2": 1.0}
        record["result"]["slow"] = dict.fromkeys(record["cell"]["slow_attacks"], slow)
    finding = CLAIMS[0].check(some)
    assert finding.verdict == verdict
    assert ("no room for half of the published effect" in finding.measured) == (share == 0.98)


def test_the_sentence_sets_the_jsma_that_cannot_stick_beside_the_papers() -> None:
    some = records({"plain": 0.2, "smoothed": 0.3, "adp": 0.8})
    for record in some:
        slow = record["result"]["slow"]
        last = next((spec for spec in slow if "direction" in spec), None)
        if last:
            slow[last] = {"right": "0" * 100, "l2": 2.0}
    digits, images = distortion.brief(some)
    assert "ADP₂,₀.₅, MNIST: JSMA, γ = 0.3 20 → 80; " in digits
    assert digits.endswith("; JSMA that cannot stick, both ways, γ = 0.3 0 → 0.")
    assert "CIFAR-10: " in images
    assert distortion.brief(BASELINE.of(some)) == distortion.brief([]) == []


def test_the_table_says_how_far_images_were_moved() -> None:
    header, rows = distortion.table(records({"plain": 0.2, "smoothed": 0.3, "adp": 0.8}))
    assert header == ["data", "attack", "baseline", "ADP₂,₀.₅", "label smoothing"]
    ead = next(row for row in rows if row[:2] == ["MNIST", "EAD, c = 5"])
    assert [cell.rpartition(" ")[2] for cell in ead[2:4]] == ["(29.8)", "(93.4)"]
    moved = {tuple(row[:2]): row[2:] for row in rows if "L2" in row[1]}
    assert moved["CIFAR-10", "EAD, c = 5: mean L2 of broken images"] == ["1.000", "1.000", "–"]
    five = moved["MNIST", "EAD, c = 5: mean L2 of broken images"]
    assert all(text.startswith("3.000 [") for text in five)  # 1 to 5
    assert BASELINE.name in header
    assert ADP_RUNS.name in header

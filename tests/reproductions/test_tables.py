"""The tables: the protocol's parts, and claims that follow what the records say."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproductions.collusion import signs, tables
from reproductions.collusion.paper_tables import paper_split
from reproductions.collusion.tables import BETAS, FRACTIONS, GRID

Record = dict[str, Any]


def planted(*, colluding: bool, names: tuple[str, ...] = ("facebook",)) -> list[Record]:
    """Records as five runs leave them, of ensembles that collude towards β = 1, or do not."""
    rng = np.random.default_rng(0)
    records = []
    for table in names:
        for number in range(5):
            betas = []
            for beta in BETAS:
                excess = 0.06 / (1.02 - beta) if colluding else 0.05
                without = [[p, 1, 0.0, p * excess * (0.3 + 0.03 * rng.random())] for p in FRACTIONS]
                betas.append(
                    {
                        "beta": beta,
                        "test": {
                            "ensemble_error": 1 + 0.001 * rng.random(),
                            "diversity": excess * (1 + 0.1 * rng.random()),
                        },
                        "debiased_share": excess / 6 + 0.01 * rng.random(),
                        "without": without,
                    }
                )
            cell = {"table": table, "run": number, "search_beta": 0.5}
            records.append({"name": str(number), "cell": cell, "result": {"betas": betas}})
    return records


CLAIMS = [
    claim
    for experiment in (signs.EXPLOSION, signs.BIAS_REMOVAL, signs.CODEPENDENCE)
    for claim in experiment.claims
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:40])
def test_claims_hold_where_collusion_is_planted_and_fail_without_it(claim: Any) -> None:
    assert claim.check(planted(colluding=True)).verdict == "holds"
    harmless = claim.text.startswith(("On Facebook", "It hardly matters elsewhere"))
    verdict = claim.check(planted(colluding=False)).verdict
    assert verdict in (("holds",) if harmless else ("contradicted", "undecided"))


def test_one_table_that_differs_leaves_it_undecided() -> None:
    flat = planted(colluding=False, names=("abalone",))
    finding = signs.EXPLOSION.claims[0].check(planted(colluding=True, names=("weather",)) + flat)
    assert finding.verdict == "undecided"
    assert finding.effects["weather"].judgement.verdict == "holds"
    assert finding.effects["abalone"].judgement.verdict == "undecided"


def test_harm_is_seen() -> None:
    worse = copy.deepcopy(planted(colluding=True))
    for record in worse:
        for figures in record["result"]["betas"]:
            figures["test"]["ensemble_error"] *= 1 + figures["beta"]
            figures["without"][2][3] += 1
    assert signs.EXPLOSION.claims[4].check(worse).verdict == "contradicted"
    assert signs.CODEPENDENCE.claims[1].check(worse).verdict == "contradicted"


def test_the_search_may_matter() -> None:
    flat = planted(colluding=False)
    for record in flat:
        record["cell"]["search_beta"] = 1.0
    finding = signs.SEARCH_BETA.claims[0].check(planted(colluding=True) + flat)
    assert finding.verdict == "undecided"
    assert finding.effects["facebook searched at 1"].judgement.verdict == "undecided"


def test_the_protocol_is_appendix_b() -> None:
    cells = tables.cells("cpu", {})
    assert len(cells) == 4 * 20  # twice the runs of the paper
    assert len(tables.cells("paper", {})) == 4 * 10
    assert {cell["trials"] for cell in cells} == {20}
    assert {cell["patience"] for cell in cells} == {5}
    assert np.prod([len(values) for values in GRID.values()]) == 972
    data = paper_split("diabetes", 0)
    sizes = [len(x) for x, _ in data.splits().values()]
    assert sizes[2] == pytest.approx(0.2 * 442, abs=1)
    assert sizes[1] == pytest.approx(0.2 * (442 - sizes[2]), abs=1)


PAPER_TABLES = [("abalone", 9, 0), ("bioconcentration", 45, 1), ("facebook", 21, 11)]


@pytest.mark.parametrize(("name", "inputs", "logged"), [*PAPER_TABLES, ("weather", 45, 4)])
def test_a_paper_table_is_scaled_logged_and_one_hot(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, name: str, inputs: int, logged: int
) -> None:
    monkeypatch.setenv("DISSENSUS_DATA", str(shared_data))
    for seed in range(3):
        data = paper_split(name, seed)
        x = data.train[0]
        assert data.input_shape == (inputs,)
        assert len(data.preprocessing["log_features"]) == logged
        hot = torch.tensor(["=" in feature for feature in data.features])
        assert set(x[:, hot].unique().tolist()) == {0.0, 1.0}
        assert x[:, ~hot].mean(0).abs().max() < 1e-5
        assert data.train[1].std(correction=0).item() == pytest.approx(1, rel=1e-5)


def test_a_run_retrains_on_training_and_validation_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fleets: list[Any] = []
    train = tables.fit_fleet

    def watched(trainings: Any, **options: Any) -> Any:
        fleets.append(list(trainings))
        return train(trainings, **options)

    monkeypatch.setattr(tables, "fit_fleet", watched)
    (cell,) = tables.cells("smoke", {"runs": 1})
    result = tables.run(cell)
    *trials, first, final = fleets
    data = paper_split("diabetes", 0)
    assert all(training.objective.beta == 0.5 for (training,) in trials)
    assert [training.objective.beta for training in first] == list(BETAS)
    assert all(torch.equal(training.val[0], data.val[0]) for training in first)
    assert all(len(t.train[0]) == len(data.train[0]) + len(data.val[0]) for t in final)
    assert all(training.val is None for training in final)
    assert [training.recipe.epochs for training in final] == result["epochs"]
    # The choice is the trial that did best on validation rows.
    assert result["validation_error"] == min(trial[-1] for trial in result["trials"])
    chosen = tuple(result["chosen"].values())
    assert chosen in [tuple(trial[:-1]) for trial in result["trials"]]
    figures = result["betas"][-1]["test"]
    expected = figures["member_error"] - figures["ensemble_error"]
    assert figures["diversity"] == pytest.approx(expected)

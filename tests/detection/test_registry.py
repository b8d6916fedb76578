"""Scores by name; the default score, chosen by the record of the runs."""

import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import nn

import dissensus as ds
from dissensus.detection import default_score
from dissensus.detection.registry import parse_score, score_spec

RECORD = Path(__file__).parents[2] / "results" / "ldr" / "contenders.json"

#: The contenders of the record that were trained by an objective.
TRAINED = {
    "independent": ("deep-ensemble", "linear-deep-ensemble", "diverse-hyperparameters"),
    "a2d": ("a2d", "a2d-other", "a2d-sequential"),
    "ldr:regularizer=divdis": ("ldr-divdis",),
    "ldr": ("ldr", "ldr-all", "ldr-3", "ldr-4", "linear-ldr"),
    "divdis": ("divdis", "divdis-other"),
    "one": ("single",),
}


def mean_aurocs(contenders: tuple[str, ...]) -> dict[str, float]:
    """The mean AUROC of each score: over unknown sets, then runs, then data sets."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in json.loads(RECORD.read_text())["cells"]:
        cell, aurocs = record["cell"], record["result"]["auroc"]
        name = record["name"].removeprefix(f"{cell['data']}-").partition("-strength=")[0]
        if name in contenders and (cell["strength"] > 0 or "strength=0-" in record["name"]):
            if cell["method"] == "ldr" and cell["strength"] == 0:
                continue  # without its term
            for score in next(iter(aurocs.values())):
                values[score][cell["data"]].append(fmean(part[score] for part in aurocs.values()))
    return {score: fmean(map(fmean, sets.values())) for score, sets in values.items()}


@pytest.mark.parametrize("objective", TRAINED)
def test_the_default_is_the_best_score_of_the_record(objective: str) -> None:
    aurocs = mean_aurocs(TRAINED[objective])
    one = nn.Linear(2, 2)
    trained = ds.Ensemble.from_members([one]) if objective == "one" else objective
    assert default_score(trained) == max(aurocs, key=lambda score: aurocs[score])


def test_figures_beside_the_rule_and_in_the_guide_are_those_of_the_record() -> None:
    table = default_score.__doc__.split("\n    ===")[2]
    guide = (RECORD.parents[2] / "docs" / "guides" / "unknown.md").read_text(encoding="utf-8")
    for objective, row in zip(TRAINED, table.splitlines()[1:], strict=True):
        aurocs = mean_aurocs(TRAINED[objective])
        scores = ["mutual_information", "energy", "entropy", "pds"]
        figures = {score: f"{aurocs[score]:.3f}" for score in scores}
        if objective == "one":  # one network has no members to compare
            figures |= {"mutual_information": "–", "pds": "–"}
        best = f"{max(aurocs.values()):.3f}"
        assert re.findall(r"0\.\d{3}|–", row) == list(figures.values())
        assert f"**{best}**" in row
        assert f" | {best} | {figures['pds']} |" in guide


@pytest.mark.parametrize(
    ("objective", "score"),
    [
        ("independent", "mutual_information"),
        ("learner_dropout:drop=0.4/ldr", "energy"),
        (ds.objectives.LDR(), "energy"),
        (ds.objectives.LDR(regularizer="jsd"), "mutual_information"),
        (ds.objectives.LearnerDropout(objective=ds.objectives.LDR()), "energy"),
        (ds.objectives.ADP(), "mutual_information"),
        ("code/mine.py:Spread", "mutual_information"),
    ],
)
def test_objectives(objective: object, score: str) -> None:
    assert default_score(objective) == score


def test_an_ensemble_knows_how_it_was_trained(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Linear(3, 4)

    x, y = torch.randn(16, 3), torch.randint(4, (16,))
    ens = ds.Ensemble(make, members=3)
    assert ds.Detector(ens).score_name == "mutual_information"
    ds.fit(ens, (x, y), "ldr:active=2", epochs=1, out=tmp_path, progress=False)
    for trained in (ens, ds.load(tmp_path, make_member=make)):
        assert ds.Detector(trained).score_name == "energy"
    regression = ds.Ensemble(make, members=3, combine="mean")
    assert ds.Detector(regression).score_name == "variance"


def test_specs_are_read_and_written() -> None:
    for text in ("knn:k=5", "vim:dimension=3", "combined:score=pds,distance=knn:k=5", "bma"):
        assert score_spec(parse_score(text)) == text
    assert score_spec(parse_score("knn").fit(torch.randn(5, 2))) == "knn"
    for text, message in {
        "vin": "no score 'vin'; did you mean 'vim'",
        "vim:dim=3": "vim has no setting 'dim'; did you mean 'dimension'",
        "vim:alpha=3": "vim has no setting 'alpha'",  # fitted, not asked for
        "knn:k=0": "k must be an integer of at least 1, got 0",
        "combined:distance=pds": "distance must name scores of features",
        "combined:score=knn": "there is no score 'knn'",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse_score(text)

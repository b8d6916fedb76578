"""What every experiment must offer, and what is committed under ``results/``."""

from pathlib import Path

import pytest

from dissensus.papers.base import PAPERS, SCALES, Experiment
from dissensus.papers.page import outcomes, page_text
from dissensus.papers.registry import EXPERIMENTS
from dissensus.papers.studies import read_study, study_path

RESULTS = Path(__file__).parents[2] / "results"
EVERY = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))


@EVERY
def test_an_experiment_says_all_about_itself(experiment: Experiment) -> None:
    assert EXPERIMENTS[experiment.full_name] is experiment
    assert experiment.paper in PAPERS
    assert experiment.claims
    assert experiment.draw or experiment.table
    for scale in SCALES:
        assert len(experiment.setting[scale]) > 40, f"say what {scale} runs, and how it differs"
    for claim in experiment.claims:
        assert claim.text
        assert claim.where


def test_studies_of_one_name_are_one_study() -> None:
    """Their records share a file."""
    found = {(one.paper, one.study.name): one.study for one in EXPERIMENTS.values()}
    for one in EXPERIMENTS.values():
        assert found[one.paper, one.study.name] is one.study


@EVERY
def test_committed_records_are_whole_and_free_of_paths(experiment: Experiment) -> None:
    path = study_path(RESULTS, experiment.paper, experiment.study.name)
    if not path.exists():
        pytest.skip("no record of it is committed")
    text = path.read_text()
    assert len(text) < 5_000_000
    for trace in ("/home/", "/root/", "/tmp/", "/Users/", "C:\\\\"):
        assert trace not in text
    assert read_study(path).records


@pytest.mark.parametrize("paper", PAPERS)
def test_the_committed_page_is_what_the_committed_records_say(paper: str) -> None:
    page = RESULTS / f"{paper}.md"
    found = [
        one for one in outcomes(EXPERIMENTS.values(), RESULTS) if one.experiment.paper == paper
    ]
    if not found:
        pytest.skip("no records are committed")
    assert page.read_text() == page_text(paper, found, EXPERIMENTS), (
        "build it again with: dissensus reproduce --report"
    )
    for outcome in found:
        if outcome.drawable:
            name = f"{outcome.experiment.name}.svg"
            assert (RESULTS / paper / "figures" / name).stat().st_size > 1000

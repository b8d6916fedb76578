"""The registry of experiments, and the committed results that are built from committed records."""

from functools import cache
from pathlib import Path

import pytest

from dissensus.tools.import_paths import resolve
from reproductions.page import Outcome, outcomes, page_text, verdicts_text
from reproductions.registry import EXPERIMENTS
from reproductions.study import SCALES, read_study, study_path

RESULTS = Path(__file__).parents[2] / "results"
TEMPLATES = Path(__file__).parents[2] / "reproductions"
PAPERS = sorted({one.paper for one in EXPERIMENTS.values()})


@cache
def committed() -> list[Outcome]:
    """The experiments with a record, judged once for all tests."""
    return outcomes(EXPERIMENTS.values(), RESULTS)


def test_an_experiment_says_all_about_itself() -> None:
    studies = {}
    for name, experiment in EXPERIMENTS.items():
        assert name == experiment.full_name
        assert experiment.draw or experiment.table, name
        assert set(experiment.study.cost) == set(SCALES), name
        assert all(claim.text and claim.where for claim in experiment.claims), name
        texts = {claim.text for claim in experiment.claims}
        assert len(texts) == len(experiment.claims), f"{name}: two claims of one text"
        assert all(len(text) <= 100 for text in texts), f"{name}: a claim is a few words"
        for claim in experiment.claims:
            assert not claim.again or f"{experiment.paper}/{claim.again}" in EXPERIMENTS, name
        key = experiment.paper, experiment.study.name
        assert studies.setdefault(key, experiment.study) is experiment.study  # they share a file


def test_options_that_count_are_integers_of_at_least_one() -> None:
    counts = {"seeds", "draws", "starts", "runs", "trials"}
    for experiment in EXPERIMENTS.values():
        for option in counts & set(experiment.study.options):
            for value in (0, 1.5, True, "many"):
                with pytest.raises(ValueError, match=f"{option} must be an integer of at least 1"):
                    experiment.study.cells("smoke", {option: value})


def test_committed_records_are_whole_free_of_paths_and_name_networks_that_there_are() -> None:
    """A network that is gone would change the cells of the plan, and run them again."""
    paths = {study_path(RESULTS, one.paper, one.study.name) for one in EXPERIMENTS.values()}
    models = set()
    for path in sorted(paths):
        text = path.read_text()
        assert len(text) < 5_000_000, path
        assert not any(trace in text for trace in ("/home/", "/root/", "/tmp/", "/Users/")), path
        cells = read_study(path).cells
        assert cells, path
        models |= {str(record["cell"].get("model")) for record in cells}
    for model in models:
        assert ":" not in model or callable(resolve(model)), model


@pytest.mark.parametrize("paper", PAPERS)
def test_committed_verdicts_and_pages_are_those_of_the_committed_records(paper: str) -> None:
    own = [one for one in committed() if one.experiment.paper == paper]
    again = "build it again with: python -m reproductions --report"
    assert (RESULTS / paper / "verdicts.json").read_text() == verdicts_text(own), again
    for outcome in own:
        if outcome.experiment.draw is not None:
            assert (RESULTS / outcome.figure).stat().st_size > 1000
    template = TEMPLATES / paper / "page.md"
    if template.is_file():
        page = (RESULTS / f"{paper}.md").read_text()
        assert page == page_text(template.read_text(), own), again
        assert "*Not run.*" not in page
        assert len(page.encode()) <= 25_000
        for outcome in own:
            assert f"{{{outcome.experiment.name}" in template.read_text(), (
                "an experiment is missing"
            )

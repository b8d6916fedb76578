"""What every experiment must offer, and what is committed under ``results/``."""

from functools import cache
from pathlib import Path

import pytest

from dissensus.tools.import_paths import resolve
from reproductions.old.base import PAPERS, SCALES, read_settings
from reproductions.old.page import Outcome, outcomes, page_text
from reproductions.old.registry import EXPERIMENTS
from reproductions.study import read_study, study_path

RESULTS = Path(__file__).parents[2] / "results"


def test_an_experiment_says_all_about_itself() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert name == experiment.full_name
        assert experiment.paper in PAPERS, name
        assert experiment.claims, name
        assert experiment.draw or experiment.table, name
        for scale in SCALES:
            assert len(experiment.setting[scale]) > 40, f"{name}: say what {scale} runs"
        for claim in experiment.claims:
            assert claim.text, name
            assert claim.where, name


@pytest.mark.parametrize("paper", sorted({one.paper for one in EXPERIMENTS.values()}))
def test_settings_are_of_studies_and_experiments_that_there_are(paper: str) -> None:
    own = [one for one in EXPERIMENTS.values() if one.paper == paper]
    texts = read_settings(paper)
    assert set(texts) >= {one.study.name for one in own}
    for study, titles in texts.items():
        readers = [one.name for one in own if one.study.name == study]
        added = {f"{scale}, {name}" for scale in SCALES for name in readers}
        assert set(titles) <= {*SCALES, *added}, study


def test_studies_of_one_name_are_one_study() -> None:
    """Their records share a file."""
    found = {(one.paper, one.study.name): one.study for one in EXPERIMENTS.values()}
    for one in EXPERIMENTS.values():
        assert found[one.paper, one.study.name] is one.study


def test_options_that_count_are_integers_of_at_least_one() -> None:
    counts = {"seeds", "draws", "starts", "runs", "trials"}
    for experiment in EXPERIMENTS.values():
        for option in counts & set(experiment.study.options):
            for value in (0, 1.5, True, "many"):
                with pytest.raises(ValueError, match=f"{option} must be an integer of at least 1"):
                    experiment.study.cells("smoke", {option: value})


def test_committed_records_are_whole_and_free_of_paths() -> None:
    paths = {study_path(RESULTS, one.paper, one.study.name) for one in EXPERIMENTS.values()}
    committed = [path for path in sorted(paths) if path.exists()]
    if not committed:
        pytest.skip("no records are committed")
    for path in committed:
        text = path.read_text()
        assert len(text) < 5_000_000, path
        for trace in ("/home/", "/root/", "/tmp/", "/Users/", "C:\\\\"):
            assert trace not in text, path
        assert read_study(path).cells, path


def test_committed_records_name_networks_that_there_are() -> None:
    """Else their cells differ from the plan, and would be run again."""
    paths = {study_path(RESULTS, one.paper, one.study.name) for one in EXPERIMENTS.values()}
    models = {
        str(record["cell"].get("model"))
        for path in sorted(paths)
        if path.exists()
        for record in read_study(path).cells
    }
    for model in models:
        assert ":" not in model or callable(resolve(model)), model


@cache
def committed() -> list[Outcome]:
    """The experiments with a record, judged once for all tests."""
    return outcomes(EXPERIMENTS.values(), RESULTS)


@pytest.mark.parametrize("paper", sorted({one.paper for one in EXPERIMENTS.values()}))
def test_the_committed_page_is_what_the_committed_records_say(paper: str) -> None:
    page = RESULTS / f"{paper}.md"
    found = [one for one in committed() if one.experiment.paper == paper]
    if not found:
        pytest.skip("no records are committed")
    assert page.read_text() == page_text(paper, found, EXPERIMENTS), (
        "build it again with: python -m reproductions --report"
    )
    for outcome in found:
        if outcome.drawable:
            name = f"{outcome.experiment.name}.svg"
            assert (RESULTS / paper / "figures" / name).stat().st_size > 1000

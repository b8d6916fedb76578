"""What every experiment must offer, and what is committed under ``results/``."""

from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from dissensus.tools.import_paths import resolve
from reproductions.base import CANNOT, PAPERS, SCALES, Finding, read_settings
from reproductions.overview import QUESTIONS, overview_text
from reproductions.page import Outcome, outcomes, page_text
from reproductions.registry import EXPERIMENTS
from reproductions.statistics import Effect, Estimate
from reproductions.studies import read_study, study_path

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


@pytest.mark.parametrize("paper", PAPERS)
def test_settings_are_of_studies_and_experiments_that_there_are(paper: str) -> None:
    own = [one for one in EXPERIMENTS.values() if one.paper == paper]
    texts = read_settings(paper)
    assert set(texts) == {one.study.name for one in own}
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
        assert read_study(path).records, path


def test_committed_records_name_networks_that_there_are() -> None:
    """Else their cells differ from the plan, and would be run again."""
    paths = {study_path(RESULTS, one.paper, one.study.name) for one in EXPERIMENTS.values()}
    models = {
        str(record["cell"].get("model"))
        for path in sorted(paths)
        if path.exists()
        for record in read_study(path).records
    }
    for model in models:
        assert ":" not in model or callable(resolve(model)), model


@cache
def committed() -> list[Outcome]:
    """The experiments with a record, judged once for all tests."""
    return outcomes(EXPERIMENTS.values(), RESULTS)


def test_the_overview_asks_about_claims_that_there_are() -> None:
    for paper, questions in QUESTIONS.items():
        assert len(questions) == 5
        for name, words in chain.from_iterable(questions.values()):
            claims = EXPERIMENTS[f"{paper}/{name}"].claims
            assert sum(claim.text.startswith(words) for claim in claims), (name, words)
    text = overview_text(committed())
    assert (RESULTS / "README.md").read_text() == text, "python -m reproductions --report"
    assert "no record of" not in text


def test_the_overview_begins_with_all_answers_in_one_table() -> None:
    text = overview_text(committed())
    table, below = text.split("## At a glance")[1].split("## How a claim is judged")
    rows = [line for line in table.splitlines() if "](#" in line]
    assert len(rows) == sum(map(len, QUESTIONS.values())) == 15
    for row, questions in zip(rows, chain.from_iterable(QUESTIONS.values()), strict=True):
        answer = below.split(f"### {questions}\n\n**")[1]
        verdict = answer.split(":**")[0].lower()
        assert row.split("|")[3].strip().split(",")[0] == f"**{verdict}**"


def test_of_many_cases_the_table_has_the_smallest_and_the_largest_effect() -> None:
    def row(*means: float) -> str:
        """The row of a question, from made-up effects of so many cases."""
        effects = {
            f"case{number}": Effect("gain", Estimate(mean, mean - 1, mean + 1, 5), "{:+.0f}")
            for number, mean in enumerate(means)
        }
        (one,) = (one for one in committed() if one.experiment.full_name == "ldr/detection")
        found = tuple((claim, Finding("holds", "", effects=effects)) for claim, _ in one.findings)
        return overview_text([replace(one, findings=found)]).split("(#does-ldr-with-pds")[1]

    assert "| gain: case1 +2 [+1, +3]; case0 +4 [+3, +5] |" in row(4, 2)
    assert "| gain: from case1 -3 [-4, -2] to case2 +7 [+6, +8], 3 cases |" in row(1, -3, 7)
    assert "| **holds** | – | [figure](ldr/figures/detection.svg) |" in row()


def test_claims_point_to_claims_about_larger_networks() -> None:
    pointers = 0
    for experiment in EXPERIMENTS.values():
        for name, words in filter(None, (claim.again for claim in experiment.claims)):
            claims = EXPERIMENTS[f"{experiment.paper}/{name}"].claims
            assert any(claim.text.startswith(words) for claim in claims), (name, words)
            pointers += 1
    assert pointers >= 10


def test_the_largest_runs_that_were_tested_answer_a_question() -> None:
    def answer(**verdicts: str) -> str:
        """The answer on label smoothing, from made-up findings on all claims of an experiment."""
        made_up = [
            replace(one, findings=tuple((c, Finding(verdict, name)) for c, _ in one.findings))
            for one in committed()
            if one.experiment.paper == "adp"
            for name, verdict in verdicts.items()
            if one.experiment.name == name.replace("_", "-")
        ]
        return overview_text(made_up).split("smoothing do?\n")[1].split("###")[0]

    both = answer(mnist="contradicted", white_box="holds")
    assert "- More: [mnist](adp.md#mnist)" in both
    assert both.count("- In [") == 1
    assert "- In [white-box](adp.md#white-box), **holds:** ADP₂,₀.₅ gains more than label" in both
    alone = answer(mnist=CANNOT, white_box="holds")
    assert "- More: [white-box](adp.md#white-box)" in alone
    assert "mnist" not in alone
    assert "(adp.md#mnist)" in answer(mnist=CANNOT, white_box=CANNOT)
    assert "no record of `resnet20` and `mnist` and `white-box`" in answer(theory="holds")


def test_the_outlook_counts_what_is_left_and_leaves_out_what_is_done() -> None:
    def rows(records: int) -> list[str]:
        """What is said of ``adp/resnet20`` if so many of its cells were done."""
        (one,) = (one for one in committed() if one.experiment.full_name == "adp/resnet20")
        plan = one.experiment.study.cells(one.record.scale, one.record.options)
        done = [{**one.record.records[0], "cell": cell} for cell in plan[:records]]
        text = overview_text([replace(one, record=replace(one.record, records=done))])
        assert "{" not in text
        return [line for line in text.splitlines() if "adp/resnet20 --jobs" in line]

    assert [row.split("(")[1] for row in rows(1) + rows(3)] == ["3 left) |", "1 left) |"]
    assert not rows(4)


def test_the_outlook_says_how_long_two_cores_take_for_what_is_left() -> None:
    (one,) = (one for one in committed() if one.experiment.full_name == "ldr/planted")
    plan = one.experiment.study.cells(one.record.scale, one.record.options)
    done = [{**one.record.records[0], "cell": cell, "seconds": 600.0} for cell in plan[:-12]]
    text = overview_text([replace(one, record=replace(one.record, records=done))])
    assert "| two cores: 1.0 h (12 cells left) |" in text  # 12 cells of 10 min, two at a time
    assert "| two cores: unknown (all and all cells left) |" in text  # adp's have no record here


@pytest.mark.parametrize("paper", PAPERS)
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

"""Verdicts, tables, pages and figures, from records alone; and the command that builds them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reproductions.__main__ import main
from reproductions.comparisons import Effect, Finding, found
from reproductions.experiment import Claim
from reproductions.page import (
    Outcome,
    outcomes,
    page_text,
    verdicts_text,
    write_figures,
    write_results,
)
from reproductions.statistics import CANNOT, Estimate, Judgement
from reproductions.study import run_study
from tests.reproductions.made_up import COINS, STUDY


def run_coins(out: Path, scale: str = "cpu", **options: float) -> list[Outcome]:
    run_study(STUDY, "collusion", scale, options, out, progress=False)
    return outcomes([COINS], out)


def with_findings(outcome: Outcome, *findings: Finding) -> list[Outcome]:
    """The outcome with made-up claims."""
    check = COINS.claims[0].check
    claims = ((Claim(f"claim {n}", "", check), one) for n, one in enumerate(findings))
    return [replace(outcome, findings=tuple(claims))]


def effect(mean: float, *sides: float, small: bool = False) -> Effect:
    judged = Judgement("holds", small=small)
    return Effect("share", Estimate(mean, mean - 0.1, mean + 0.1, 5), "{:.1f}", judged, sides)


def test_a_template_gets_tables_and_figures(tmp_path: Path) -> None:
    text = page_text("# Coins\n\n{coins}\n\nIn {braces}.\n\n{dice}\n", run_coins(tmp_path))
    header = "| claim | published | measured | verdict |"  # nothing is a difference
    assert text.startswith(f"# Coins\n\n{header}\n|---|---|---|---|\n")
    assert "| Heads \\| tails | 0.6 | 0.603 [0.584, 0.623] | holds |" in text
    assert "| *Ours:* Run 4 is there | – | 0.623 | holds; larger networks: [dice](#" in text
    assert "| run=4 | 0.623 |" in text
    assert "\n\n![Figure 0: Heads come up more often](collusion/figures/coins.svg)\n\n" in text
    assert text.endswith("In {braces}.\n\n*Not run.*\n")


def test_a_part_of_an_experiment_stands_alone(tmp_path: Path) -> None:
    results = run_coins(tmp_path)
    assert "Run 4" not in page_text("{coins.paper}", results)
    assert page_text("{coins.table}", results).startswith("| run | heads |")
    assert page_text("{coins.figure}", results).startswith("![")
    counts = page_text("{verdicts}", results)
    assert "| claims of the paper | 1 | 1 | 0 | 0 | 0 |" in counts
    assert "| questions of ours | 1 | 1 | 0 | 0 | 0 |" in counts
    assert "| [coins](collusion/coins.json) | cpu | 5 |" in page_text("{records}", results)


def test_effects_in_a_row(tmp_path: Path) -> None:
    def row(*effects: Effect) -> str:
        cases = {f"case{number}": one for number, one in enumerate(effects)}
        text = page_text("{coins.claims}", with_findings(outcome, Finding("holds", "", cases)))
        return text.splitlines()[-1].removeprefix("| claim 0 ")

    (outcome,) = run_coins(tmp_path)
    one, two = effect(0.5, 0.9, 0.4, small=True), effect(-0.2, 0.1, 0.3)
    assert row(two) == "| case0 0.1, 0.3 | -0.2 [-0.3, -0.1] | holds |"
    assert row(one, two) == (
        "| case0 0.9, 0.4; case1 0.1, 0.3 | case0 +0.5 [+0.4, +0.6]; case1 -0.2 [-0.3, -0.1] "
        "| holds, by less than half |"
    )
    span = "6 cases, from case5 -0.2 [-0.3, -0.1] to case4 +0.5 [+0.4, +0.6]"
    assert row(*[one] * 5, two) == f"| {span} | holds, by less than half |"
    assert row(*[effect(1.0)] * 5) == (
        "| 5 cases, from case0 1.0 [0.9, 1.1] to case4 1.0 [0.9, 1.1] | holds |"
    )


def test_verdicts_and_tables_can_be_looked_up(tmp_path: Path) -> None:
    results = run_coins(tmp_path)
    whole = json.loads(verdicts_text(results))["coins"]
    claim = whole["claims"]["Heads | tails"]
    assert (claim["verdict"], claim["published"], claim["ours"]) == ("holds", "0.6", False)
    assert claim["effects"][""] | {"low": 0, "high": 0} == {
        "quantity": "heads",
        "mean": 0.603333,
        "low": 0,
        "high": 0,
        "runs": 5,
        "sides": [],
        "verdict": "holds",
    }
    assert whole["table"]["run=4"]["heads"] == "0.623"
    single = replace(effect(1.0), estimate=Estimate(1.0, float("-inf"), float("inf"), 1))
    made = json.loads(verdicts_text(with_findings(results[0], found(single))))
    assert made["coins"]["claims"]["claim 0"]["effects"][""]["low"] is None


def test_results_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    results = run_coins(tmp_path)

    def build() -> dict[str, bytes]:
        paths = [*write_results(results, tmp_path), *write_figures(results, tmp_path)]
        return {path.name: path.read_bytes() for path in paths}

    first = build()
    assert {"verdicts.json", "coins.svg"} <= set(first)
    assert build() == first
    assert b"<dc:date>" not in first["coins.svg"]


def test_a_check_that_is_wrong_is_not_hidden_once_all_is_done(tmp_path: Path) -> None:
    (failed,) = run_coins(tmp_path / "failed", bias=13)
    assert [finding.verdict for _, finding in failed.findings] == [CANNOT, CANNOT]
    assert failed.findings[1][1].measured == "0 of 5 cells"
    with pytest.raises(IndexError):  # three runs: the second claim asks for a fifth
        run_coins(tmp_path, "smoke")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--list", "collusion/gat"], 0, "--set draws=: how many random draws"),
        ([], 1, "say what to reproduce"),
        (["colusion"], 1, "did you mean 'collusion'?"),
        (["collusion", "--figure", "x.svg"], 1, "--figure draws one experiment"),
    ],
)
def test_the_command(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    ended = stop.value.code  # a mistake is a sentence, with which Python exits as 1
    said = capsys.readouterr().out + (ended if isinstance(ended, str) else "")
    assert bool(ended) == bool(code)
    assert words in " ".join(said.split())


def test_the_command_runs_and_draws_an_experiment(tmp_path: Path) -> None:
    words = ["gat", "--scale", "smoke", "--set", "draws=2", "--out", str(tmp_path)]
    for more in ([], ["--figure", str(tmp_path / "gat.png")]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, *more])
    verdicts = json.loads((tmp_path / "collusion" / "verdicts.json").read_text())
    assert len(verdicts["gat"]["claims"]) == 11
    assert (tmp_path / "gat.png").stat().st_size > 1000

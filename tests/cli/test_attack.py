"""``dissensus attack``: the table, the record, and mistakes before any work."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dissensus as ds


def test_the_table_and_the_record(dissensus: Callable[..., Any], digits_run: Path) -> None:
    answer = dissensus(
        *("attack", digits_run, "--limit", 40, "--attacks", "fgsm:eps=0.1 pgd:eps=0.1,steps=5"),
        *("--attacks", "noise:eps=0.1"),
    )
    assert answer.status == 0, answer
    for text in ("the first 40 of test of digits", "fgsm:eps=0.1", "95% interval", "L∞"):
        assert text in answer.out
    assert "Worst case for each example, linf ε = 0.1:" in answer.out
    record = json.loads((digits_run / "robustness.json").read_text())
    assert record["format"] == "dissensus.robustness/1"
    texts = ["fgsm:eps=0.1", "pgd:eps=0.1,steps=5", "noise:eps=0.1"]
    assert [row["attack"] for row in record["attacks"]] == texts
    x, y = ds.data.load("digits").test
    found = ds.robustness.evaluate(
        ds.load(digits_run),
        x[:40],
        y[:40],
        texts,
        checks=False,
        progress=False,
    )
    assert record["worst_case"]["accuracy"] == found.accuracy.value
    assert record["environment"]["dissensus"] == ds.__version__


def test_json(dissensus: Callable[..., Any], digits_run: Path) -> None:
    options = ("--attacks", "fgsm:eps=0.2", "--limit", 10, "--split", "val", "--no-checks")
    answer = dissensus("attack", digits_run, *options, "--json")
    assert json.loads(answer.out)["evaluated_on"] == "the first 10 of val of digits"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "choose one of --attacks, --standard and --paper"),
        (["--standard", "--paper"], "choose one of --attacks, --standard and --paper"),
        (["--attacks", "fgsm pgd:step_size=3"], "pgd has no setting 'step_size'; did you mean"),
        (["--attacks", "fgsm", "--split", "tset"], "digits has no split 'tset'"),
    ],
)
def test_mistakes(
    mistake: Callable[..., str], digits_run: Path, arguments: list[str], sentence: str
) -> None:
    assert sentence in mistake("attack", digits_run, *arguments)


def test_values_and_tables_are_refused(mistake: Callable[..., str], diabetes_run: Path) -> None:
    sentence = mistake("attack", diabetes_run, "--attacks", "fgsm")
    assert "predicts values (combine='mean', regression)" in sentence


def test_attacks_are_listed(dissensus: Callable[..., Any]) -> None:
    answer = dissensus("attacks")
    assert answer.status == 0
    for name in ds.robustness.ATTACKS:
        assert name in answer.out

"""The sentences of the demo follow from its numbers."""

import io
from dataclasses import replace

import numpy as np
from rich.console import Console

from dissensus.demo.plan import CONTENDERS
from dissensus.demo.summary import ContenderResult, sentences, table
from dissensus.detection import Estimate
from dissensus.tools.console import InertConsole


def made_up(**changes: object) -> ContenderResult:
    """An unremarkable ensemble, but for ``changes``."""
    about = {
        "accuracy": Estimate(0.97, low=0.95, high=0.98),
        "member": Estimate(0.96, low=0.94, high=0.97),
        "held_out": Estimate(0.90, low=0.88, high=0.92),
        "corrupted": Estimate(0.80, low=0.77, high=0.83),
        "paper": Estimate(0.60, low=0.55, high=0.65),
        "strong": Estimate(0.45, low=0.40, high=0.50),
        "diversity": 0.01,
        "verdict": "healthy",
    }
    return ContenderResult(**(about | changes))  # type: ignore[arg-type]


def test_only_what_lies_apart_is_called_better_or_worse() -> None:
    plain = made_up()
    outcomes = {
        "independent": plain,
        "adp": made_up(
            paper=Estimate(0.72, low=0.66, high=0.78),  # apart: above
            held_out=Estimate(0.85, low=0.82, high=0.87),  # apart: below
            strong=Estimate(0.49, low=0.44, high=0.54),  # overlaps
        ),
        "ldr": made_up(),
    }
    first, adp, ldr = sentences(outcomes)
    assert first.startswith("independent: ")
    assert "The baseline: 97.0% accuracy" in first
    assert (
        "Better than independent members at resisting the paper's attack (72% against 60%)" in adp
    )
    assert "worse at detecting the held-out digits (0.85 against 0.90)" in adp
    assert "strong" not in adp
    assert "Not distinguishably better than independent members at anything measured here" in ldr
    assert not any("worse" in text for text in (first, ldr))


def test_collusion_is_told_with_its_numbers() -> None:
    joint = made_up(verdict="colluding", member=Estimate(0.31, low=0.2, high=0.4))
    said = sentences({"independent": made_up(), "joint": replace(joint, diversity=0.5)})
    assert "colluding. A single member reaches 31% instead of 96%, and DIV is 50.0 times" in said[1]


def test_the_table_has_every_number_with_its_interval_in_80_columns() -> None:
    console = InertConsole(width=80, record=True, file=io.StringIO())  # as the demo has it
    console.print(table({key: made_up() for key in CONTENDERS}))
    shown = console.export_text()
    assert not any(text in shown for text in ("…", "[dim]"))
    assert all(len(line) <= 80 for line in shown.splitlines())
    for text in ("97.0%", "95–98", "0.900", "0.88–0.92", "45.0%", "40–50", "healthy", "β = 0.5"):
        assert text in shown


def test_stars_mark_all_that_cannot_be_told_from_the_best_and_none_where_all_are() -> None:
    strong = {"independent": 0.475, "adp": 0.48, "ldr": 0.475}  # as equal as can be
    corrupted = {"independent": 0.85, "adp": 0.87, "ldr": 0.70}  # the last is worse
    outcomes = {
        key: made_up(
            strong=Estimate(strong[key], strong[key] - 0.07, strong[key] + 0.07),
            corrupted=Estimate(corrupted[key], corrupted[key] - 0.03, corrupted[key] + 0.03),
        )
        for key in strong
    }
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(outcomes))
    text = console.export_text()
    assert [f"*{value:.3f}" in text for value in corrupted.values()] == [True, True, False]
    assert "*48.0%" not in text
    console.print(table(outcomes | {"adp": replace(outcomes["adp"], verdict="colluding")}))
    assert "(*)0.870" in console.export_text()


def test_accuracies_are_compared_digit_by_digit() -> None:
    right = np.ones(400)
    worse = right.copy()
    worse[:12] = 0  # twelve digits that the other has right, so that the difference is sure
    outcomes = {
        "independent": made_up(correct=right, accuracy=Estimate(1.0, 0.97, 1.0)),
        "adp": made_up(correct=worse, accuracy=Estimate(0.97, 0.95, 0.985)),
    }
    assert "worse at accuracy (97% against 100%)" in sentences(outcomes)[1]
    alone = {key: replace(outcome, correct=None) for key, outcome in outcomes.items()}
    assert "worse" not in sentences(alone)[1]

"""Held-out classes: none is left in a split, all others are, and their numbers follow."""

import pytest
import torch

from dissensus import data
from dissensus.data import HELD_OUT, hold_out_classes


def test_every_row_is_either_kept_or_held_out() -> None:
    whole = data.load("digits", seed=3)
    part = data.load("digits", seed=3, hold_out="2,7")
    assert part.classes == ("0", "1", "3", "4", "5", "6", "8", "9")
    strange, labels = part.extra[HELD_OUT]
    assert labels is None
    held = 0
    for name, (x, y) in whole.splits().items():
        kept = (y != 2) & (y != 7)
        held += int((~kept).sum())
        inputs, targets = part.splits()[name]
        assert torch.equal(inputs, x[kept])
        # The same digit, by its name.
        assert [part.classes[i] for i in targets] == [whole.classes[i] for i in y[kept]]
        assert torch.equal(part.rows[name], whole.rows[name][kept])
    assert len(strange) == held
    assert "classes held out: 2, 7" in part.preprocessing["notes"]


def test_names_may_be_a_sequence_and_are_counted_once() -> None:
    wine = data.load("wine")
    assert hold_out_classes(wine, ["class_1", "class_1"]).classes == ("class_0", "class_2")


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("digits", "8,ten", "has no class 'ten'; it has 0, 1"),
        ("wine", ["class_0", "class_1"], "must leave at least two of 3 classes"),
        ("wine", [], "must leave at least two"),
        ("diabetes", "1", "is a regression"),
    ],
)
def test_what_cannot_be_held_out_is_said(name: str, classes: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.load(name, hold_out=classes)  # type: ignore[arg-type]

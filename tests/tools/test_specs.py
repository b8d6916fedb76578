"""Specs: one parser for every ``name:key=value``, one check of numbers, one suggestion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.tools.specs import (
    check_numbers,
    join_spec,
    number,
    parse_spec,
    read_settings,
    spec_of,
    split_spec,
)


@dataclass(frozen=True)
class Plain:
    rate: float = number(0.5, low=0.0, high=1.0, why="it is a share")
    count: int | None = number(None, low=1)
    width: float = number(1.0, above=0.0, always=True)
    flag: bool = False
    word: str = "a"
    shares: tuple[float, ...] | None = None
    rates: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class Wrapper:
    drop: float = number(0.2)
    thing: Plain | Wrapper = Plain()


THINGS: dict[str, type[Any]] = {"plain": Plain, "the_wrapper": Wrapper}

finite = st.floats(allow_nan=False, allow_infinity=False)
tuples = st.lists(finite, min_size=2, max_size=4).map(tuple)
plains = st.builds(
    Plain,
    st.floats(0, 1),
    st.none() | st.integers(1, 10**9),
    st.floats(0, 1e300, exclude_min=True),
    st.booleans(),
    st.sampled_from(["a", "some-word", "x_1"]),
    st.none() | tuples,
    finite | tuples,
)
things = st.recursive(plains, lambda inner: st.builds(Wrapper, finite, inner), max_leaves=3)


@given(things)
def test_every_object_comes_back_from_its_spec(thing: Any) -> None:
    text = spec_of(thing, THINGS, "thing")
    assert parse_spec(text, THINGS, "thing") == thing
    spaced = text.replace(",", " , ").replace("=", " = ").replace("/", " / ")
    assert parse_spec(f" {spaced} ", THINGS, "thing") == thing


def test_specs_by_hand() -> None:
    assert parse_spec("plain", THINGS, "thing") == Plain()
    assert parse_spec("The-Wrapper:drop=1/plain:rate=0,flag=True", THINGS, "thing") == Wrapper(
        1.0, Plain(rate=0.0, flag=True)
    )
    assert spec_of(Plain(rate=1.0), THINGS, "thing") == "plain:rate=1,width=1"
    assert spec_of(Plain(shares=(0.5, 1.0)), THINGS, "thing") == "plain:width=1,shares=0.5:1"
    assert split_spec(" Adam : lr = 1e-3 , eps=1 ") == ("adam", {"lr": "1e-3", "eps": "1"})
    assert join_spec("adam", {"lr": (0.1, 2.0), "amsgrad": False}) == "adam:lr=0.1/2,amsgrad=false"
    known = ["shares", "rates"]
    assert read_settings("p", {"shares": "1"}, Plain, known) == {"shares": (1.0,)}
    assert read_settings("p", {"rates": "1"}, Plain, known) == {"rates": 1.0}
    assert read_settings("p", {"rates": "1/2"}, Plain, known) == {"rates": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plian", r"there is no thing 'plian'; did you mean 'plain'\?"),
        ("", "there is no thing ''; known are plain, the_wrapper"),
        ("plain:rat=1", r"plain has no setting 'rat'; did you mean 'rate'\?"),
        ("the_wrapper:thing=plain", r"the_wrapper has no setting 'thing'; known are drop"),
        ("plain:rate", "plain: expected key=value, got 'rate'"),
        ("plain:rate=1,rate=1", "plain: 'rate' is given twice"),
        ("plain:rate=fast", "plain: rate must be a number, got 'fast'"),
        ("plain:count=1.5", "plain: count must be an integer, got '1.5'"),
        ("plain:flag=1", "plain: flag must be true or false, got '1'"),
        ("plain:shares=0.5:x", "plain: shares must be numbers with ':' between them, got '0.5:x'"),
        ("plain/plain", "'plain' wraps no other thing; drop '/plain'"),
        ("the_wrapper/plane", r"no thing 'plane'; did you mean 'plain'\?"),
        ("plain:rate=2", r"Plain: rate must be a finite number in \[0, 1\], got 2.0; it is a sha"),
        ("plain:rate=nan", "Plain: rate must be a finite number"),
        ("plain:count=0", "Plain: count must be an integer of at least 1, got 0"),
        ("plain:width=0", "Plain: width must be a finite number greater than 0, got 0.0"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_spec(text, THINGS, "thing")


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None, "0.5", [0.5]])
def test_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="rate must be a finite number"):
        Plain(rate=value)

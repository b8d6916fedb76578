"""Grids as they are typed: exact decimals, products, and mistakes that name what was meant."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.sweeps import Plan
from dissensus.sweeps.cells import check_cells
from dissensus.sweeps.grid import file_name, format_value, label, parse_axis
from dissensus.sweeps.plan import with_point

Sections = dict[str, dict[str, Any]]


def sections(**changes: Any) -> Sections:
    found: Sections = {
        "data": {"name": "wine", "val": 0.2, "seed": 0},
        "model": {"name": "mlp"},
        "ensemble": {"members": 3, "execution": "auto"},
        "training": {"objective": "augmented", "optimizer": "adam", "seed": 0, "epochs": 2},
    }
    for section, values in changes.items():
        found[section] = {**found.get(section, {}), **values}
    return found


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("beta=0.7:1:0.15", [0.7, 0.85, 1.0]),
        ("beta=0:0.2:0.1,0.9:1:0.05", [0.0, 0.1, 0.2, 0.9, 0.95, 1.0]),
        ("members=5:20:5", [5, 10, 15, 20]),
        ("lr=1e-3:3e-3:1e-3", [0.001, 0.002, 0.003]),
        ("model.hidden=30/30,20", [[30, 30], 20]),
        ("objective=independent,augmented:beta=0.5", ["independent", "augmented:beta=0.5"]),
        ("others-only=true,false", [True, False]),
    ],
)
def test_values_are_exactly_what_was_typed(text: str, values: list[Any]) -> None:
    _, found = parse_axis(text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 99), st.integers(0, 6))
def test_a_range_is_that_of_decimal_arithmetic(
    start: int, steps: int, step: int, digits: int
) -> None:
    unit = Decimal(1).scaleb(-digits)
    first, width = start * unit, step * unit
    last = first + steps * width
    _, found = parse_axis(f"x={first:f}:{last:f}:{width:f}")
    assert len(found) == steps + 1
    for place, value in enumerate(found):
        assert value == float(f"{first + place * width:f}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("beta", "key=value,value,… or key=start:stop:step, got 'beta'"),
        ("beta=0,,1", "key=value"),
        ("beta=0:1:0", "the range 0:1:0 leads nowhere"),
        ("beta=0:1:1e-9", "values, over 10000"),
        ("beta=0,0.5,0", "beta: 0 is given twice"),
        ("lr=nan", "must be finite, got nan"),
    ],
)
def test_a_slip_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="--grid") as caught:
        parse_axis(text)
    assert sentence in str(caught.value)


def test_what_is_written_is_read_back() -> None:
    for value in (0.1, 2, 1e-05, True, [30, 20], "a2d"):
        assert parse_axis(f"x={format_value(value)}")[1] == [value]
    assert label({"beta": 0.1, "model.hidden": [3, 4]}) == "beta=0.1, model.hidden=3/4"
    assert label({}) == "as given"


def test_every_point_has_a_file_name_of_its_own() -> None:
    texts = ["augmented:beta=0.1", "augmented-beta=0.1", "x" * 200 + "a", "x" * 200 + "b"]
    names = [file_name({"objective": text}, repeat) for text in texts for repeat in (0, 1)]
    check_cells([{"name": name} for name in names])  # safe and different


# ---- where values go ----------------------------------------------------------------------------


def test_a_point_goes_to_objective_optimiser_options_and_model() -> None:
    asked = sections(training={"objective": "learner_dropout:drop=0.4/augmented:beta=0.9"})
    point = {"beta": 0.25, "drop": 0.5, "lr": 0.01, "weight_decay": 0.1}
    found = with_point(asked, point | {"batch_size": 16, "members": 7, "model.hidden": [4, 4]})
    assert found["training"]["objective"] == "learner_dropout:drop=0.5/augmented:beta=0.25"
    assert found["training"]["optimizer"] == "adam:lr=0.01,weight_decay=0.1"
    assert (found["training"]["batch_size"], found["ensemble"]["members"]) == (16, 7)
    assert found["model_options"] == {"hidden": [4, 4]}
    assert asked["ensemble"]["members"] == 3
    assert "model_options" not in asked
    given = sections(training={"optimizer": "sgd:lr=0.5,momentum=0.8"})
    found = with_point(given, {"lr": [0.1, 0.2, 0.3], "objective": "adp:beta=2", "beta": 1.5})
    assert found["training"]["optimizer"] == "sgd:momentum=0.8,lr=0.1/0.2/0.3"
    assert found["training"]["objective"] == "adp:beta=1.5"


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ({"betta": [0.1]}, "--grid cannot vary 'betta'; did you mean 'beta'?"),
        ({"model.hiden": [8]}, "did you mean 'model.hidden'?"),
        ({"seed": [1, 2]}, "use --repeats"),
        ({"objective": ["joint", "adp"], "alpha": [1]}, "'alpha' with objective 'joint'"),
        ({"beta": [0.5, 1.5]}, "Augmented: beta must be a finite number in [0, 1], got 1.5"),
        ({"momentum": [0.9]}, "adam has no setting 'momentum'"),
        ({"batch_size": [8]}, "batch_size is both in --grid and in --search"),
    ],
)
def test_a_plan_refuses_what_cannot_be_varied(grid: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (compared below, with its brackets)
        Plan(sections(), grid, space={"batch_size": [16]})
    assert sentence in str(caught.value)


def test_every_seed_moves_with_the_repeat() -> None:
    plan = Plan(sections(data={"seed": 5}, training={"seed": 2}), {"beta": [0.0, 1.0]}, repeats=2)
    cells = plan.cells("regression")
    names = [f"beta={beta}+repeat={repeat}" for repeat in (0, 1) for beta in (0, 1)]
    assert [cell["name"] for cell in cells] == names
    config = cells[3]["config"]
    seeds = [config[section]["seed"] for section in ("data", "training", "ensemble")]
    assert seeds == [6, 3, 3]
    assert config["training"]["objective"].startswith("augmented:")
    assert "loss=mse" in config["training"]["objective"]
    fixed = Plan(sections(ensemble={"seed": 7}), repeats=2).cells("regression")
    assert [cell["config"]["ensemble"]["seed"] for cell in fixed] == [7, 8]

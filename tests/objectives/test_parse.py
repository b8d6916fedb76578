"""``parse`` and ``spec``: objectives from strings and back (the syntax is ``test_specs``'s)."""

import math
from dataclasses import FrozenInstanceError, fields

import pytest

from dissensus.objectives import (
    A2D,
    ADP,
    GNCL,
    LDR,
    OBJECTIVES,
    Augmented,
    DivDis,
    GradientAdjustedTargets,
    Joint,
    LearnerDropout,
    Objective,
    Sequential,
    parse,
    spec,
)
from tests.objectives.cases import CASES

WRITTEN = [
    *(case.objective for case in CASES),
    ADP(1e-7, 123456.789, 1e6),
    DivDis(0.1, prior=(1 / 3, 2 / 3)),
    GNCL(1.0, combine="probability"),
    GradientAdjustedTargets(1 / 3, others_only=True, detach=True),
    LDR(2.5, active=7, regularizer="jsd", label_smoothing=0.1),
    LearnerDropout(0.25, LearnerDropout(objective=Joint(label_smoothing=0.1))),
    Sequential(3, A2D(0.1)),
]


@pytest.mark.parametrize("objective", WRITTEN, ids=repr)
def test_every_objective_comes_back_from_its_string(objective: Objective) -> None:
    text = objective.spec()
    assert OBJECTIVES[text.partition("/")[0].partition(":")[0]] is type(objective)
    again = parse(text)
    assert type(again) is type(objective)
    assert again == objective
    assert spec(again) == text
    assert parse(f"  {text.replace(',', ' , ').replace('=', ' = ')} ") == objective


@pytest.mark.parametrize("name", OBJECTIVES)
def test_defaults_have_the_shortest_string_and_are_frozen(name: str) -> None:
    default = OBJECTIVES[name]()
    inner = {"learner_dropout": "/joint", "sequential": "/a2d"}.get(name, "")
    assert spec(default) == name + inner
    assert parse(name) == parse(name.upper()) == parse(name.replace("_", "-")) == default
    assert hash(default) == hash(parse(name))
    first = fields(default)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(default, first, 0.3)


def test_strings_by_hand() -> None:
    assert parse("augmented:beta=0.5,loss=mse") == Augmented(0.5, loss="mse")
    assert parse("ldr:strength=2,active=none") == LDR(2.0, active=None)
    assert parse("gat:alpha=2,others_only=TRUE,detach=false") == GradientAdjustedTargets(2.0, True)
    assert parse("divdis:prior=0.25:0.75") == DivDis(prior=(0.25, 0.75))
    assert parse("sequential:stage=2/a2d:strength=0.1") == Sequential(2, A2D(0.1))
    assert parse("learner_dropout:drop=0.4/learner_dropout/adp:alpha=1") == LearnerDropout(
        0.4, LearnerDropout(objective=ADP(1.0))
    )
    assert spec(LearnerDropout(0.25, Augmented(0.9, loss="mse"))) == (
        "learner_dropout:drop=0.25/augmented:loss=mse,combine=mean,beta=0.9"
    )
    assert spec(ADP(alpha=1e-7)) == "adp:alpha=1e-07"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agmented:beta=0.5", r"there is no objective 'agmented'; did you mean 'augmented'\?"),
        ("qqq", r"no objective 'qqq'; known are independent, joint, .*, sequential"),
        ("adp:aplha=2", r"adp has no setting 'aplha'; did you mean 'alpha'\?"),
        ("learner_dropout:objective=joint", "no setting 'objective'; known are drop"),
        ("ldr:regulariser=a2d", r"no setting 'regulariser'; did you mean 'regularizer'\?"),
        ("divdis:prior=0.5:x", "prior must be numbers with ':' between them, got '0.5:x'"),
        ("divdis:prior=0.5:0.2", r"prior must be .* sum to 1, got \(0.5, 0.2\)"),
        ("adp/joint", "'adp' wraps no other objective; drop '/joint'"),
        ("learner_dropout/jiont", r"no objective 'jiont'; did you mean 'joint'\?"),
        ("sequential:stage=1/joint", "Sequential: objective must be A2D, got Joint"),
        ("augmented:beta=1.2", "beta must be a finite number in .*Theorem 5.1"),
        ("joint:loss=hinge", "loss must be one of .* got 'hinge'"),
        ("ldr:regularizer=kl", "regularizer must be one of"),
    ],
)
def test_bad_strings_say_what_to_do(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def numbers() -> list[tuple[str, str]]:
    """Every numeric setting of every objective."""
    return [
        (name, item.name)
        for name, kind in OBJECTIVES.items()
        for item in fields(kind)
        if "low" in item.metadata
    ]


def test_every_hyperparameter_is_a_declared_number() -> None:
    for name, kind in OBJECTIVES.items():
        assert {(name, key) for key in kind.hyperparameters} <= set(numbers())


@pytest.mark.parametrize(("name", "key"), numbers())
def test_non_finite_numbers_and_booleans_are_refused(name: str, key: str) -> None:
    kind = OBJECTIVES[name]
    none = () if key == "active" else (None,)  # None: all members
    for bad in (math.nan, math.inf, -math.inf, True, False, "0.5", 1 + 0j, [0.5], *none):
        with pytest.raises(ValueError, match=rf"{kind.__name__}: {key} must be an? .*, got"):
            kind(**{key: bad})
    if key not in ("stage", "active"):  # integers
        for text in ("nan", "inf", "-inf"):
            with pytest.raises(
                ValueError, match=rf"{key} must be a finite number.*, got -?{text[-3:]}"
            ):
                parse(f"{name}:{key}={text}")

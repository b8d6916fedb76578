"""``parse`` and ``spec``: objectives from strings and back (the syntax is ``test_specs``'s)."""

import math
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus.objectives import (
    A2D,
    ADP,
    GNCL,
    JSD,
    LDR,
    NCL,
    OBJECTIVES,
    Augmented,
    DivDis,
    Gaussian,
    GradientAdjustedTargets,
    Independent,
    Joint,
    LearnerDropout,
    Objective,
    Repulsion,
    Sequential,
    parse,
    spec,
)

share = st.floats(0, 1)
positive = st.floats(0, 1e6)
truth = st.booleans()
combinations = st.sampled_from(
    [
        {"loss": "cross_entropy", "combine": None},
        {"loss": "cross_entropy", "combine": "score"},
        {"loss": "brier"},
        {"loss": "brier", "combine": "score"},
        {"loss": "mse"},
    ]
)
smoothed = st.builds(lambda s: {"label_smoothing": s}, share)
priors = st.lists(st.floats(0.01, 1), min_size=2, max_size=5).map(
    lambda values: tuple(value / sum(values) for value in values)
)


def interpolated(kind: type[Objective], **settings: object) -> st.SearchStrategy[Objective]:
    return st.builds(
        lambda extra, **rest: kind(**extra, **rest), st.one_of(combinations, smoothed), **settings
    )


plain: dict[str, st.SearchStrategy[Objective]] = {
    "independent": interpolated(Independent),
    "joint": interpolated(Joint),
    "augmented": interpolated(Augmented, beta=share),
    "gat": st.builds(GradientAdjustedTargets, positive, truth, truth),
    "ncl": st.builds(NCL, share, loss=st.sampled_from(["mse", "brier"])),
    "gncl": st.builds(
        lambda strength, extra: GNCL(strength, **extra),
        share,
        st.sampled_from([{}, {"combine": "probability"}, {"loss": "mse"}]),
    ),
    "gaussian": st.builds(Gaussian, share),
    "adp": st.builds(ADP, positive, positive, st.floats(1e-6, 1e6)),
    "jsd": st.builds(JSD, positive),
    "a2d": st.builds(A2D, positive, share),
    "repulsion": st.builds(Repulsion, positive, st.floats(1e-3, 1e3)),
    "divdis": st.builds(DivDis, positive, positive, st.one_of(st.none(), priors)),
    "ldr": st.builds(
        LDR,
        positive,
        st.one_of(st.none(), st.integers(1, 1000)),
        st.sampled_from(["a2d", "divdis", "jsd"]),
        share,
    ),
}
wrapped = {
    "learner_dropout": st.builds(LearnerDropout, share, st.one_of(*plain.values())),
    "sequential": st.builds(Sequential, st.integers(0, 100), plain["a2d"]),
}
strategies = {**plain, **wrapped}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_comes_back_from_its_string(name: str) -> None:
    @settings(max_examples=40)
    @given(strategies[name])
    def round_trip(objective: Objective) -> None:
        assert type(objective) is OBJECTIVES[name]
        text = objective.spec()
        assert text.partition("/")[0].partition(":")[0] == name
        again = parse(text)
        assert type(again) is type(objective)
        assert again == objective
        assert spec(again) == text
        assert parse(f"  {text.replace(',', ' , ').replace('=', ' = ')} ") == objective

    round_trip()


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

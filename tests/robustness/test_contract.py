"""What holds for every attack, one line of settings each."""

import re

import pytest
import torch

import dissensus as ds
from dissensus.robustness import ATTACKS, Outcome, attack, parse

from .conftest import Problem

CASES = {
    "fgsm": "fgsm:eps=0.15",
    "bim": "bim:eps=0.15",
    "pgd": "pgd:eps=0.15,steps=10,restarts=2",
    "mim": "mim:eps=0.15",
    "jsma": "jsma:gamma=0.3,direction=both",
    "cw": "cw:steps=30,searches=3,c=1,lr=0.1",
    "ead": "ead:steps=30,searches=3,c=1",
    "reweighted": "reweighted:eps=0.15,steps=10",
    "disguised": "disguised:eps=0.15,steps=10",
    "square": "square:eps=0.2,queries=100",
    "noise": "noise:eps=0.3",
    "autoattack": "autoattack:eps=0.15,steps=5,queries=5",
}
IN_L2 = [
    "fgsm:eps=1,norm=l2",
    "bim:eps=1,norm=l2",
    "pgd:eps=1,norm=l2,steps=10",
    "mim:eps=1,norm=l2",
    "reweighted:eps=1,norm=l2,steps=10",
    "disguised:eps=1,norm=l2,steps=10",
    "square:eps=1,norm=l2,queries=100",
    "noise:eps=3,norm=l2",
]
EVERY = [*CASES.values(), *IN_L2]


@pytest.fixture(autouse=True)
def _only_what_is_installed(request: pytest.FixtureRequest) -> None:
    values = getattr(request.node, "callspec", None)
    if values is not None and str(values.params.get("text", "")).startswith("autoattack"):
        pytest.importorskip("pyautoattack")


def run(problem: Problem, text: str, examples: int = 40, **options: object) -> Outcome:
    x, y = problem.x[:examples], problem.y[:examples]
    return attack(problem.ens, x, y, text, progress=False, **options)  # type: ignore[arg-type]


def test_every_attack_has_a_case() -> None:
    assert CASES.keys() == ATTACKS.keys()
    for name, text in CASES.items():
        assert text.partition(":")[0] == name


@pytest.mark.parametrize("text", EVERY)
def test_it_keeps_its_word_and_lowers_the_accuracy(problem: Problem, text: str) -> None:
    """Range, ε, finiteness and success, each computed here from the returned inputs alone."""
    found = run(problem, text)
    x, points = problem.x[:40], found.adversarial
    assert torch.equal(points, run(problem, text).adversarial), "the seed decides"
    assert points.shape == x.shape
    assert points.dtype == x.dtype
    assert bool(points.isfinite().all())
    assert 0 <= float(points.min()) <= float(points.max()) <= 1
    moved = (points - x).flatten(1).double()
    budget = parse(text).budget()
    if budget is not None:
        size = moved.abs().amax(1) if budget[0] == "linf" else moved.square().sum(1).sqrt()
        assert float(size.max()) <= budget[1] + 1e-6
    assert torch.equal(found.broken, problem.ens.predict(points).argmax(1) != problem.y[:40])
    assert found.accuracy < found.clean_accuracy - 0.1
    torch.testing.assert_close(found.distances["l1"], moved.abs().sum(1))
    torch.testing.assert_close(found.distances["l0"], (moved != 0).sum(1).double())
    # What was wrong from the start is left alone.
    wrong = found.clean_predictions != found.labels
    assert float(moved[wrong].abs().sum()) == 0
    if "autoattack" in text:
        return
    # In batches the same examples are broken, but for one on the edge, where rounding may decide.
    parts = run(problem, text, batch_size=25)
    assert int((found.broken != parts.broken).sum()) <= 1
    near = (points - parts.adversarial).flatten(1).abs().amax(1) < 1e-3
    assert int(near.sum()) >= 38


@pytest.mark.parametrize("text", EVERY)
def test_one_member_and_one_example(problem: Problem, text: str) -> None:
    if "disguised" in text:
        text += ",score=bma"  # one member has no ensemble diversity to speak of
    text = text.replace("eps=0.15", "eps=0.4")  # some return what they could not break as it was
    alone = ds.Ensemble.from_members([problem.ens.member(1)]).eval()
    right = int((alone.predict(problem.x).argmax(1) == problem.y).nonzero()[0])
    x, y = problem.x[right : right + 1], problem.y[right : right + 1]
    found = attack(alone, x, y, text, progress=False)
    assert found.adversarial.shape == x.shape
    assert not torch.equal(found.adversarial, x)


@pytest.mark.parametrize("text", CASES.values())
def test_double_precision(problem: Problem, text: str) -> None:
    exact = ds.Ensemble.from_members([problem.ens.member(j) for j in range(3)]).double().eval()
    found = attack(exact, problem.x[:10].double(), problem.y[:10], text, progress=False)
    assert found.adversarial.dtype == torch.float64
    assert found.accuracy < found.clean_accuracy


def test_a_spec_comes_back() -> None:
    for text in EVERY:
        chosen = parse(text)
        assert parse(chosen.spec()) == chosen
        assert parse(text.partition(":")[0]) == type(chosen)()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pdg:eps=0.1", "there is no attack 'pdg'; did you mean 'pgd'?"),
        ("pgd:esp=0.1", "pgd has no setting 'esp'; did you mean 'eps'?"),
        ("pgd:eps=0", "PGD: eps must be a finite number greater than 0, got 0.0"),
        ("pgd:steps=0", "PGD: steps must be an integer of at least 1, got 0"),
        ("pgd:norm=l1", "PGD: norm must be one of linf, l2, got 'l1'"),
        ("pgd:loss=kl", "PGD: loss must be one of ce, margin, dlr, got 'kl'"),
        ("pgd:schedule=step", "PGD: schedule must be one of constant, linear, cosine, got 'step'"),
        ("bim:of=everyone", "BIM: of must be one of ensemble, members, got 'everyone'"),
        ("reweighted:loss=margin", "reweighted has no setting 'loss'"),
        ("disguised:of=members", "disguised has no setting 'of'"),
        ("jsma:variant=original,direction=up", "variant=original only lowers entries"),
        ("ead:rule=l0", "EAD: rule must be one of en, l1, l2, got 'l0'"),
        ("disguised:score=unique", "Disguised: score must be one of pds"),
    ],
)
def test_mistakes_are_told(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse(text)

"""Transfer matrices: against a loop over pairs, and as many attacks as members."""

import pytest
import torch

import dissensus as ds
from dissensus.robustness import attack, transfer, transfer_between

from .conftest import Problem

ATTACK = "pgd:eps=0.1,steps=10"


@pytest.mark.parametrize("how", [ATTACK, "mim:eps=0.1"])
@pytest.mark.parametrize("targeted", [False, True])
def test_it_equals_a_loop_over_pairs(problem: Problem, targeted: bool, how: str) -> None:
    ens, x, y = problem
    found = transfer(ens, x, y, how, targeted, progress=False)
    text = how + ",early=false" + (",targeted=true" if targeted else "")
    for i in range(3):
        source = ds.Ensemble.from_members([ens.member(i)]).eval()
        made = attack(source, x, y, text, progress=False)
        goal = y if made.targets is None else made.targets
        for j in range(3):
            predicted = ens.member(j)(made.adversarial).argmax(-1)
            expected = float((predicted == goal).double().mean())
            assert float(found[i, j]) == pytest.approx(expected, abs=0.011)
    own, others = found.diagonal().mean(), (found.sum() - found.trace()) / 6
    assert own > others if targeted else own < others


def test_to_another_ensemble(problem: Problem) -> None:
    ens, x, y = problem
    pair = ens.select([2, 0]).eval()
    own = transfer(ens, x, y, ATTACK, progress=False)
    there = transfer(ens, x, y, ATTACK, to=pair, progress=False)
    torch.testing.assert_close(there, own[:, [2, 0]])


def test_between_ensembles(problem: Problem) -> None:
    ens, x, y = problem
    parts = {"all": ens, "one": ens.select([0]).eval()}
    found = transfer_between(parts, x, y, ATTACK, progress=False)
    for i, source in enumerate(parts.values()):
        made = attack(source, x, y, ATTACK + ",early=false", progress=False)
        for j, receiver in enumerate(parts.values()):
            right = receiver.predict(made.adversarial).argmax(1) == y
            assert float(found[i, j]) == pytest.approx(float(right.double().mean()))
    aimed = transfer_between([ens, ens], x, y, ATTACK, targeted=True, progress=False)
    assert float((aimed - aimed[0, 0]).abs().max()) < 0.011


def test_mistakes(problem: Problem) -> None:
    with pytest.raises(ValueError, match="cannot be targeted; use pgd or mim"):
        transfer(*problem, "autoattack", targeted=True, progress=False)
    with pytest.raises(ValueError, match="at least one ensemble, got none"):
        transfer_between({}, problem.x, problem.y, progress=False)

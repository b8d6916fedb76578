"""Transfer matrices: against a loop over pairs, and as many attacks as members."""

import sys

import pytest
import torch

import dissensus as ds
from dissensus.robustness import attack, transfer
from dissensus.robustness.outcome import run

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


def test_each_member_is_attacked_once(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[transfer.__module__]
    attacked: list[object] = []

    def counted(*arguments: object, **options: object) -> object:
        attacked.append(options["members"])
        return run(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "run", counted)
    transfer(*problem, ATTACK, progress=False)
    assert attacked == [[0], [1], [2]]


def test_to_another_ensemble(problem: Problem) -> None:
    ens, x, y = problem
    pair = ens.select([2, 0]).eval()
    own = transfer(ens, x, y, ATTACK, progress=False)
    there = transfer(ens, x, y, ATTACK, to=pair, progress=False)
    torch.testing.assert_close(there, own[:, [2, 0]])


def test_mistakes(problem: Problem) -> None:
    with pytest.raises(ValueError, match="cannot be targeted; use pgd or mim"):
        transfer(*problem, "autoattack", targeted=True, progress=False)

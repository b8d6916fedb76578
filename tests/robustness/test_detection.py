"""Detection of adversarial inputs, and what an attack that knows of the detector leaves of it."""

import pytest

import dissensus as ds
from dissensus.robustness import attack, detect

from .conftest import Problem


def test_figures_are_those_of_the_scores(problem: Problem) -> None:
    ens, x, y = problem
    found = detect(ens, x, y, "pgd:eps=0.15,steps=10", adaptive=(), bootstrap=0, progress=False)
    made = attack(ens, x, y, "pgd:eps=0.15,steps=10,early=false", progress=False)
    clean, changed = ens(x).detach(), ens(made.adversarial[made.moved]).detach()
    assert found.adversarial == int(made.moved.sum())
    assert set(found.plain) == set(ds.scores.score_all(clean))
    for name in ("ensemble_diversity", "pds", "entropy"):
        score = ds.scores.SCORES[name]
        expected = ds.detection.evaluate(score(clean), score(changed), bootstrap=0)
        assert found.plain[name].auroc.value == pytest.approx(expected.auroc.value, abs=1e-3)
        assert len(found.curves[name].thresholds) > 2


def test_an_adaptive_attack_is_harder_to_detect(problem: Problem) -> None:
    found = detect(
        *problem,
        "pgd:eps=0.25,steps=20",
        scores=["entropy", "ensemble_diversity"],
        adaptive="all",
        bootstrap=0,
        progress=False,
    )
    assert set(found.adaptive) == {"entropy", "ensemble_diversity"}
    diversity = "ensemble_diversity"
    assert found.adaptive[diversity].auroc < found.plain[diversity].auroc
    assert min(found.adaptive_adversarial.values()) > 50
    row = next(row for row in found.to_rows() if row["score"] == "entropy")
    assert row["plain_auroc"] == found.plain["entropy"].auroc.value
    assert row["adaptive_auroc"] == found.adaptive["entropy"].auroc.value


def test_mistakes(problem: Problem) -> None:
    with pytest.raises(ValueError, match="broke none of"):
        detect(*problem, "fgsm:eps=1e-6", adaptive=(), progress=False)
    with pytest.raises(ValueError, match="adaptive names 'pds', which is not among the scores"):
        detect(*problem, scores=["bma"], adaptive=["pds"], progress=False)
    with pytest.raises(ValueError, match="has no ε that an adaptive attack could share"):
        detect(*problem, "cw:steps=1", progress=False)

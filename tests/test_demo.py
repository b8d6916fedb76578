"""The demo runs from end to end and its words follow from its numbers."""

import pytest

from dissensus.demo import CONTENDERS, run


def test_the_demo_shows_collusion(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = run(epochs=12)
    assert list(outcomes) == list(CONTENDERS)
    alone, joint = outcomes["independent"], outcomes["joint"]
    assert alone.accuracy > 0.85
    # Training the average: members that are much worse alone, and diversity out of proportion.
    assert joint.member_accuracy < alone.member_accuracy - 0.1
    assert joint.diversity > 5 * alone.diversity
    assert (alone.verdict, joint.verdict) == ("healthy", "colluding")
    for outcome in outcomes.values():
        assert 0 <= outcome.offset_share <= 1
        assert outcome.auroc_pds.low <= outcome.auroc_pds <= outcome.auroc_pds.high
    shown = capsys.readouterr().out
    best = max(outcomes, key=lambda name: outcomes[name].auroc_pds)
    assert f"best by {best}" in " ".join(shown.split())
    assert f"{outcomes['ADP'].accuracy:.1%}" in shown

"""The short part of the counted suite, and its page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hardening import calls, estimator_calls, page, record


def test_calls_with_bad_arguments() -> None:
    problems = [calls.failure(case) for case in calls.cases(1, 150) if case.name != "ds.fit"]
    assert not list(filter(None, problems))


def test_estimators_with_bad_arguments() -> None:
    problems = [estimator_calls.failure(name, call) for name, call in estimator_calls.cases(1, 40)]
    assert not list(filter(None, problems))


def test_every_public_function_takes_part() -> None:
    """Its parameters all have values to be spoilt."""
    assert len(calls.functions()) > 100


def test_a_raw_error_and_a_silent_nan_count() -> None:
    def raw(outputs: object) -> None:
        raise RuntimeError("expected scalar type Float")

    def silent(outputs: object) -> float:
        return float("nan")

    for function in (raw, silent):
        assert calls.failure(calls.Case(function.__name__, function, {"outputs": 1}))


@pytest.mark.fuzz
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["train", "sweep", "features", "torchrun"])
def test_killed_processes_end_with_the_same_bytes(kind: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.hardening.kills", kind, "5", str(tmp_path)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=900,
        cwd=page.FILE.parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["tries"] == 5
    assert not counts["failures"]


def test_the_page_is_that_of_the_record_which_has_no_failure() -> None:
    counts = record.read()
    assert set(counts) == set(page.MEANING)
    assert not [name for name, own in counts.items() if own["failures"]]
    assert page.FILE.read_text(encoding="utf-8") == page.build(counts)

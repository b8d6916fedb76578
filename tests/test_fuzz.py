"""The fuzz program: a few cases of each family, and the page that shows its record."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz import api_calls
from tools.fuzz.__main__ import FAMILIES, RECORD, ROOT, count

CALLS = [name for name, family in FAMILIES.items() if family.limited]
PROCESSES = [name for name, family in FAMILIES.items() if not family.limited]


@pytest.mark.parametrize("name", CALLS)
def test_a_few_cases_of_each_family(name: str, tmp_path: Path) -> None:
    cases = {"API calls": 150, "hostile files": 250, "damaged files": 70}.get(name, 20)
    tries, failures = count(FAMILIES[name].cases(tmp_path, cases), seconds=0)
    assert tries == cases
    assert not failures


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", PROCESSES)
def test_two_cases_of_each_family_of_processes(name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tools.fuzz", name, "--cases", "2", "--in", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=ROOT, check=True)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert (counts["tries"], counts["first"]) == (2, [])


def test_every_public_function_takes_part() -> None:
    """Its parameters all have values to be spoilt."""
    functions = api_calls.functions()
    assert len(functions) > 90
    for name, function in functions.items():
        known = api_calls.VALUES | api_calls.OTHER_VALUES.get(name.rpartition(".")[2], {})
        parameters = inspect.signature(function).parameters.values()
        asked = {each.name for each in parameters if each.kind is not each.VAR_POSITIONAL}
        assert asked <= known.keys(), name


def test_a_raw_error_a_silent_nan_and_a_hang_count() -> None:
    def raw(outputs: object) -> None:
        raise RuntimeError("expected scalar type Float")

    def silent(outputs: object) -> float:
        return float("nan")

    def hang() -> str:
        while True:
            pass

    calls = [api_calls.Call("f", function, {"outputs": 1}) for function in (raw, silent)]
    tries = [lambda call=call: api_calls.failure(call) for call in calls]
    number, failures = count((("a case", each) for each in [*tries, hang, lambda: ""]), seconds=1)
    assert (number, len(failures)) == (4, 3)
    assert "no answer after 1 s" in failures[2]


def test_the_page_shows_the_record_which_has_no_failure() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert set(record) == set(FAMILIES)
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w ]+) \| .* \| ([\d,]+) \| (\d+) \|$", page, re.MULTILINE)
    assert {
        name: (int(tries.replace(",", "")), int(failures)) for name, tries, failures in rows
    } == {name: (counts["tries"], 0) for name, counts in record.items()}
    assert not any(counts["failures"] for counts in record.values())
    most = max(record[name]["peak"] for name in CALLS) / 2**30
    assert f"took more than {most:.1f} GiB" in page

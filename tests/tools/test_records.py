"""Records and settings as files: plain, finite, and read back as they were written."""

import json
import math
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dissensus.tools import records
from dissensus.tools.files import format_toml
from dissensus.tools.records import environment, read_record, write_record

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
values = scalars | st.lists(scalars, max_size=3) | st.lists(st.lists(scalars, max_size=2))
settings = st.dictionaries(texts, values | st.none() | st.dictionaries(texts, values | st.none()))


def without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_none(inner) for key, inner in value.items() if inner is not None}


@given(settings)
def test_settings_come_back_from_toml(written: dict[str, Any]) -> None:
    read = tomllib.loads(format_toml(written))
    assert read == without_none(written)
    assert json.dumps(read, sort_keys=True) == json.dumps(without_none(written), sort_keys=True)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (math.nan, "lr must be finite, got nan"),
        ([1.0, math.inf], "lr must be finite, got inf"),
        ({"inner": {}}, "inner cannot be written to TOML, got dict"),
        (torch.zeros(1), "lr cannot be written to TOML, got Tensor"),
        ([None], "lr cannot be written to TOML, got NoneType"),
    ],
)
def test_what_toml_cannot_hold(value: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        format_toml({"lr": value})


plain = st.recursive(
    st.none() | scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(texts, plain, max_size=4))
def test_a_record_comes_back(record: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "record.json"
        write_record(path, record)
        assert read_record(path) == record
        assert [p.name for p in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": -math.inf}, torch.zeros(1), {1, 2}])
def test_a_record_that_is_not_plain_is_refused_and_the_old_one_stays(
    value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    write_record(path, {"a": 1})
    with pytest.raises(ValueError, match="must be finite, plain JSON values: "):
        write_record(path, {"a": value})
    assert read_record(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "record.json is not a record that can be read: there is no file"),
        (b"{", "record.json is not a record that can be read: "),
        (b"\xff\xfe", "record.json is not a record that can be read: "),
        (b"[1]", "record.json is not a record: it holds a list"),
    ],
)
def test_a_record_that_is_none(content: bytes | None, error: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=error):
        read_record(path)


def test_the_environment_says_what_a_result_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment()
    wanted = "dissensus python packages system cores threads commit written"
    assert list(found) == wanted.split()
    assert found["packages"]["torch"] in str(torch.__version__)
    assert found["threads"] == torch.get_num_threads()
    json.dumps(found, allow_nan=False)
    answers: dict[str, str] = {"rev-parse": "abc123\n", "status": ""}

    def run(command: list[str], **options: Any) -> Any:
        if not answers:
            raise FileNotFoundError("git")
        return subprocess.CompletedProcess(command, 0, answers[command[3]], "")

    monkeypatch.setattr(records.subprocess, "run", run)
    assert environment()["commit"] == "abc123"
    answers["status"] = " M src/dissensus/losses.py\n"
    assert environment()["commit"] == "abc123+changes"
    answers.clear()
    assert environment()["commit"] is None

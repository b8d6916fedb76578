"""The public names: each resolves, and none is paid for before it is used."""

import subprocess
import sys

import pytest

import dissensus

HEAVY = ("torch", "numpy", "scipy", "sklearn", "safetensors", "matplotlib", "pandas", "plotly")


def test_every_name_resolves() -> None:
    for name in dissensus.__all__:
        assert getattr(dissensus, name) is not None
        assert name in dir(dissensus)


def test_unknown_name_raises_as_any_module_does() -> None:
    with pytest.raises(AttributeError, match="module 'dissensus' has no attribute 'ensembel'"):
        _ = dissensus.ensembel


def test_nothing_heavy_is_imported_for_help() -> None:
    """In one fresh interpreter, for this one has imported everything already."""
    helped = [
        "train",
        "features",
        "ood",
        "attack",
        "export",
        "report",
        "figure",
        "sweep",
        "predict",
    ]
    commands = [["--version"], ["--help"], *([name, "--help"] for name in helped)]
    program = f"""
import sys
import dissensus

def look(words):
    loaded = sorted(set(sys.modules) & set({HEAVY!r}))
    if loaded:
        sys.exit(f"{{words}} imports {{loaded}}")

look("import dissensus")
from dissensus.cli import main
for words in {commands!r}:
    sys.argv = ["dissensus", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, words
    look(words)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Usage:") == len(commands) - 1

"""The public names: exactly these, each resolvable, and none paid for before it is used."""

import subprocess
import sys

import pytest

import dissensus

PUBLIC = [
    "Detector",
    "Ensemble",
    "History",
    "Optimizer",
    "Predictions",
    "Recipe",
    "Training",
    "__version__",
    "calibration",
    "combine",
    "data",
    "decompose",
    "decomposition",
    "detection",
    "diagnose",
    "diagnostics",
    "diversity",
    "ensemble",
    "export",
    "features",
    "fit",
    "fit_fleet",
    "load",
    "losses",
    "models",
    "objectives",
    "outputs",
    "predict",
    "report",
    "robustness",
    "runs",
    "scores",
    "sweeps",
    "training",
]

HEAVY = ("torch", "numpy", "scipy", "sklearn", "safetensors", "matplotlib", "pandas", "plotly")


def command(*words: str) -> str:
    """A statement that runs the command line with ``words``."""
    argv = ["dissensus", *words]
    return f"import sys; sys.argv = {argv!r}; from dissensus.cli import main; main()"


def test_exported_names_are_exactly_these() -> None:
    assert dissensus.__all__ == PUBLIC


def test_every_name_resolves() -> None:
    for name in PUBLIC:
        assert getattr(dissensus, name) is not None
        assert name in dir(dissensus)


def test_every_lazy_name_is_exported() -> None:
    lazy = set(dissensus._EXPORTS)
    assert lazy | {"__version__"} == set(PUBLIC)


def test_unknown_name_raises_as_any_module_does() -> None:
    with pytest.raises(AttributeError, match="module 'dissensus' has no attribute 'ensembel'"):
        _ = dissensus.ensembel


@pytest.mark.parametrize(
    "statement",
    [
        "import dissensus",
        command("--help"),
        command("--version"),
        command("train", "--help"),
        command("features", "--help"),
        command("ood", "--help"),
        command("reproduce", "--help"),
        command("attack", "--help"),
        command("export", "--help"),
        command("report", "--help"),
        command("figure", "--help"),
        command("sweep", "--help"),
        command("predict", "--help"),
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    """Run in a fresh interpreter, for this one has imported everything already."""
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('loaded:', sorted(set(sys.modules) & set({HEAVY!r}))))\n"
        f"{statement}\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.splitlines()[-1] == "loaded: []"

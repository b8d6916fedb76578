"""Scripts and notebooks of ``examples/`` run as they are and say what they promise."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

Run = Callable[..., str]

#: A small size for every script.
SMALL = {
    "own_network": ["--epochs", "2", "--members", "2"],
    "table_beta_sweep": ["--epochs", "2", "--members", "2", "--splits", "2"],
    "detect_unknown": ["--epochs", "2", "--members", "2"],
    "attack_transfer": ["--epochs", "1", "--images", "8", "--steps", "2", "--restarts", "1"],
    "own_objective": ["--epochs", "12", "--members", "3"],
    "own_strangers": ["--epochs", "2", "--members", "2"],
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a script as ``python examples/NAME.py …`` would, and return what it prints."""

    def script(name: str, *more: str) -> str:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *SMALL[name], *more])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return script


def test_every_script_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SMALL)


def test_own_network(run: Run, tmp_path: Path) -> None:
    said = run("own_network", "--out", str(tmp_path / "run"))
    ensemble, members, diversity = (
        float(found) for found in re.findall(r"(\d\.\d+) (?:=|\(members|\(diversity)", said)
    )
    assert ensemble == pytest.approx(members - diversity, abs=2e-3)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_table_beta_sweep_on_a_file_of_ones_own(run: Run, tmp_path: Path) -> None:
    """A noiseless line is learnt better than its mean; text columns are read too."""
    table = tmp_path / "flats.csv"
    rows = [f"{i / 10},{('old', 'new')[i % 2]},{i / 5 + i % 2}" for i in range(200)]
    table.write_text("\n".join(["size,state,price", *rows]) + "\n")
    said = run(
        "table_beta_sweep", "--csv", str(table), "--target", "price", "--epochs", "20"
    )  # the last --epochs counts
    errors = re.findall(r"^(?:0|1)\.\d+ +(\d\.\d+) +(\d\.\d+) +(\d\.\d+)$", said, re.MULTILINE)
    assert len(errors) == 6
    assert all(float(test) < 0.5 for _, test, _ in errors)
    assert "flats.csv" in said


def test_own_strangers(run: Run) -> None:
    said = run("own_strangers")
    values = re.findall(r"^(plain|tuned) mutual_information: .*changes (\d\.\d+)", said, re.M)
    assert [name for name, _ in values] == ["plain", "tuned"]
    assert values[0][1] != values[1][1]
    assert "plain, with a distance, combined: AUROC of dropouts" in said


def test_detect_unknown(run: Run, tmp_path: Path) -> None:
    said = run("detect_unknown", "--out", str(tmp_path), "--score", "entropy")
    assert '"entropy"' in (tmp_path / "detector.json").read_text()
    assert len(re.findall(r"AUROC 0\.\d+ \[", said)) == 2
    assert "Score: entropy." in said


@pytest.mark.slow
def test_attack_transfer(run: Run) -> None:
    """The worst case cannot be better than no attack."""
    said = run("attack_transfer")
    clean = [float(value) for value in re.findall(r"without attack +(\d\.\d+)", said)]
    worst = [float(value) for value in re.findall(r"strong attacks +(\d\.\d+)", said)]
    assert len(clean) == len(worst) == 2
    assert all(low <= high for low, high in zip(worst, clean, strict=True))


@pytest.mark.slow
def test_own_objective(run: Run) -> None:
    """The diagnosis tells the two rewards apart, which is the point of the script."""
    said = run("own_objective")
    assert re.findall(r"Verdict: ([a-z]+)", said) == ["healthy", "healthy", "colluding"]


# ---- notebooks ----------------------------------------------------------------------------------

NOTEBOOKS = ("detect", "diagnose", "robustness")


def test_every_notebook_is_run_here() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == list(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_of_notebooks_are_kept_small_and_know_no_machine(name: str) -> None:
    text = (EXAMPLES / f"{name}.ipynb").read_text()
    assert len(text) < 300_000
    assert not re.search(r"/(home|root|tmp|usr|Users|work|opt)/", text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    kinds = {kind for cell in cells for kind in _kinds(cell)}
    assert kinds >= {"image/png", "text/html"}
    assert kinds <= {"image/png", "text/html", "text/plain", "stdout"}


def _kinds(cell: dict[str, Any]) -> set[str]:
    """The forms of what a cell shows: ``stdout``, ``text/html``, ``image/png``, …"""
    outputs = [o for o in cell["outputs"] if o.get("data", {}).get("text/html") != ""]  # old bars
    return {
        kind for output in outputs for kind in output.get("data", [output.get("name", "error")])
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("default")  # those of the machinery of notebooks
def test_notebooks_run(name: str, tmp_path: Path) -> None:
    """They show what they show on a code host, and nothing on standard error."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    kept = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    fresh = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(fresh, timeout=600, resources=folder).execute()
    for before, after in zip(kept.cells, fresh.cells, strict=True):
        if before.cell_type == "code":
            assert _kinds(after) == _kinds(before), before.source

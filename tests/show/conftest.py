"""Real runs, small ones: four methods, a sweep, and what other commands leave in their folders."""

import sys
from pathlib import Path

import pytest

from dissensus.cli import main

SMALL = ["--data", "digits", "--model-option", "hidden=16", "--members", "3", "--epochs", "3"]
SMALL += ["--batch-size", "128", "--threads", "1", "--quiet"]
OBJECTIVES = {
    "independent": "independent",
    "joint": "joint:combine=score",
    "half": "augmented:beta=0.5,combine=score",
    "adp": "adp",
}


def command(*arguments: object) -> None:
    """Run ``dissensus`` in this process, for fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dissensus", *(str(one) for one in arguments)])
        patch.setitem(sys.modules, "matplotlib", None)  # the commands' own figures take seconds
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code, arguments


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``runs/*`` and ``sweeps/beta``, to be read only; ``half`` and ``adp`` were only trained."""
    top = tmp_path_factory.mktemp("report")
    for name, objective in OBJECTIVES.items():
        run = top / "runs" / name
        command("train", *SMALL, "--objective", objective, "--out", run)
        if name in ("half", "adp"):
            continue
        command("diagnose", run)
        few = ["--bootstrap", 20, "--limit", 80, "--no-plots", "--no-accuracy"]
        sets = ["--near", "corrupt:2", "--far", "corrupt:5", "--scores", "pds,bma"]
        command("ood", run, *sets, *few)
        attacks = "fgsm:eps=0.2 pgd:eps=0.2,steps=4,restarts=2"
        command("attack", run, "--attacks", attacks, "--limit", 30, "--no-checks")
    grid = ["--objective", "augmented:combine=score", "--grid", "beta=0:1:0.5", "--repeats", 2]
    command("sweep", *SMALL, *grid, "--out", top / "sweeps" / "beta")
    return top


@pytest.fixture(scope="session")
def runs(folders: Path) -> list[Path]:
    """The run folders, in an order that is not that of their names."""
    return [folders / "runs" / name for name in OBJECTIVES]

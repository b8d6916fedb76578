"""The lower bounds of ``pyproject.toml`` are the versions of ``constraints-lowest.txt``."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def test_the_tested_versions_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    used = [name for name in extras if name not in ("docs", "bench", "backbones", "all", "dev")]
    wanted = [*project["dependencies"], *(line for name in used for line in extras[name])]
    bounds = {
        canonicalize_name(own.name): str(own.specifier)[2:] for own in map(Requirement, wanted)
    }
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    tested = {canonicalize_name(name): version for name, version in pairs}
    for name in bounds:
        if name != "torch":
            same = Version(tested[name]).release[:3]
            bound = Version(bounds[name]).release
            assert same[: len(bound)] == bound, f"{name}>={bounds[name]}, tested {tested[name]}"

"""What every test stands on: one thread, fixed seeds, reproducible examples, optional data."""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

# Tests run in parallel processes; more threads in each would only make them wait for each other.
torch.set_num_threads(1)

# A failure must come back on the next run and on every machine, and a busy machine is no failure.
hypothesis.settings.register_profile("dissensus", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("dissensus")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Start each test from the same random state, so that order and parallel runs cannot matter."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (libraries under test may still draw from it)
    torch.manual_seed(0)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets, for tests that want more than what the package carries."""
    folder = os.environ.get("DISSENSUS_DATA")
    if not folder:
        pytest.skip("DISSENSUS_DATA is not set: it names the folder of downloaded data sets")
    path = Path(folder).resolve()
    if not path.is_dir():
        pytest.fail(f"DISSENSUS_DATA names {folder}, which is not a folder")
    return path


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """The address of a Ray with two cores, started once for all tests and stopped after them."""
    if find_spec("ray") is None or os.name == "nt":
        pytest.skip("Ray is not installed, or signals are not those of Unix")
    from dissensus.sweeps import RayEngine
    from dissensus.sweeps.ray import import_ray

    with ExitStack() as stack:
        try:
            stack.enter_context(RayEngine(jobs=2).session())
        except (OSError, RuntimeError) as error:
            pytest.skip(f"Ray cannot be started here: {error}")
        yield import_ray().get_runtime_context().gcs_address

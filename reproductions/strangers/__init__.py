"""Detection of unknown inputs: strangers against what else people would do.

``python -m benchmarks --only strangers`` runs every cell that has no record yet and writes the page
``results/strangers.md``; with ``--quick`` it only sees whether everything runs. Parts of it::

    python -m reproductions.strangers --settings mnist,digits --seeds 0  # one seed of two settings
    python -m reproductions.strangers --contenders deep_ensemble,tuned  # two contenders
    python -m reproductions.strangers --settings cifar10 --seeds 0  # 40 minutes on one core
    python -m reproductions.strangers.combination  # settles ``combined``
    python -m reproductions.strangers.regression  # regressors, by variance
    python -m reproductions.strangers.estimators  # ``ood_score`` on tables
    python -m reproductions.strangers --page  # the page alone

``DISSENSUS_DATA`` names the folder of the data; a setting whose data are not there is left out.
Records are lines of ``results/strangers/SETTING.jsonl``, one for each contender and seed (a cell),
written as each ends: a run that was ended goes on where it was. Cells whose record lacks a score,
such as ``combined`` after its parts have changed, are run again. Set ``OMP_NUM_THREADS=1``.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.timing import Result

RESULTS = Path(__file__).parents[2] / "results"


def run(quick: bool) -> list[Result]:
    """Run what has no record yet, and write the page; ``quick`` keeps nothing."""
    from reproductions.strangers.cells import read_records, run_cells
    from reproductions.strangers.goals import summarize
    from reproductions.strangers.page import write_page
    from reproductions.strangers.settings import SETTINGS

    if not quick:
        run_cells(RESULTS / "strangers", [name for name in SETTINGS if name != "cifar10"])
        write_page(RESULTS)
        return [summarize(read_records(RESULTS / "strangers"))]
    with TemporaryDirectory() as folder:
        contenders = ["deep_ensemble", "tuned"]
        run_cells(Path(folder), ["digits"], contenders, [0, 1], changes={"epochs": 2})
        return [summarize(read_records(Path(folder)))]

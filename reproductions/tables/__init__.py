"""Table estimators against those that people would pick, on 30 real tables.

``python -m benchmarks --only tables`` runs every cell that has no record yet and writes the page
``results/tables.md``; with ``--quick`` it only sees whether everything runs. Parts of it::

    python -m reproductions.tables --contenders dissensus  # ours, all tables and splits
    python -m reproductions.tables --tables ames,pima --splits 0  # everyone, one split
    python -m reproductions.tables --part settling --contenders dissensus --again  # once more
    python -m reproductions.tables --page  # the page alone, from the records

``DISSENSUS_DATA`` names the folder that has ``tables/*.csv.gz``; without it, scikit-learn's own
tables are run. Records are lines of ``results/tables/CONTENDER.jsonl``, one for each contender,
table and split (a cell), written as each ends: a run that was ended goes on where it was. ``--out``
writes them elsewhere, and no page. Use one process at a time and set ``OMP_NUM_THREADS=1``: times
are compared.

A variant of ours is a line of ``OURS`` (``contenders.py``): a name and its parameters.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.timing import Result

RESULTS = Path(__file__).parents[2] / "results"


def run(quick: bool) -> list[Result]:
    """Run what has no record yet, and write the page; ``quick`` keeps nothing."""
    from reproductions.tables.cells import read_records, run_cells
    from reproductions.tables.goals import summarize
    from reproductions.tables.page import write_page

    if not quick:
        run_cells(RESULTS / "tables")
        write_page(RESULTS)
        return [summarize(read_records(RESULTS / "tables"))]
    with TemporaryDirectory() as folder:
        run_cells(Path(folder), ["diabetes", "wine"], ["forest", "hgb", "dissensus"], [0])
        return [summarize(read_records(Path(folder)))]

"""Table estimators against those that people would pick, on 30 real tables.

``python -m benchmarks --only tables`` runs every cell that has no record yet and writes the page
``results/tables.md``; with ``--quick`` it only sees whether everything runs. Parts of it::

    python -m benchmarks.tables --contenders dissensus          # ours, all tables and splits
    python -m benchmarks.tables --tables ames,pima --splits 0   # everyone, one split
    python -m benchmarks.tables --part settling --contenders dissensus --again   # once more

``DISSENSUS_DATA`` names the folder that has ``tables/*.csv.gz``; without it, scikit-learn's own
tables are run. Records are lines of ``results/tables/CONTENDER.jsonl``, one for each contender,
table and split (a cell), written as each ends: a run that was ended goes on where it was. ``--out``
writes them elsewhere. Use one process at a time and set ``OMP_NUM_THREADS=1``: times are compared.

A variant of ours is a line of ``OURS`` (``contenders.py``): a name and its parameters.
"""

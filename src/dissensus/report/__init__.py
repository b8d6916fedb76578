"""The report: run folders, sweeps and records in, one web page out.

:func:`build` makes the page, :func:`read` gives what it is made of. Nothing is trained or attacked:
every number comes from a file, and the page says from which. These are the files, and the keys that
are read beside those that the commands show themselves:

- a run folder: ``config.toml``, ``record.json`` (``test.*``), ``metrics.jsonl`` (``train.*``,
  ``val.*`` of each epoch), ``data.json``, and ``predictions/test.safetensors``;
- ``RUN/diagnosis.json`` of ``dissensus diagnose``: ``verdict``, ``codependence``,
  ``debiased_share``, ``pairwise``. Without it the test predictions are diagnosed, which judges less
  sharply, as training predictions are not kept;
- ``RUN/ood/ood.json`` of ``dissensus ood``: ``detection``, ``curves[].fpr`` and ``.tpr``,
  ``histograms[].edges``, ``.share`` and ``.threshold``, and ``examples[]``, whose pixels are in
  ``examples-METHOD.npz`` beside it (``images``, uint8);
- ``RUN/robustness/record.json`` of ``dissensus attack``: ``clean_accuracy``, ``budgets``,
  ``curves``, ``flags`` and ``transfer.accuracy`` (row: the member attacked, column: the member
  evaluated), with ``examples.npz`` beside it (``original``, ``adversarial``, ``labels``,
  ``predictions``);
- a sweep folder: ``sweep.toml``, ``summary.json`` (``rows``), and in ``cells/*.json`` of the first
  repeat ``result.held_out`` (``outputs`` ``[members][rows][outputs]`` and ``targets``);
- records of ``dissensus reproduce``: ``cells`` with ``beta`` and ``result.test``.

A record that is older than the run's last training is left out, with a note.
"""

from __future__ import annotations

from dissensus.report.figures import FIGURES
from dissensus.report.page import build
from dissensus.report.reading import read

__all__ = ["FIGURES", "build", "read"]

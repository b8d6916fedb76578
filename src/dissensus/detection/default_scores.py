"""The default score: the one that detects unknown inputs best, by how an ensemble was trained.

Mean AUROC over data sets and unknown sets, in the record ``results/ldr/contenders.json`` (five
members; every strength above 0; ``tests/detection/test_default_score.py`` recomputes it):

==================  ==================  ======  =======  =====
trained by          mutual_information  energy  entropy  pds
==================  ==================  ======  =======  =====
independent         **0.790**           0.763   0.749    0.780
a2d                 **0.871**           0.521   0.745    0.865
ldr, divdis term    **0.787**           0.695   0.737    0.781
ldr, a2d term       0.682               **0.776**  0.762  0.689
divdis              0.731               **0.834**  0.830  0.740
one network         –                   **0.749**  0.712  –
==================  ==================  ======  =======  =====

Other objectives have no such record and take the score of independent members.
"""

from __future__ import annotations

from typing import Any

from dissensus.tools.guards import guarded

#: Objectives whose members, on unknown inputs, are less diverse than independent ones.
_AGREEING = ("ldr", "divdis")


@guarded
def default_score(trained: Any = None, space: str = "logits") -> str:
    """The score to detect unknown inputs with: a name of ``SCORES``.

    ``trained`` is an ensemble, which knows its objective if :func:`dissensus.fit` trained it or
    :func:`dissensus.load` read it from a run; or an objective; or the text that names one. Where
    nothing is known, the ensemble counts as one of independent members. Probabilities have no
    energy: where ``space`` is not ``"logits"``, entropy takes its place.

    >>> default_score(), default_score("ldr:strength=2"), default_score("ldr:regularizer=divdis")
    ('mutual_information', 'energy', 'mutual_information')
    """
    if getattr(trained, "combine", None) == "mean":
        return "variance"
    best_of_one = "energy" if space == "logits" else "entropy"
    if getattr(trained, "members", None) == 1:
        return best_of_one
    objective = getattr(trained, "objective", trained)  # that of an ensemble, or of a wrapper
    if isinstance(objective, str):
        name, _, settings = objective.lower().rpartition("/")[2].partition(":")
        term = dict(pair.partition("=")[::2] for pair in settings.split(",")).get("regularizer")
    else:
        name, term = type(objective).__name__.lower(), getattr(objective, "regularizer", None)
    agreeing = name in _AGREEING and term in (None, "a2d")
    return best_of_one if agreeing else "mutual_information"

"""Registry of experiments: the papers' tables and figures, in the order of the papers."""

from reproductions.adp import jsd, overhead, theory
from reproductions.collusion import gap, gat
from reproductions.experiment import Experiment

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
    "collusion/generalization-gap": gap.GENERALIZATION_GAP,
    "collusion/gat": gat.EXPERIMENT,
    "adp/overhead": overhead.EXPERIMENT,
    "adp/theory": theory.EXPERIMENT,
    "adp/jsd": jsd.EXPERIMENT,
}

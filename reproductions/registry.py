"""Registry of experiments: the papers' tables and figures, in the order of the papers."""

from reproductions.collusion import gap, gat
from reproductions.experiment import Experiment

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
    "collusion/generalization-gap": gap.GENERALIZATION_GAP,
    "collusion/gat": gat.EXPERIMENT,
}

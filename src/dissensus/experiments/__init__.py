"""The papers' tables and figures as named experiments, at three scales, with claims as checks."""

from dissensus.experiments.base import Experiment
from dissensus.experiments.collusion import diagnosing, gat, gradients, search_beta

__all__ = ["EXPERIMENTS"]

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
    "collusion/explosion": diagnosing.EXPLOSION,
    "collusion/bias-removal": diagnosing.BIAS_REMOVAL,
    "collusion/codependence": diagnosing.CODEPENDENCE,
    "collusion/search-beta": search_beta.EXPERIMENT,
    "collusion/gat": gat.EXPERIMENT,
    "collusion/gradients": gradients.EXPERIMENT,
}

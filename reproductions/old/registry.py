"""Registry of experiments: the papers' tables and figures, in the order of the papers."""

from reproductions.old.base import Experiment

#: Every experiment by its full name, in the order of the papers.
EXPERIMENTS: dict[str, Experiment] = {
}

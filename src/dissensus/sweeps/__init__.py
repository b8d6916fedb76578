"""Sweeps: grids of settings and searches among them, trained as fleets, kept as records."""

from dissensus.sweeps.search import Trial, best_trial, search

__all__ = ["Trial", "best_trial", "search"]

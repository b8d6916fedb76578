"""The ensemble module and its two executions, stacked and looped: one result."""

from __future__ import annotations

from dissensus.ensemble.factories import SharedInstanceWarning, member_seed
from dissensus.ensemble.module import Ensemble
from dissensus.ensemble.soups import best_member, greedy_soup, soup

__all__ = [
    "Ensemble",
    "SharedInstanceWarning",
    "best_member",
    "greedy_soup",
    "member_seed",
    "soup",
]

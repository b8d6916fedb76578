"""Experiments: cells to run, claims to check, a figure and a table, all from records.

A :class:`Study` says what is run, an :class:`Experiment` what is read off its records; several
figures of a paper may come from the same runs. Checks, figures and tables see records alone, so
that a page can be built again, to the same bytes, without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from reproductions.study import SCALES as SCALES
from reproductions.study import Cell as Cell
from reproductions.study import Record as Record
from reproductions.study import Study as Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dissensus.show import Plot
    from reproductions.old.statistics import Effect

#: The header of a table and its rows.
Table = tuple[list[str], list[list[str]]]
#: The rule by which runs decide among them is that of :mod:`reproductions.old.statistics`.
Verdict = Literal["holds", "contradicted", "undecided", "not tested at this scale"]

CANNOT: Verdict = "not tested at this scale"

#: The papers by their short names, as pages cite them.
PAPERS = {
    "collusion": (
        "Jeffares, Liu, Crabbé, van der Schaar, *Joint Training of Deep Ensembles Fails Due to "
        "Learner Collusion*, NeurIPS 2023"
    ),
    "ldr": (
        "*Rethinking OOD Detection at Scale through Ensemble Diversity*, anonymous, under review"
    ),
    "adp": (
        "Pang, Xu, Du, Chen, Zhu, *Improving Adversarial Robustness via Promoting Ensemble "
        "Diversity*, ICML 2019"
    ),
}


@dataclass(frozen=True)
class Finding:
    """The answer of a check: a verdict, a sentence with numbers, and what the paper prints.

    ``effects`` are what the verdict rests on, by case; none where nothing is estimated, as for an
    identity. ``chance`` is how often runs contradict so clearly if the claim is just about true.
    """

    verdict: Verdict
    measured: str
    published: str | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict)
    chance: float = 0.0

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            known = ", ".join(get_args(Verdict))
            raise ValueError(f"a verdict must be one of {known}, got {self.verdict!r}")

    @property
    def smallest(self) -> str:
        """The smallest effect that the runs of each case could show."""
        return join_cases({case: effect.smallest for case, effect in self.effects.items()})


def join_cases(texts: Mapping[str, str]) -> str:
    """The texts of several cases in one; a case without a text is left out.

    >>> join_cases({"MNIST": "0.2", "digits": "0.3", "CIFAR-10": ""})
    'MNIST 0.2; digits 0.3'
    """
    return "; ".join(f"{name} {text}".strip() for name, text in texts.items() if text)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, where it stands, and how records decide on it.

    ``again`` is where larger networks are asked the same: the name of an experiment of this paper,
    and how its claim begins.
    """

    text: str
    where: str
    check: Callable[[list[Record]], Finding]
    again: tuple[str, str] | None = None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper: its study, its claims, and how it is drawn and tabulated.

    ``check``, ``draw`` and ``table`` get the records of finished cells,
    ``{"name", "cell", "result", "seconds"}``, in the order in which the study plans them.
    ``brief`` returns sentences for the top of the page: what a reader must not miss.
    """

    full_name: str  # "collusion/explosion": the key of the registry
    shows: str
    title: str
    study: Study
    claims: tuple[Claim, ...]
    draw: Callable[[list[Record]], Plot | Figure] | None = None
    table: Callable[[list[Record]], Table] | None = None
    brief: Callable[[list[Record]], list[str]] | None = None

    @property
    def paper(self) -> str:
        """``"collusion"``."""
        return self.full_name.partition("/")[0]

    @property
    def name(self) -> str:
        """``"explosion"``."""
        return self.full_name.partition("/")[2]

    @property
    def setting(self) -> dict[str, str]:
        """By scale: what is run (data, network, schedule, seeds), and how the paper differs."""
        texts = read_settings(self.paper).get(self.study.name, {})
        return {
            scale: " ".join((texts[scale], texts.get(f"{scale}, {self.name}", ""))).strip()
            for scale in SCALES
            if scale in texts
        }


@cache
def read_settings(paper: str) -> dict[str, dict[str, str]]:
    """The texts of ``<paper>/settings.md``, by study and scale."""
    page = (Path(__file__).parents[1] / paper / "settings.md").read_text(encoding="utf-8")
    settings: dict[str, dict[str, str]] = {}
    for section in page.split("\n## ")[1:]:
        study, *parts = section.split("\n### ")
        texts = (part.partition("\n") for part in parts)
        settings[study.strip()] = {title: " ".join(text.split()) for title, _, text in texts}
    return settings

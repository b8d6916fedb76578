"""Reproduction of experiments: the runs of their studies, and pages and figures from records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.show import save
from dissensus.sweeps.engines import Engine
from dissensus.tools.verbs import Result
from reproductions.base import CANNOT, SCALES, Experiment, check_options, option_values, select
from reproductions.overview import write_overview
from reproductions.page import Outcome, outcomes, write_figures, write_page
from reproductions.registry import EXPERIMENTS
from reproductions.studies import read_study, run_study, study_path

if TYPE_CHECKING:
    from rich.console import RenderableType

_COLORS = {"holds": "green", "contradicted": "red", "undecided": "yellow", CANNOT: "dim"}


@dataclass(frozen=True)
class Reproduction(Result):
    """The findings on every claim, and the files that were written.

    ``failed`` are the names of cells that failed, ``missing`` says why there are no figures.
    """

    outcomes: Sequence[Outcome]
    pages: Sequence[Path]
    figures: Sequence[Path]
    failed: Sequence[str] = ()
    missing: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The findings and the files."""
        return {
            "claims": self.to_rows(),
            "pages": [str(page) for page in self.pages],
            "figures": [str(figure) for figure in self.figures],
            "failed": list(self.failed),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each claim."""
        return [
            {
                "experiment": outcome.experiment.full_name,
                "claim": claim.text,
                "where": claim.where,
                "verdict": finding.verdict,
                "measured": finding.measured,
                "published": finding.published,
                "smallest_effect": finding.smallest,
            }
            for outcome in self.outcomes
            for claim, finding in outcome.findings
        ]

    def display(self) -> Iterator[RenderableType]:
        """A table of claims for each experiment, and the files."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        for outcome in self.outcomes:
            experiment = outcome.experiment
            title = f"{experiment.full_name}: {experiment.shows} ({outcome.record.scale})"
            table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
            table.title_style = "bold"
            table.add_column("verdict", width=14)
            table.add_column("claim, and what was measured")
            for claim, finding in outcome.findings:
                published = f"; published: {finding.published}" if finding.published else ""
                words = Text(f"{claim.text} ({claim.where})\n")
                words.append(finding.measured + published + "\n", style="dim")
                table.add_row(Text(finding.verdict, style=_COLORS[finding.verdict]), words)
            yield table
        yield f"Page: {', '.join(map(str, self.pages))}"
        if self.figures:
            yield f"Figures: {', '.join(sorted(map(str, self.figures)))}"


def results_folder(out: str | Path | None, scale: str) -> Path:
    """``out``, or ``results``, or ``results-SCALE`` at another scale than cpu."""
    if scale not in SCALES:
        raise ValueError(f"--scale must be one of {', '.join(SCALES)}, got {scale!r}")
    return Path(out or ("results" if scale == "cpu" else f"results-{scale}"))


def reproduce(
    names: str | Sequence[str] = (),
    *,
    scale: str = "cpu",
    out: str | Path | None = None,
    data_dir: Path | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    engine: Engine | None = None,
    report: bool = False,
    again: bool = False,
    progress: bool = False,
) -> Reproduction:
    """Run experiments, or with ``report`` only read their records, and build pages and figures.

    ``names`` are experiments or papers, all of them by default for a report. ``settings`` are
    options of the experiments, ``key=value`` or a dict. Without an ``engine`` each study runs here
    in as many processes as suit it. An interrupt keeps what was done, and ``again`` replaces what
    was made with other settings.
    """
    folder = results_folder(out, scale)
    if not names and not report:
        raise ValueError("say what to reproduce, such as collusion/gat; --list shows all there is")
    experiments = _select(names)
    given = dict(settings) if isinstance(settings, Mapping) else option_values(settings)
    check_options(given, [experiment.study for experiment in experiments])
    if data_dir is not None:
        # By the environment, which new processes inherit, so that no path gets into a record.
        os.environ["DISSENSUS_DATA"] = str(data_dir.expanduser().resolve())
    failed = []
    studies = {(one.paper, one.study.name): one.study for one in experiments}
    with nullcontext() if engine is None else engine.session():  # one Ray for all studies
        for (paper, _), study in {} if report else studies.items():
            record = run_study(
                study, paper, scale, given, folder, engine=engine, progress=progress, again=again
            )
            failed += list(record.failed)
    every = outcomes(EXPERIMENTS.values(), folder)
    if not every:
        raise ValueError(f"there are no records of experiments in {folder}; run some first")
    papers = dict.fromkeys(outcome.experiment.paper for outcome in every)
    pages = [write_page(paper, every, EXPERIMENTS, folder) for paper in papers]
    pages.append(write_overview(every, folder))
    wanted = [outcome for outcome in every if outcome.experiment in experiments]
    try:
        figures = write_figures(every if report else wanted, folder)
    except ValueError as error:  # matplotlib is not installed: the rest is still worth having
        return Reproduction(wanted, pages, [], failed, str(error))
    return Reproduction(wanted, pages, figures, failed)


def _select(names: str | Sequence[str]) -> list[Experiment]:
    names = [names] if isinstance(names, str) else names
    return select(names, EXPERIMENTS) if names else list(EXPERIMENTS.values())


def draw_figure(names: str | Sequence[str], file: str | Path, folder: Path) -> Path:
    """Draw the figure of one experiment from its record in ``folder``, as ``.svg`` or ``.png``."""
    experiments = _select(names)
    if len(experiments) != 1:
        count = len(experiments)
        raise ValueError(f"--figure draws one experiment, got {count}; --list names them")
    (experiment,) = experiments
    name = experiment.full_name
    if experiment.draw is None:
        raise ValueError(f"{name} has no figure; its table is on the page of the paper")
    path = study_path(folder, experiment.paper, experiment.study.name)
    if not path.is_file():
        raise ValueError(f"there is no record {path}; `python -m reproductions {name}` makes it")
    return save(experiment.draw(read_study(path).records), file)


@dataclass(frozen=True)
class Catalogue(Result):
    """All experiments: what each shows, what it costs, and the options of its study."""

    experiments: Sequence[Experiment]

    def to_dict(self) -> dict[str, Any]:
        """The rows."""
        return {"experiments": self.to_rows()}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each experiment."""
        return [
            {
                "name": one.full_name,
                "shows": one.shows,
                "title": one.title,
                **{scale: one.study.cost.get(scale, "–") for scale in SCALES},
            }
            for one in self.experiments
        ]

    def display(self) -> Iterator[RenderableType]:
        """What each experiment costs at each scale and shows, and the options of their studies."""
        from rich.padding import Padding
        from rich.text import Text

        rows = self.to_rows()
        columns = ("name", *SCALES)
        width = {key: max(len(key), *(len(row[key]) for row in rows)) for key in columns}
        for row in ({key: key for key in columns}, *rows):
            costs = "".join(row[scale].rjust(width[scale] + 3) for scale in SCALES)
            yield Text(row["name"].ljust(width["name"]), style="cyan").append(
                costs, style="default"
            )
            if "title" in row:
                yield Padding(Text(f"{row['shows']}: {row['title']}", style="dim"), (0, 0, 0, 2))
        yield ""
        yield "Options, with --set KEY=VALUE:"
        users: dict[tuple[str, str], list[str]] = {}
        for one in self.experiments:
            for item in one.study.options.items():
                users.setdefault(item, []).append(one.full_name)
        for (key, text), names in users.items():
            words = Text(f"{key}: {text} ").append(f"({', '.join(names)})", style="dim")
            yield Padding(words, (0, 0, 0, 2))


def catalogue(names: str | Sequence[str] = ()) -> Catalogue:
    """What there is to reproduce: all experiments, or those that ``names`` select."""
    return Catalogue(_select(names))

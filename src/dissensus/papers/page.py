"""Pages of the papers: what was run, every claim with its verdict, figures and tables.

Built from the compact records alone; the same records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from dissensus.files import write_text
from dissensus.papers.base import CANNOT, PAPERS, Claim, Experiment, Finding, Verdict
from dissensus.papers.studies import StudyRecord, read_study, study_path
from dissensus.plots import save

__all__ = ["Outcome", "outcomes", "page_text", "write_figures", "write_page"]


@dataclass(frozen=True)
class Outcome:
    """An experiment with the record of its study and a finding for each of its claims."""

    experiment: Experiment
    record: StudyRecord
    findings: tuple[tuple[Claim, Finding], ...]

    @property
    def drawable(self) -> bool:
        """Whether there is a figure and something to draw."""
        return self.experiment.draw is not None and bool(self.record.records)


def outcomes(experiments: Iterable[Experiment], out: str | Path) -> list[Outcome]:
    """The experiments whose studies have a record below ``out``, with their findings."""
    read: dict[Path, StudyRecord | None] = {}
    results = []
    for experiment in experiments:
        path = study_path(out, experiment.paper, experiment.study.name)
        if path not in read:
            read[path] = read_study(path) if path.exists() else None
        record = read[path]
        if record is not None:
            results.append(Outcome(experiment, record, tuple(_findings(experiment, record))))
    return results


def _findings(experiment: Experiment, record: StudyRecord) -> Iterator[tuple[Claim, Finding]]:
    for claim in experiment.claims:
        try:
            yield claim, claim.check(record.records)
        except Exception as error:
            if record.complete:
                raise
            done = f"{len(record.records)} of {record.planned} cells are done"
            yield claim, Finding(CANNOT, f"not decided yet: {done} ({error})")


def write_figures(results: Iterable[Outcome], out: str | Path) -> list[Path]:
    """Draw every figure as SVG below ``out``; returns the files."""
    paths = []
    for outcome in results:
        experiment = outcome.experiment
        if experiment.draw is None or not outcome.drawable:
            continue
        folder = Path(out) / experiment.paper / "figures"
        plot = experiment.draw(outcome.record.records)
        paths.append(save(plot, folder / f"{experiment.name}.svg"))
    return paths


def write_page(
    paper: str, results: Sequence[Outcome], known: Mapping[str, Experiment], out: str | Path
) -> Path:
    """Write ``<paper>.md`` below ``out``."""
    path = Path(out) / f"{paper}.md"
    write_text(path, page_text(paper, results, known))
    return path


def page_text(paper: str, results: Sequence[Outcome], known: Mapping[str, Experiment]) -> str:
    """The page of a paper in Markdown; ``known`` are all experiments, to say which were not run."""
    own = [outcome for outcome in results if outcome.experiment.paper == paper]
    run = {outcome.experiment.full_name for outcome in own}
    absent = [name for name, one in known.items() if one.paper == paper and name not in run]
    lines = [
        f"# The {paper} paper, reproduced",
        "",
        f"{PAPERS.get(paper, paper)}.",
        "",
        f"Built from the records in `{paper}/*.json` by `dissensus reproduce --report`; nothing on",
        f"this page is written by hand. `dissensus reproduce {paper}` runs it all again.",
        "",
        "A claim that one thing is larger than another holds if the 95 % interval of the paired",
        "difference over runs lies above 0; it does not hold if the interval includes 0 (“not",
        "distinguishable”) or lies below. Brackets are such intervals.",
        "",
        *_in_short(own),
        "## All claims",
        "",
        _counts(own),
        "",
        *_summary(own),
    ]
    if absent:
        lines += ["", "Not run yet: " + ", ".join(f"`{name}`" for name in absent) + "."]
    for outcome in own:
        lines += ["", *_section(outcome)]
    return "\n".join(lines) + "\n"


# ---- parts of the page --------------------------------------------------------------------------


def _in_short(results: Sequence[Outcome]) -> list[str]:
    """The sentences that experiments have for the top of the page; nothing if they have none."""
    sentences = [
        f"- {sentence}"
        for outcome in results
        if outcome.experiment.brief is not None
        for sentence in outcome.experiment.brief(outcome.record.records)
    ]
    return ["## In short", "", *sentences, ""] if sentences else []


def _counts(results: Sequence[Outcome]) -> str:
    verdicts = [finding.verdict for outcome in results for _, finding in outcome.findings]
    hold, fail, cannot = (verdicts.count(verdict) for verdict in get_args(Verdict))
    return (
        f"Of {len(verdicts)} claims {hold} hold, {fail} do not hold, and {cannot} cannot be tested "
        "at this scale."
    )


def _summary(results: Sequence[Outcome]) -> list[str]:
    rows = [
        [
            f"[`{outcome.experiment.name}`](#{outcome.experiment.name})",
            claim.text,
            claim.where,
            f"**{finding.verdict}**",
            _source(outcome),
        ]
        for outcome in results
        for claim, finding in outcome.findings
    ]
    return markdown_table(["experiment", "claim", "where", "verdict", "from"], rows)


def _source(outcome: Outcome) -> str:
    record = outcome.record
    path = f"{record.paper}/{record.name}.json"
    figure = ""
    if outcome.drawable:
        figure = f", [figure]({record.paper}/figures/{outcome.experiment.name}.svg)"
    return f"[record]({path}) ({record.scale}){figure}"


def _section(outcome: Outcome) -> list[str]:
    experiment, record = outcome.experiment, outcome.record
    lines = [f"## {experiment.name}", "", f"**{experiment.shows}.** {experiment.title}.", ""]
    setting = experiment.setting.get(record.scale)
    if setting:
        lines += [f"*Setting (`{record.scale}`).* {setting}", ""]
    lines += [_origin(record), ""]
    if record.failed:
        lines += [f"Failed: {name} ({error})." for name, error in record.failed.items()] + [""]
    rows = [
        [claim.text, claim.where, finding.published or "–", finding.measured, finding.verdict]
        for claim, finding in outcome.findings
    ]
    lines += markdown_table(["claim", "where", "published", "measured", "verdict"], rows)
    if outcome.drawable:
        alt = f"{experiment.shows}: {experiment.title}".replace("]", "").replace("[", "")
        lines += ["", f"![{alt}]({experiment.paper}/figures/{experiment.name}.svg)"]
    if experiment.table is not None and record.records:
        lines += ["", *markdown_table(*experiment.table(record.records))]
    return lines


def _origin(record: StudyRecord) -> str:
    """The origin of the numbers: cells, time, versions, commit."""
    cells = f"{len(record.records)} of {record.planned} cells"
    options = " ".join(f"`--set {key}={value}`" for key, value in record.options.items())
    commits = sorted({str(one["commit"] or "unknown")[:12] for one in record.environments})
    versions = sorted({one["packages"].get("torch", "?") for one in record.environments})
    parts = [
        f"Record `{record.paper}/{record.name}.json`: {cells}, {_duration(record.seconds)} of "
        "computing time",
        f"scale `{record.scale}`" + (f" with {options}" if options else ""),
        f"torch {', '.join(versions)}, commit {', '.join(commits)}" if commits else "",
        f"{record.written[:10]}" if record.written else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def _duration(seconds: float) -> str:
    """A time in a unit that suits it.

    >>> _duration(5400.0)
    '1.5 h'
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; bars and line breaks in cells are taken care of.

    >>> markdown_table(["a"], [["x | y"]])
    ['| a |', '|---|', '| x \\\\| y |']
    """

    def line(cells: Iterable[str]) -> str:
        safe = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
        return "| " + " | ".join(safe) + " |"

    return [line(header), "|" + "---|" * len(header), *(line(row) for row in rows)]

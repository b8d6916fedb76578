"""Pages of the papers: what was run, every claim with its verdict, figures and tables.

Built from the compact records alone; the same records give the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dissensus.show import save
from dissensus.tools.files import write_text
from reproductions.old.base import CANNOT, PAPERS, Claim, Experiment, Finding, Verdict
from reproductions.old.comparisons import data_title
from reproductions.study import StudyRecord, read_study, study_path

#: How verdicts are reached, for the top of each page.
RULE = (
    "Brackets are 95 % intervals over runs. A claim that one thing is larger than another",
    "**holds** if the interval of the paired difference lies above 0; where it also lies below",
    "half of the effect that the paper prints for the same data, that is said. The claim is",
    "**contradicted** if the interval lies below 0, or contains 0 and lies below half of the",
    "published effect. It is **undecided** if neither: these runs cannot tell. It is **not",
    "tested at this scale** if there are no such runs, or one, or if an attack leaves so many",
    "images right that half of the published effect has no room. Several data sets or cases are",
    "never averaged: a claim holds if it holds in each, and is contradicted if it is in one, by",
    "an interval of 1 − 5 % / k for k cases: among many, one lies far off by chance. The",
    "smallest effect that runs could show is half the width of their interval. A claim about",
    "“these runs” has its interval over test images: it speaks of the networks that were",
    "trained, and others may differ.",
)


@dataclass(frozen=True)
class Outcome:
    """An experiment with the record of its study and a finding for each of its claims."""

    experiment: Experiment
    record: StudyRecord
    findings: tuple[tuple[Claim, Finding], ...]

    @property
    def drawable(self) -> bool:
        """Whether there is a figure and something to draw."""
        return self.experiment.draw is not None and bool(self.record.cells)

    @property
    def figure(self) -> str:
        """The path of the figure, below the folder of results."""
        return f"{self.experiment.paper}/figures/{self.experiment.name}.svg"

    @property
    def left(self) -> int:
        """How many cells of the present plan have no result; the plan may have grown since."""
        plan = self.experiment.study.cells(self.record.scale, self.record.options)
        done = {one["cell"]["name"] for one in self.record.cells}
        return sum(cell["name"] not in done for cell in plan)


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
            yield claim, claim.check(record.cells)
        except Exception as error:
            if record.complete:
                raise
            done = f"{len(record.cells)} of {record.planned} cells are done"
            yield claim, Finding(CANNOT, f"not decided yet: {done} ({error})")


def write_figures(results: Iterable[Outcome], out: str | Path) -> list[Path]:
    """Draw every figure as SVG below ``out``; returns the files."""
    paths = []
    for outcome in results:
        draw = outcome.experiment.draw
        if draw is not None and outcome.drawable:
            paths.append(save(draw(outcome.record.cells), Path(out) / outcome.figure))
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
        f"Built from the records in `{paper}/*.json` by `python -m reproductions --report`; no",
        f"measurement is typed by hand. `python -m reproductions {paper}` runs it all again.",
        "",
        *RULE,
        "",
        *_in_short(own),
        "## All claims",
        "",
        count_verdicts(own),
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
    """The sentences that experiments have for the top of the page, each under its experiment."""
    lines: list[str] = []
    for outcome in results:
        one = outcome.experiment
        sentences = one.brief(outcome.record.cells) if one.brief is not None else []
        if sentences:
            lines += [f"{one.title} ([`{one.name}`](#{one.name})):", ""]
            lines += [*(f"- {sentence}" for sentence in sentences), ""]
    return ["## In short", "", *lines] if lines else []


def count_verdicts(results: Sequence[Outcome]) -> str:
    """How many claims have each verdict, as a sentence."""
    verdicts = [finding.verdict for outcome in results for _, finding in outcome.findings]
    hold, against, open_, untested = (verdicts.count(verdict) for verdict in get_args(Verdict))
    answered = sum(
        finding.verdict == CANNOT and bool(_verdict_of_larger(claim, results))
        for outcome in results
        for claim, finding in outcome.findings
    )
    return (
        f"Of {len(verdicts)} claims {hold} hold, with {against} contradicted, {open_} undecided "
        f"and {untested} not tested at this scale"
        + (f", {answered} of which larger networks test." if answered else ".")
    )


def find_claim(
    results: Sequence[Outcome], experiment: str, words: str
) -> tuple[Outcome, Claim, Finding] | None:
    """The first claim of an experiment that begins so; none if there is no record of it."""
    found = (
        (outcome, claim, finding)
        for outcome in results
        if outcome.experiment.name == experiment
        for claim, finding in outcome.findings
        if claim.text.startswith(words)
    )
    return next(found, None)


def _verdict_of_larger(claim: Claim, results: Sequence[Outcome]) -> str:
    """Where larger networks were asked the same, and the verdict; empty where they were not."""
    found = find_claim(results, *claim.again) if claim.again else None
    if found is None or found[2].verdict == CANNOT:
        return ""
    name = found[0].experiment.name
    return f"; larger networks, [`{name}`](#{name}): **{found[2].verdict}**"


def _summary(results: Sequence[Outcome]) -> list[str]:
    rows = [
        [
            f"[`{outcome.experiment.name}`](#{outcome.experiment.name})",
            claim.text,
            claim.where,
            f"**{finding.verdict}**{_verdict_of_larger(claim, results)}",
            _source(outcome),
        ]
        for outcome in results
        for claim, finding in outcome.findings
    ]
    return markdown_table(["experiment", "claim", "where", "verdict", "from"], rows)


def _source(outcome: Outcome) -> str:
    record = outcome.record
    figure = f", [figure]({outcome.figure})" if outcome.drawable else ""
    return f"[record]({record.paper}/{record.study}.json) ({record.scale}){figure}"


def _section(outcome: Outcome) -> list[str]:
    experiment, record = outcome.experiment, outcome.record
    lines = [f"## {experiment.name}", "", f"**{experiment.shows}.** {experiment.title}.", ""]
    setting = experiment.setting.get(record.scale)
    if setting:
        lines += [f"*Setting (`{record.scale}`).* {setting}", ""]
    lines += [_origin(record, outcome.left), *_runs(record), ""]
    if record.failed:
        lines += [f"Failed: {name} ({error})." for name, error in record.failed.items()] + [""]
    rows = [
        [
            claim.text,
            claim.where,
            finding.published or "–",
            finding.measured,
            finding.smallest or "–",
            finding.verdict,
        ]
        for claim, finding in outcome.findings
    ]
    header = ["claim", "where", "published", "measured", "smallest effect it could show"]
    lines += markdown_table([*header, "verdict"], rows)
    if outcome.drawable:
        alt = f"{experiment.shows}: {experiment.title}".replace("]", "").replace("[", "")
        lines += ["", f"![{alt}]({outcome.figure})"]
    if experiment.table is not None and record.cells:
        lines += ["", *markdown_table(*experiment.table(record.cells))]
    return lines


def _origin(record: StudyRecord, left: int) -> str:
    """The origin of the numbers: cells, time, versions, commit."""
    cells = f"{len(record.cells)} of {len(record.cells) + left} cells"
    options = " ".join(f"`--set {key}={value}`" for key, value in record.options.items())
    commits = sorted({str(one["commit"] or "unknown")[:12] for one in record.environments})
    versions = sorted({one["packages"].get("torch", "?") for one in record.environments})
    parts = [
        f"Record `{record.paper}/{record.study}.json`: {cells}, {duration(record.seconds)} of "
        "computing time",
        f"scale `{record.scale}`" + (f" with {options}" if options else ""),
        f"torch {', '.join(versions)}, commit {', '.join(commits)}" if commits else "",
        f"{record.written[:10]}" if record.written else "",
    ]
    return "; ".join(part for part in parts if part) + "."


#: Settings of cells that a page states, and how.
_STATED = {
    "train": "{} training images",
    "val": "{} for validation",
    "test": "{} test images",
    "members": "{} members",
    "epochs": "{} epochs",
    "batch_size": "batches of {}",
}


def _runs(record: StudyRecord) -> list[str]:
    """What was run on each data set, as the cells of the record say."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for one in record.cells:
        cell = one["cell"]
        name = cell.get("data", cell.get("table"))
        if name and ("seed" in cell or "run" in cell):
            groups.setdefault(str(name), []).append(cell)
    sentences = []
    for name, cells in groups.items():
        parts = [_seeds(cells)]
        for key, words in _STATED.items():
            values = {cell[key] for cell in cells if isinstance(cell.get(key), int)} - {0}
            if values:
                parts.append(words.format(" or ".join(f"{value:,}" for value in sorted(values))))
            elif all(cell.get(key, 0) is None for cell in cells):
                parts.append(words.format("all"))
        sentences.append(f"{data_title(name)}: {', '.join(parts)}")
    return ["", f"*Runs.* {'; '.join(sentences)}."] if sentences else []


def _seeds(cells: Sequence[Mapping[str, Any]]) -> str:
    """How many seeds each setting has: ``"12 settings with 3 seeds, 2 with 5"``."""
    settings: dict[str, set[int]] = {}
    for cell in cells:
        same = {key: value for key, value in cell.items() if key not in ("name", "seed", "run")}
        seed = cell.get("seed", cell.get("run"))
        settings.setdefault(json.dumps(same, sort_keys=True), set()).add(seed)
    counts = Counter(len(seeds) for seeds in settings.values())
    parts = [
        f"{many} setting{'s' if many > 1 else ''} with {seeds} seed{'s' if seeds > 1 else ''}"
        for seeds, many in sorted(counts.items())
    ]
    return " and ".join(parts)


def duration(seconds: float) -> str:
    """A time in a unit that suits it.

    >>> duration(5400.0)
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
    return [table_row(header), "|" + "---|" * len(header), *map(table_row, rows)]


def table_row(cells: Iterable[str]) -> str:
    """A row of a table; its cells are Markdown already."""
    lines = (re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells)
    return f"| {' | '.join(lines)} |"

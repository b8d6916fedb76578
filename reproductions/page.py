"""Results of a paper: verdicts and tables as JSON, figures, and a page from a template.

People write ``reproductions/<paper>/page.md``. A line ``{explosion}`` in it stands for the claims
of an experiment, its table and its figure; ``{explosion.claims}``, ``{explosion.paper}`` (without
questions of our own), ``{explosion.table}`` and ``{explosion.figure}`` stand for one of them,
``{verdicts}`` for a count of all verdicts and ``{records}`` for a list of what was run.

``results/<paper>/verdicts.json`` has every claim with its verdict and effects, and every table:
``["explosion"]["table"]["weather"]["DIV, β = 1"]`` is a number as it is printed. All is built from
the compact records alone; the same records give the same bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from dissensus.tools.files import write_text
from reproductions.comparisons import Finding
from reproductions.experiment import Claim, Experiment, Table
from reproductions.figures import save
from reproductions.statistics import CANNOT, Estimate, Verdict
from reproductions.study import StudyRecord, read_study, study_path

#: A line of a template that stands for something generated.
_PLACE = re.compile(r"^\{([a-z0-9-]+)(?:\.(claims|paper|table|figure))?\}$", re.MULTILINE)
#: Of more cases than these, a page shows the least and the largest effect.
_MOST_CASES = 4


@dataclass(frozen=True)
class Outcome:
    """An experiment with the record of its study, and a finding for each of its claims."""

    experiment: Experiment
    record: StudyRecord
    findings: tuple[tuple[Claim, Finding], ...]

    @property
    def figure(self) -> str:
        """The path of the figure, below the folder of results."""
        return f"{self.experiment.paper}/figures/{self.experiment.name}.svg"


def outcomes(experiments: Iterable[Experiment], out: str | Path) -> list[Outcome]:
    """The experiments whose studies have a record below ``out``, with their findings."""
    read: dict[Path, StudyRecord] = {}
    results = []
    for experiment in experiments:
        path = study_path(out, experiment.paper, experiment.study.name)
        if path.exists():
            record = read.setdefault(path, read_study(path))
            findings = tuple((claim, _check(claim, record)) for claim in experiment.claims)
            results.append(Outcome(experiment, record, findings))
    return results


def _check(claim: Claim, record: StudyRecord) -> Finding:
    try:
        return claim.check(record.cells)
    except Exception:
        if record.complete:
            raise
        return Finding(CANNOT, f"{len(record.cells)} of {record.planned} cells")


# ---- files --------------------------------------------------------------------------------------


def write_results(results: Sequence[Outcome], out: str | Path) -> list[Path]:
    """Write ``verdicts.json`` of each paper, and its page if it has a template."""
    paths = []
    for paper in dict.fromkeys(one.experiment.paper for one in results):
        own = [one for one in results if one.experiment.paper == paper]
        paths.append(Path(out) / paper / "verdicts.json")
        write_text(paths[-1], verdicts_text(own))
        template = Path(__file__).parent / paper / "page.md"
        if template.is_file():
            paths.append(Path(out) / f"{paper}.md")
            write_text(paths[-1], page_text(template.read_text(encoding="utf-8"), own))
    return paths


def write_figures(results: Iterable[Outcome], out: str | Path) -> list[Path]:
    """Draw every figure as SVG below ``out``."""
    return [
        save(one.experiment.draw(one.record.cells), Path(out) / one.figure)
        for one in results
        if one.experiment.draw is not None and one.record.cells
    ]


def verdicts_text(results: Sequence[Outcome]) -> str:
    """The JSON of a paper: a line for each claim and each row of a table."""
    whole: dict[str, Any] = {}
    for one in results:
        experiment = one.experiment
        whole[experiment.name] = {
            "shows": experiment.shows,
            "study": experiment.study.name,
            "scale": one.record.scale,
            "claims": {claim.text: _claim_record(claim, found) for claim, found in one.findings},
            "table": {} if experiment.table is None else _table_of(one).by_row(),
        }
    return _json(whole, depth=3) + "\n"


def _claim_record(claim: Claim, finding: Finding) -> dict[str, Any]:
    """A claim with its verdict, its cells of the page, and its effects in numbers."""
    measured, difference = _measured(finding)
    return {
        "where": claim.where,
        "ours": claim.ours,
        "published": claim.published,
        "measured": measured,
        "difference": difference,
        "verdict": finding.verdict,
        "again": claim.again,
        "effects": {
            case: {
                "quantity": effect.quantity,
                **_numbers(effect.estimate),
                "sides": [_six(side) for side in effect.sides],
                "verdict": effect.judgement.verdict,
            }
            for case, effect in finding.effects.items()
        },
    }


def _numbers(estimate: Estimate) -> dict[str, Any]:
    bounds = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
    return {**{name: _six(value) for name, value in bounds.items()}, "runs": estimate.runs}


def _six(value: float) -> float | None:
    """Six significant digits, as in the records; None for a bound that there is not."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _json(value: Any, depth: int, indent: str = "") -> str:
    """JSON with a line for each entry down to a depth, and everything below it on one line."""
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    lines = (
        f"{indent} {json.dumps(key, ensure_ascii=False)}: {_json(item, depth - 1, indent + ' ')}"
        for key, item in value.items()
    )
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


# ---- the page -----------------------------------------------------------------------------------


def page_text(template: str, results: Sequence[Outcome]) -> str:
    """The page of a paper: its template with tables and figures in their places."""
    known = {one.experiment.name: one for one in results}

    def fill(place: re.Match[str]) -> str:
        name, part = place.groups()
        if name == "verdicts":
            return "\n".join(markdown_table(*_count_verdicts(results)))
        if name == "records":
            return "\n".join(markdown_table(*_list_records(results)))
        return _parts(known[name], part) if name in known else "*Not run.*"

    return _PLACE.sub(fill, template)


def _parts(one: Outcome, part: str | None) -> str:
    """The claims, the table and the figure of an experiment, or one of them."""
    blocks = []
    if part in (None, "claims", "paper"):
        blocks.append(markdown_table(*_claims_table(one, only_paper=part == "paper")))
    if part in (None, "table") and one.experiment.table is not None and one.record.cells:
        table = _table_of(one)
        blocks.append(markdown_table(table.header, table.rows))
    if part in (None, "figure") and one.experiment.draw is not None and one.record.cells:
        alt = re.sub(r"[\[\]]", "", f"{one.experiment.shows}: {one.experiment.title}")
        blocks.append([f"![{alt}]({one.figure})"])
    return "\n\n".join("\n".join(block) for block in blocks)


def _table_of(one: Outcome) -> Table:
    assert one.experiment.table is not None
    return one.experiment.table(one.record.cells)


def _claims_table(one: Outcome, *, only_paper: bool) -> tuple[list[str], list[list[str]]]:
    """Claim, published, measured, difference with its interval, and verdict.

    Columns in which no claim has anything are left out.
    """
    header = ["claim", "published", "measured", "difference, 95 %", "verdict"]
    rows = [
        [
            f"*Ours:* {claim.text}" if claim.ours else claim.text,
            claim.published,
            *_measured(finding),
            _verdict(claim, finding),
        ]
        for claim, finding in one.findings
        if not (only_paper and claim.ours)
    ]
    kept = [place for place in range(len(header)) if any(row[place] for row in rows)]
    return [header[place] for place in kept], [
        [row[place] or "–" for place in kept] for row in rows
    ]


def _measured(finding: Finding) -> tuple[str, str]:
    """Two cells: the means of both sides, and their difference; by case where there are several.

    A number that is no difference stands in the first cell.
    """
    effects = finding.effects
    if len(effects) > _MOST_CASES:
        order = sorted(effects.items(), key=lambda item: item[1].estimate.mean)
        least, most = (f"{case} {effect}" for case, effect in (order[0], order[-1]))
        span = f"{len(effects)} cases, from {least} to {most}"
        return ("", span) if order[0][1].sides else (span, "")
    measured = [f"{case} {one.measured or one}".strip() for case, one in effects.items()]
    alone = len(effects) == 1  # its case stands in the first cell
    differences = [
        str(one) if alone else f"{case} {one}".strip() for case, one in effects.items() if one.sides
    ]
    words = [finding.measured] if finding.measured else []
    return "; ".join([*measured, *words]), "; ".join(differences)


def _verdict(claim: Claim, finding: Finding) -> str:
    """The verdict; whether an effect is small; and where larger networks are asked the same."""
    words: str = finding.verdict
    if words == "holds" and any(one.judgement.small for one in finding.effects.values()):
        words += ", by less than half"
    if claim.again:
        words += f"; larger networks: [{claim.again}](#{claim.again})"
    return words


def count_verdicts(results: Iterable[Outcome], *, ours: bool) -> dict[str, int]:
    """How many claims have each verdict: those of the paper, or our own questions."""
    verdicts = [
        finding.verdict for one in results for claim, finding in one.findings if claim.ours == ours
    ]
    return {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}


def _count_verdicts(results: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    kinds = {"claims of the paper": False, "questions of ours": True}
    rows = []
    for name, ours in kinds.items():
        counts = count_verdicts(results, ours=ours)
        rows.append([name, *map(str, (sum(counts.values()), *counts.values()))])
    return ["", "all", *get_args(Verdict)], rows


def _list_records(results: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    records: Mapping[str, StudyRecord] = {one.record.study: one.record for one in results}
    rows = []
    for record in records.values():
        done = f"{len(record.cells)} of {record.planned}" if record.failed else len(record.cells)
        options = " ".join(f"--set {key}={value}" for key, value in record.options.items())
        link = f"[{record.study}]({record.paper}/{record.study}.json)"
        hours = f"{record.seconds / 3600:.2g} h"
        rows.append(
            [link, f"{record.scale} {options}".strip(), str(done), hours, record.written[:10]]
        )
    return ["record", "scale", "cells", "computing time", "date"], rows


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; bars and line breaks in cells are taken care of.

    >>> markdown_table(["a"], [["x | y"]])
    ['| a |', '|---|', '| x \\\\| y |']
    """
    lines = [
        "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in row)
        for row in (header, *rows)
    ]
    lines = [f"{line} |" for line in lines]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]

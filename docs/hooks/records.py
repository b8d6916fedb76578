"""Figures for the pages, read from the records under ``results/`` when the site is built.

A page writes ``{{ cell("collusion/beta-sweep", "test DIV", "CIFAR-10, small ResNet", "1") }}`` and
gets the number that the record holds today. A quote of what no record holds stops the build.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dissensus.papers.base import Claim, Finding
from dissensus.papers.page import Outcome, markdown_table, outcomes
from dissensus.papers.registry import EXPERIMENTS
from dissensus.report import FIGURES

__all__ = ["MACROS", "RESULTS", "expand"]

RESULTS = Path(__file__).parents[2] / "results"

#: A quote in a page: the name of a macro and its arguments, which are literals.
QUOTE = re.compile(r"\{\{ *(?P<name>\w+)(?P<arguments>\(.*?\)) *\}\}")


def expand(text: str, root: str) -> str:
    """``text`` with its quotes replaced; ``root`` leads from its page to the top of the site."""

    def found(quote: re.Match[str]) -> str:
        name = quote["name"]
        if name not in MACROS:
            raise ValueError(f"there is no quote {name!r}; known are {', '.join(MACROS)}")
        call = ast.parse(name + quote["arguments"], mode="eval").body
        assert isinstance(call, ast.Call)
        arguments = [ast.literal_eval(argument) for argument in call.args]
        return MACROS[name](*arguments).replace("@/", root)

    return QUOTE.sub(found, text)


# ---- the papers' records ------------------------------------------------------------------------


@cache
def _outcomes() -> dict[str, Outcome]:
    found = outcomes(EXPERIMENTS.values(), RESULTS)
    return {outcome.experiment.full_name: outcome for outcome in found}


def _outcome(experiment: str) -> Outcome:
    if experiment not in _outcomes():
        raise ValueError(f"there is no record of {experiment!r}; known are {list(_outcomes())}")
    return _outcomes()[experiment]


def _claim(experiment: str, begins: str) -> tuple[Claim, Finding]:
    """The one claim of an experiment whose text begins so."""
    every = _outcome(experiment).findings
    found = [(claim, finding) for claim, finding in every if claim.text.startswith(begins)]
    if len(found) != 1:
        texts = [claim.text for claim, _ in every]
        raise ValueError(f"{len(found)} claims of {experiment} begin {begins!r}; they are {texts}")
    return found[0]


@cache
def _rows(experiment: str) -> tuple[list[str], list[list[str]]]:
    table = _outcome(experiment).experiment.table
    if table is None:
        raise ValueError(f"{experiment} has no table")
    return table(_outcome(experiment).record.records)


def cell(experiment: str, column: str, *row: str) -> str:
    """An entry of an experiment's table: its column, and the first entries of its row."""
    header, rows = _rows(experiment)
    found = [entries for entries in rows if tuple(entries[: len(row)]) == row]
    if len(found) != 1 or column not in header:
        raise ValueError(
            f"{experiment}: {len(found)} rows begin {row}, columns are {header}, not {column!r}"
        )
    return found[0][header.index(column)]


def measured(experiment: str, begins: str) -> str:
    """What was found about a claim, in the words of its check."""
    return _claim(experiment, begins)[1].measured


def verdict(experiment: str, begins: str) -> str:
    """Whether a claim holds."""
    return f"**{_claim(experiment, begins)[1].verdict}**"


@cache
def _told(experiment: str) -> list[str]:
    outcome = _outcome(experiment)
    return outcome.experiment.brief(outcome.record.records) if outcome.experiment.brief else []


def brief(experiment: str, begins: str) -> str:
    """The sentence of an experiment's summary that begins so."""
    told = _told(experiment)
    found = [sentence for sentence in told if sentence.startswith(begins)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} sentences of {experiment} begin {begins!r}: {told}")
    return found[0]


def counts(paper: str) -> str:
    """How many claims of a paper hold, as words."""
    verdicts = [
        finding.verdict
        for outcome in _outcomes().values()
        if outcome.experiment.paper == paper
        for _, finding in outcome.findings
    ]
    if not verdicts:
        raise ValueError(f"there are no records of a paper {paper!r}")
    hold, fail = verdicts.count("holds"), verdicts.count("does not hold")
    return (
        f"of {len(verdicts)} claims {hold} hold, {fail} do not hold, and "
        f"{len(verdicts) - hold - fail} cannot be tested at this scale"
    )


def source(experiment: str) -> str:
    """Links to the section of the results page, and to the record itself."""
    outcome = _outcome(experiment)
    own, record = outcome.experiment, outcome.record
    page = f"[{own.full_name}](@/results/{own.paper}.md#{own.name})"
    return f"{page} ([record](@/results/{record.paper}/{record.name}.json))"


def figure(experiment: str) -> str:
    """The figure of an experiment, which links to its section."""
    own = _outcome(experiment).experiment
    image = f"@/results/{own.paper}/figures/{own.name}.svg"
    if not (RESULTS / image.removeprefix("@/results/")).exists():
        raise ValueError(f"{experiment} has no figure {image}")
    return f"[![{own.title}]({image})](@/results/{own.paper}.md#{own.name})"


# ---- benchmarks ---------------------------------------------------------------------------------


@cache
def _benchmarks() -> dict[str, dict[str, Any]]:
    paths = sorted((RESULTS / "bench").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths if "-quick" not in path.stem}


def bench(name: str, contender: str, title: str = "") -> str:
    """The median ratio of a contender to the baseline, in the benchmark whose title begins so."""
    found = [
        measurement["ratio"]["median"]
        for result in _benchmarks()[name]["results"]
        if result["title"].startswith(title)
        for measurement in result["measurements"]
        if measurement["name"] == contender
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} measurements of {contender!r} in {name}, {title!r}")
    return f"{found[0]:.2g}"


def benchmarks() -> str:
    """Every record as tables, with a line on the machine it was made on."""
    return "\n\n".join(_section(name, record) for name, record in _benchmarks().items())


def _section(name: str, record: dict[str, Any]) -> str:
    machine = record["machine"]
    made = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} thread(s); "
        f"Python {machine['python']}, torch {machine['torch']}; {machine['date'][:10]}. "
        f"[record](@/results/bench/{name}.json)"
    )
    parts = [f"## {name}", made]
    for result in record["results"]:
        parts += [f"**{result['title']}** ({result['clock']} time, {result['rounds']} rounds)"]
        parts += ["\n".join(_table(result))]
        if result["checks"]:
            parts += ["\n".join(_checks(result))]
    return "\n\n".join(parts)


def _table(result: dict[str, Any]) -> list[str]:
    header = ["contender", "ratio, median", "quartiles", "limit", "met"]
    rows = []
    for number, one in enumerate(result["measurements"]):
        ratio = one["ratio"]
        quartiles = f"{ratio['low']:.3g} to {ratio['high']:.3g}" if number else "baseline"
        rows.append([one["name"], f"{ratio['median']:.3g}", quartiles, *_limit(one, result)])
    return markdown_table(header, rows)


def _checks(result: dict[str, Any]) -> list[str]:
    checks = result["checks"]
    rows = [[one["name"], f"{one['value']:.3g}", *_limit(one, result)] for one in checks]
    return markdown_table(["check", "value", "limit", "met"], rows)


def _limit(entry: dict[str, Any], result: dict[str, Any]) -> list[str]:
    if entry["limit"] is None:
        return ["–", "–"]
    return [f"{entry['limit']:g}", "**no**" if entry["name"] in result["missed"] else "yes"]


def report_figures() -> str:
    """The rows of a table: every figure of the report, what it shows, and what produces it."""
    rows = [[f"`{name}`", figure.what, figure.needs] for name, figure in FIGURES.items()]
    return "\n".join(markdown_table(["", "", ""], rows)[2:])


#: Every quote by the name that pages use.
MACROS: dict[str, Callable[..., str]] = {
    "cell": cell,
    "measured": measured,
    "verdict": verdict,
    "brief": brief,
    "counts": counts,
    "source": source,
    "figure": figure,
    "bench": bench,
    "benchmarks": benchmarks,
    "report_figures": report_figures,
}

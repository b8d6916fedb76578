"""Values on the pages, computed from the records under ``results/``.

A comment, which readers do not see, names the value that follows; ``;`` separates arguments::

    at β = 0 ERR is <!-- cell collusion/explosion; ERR, β = 0; weather -->0.0805<!-- end -->

Words that rest on a verdict stand before a comment that shows nothing and fails where it changes::

    it gains late<!-- expect holds; adp/resnet20; In these runs, the gain comes late --><!-- end -->

``python docs/values.py`` writes the values of today's records into the pages, and a test compares
them. A comment that asks for something no record holds is an error.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dissensus
from dissensus.show.report import FIGURES
from reproductions.base import Claim, Finding
from reproductions.page import Outcome, count_verdicts, markdown_table, outcomes
from reproductions.registry import EXPERIMENTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "guides").glob("*.md"),
]

#: A name in a link to its source file.
CODE = re.compile(r"\[`(\w+(?:\.\w+)+)`\]\((?:\.\./)*src/dissensus/[\w/]+\.py\)")
END = "<!-- end -->"
#: A value in a sentence, or a block of lines between two comments.
VALUE = re.compile(rf"<!-- (\w+)(?: (.+?))? -->(\n(?s:.*?)\n|.*?){END}")
#: Markdown takes a line that begins with a comment and goes on after it as HTML.
FIRST = re.compile(rf"^ *(?:(?:[-*+]|\d+\.) +)?<!-- .* -->.*{END}", re.MULTILINE)


def refresh(page: Path) -> str:
    """The text of a page with today's values, and with links to where the code is today."""
    text = page.read_text()
    if found := FIRST.search(text):
        raise ValueError(
            f"{page.name}: put a word before the value that begins the line {found[0].strip()!r}"
        )
    if len(VALUE.findall(text)) != text.count(END):
        raise ValueError(f"{page.name}: not every {END} ends a value whose comment is on one line")
    return CODE.sub(partial(_refresh_link, page), VALUE.sub(_refresh_value, text))


def _refresh_value(found: re.Match[str]) -> str:
    name, arguments, old = found.groups()
    if name not in VALUES:
        raise ValueError(f"there is no value {name!r}; known are {', '.join(VALUES)}")
    value = VALUES[name](*(arguments.split("; ") if arguments else ()))
    opening = found[0].partition("-->")[0] + "-->"
    return f"{opening}\n\n{value}\n\n{END}" if old.startswith("\n") else f"{opening}{value}{END}"


def _refresh_link(page: Path, found: re.Match[str]) -> str:
    module, _, name = f"dissensus.{found[1]}".rpartition(".")
    file = inspect.getsourcefile(inspect.unwrap(getattr(import_module(module), name))) or ""
    source = ROOT / "src" / Path(file).relative_to(Path(dissensus.__file__).parents[1])
    return f"[`{found[1]}`]({os.path.relpath(source, page.parent)})"


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
    """The one claim of an experiment whose text is this, or else begins so."""
    every = _outcome(experiment).findings
    found = [one for one in every if one[0].text == begins]
    found = found or [one for one in every if one[0].text.startswith(begins)]
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


def expect(verdict: str, experiment: str, begins: str) -> str:
    """Nothing, or an error: the words that a page has for a claim rest on this verdict."""
    claim, finding = _claim(experiment, begins)
    if finding.verdict != verdict:
        raise ValueError(
            f"rewrite the words around this claim of {experiment}, and what they expect: "
            f"{claim.text!r} is {finding.verdict}, not {verdict}"
        )
    return ""


@cache
def _told(experiment: str) -> list[str]:
    outcome = _outcome(experiment)
    return outcome.experiment.brief(outcome.record.records) if outcome.experiment.brief else []


def brief(experiment: str, begins: str) -> str:
    """The rest of the sentence of an experiment's summary that begins so."""
    told = _told(experiment)
    found = [sentence for sentence in told if sentence.startswith(begins)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} sentences of {experiment} begin {begins!r}: {told}")
    return found[0].removeprefix(begins)


def number(experiment: str, begins: str, words: str) -> str:
    """The number that follows these words in a sentence of an experiment's summary."""
    sentence = brief(experiment, begins)
    found = re.findall(rf"{re.escape(words)} (\d+(?:\.\d+)?)", sentence)
    if len(found) != 1:
        raise ValueError(f"{len(found)} numbers follow {words!r} in {sentence!r}")
    return found[0]


def counts(paper: str) -> str:
    """How many claims of a paper have each verdict."""
    found = [outcome for outcome in _outcomes().values() if outcome.experiment.paper == paper]
    if not found:
        raise ValueError(f"there are no records of a paper {paper!r}")
    return count_verdicts(found).removesuffix(".").replace("Of", "of", 1)


# ---- pages of results ---------------------------------------------------------------------------


def entry(page: str, column: str, *row: str) -> str:
    """An entry of a table on a page of results/: its column, and the first entries of its row."""
    found = [
        entries[header.index(column)]
        for header, rows in _page_tables(page)
        if column in header
        for entries in rows
        if tuple(entries[: len(row)]) == row
    ]
    if len(found) != 1:
        raise ValueError(
            f"results/{page}.md: {len(found)} rows begin {row} in tables with a column {column!r}"
        )
    return found[0]


@cache
def _page_tables(page: str) -> list[tuple[list[str], list[list[str]]]]:
    tables = re.findall(r"(?:^\|.*\n)+", (RESULTS / f"{page}.md").read_text(), re.MULTILINE)
    return [(header, rows) for header, _, *rows in (map(_entries, t.splitlines()) for t in tables)]


def _entries(line: str) -> list[str]:
    return [one.strip() for one in re.split(r"(?<!\\)\|", line)[1:-1]]


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
        f"[record](../results/bench/{name}.json)"
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
    """A table of the figures of the report: what each shows, and what produces it."""
    rows = [[f"`{name}`", figure.what, figure.needs] for name, figure in FIGURES.items()]
    return "\n".join(markdown_table(["name", "what it shows", "produced by"], rows))


#: The values by the names that comments use.
VALUES: dict[str, Callable[..., str]] = {
    "cell": cell,
    "measured": measured,
    "verdict": verdict,
    "expect": expect,
    "brief": brief,
    "number": number,
    "counts": counts,
    "entry": entry,
    "bench": bench,
    "benchmarks": benchmarks,
    "report_figures": report_figures,
}


if __name__ == "__main__":
    for path in PAGES:
        if (text := refresh(path)) != path.read_text():
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} has new values")

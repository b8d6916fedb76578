"""The page of all records, ``results/bench/README.md``: ``python -m benchmarks.page`` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dissensus.tools.files import write_text

RECORDS = Path(__file__).parents[1] / "results" / "bench"

_TOP = """# Benchmarks, all records

The baseline is the first line of each table; a ratio below 1 is faster. Medians over rounds, with
their quartiles. **no** marks a limit that was missed. [Benchmarks](../../docs/benchmarks.md) says
what is compared."""


def page(folder: Path = RECORDS) -> str:
    """Every record of ``folder`` as tables, with the machine it was made on."""
    paths = sorted(path for path in folder.glob("*.json") if "-quick" not in path.stem)
    sections = [_section(path.stem, json.loads(path.read_text())) for path in paths]
    return "\n\n".join([_TOP, *sections]) + "\n"


def _section(name: str, record: dict[str, Any]) -> str:
    machine = record["machine"]
    made = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} thread(s); "
        f"Python {machine['python']}, torch {machine['torch']}; {machine['date'][:10]}. "
        f"[record]({name}.json)"
    )
    parts = [f"## {name}", made]
    for result in record["results"]:
        parts.append(f"**{result['title']}** ({result['clock']} time, {result['rounds']} rounds)")
        parts.append(_contenders(result))
        if result["checks"]:
            parts.append(_checks(result))
    return "\n\n".join(parts)


def _contenders(result: dict[str, Any]) -> str:
    rows = [["contender", "ratio, median", "quartiles", "limit", "met"], ["---"] * 5]
    for number, one in enumerate(result["measurements"]):
        ratio = one["ratio"]
        quartiles = f"{ratio['low']:.3g} to {ratio['high']:.3g}" if number else "baseline"
        rows.append([one["name"], f"{ratio['median']:.3g}", quartiles, *_limit(one, result)])
    return _lines(rows)


def _checks(result: dict[str, Any]) -> str:
    rows = [["check", "value", "limit", "met"], ["---"] * 4]
    rows += [[one["name"], f"{one['value']:.3g}", *_limit(one, result)] for one in result["checks"]]
    return _lines(rows)


def _limit(entry: dict[str, Any], result: dict[str, Any]) -> list[str]:
    if entry["limit"] is None:
        return ["–", "–"]
    return [f"{entry['limit']:g}", "**no**" if entry["name"] in result["missed"] else "yes"]


def _lines(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    write_text(RECORDS / "README.md", page())

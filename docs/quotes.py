"""Numbers on the pages, compared with the records under ``results/``.

``docs/numbers.toml`` has one entry for each phrase of a page that rests on a record::

    [["docs/benchmarks"]]
    phrase = "| ADP on ResNet-20 | cross-entropy on ResNet-20 | {1.00} |"
    from = [["bench/training.json", "results", 11, "checks", {name = "…"}, "value"]]

The phrase stands on the page without its braces. Each brace quotes a number; ``from`` says where
it is recorded: a file below ``results/`` and the way through it. A step is a key of an object, an
index of a list, or ``{key = "value"}`` for the one object of a list that has these values. A
recorded text begins with the quoted one; a number is equal at the digits that are quoted.
Where words rest on something that they do not quote, such as a verdict, ``expect`` lists the
recorded values.

``python docs/quotes.py`` (``make values``) prints each difference; a test fails on it.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
NUMBERS = ROOT / "docs" / "numbers.toml"
QUOTED = re.compile(r"\{([^{}]+)\}")


def differences() -> Iterator[str]:
    """One sentence for each phrase that is not on its page, or not what the record says."""
    for page, entries in tomllib.loads(NUMBERS.read_text()).items():
        text = " ".join((ROOT / f"{page}.md").read_text().split())
        for entry in entries:
            phrase, sources = entry["phrase"], entry["from"]
            quoted = entry.get("expect") or QUOTED.findall(phrase)
            plain = QUOTED.sub(r"\1", phrase)
            if plain not in text:
                yield f"{page}.md does not say: {plain}"
            if len(quoted) != len(sources):
                yield f"{page}.md, {plain!r}: {len(quoted)} quoted, {len(sources)} recorded"
            for number, source in zip(quoted, sources, strict=False):
                value = recorded(*source)
                if not agrees(number, value):
                    yield f"{page}.md, {plain!r}: {number} is {value!r} in {source}"


def recorded(file: str, *steps: str | int | dict[str, Any]) -> Any:
    """The value of a record at the end of the ``steps``.

    >>> recorded("bench/fleet.json", "results", 0, "measurements", 0, "ratio", "median")
    1.0
    """
    value = _read(file)
    for step in steps:
        if isinstance(step, dict):
            found = [one for one in value if step.items() <= one.items()]
            if len(found) != 1:
                raise ValueError(f"{file}: {len(found)} entries have {step}")
            value = found[0]
        else:
            try:
                value = value[step]
            except (KeyError, IndexError) as error:
                raise ValueError(f"{file}: nothing at {step!r} of {steps}") from error
    return value


@cache
def _read(file: str) -> Any:
    return json.loads((RESULTS / file).read_text())


#: A number as pages and tables print it: sign, digits after the point, unit.
NUMBER = re.compile(r"([+-]?)\d+(?:\.(\d+))?(%?)")


def agrees(quoted: str, value: Any) -> bool:
    """Whether a quoted number or text is that of the record, at the digits quoted.

    >>> agrees("86.8%", 0.86812), agrees("0.08", 0.0778), agrees("0.8", "0.79 [0.75, 0.83]")
    (True, True, True)
    >>> agrees("86.7%", 0.86812), agrees("0.7", "0.79 [0.75, 0.83]"), agrees("1", True)
    (False, False, False)
    """
    number = NUMBER.fullmatch(quoted)
    if number is None or isinstance(value, bool):
        return isinstance(value, str) and value.startswith(quoted)
    sign, digits, percent = number.groups()
    if isinstance(value, str):  # a printed number is in the unit of its table
        printed = NUMBER.match(value)
        value, percent = float(printed[0].rstrip("%")) if printed else math.nan, ""
    kind = "%" if percent else "f"
    formatted = format(value, f"{'+' if sign == '+' else ''}.{len(digits or '')}{kind}")
    return formatted.rstrip("%") == quoted.rstrip("%")


if __name__ == "__main__":
    found = list(differences())
    print(
        "\n".join(found) or f"All numbers of {NUMBERS.relative_to(ROOT)} are those of the records."
    )
    sys.exit(bool(found))

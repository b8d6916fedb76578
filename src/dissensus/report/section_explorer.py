"""The collusion explorer as HTML: the slider, and what stands around it."""

from __future__ import annotations

from collections.abc import Sequence

from dissensus.report.elements import Elements, controls, labelled, missing, saving
from dissensus.report.explorer import Explorer
from dissensus.report.figure import Cell
from dissensus.report.html import Html, element

__all__ = ["explorer_section"]

_READOUT = {
    "err": "ERR",
    "member_err": "mean ERR",
    "div": "DIV",
    "accuracy": "accuracy",
    "debiased": "debiased share",
    "verdict": "verdict",
}

_LEAD = (
    "What each member says of the same held-out inputs, with the ensemble in the middle: Figure 1 "
    "of the collusion paper, measured. Move β from joint training back to independent training. "
    "Members that collude stand apart by constant offsets, which cancel in the ensemble."
)
_SCORES = " Scores are logits less their mean over the classes."


def explorer_section(found: Sequence[Explorer], make: Elements) -> Html:
    """A figure with a slider over β; a sentence where there is nothing to slide over."""
    if not found:
        sweep = "`dissensus sweep --objective augmented --grid beta=0:1:0.1`"
        return missing("No collusion explorer", f"{sweep}, or runs that differ in β alone")
    readout = [
        element("div", element("dt", word), element("dd", data_told=name))
        for name, word in _READOUT.items()
    ]
    canvas = {"class_": "canvas", "role": "img", "aria_labelledby": "alt-explorer"}
    sources = [stop.source for one in found for stop in one.stops]
    return element(
        "figure",
        element("h3", "The collusion explorer"),
        element("p", _LEAD, "" if found[0].regression else _SCORES),
        controls(_source(found), _slider(found[0]), *_lists(), saving("explorer")),
        element("dl", *readout, class_="readout", aria_live="polite"),
        element("div", id="plot-explorer", **canvas),
        element("figcaption", found[0].alt(), id="alt-explorer"),
        make.behind(_table(found, make), sources),
        id="explorer",
        class_="explorer",
    )


def _source(found: Sequence[Explorer]) -> Html | None:
    if len(found) < 2:
        return None
    options = [element("option", one.name, value=place) for place, one in enumerate(found)]
    return labelled("from", element("select", *options, id="explorer-source"))


def _slider(first: Explorer) -> Html:
    last = len(first.stops) - 1
    slider = element(
        "input",
        id="explorer-beta",
        type="range",
        min=0,
        max=last,
        value=last,
        step=1,
        aria_label="β, from independent to joint training",
    )
    shown = element("output", id="explorer-shown", for_="explorer-beta")
    ends = [element("span", text) for text in ("independent", "joint")]
    return element("label", shown, slider, element("span", *ends, class_="ends"), class_="slide")


def _lists() -> tuple[Html, Html]:
    modes = (
        element("option", "predictions", value="plain"),
        element("option", "difference from the ensemble", value="around"),
    )
    return (
        labelled("look at", element("select", id="explorer-output")),
        labelled("show", element("select", *modes, id="explorer-mode")),
    )


def _table(found: Sequence[Explorer], make: Elements) -> Html:
    rows: list[list[Cell]] = []
    for one in found:
        for stop in one.stops:
            cells: list[Cell] = [one.name, f"{stop.beta:g}"]
            for name in ("err", "member_err", "div", "accuracy", "debiased"):
                form = "percent" if name in ("accuracy", "debiased") else "short"
                known = stop.numbers.get(name)
                cells.append("–" if known is None else (known, form))
            rows.append([*cells, stop.verdict or "–"])
    return make.table(("from", "β", *_READOUT.values()), rows, "the collusion explorer")

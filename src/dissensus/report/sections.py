"""What stands on the page, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dissensus.report.elements import Elements, missing, scrolling
from dissensus.report.explorer import Explorer
from dissensus.report.figure import Figure
from dissensus.report.figures import FIGURES
from dissensus.report.found import Contents, Record
from dissensus.report.gallery import attacked_pictures, divergent_pictures
from dissensus.report.html import Html, element, joined
from dissensus.report.section_explorer import explorer_section
from dissensus.report.section_overview import overview_section

__all__ = ["Section", "sections"]


class Section(NamedTuple):
    """A part of the page; ``name`` is its anchor."""

    name: str
    title: str
    content: Html


def sections(
    contents: Contents, plots: Mapping[str, Figure], explorers: Sequence[Explorer], make: Elements
) -> list[Section]:
    """Every section; one without data says which command would fill it."""

    def figures(*names: str) -> Html:
        return joined(
            *(
                make.figure(plots[name])
                if name in plots
                else missing(f"No figure of {FIGURES[name].what}", FIGURES[name].needs)
                for name in names
            )
        )

    found = [
        Section("overview", "Overview", overview_section(contents, make)),
        Section(
            "collusion",
            "Is the diversity real?",
            joined(
                explorer_section(explorers, make),
                figures("beta-sweep", "codependence", "debiased-share"),
            ),
        ),
        Section("training", "Over training", figures("training")),
        Section("members", "Members beside each other", figures("members", "ensemble-diversity")),
        Section(
            "unknown",
            "Unknown inputs",
            joined(figures("roc", "score-histograms"), divergent_pictures(contents, make)),
        ),
        Section(
            "attacks",
            "Under attack",
            joined(
                _flags(contents),
                figures("accuracy-epsilon", "accuracy-steps"),
                attacked_pictures(contents, make),
            )
            if any(method.task != "regression" for method in contents.methods)
            else element("p", "Attacks need classes; these runs predict values.", class_="missing"),
        ),
    ]
    if not contents.methods:  # no runs were given, so that only sweeps have something to show
        found = [section for section in found if section.name == "collusion"]
    if contents.studies:
        found.append(Section("experiments", "Experiments", _experiments(contents, make)))
    found.append(Section("sources", "Sources", _sources(contents, make)))
    return found


def _flags(contents: Contents) -> Html:
    """What ``dissensus attack`` said about numbers that should not be trusted."""
    told = [
        element("li", element("b", method.name), f": {row.get('text', '')}")
        for method in contents.methods
        if method.attacked is not None
        for row in method.attacked.record.rows("flags")
    ]
    if not told:
        return Html("")
    return joined(element("p", "Do not trust these numbers yet:"), element("ul", *told))


def _experiments(contents: Contents, make: Elements) -> Html:
    rows = [
        [study.paper, study.name, study.scale, f"{study.done} of {study.planned}"]
        for study in contents.studies
    ]
    lead = (
        "Records of `dissensus reproduce`. Their sweeps over β stand above; "
        "`dissensus reproduce --report` makes a page of all claims and figures of a paper."
    )
    return joined(
        element("p", lead.replace("`", "")),
        make.table(("paper", "study", "scale", "cells done"), rows, "experiments"),
    )


def _sources(contents: Contents, make: Elements) -> Html:
    rows = [_facts(record, make) for record in contents.records]
    head = ("record", "written", "dissensus", "commit", "torch")
    table = element(
        "table",
        element("thead", element("tr", *(element("th", text, scope="col") for text in head))),
        element("tbody", *rows),
    )
    notes = [element("li", note) for note in contents.notes]
    return joined(
        element("p", "Everything on this page was read from these files."),
        scrolling(table, "Records", tall=len(rows) > 12),
        joined(element("p", "Left out:"), element("ul", *notes, class_="notes")) if notes else None,
    )


def _facts(record: Record, make: Elements) -> Html:
    where = "environments[0]" if record.at("environments") else "environment"
    commit = record.text(f"{where}.commit")
    texts = [
        record.text("written") or record.text(f"{where}.written"),
        record.text(f"{where}.dissensus"),
        commit[:10] + ("+changes" if commit.endswith("+changes") else ""),
        record.text(f"{where}.packages.torch"),
    ]
    link = element("a", str(record.file), href=make.link(record.file))
    return element("tr", element("td", link), *(element("td", text or "–") for text in texts))

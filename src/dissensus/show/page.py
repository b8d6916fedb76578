"""The page: one HTML file with everything in it, and a policy that forbids it to load anything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dissensus._version import __version__
from dissensus.show.contents import Contents, Record
from dissensus.show.explorer import Explorer, explorer_section, explorers
from dissensus.show.figure import Cell, Figure, join_names
from dissensus.show.figures import FIGURES
from dissensus.show.gallery import attack_gallery, divergent_gallery, strangers_gallery
from dissensus.show.html import (
    Elements,
    Html,
    element,
    join_html,
    method_color,
    missing,
    script_json,
)
from dissensus.show.overview import overview_section
from dissensus.show.render_plotly import plot_json


def plotly_script() -> str:
    """Plotly's own script, from the installed package."""
    try:
        script = files("plotly").joinpath("package_data", "plotly.min.js")
        text = script.read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ValueError(
            "the report needs plotly, which is not installed: pip install 'dissensus[report]'"
        ) from error
    return text.replace("</script", "<\\/script")


def page_text(contents: Contents, out: Path, script: str, title: str | None = None) -> str:
    """The page as text; links to records are relative to ``out``."""
    figures = {
        name: figure
        for name, kind in FIGURES.items()
        if (figure := kind.make(contents)) is not None
    }
    sets = explorers(contents)
    sections = _sections(contents, figures, sets, Elements(out))
    values = {
        "plots": [_figure_json(figure) for figure in figures.values()],
        "explorers": [explorer.json() for explorer in sets],
    }
    js = _asset("page.js")
    body = [
        element("section", element("h2", heading), content, id=name)
        for name, (heading, content) in sections.items()
    ]
    links = [
        element("li", element("a", heading, href=f"#{name}"))
        for name, (heading, _) in sections.items()
    ]
    filled = {
        "version": join_html(__version__),
        "policy": join_html(_policy(script, js)),
        "title": join_html(title or _title(contents)),
        "subtitle": join_html(_subtitle(contents)),
        "css": _asset("page.css"),
        "chips": _chips(contents),
        "nav": element("ul", *links),
        "body": Html("\n").join(body),
        "data": script_json(values),
        "plotly": script,
        "js": js,
    }
    # In a single pass, so that nothing that is filled in is filled in again.
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: filled[hole[1]], _asset("page.html"))


def _figure_json(figure: Figure) -> dict[str, Any]:
    views = [{"choice": list(view.choice), **plot_json(view.plot)} for view in figure.views]
    return {"name": figure.name, "title": figure.title, "views": views}


def _asset(name: str) -> str:
    return files("dissensus.show").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """A policy under which only these scripts run, and nothing is loaded from anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


# ---- the head of the page -----------------------------------------------------------------------


def _chips(contents: Contents) -> Html:
    """A switch for each method."""
    chips = [
        element(
            "button",
            method.name,
            type="button",
            class_="chip",
            style=method_color(number),
            data_method=number,
            aria_pressed="true",
        )
        for number, method in enumerate(contents.methods)
    ]
    label = "Methods that figures show"
    return element("div", *chips, class_="chips", role="group", aria_label=label)


def _title(contents: Contents) -> str:
    data = list(dict.fromkeys(method.data for method in contents.methods))
    if data:
        return f"Ensembles on {join_names(data)}"
    papers = list(dict.fromkeys(record.text("paper") for record in contents.experiments))
    return f"Experiments of {join_names(papers)}" if papers else "Sweeps"


def _subtitle(contents: Contents) -> str:
    counts = {
        "run": len(contents.methods),
        "sweep": len(contents.sweeps),
        "experiment": len(contents.experiments),
        "record": len(contents.records),
    }
    words = [f"{n} {word}{'s' if n > 1 else ''}" for word, n in counts.items() if n]
    written = (r.text("written") or r.text("environment.written") for r in contents.records)
    latest = max(written, default="")
    when = f", the latest written on {latest[:10]}" if latest else ""
    return f"{join_names(words)}{when}."


# ---- sections -----------------------------------------------------------------------------------


def _sections(
    contents: Contents, figures: Mapping[str, Figure], sets: Sequence[Explorer], make: Elements
) -> dict[str, tuple[str, Html]]:
    """Title and content of every section, by its anchor.

    A section without data says which command would fill it.
    """

    def show(*names: str) -> Html:
        return join_html(
            *(
                make.figure(figures[name])
                if name in figures
                else missing(f"No figure of {FIGURES[name].what}", FIGURES[name].needs)
                for name in names
            )
        )

    collusion = join_html(
        _verdicts(contents),
        explorer_section(sets, make),
        show("beta-sweep", "codependence", "debiased-share"),
    )
    unknown = join_html(
        show("roc", "score-histograms"),
        strangers_gallery(contents, make),
        divergent_gallery(contents, make),
    )
    attacks = element(
        "p", "Attacks need a classifier; these runs are regressions.", class_="missing"
    )
    if any(method.task != "regression" for method in contents.methods):
        accuracy = show("accuracy-epsilon", "accuracy-steps")
        attacks = join_html(_flags(contents), accuracy, attack_gallery(contents, make))
    sections: dict[str, tuple[str, Html]] = {"collusion": ("Is the diversity real?", collusion)}
    if contents.methods:  # without runs only sweeps have something to show
        sections = {
            "overview": ("Overview", overview_section(contents, make)),
            **sections,
            "training": ("During training", show("training")),
            "members": ("Members compared", show("members", "ensemble-diversity")),
            "unknown": ("Unknown inputs", unknown),
            "attacks": ("Under attack", attacks),
        }
    if contents.experiments:
        sections["experiments"] = ("Experiments", _experiments(contents, make))
    return sections | {"sources": ("Sources", _sources(contents, make))}


def _verdicts(contents: Contents) -> Html | None:
    """The verdict on each run, in the words of its diagnosis."""
    items = []
    for method in contents.methods:
        reasons = method.diagnosis.at("reasons") if method.diagnosis else None
        words = " ".join(map(str, reasons)) if isinstance(reasons, list) else ""
        if method.verdict:
            items.append(element("li", element("b", method.name), f": {method.verdict}. {words}"))
    return element("ul", *items, class_="short") if items else None


def _flags(contents: Contents) -> Html:
    """Warnings of ``dissensus attack`` about numbers that cannot be trusted."""
    warnings = [
        element("li", element("b", method.name), f": {row.text('text')}")
        for _, method, record in contents.with_attacks()
        for row in record.rows("flags")
    ]
    if not warnings:
        return Html("")
    return join_html(element("p", "Do not trust these numbers yet:"), element("ul", *warnings))


def _experiments(contents: Contents, make: Elements) -> Html:
    rows = []
    for record in contents.experiments:
        done = len(record.rows("cells"))
        names = [record.text(key) for key in ("paper", "study", "scale")]
        rows.append([*names, f"{done} of {record.at('planned') or done}"])
    lead = (
        "Records of experiments. Their β sweeps are shown above; python -m reproductions "
        "--report makes a page of all claims and figures of a paper."
    )
    table = make.table(("paper", "study", "scale", "cells done"), rows, "experiments")
    return join_html(element("p", lead), table)


def _sources(contents: Contents, make: Elements) -> Html:
    head = ("record", "written", "dissensus", "commit", "torch")
    table = make.table(head, [_source_row(record, make) for record in contents.records], "records")
    notes = element("ul", *(element("li", note) for note in contents.notes), class_="notes")
    return join_html(
        element("p", "Everything on this page was read from these files."),
        table,
        join_html(element("p", "Left out:"), notes) if contents.notes else None,
    )


def _source_row(record: Record, make: Elements) -> list[Cell]:
    where = "environments[0]" if record.at("environments") else "environment"
    commit = record.text(f"{where}.commit")
    texts = [
        record.text("written") or record.text(f"{where}.written"),
        record.text(f"{where}.dissensus"),
        commit[:10] + ("+changes" if commit.endswith("+changes") else ""),
        record.text(f"{where}.packages.torch"),
    ]
    link = element("a", str(record.file), href=make.link(record.file))
    return [link, *(text or "–" for text in texts)]

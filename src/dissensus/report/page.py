"""The page: one HTML file with everything in it, and a policy that forbids it to load anything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dissensus._version import __version__
from dissensus.files import write_text
from dissensus.plots.render_plotly import plot_json
from dissensus.report.elements import Elements, own_color
from dissensus.report.explorer import explorers
from dissensus.report.figure import Figure, listed
from dissensus.report.figures import FIGURES
from dissensus.report.found import Contents
from dissensus.report.html import Html, element, joined, script_json
from dissensus.report.reading import read
from dissensus.report.sections import sections

__all__ = ["build", "page_text", "plotly_script"]

PAGE = "index.html"


def build(paths: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Make the report of everything at ``paths`` in the folder ``out``; returns the page's path.

    ``paths`` are run folders, sweep folders, records (``ood.json``, ``robustness/record.json``,
    those of ``dissensus reproduce``), or folders of them. Runs appear in the order given. Nothing
    is trained or attacked: what no file tells is left out, and the page says which command would
    fill it. The same files give the same page. Needs plotly: ``pip install 'dissensus[report]'``.
    """
    script = plotly_script()
    contents = read(paths)
    folder = Path(out)
    page = folder if folder.suffix == ".html" else folder / PAGE
    write_text(page, page_text(contents, page.parent, script, title))
    return page


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
    """The page as text; links to records are as seen from ``out``."""
    made = {name: figure.make(contents) for name, figure in FIGURES.items()}
    plots = {name: plot for name, plot in made.items() if plot is not None}
    moved = explorers(contents)
    parts = sections(contents, plots, moved, Elements(out))
    values = {
        "plots": [_figure_json(figure) for figure in plots.values()],
        "explorers": [one.json() for one in moved],
    }
    js = _asset("page.js")
    body = [
        element("section", element("h2", part.title), part.content, id=part.name) for part in parts
    ]
    links = [element("li", element("a", part.title, href=f"#{part.name}")) for part in parts]
    filled = {
        "version": joined(__version__),
        "policy": joined(_policy(script, js)),
        "title": joined(title or _title(contents)),
        "subtitle": joined(_subtitle(contents)),
        "css": _asset("page.css"),
        "chips": _chips(contents),
        "nav": element("ul", *links),
        "body": Html("\n").join(body),
        "data": script_json(values),
        "plotly": script,
        "js": js,
    }
    # One pass: what is filled in is never looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: filled[hole[1]], _asset("page.html"))


def _figure_json(figure: Figure) -> dict[str, Any]:
    views = [{"choice": list(view.choice), **plot_json(view.plot)} for view in figure.views]
    return {"name": figure.name, "title": figure.title, "views": views}


def _asset(name: str) -> str:
    return files("dissensus.report").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Only these scripts may run, and nothing may be loaded from anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def _chips(contents: Contents) -> Html:
    """A switch for each method."""
    chips = [
        element(
            "button",
            method.name,
            type="button",
            class_="chip",
            style=own_color(number),
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
        return f"Ensembles on {listed(data)}"
    papers = list(dict.fromkeys(study.paper for study in contents.studies))
    return f"Experiments of {listed(papers)}" if papers else "Sweeps"


def _subtitle(contents: Contents) -> str:
    counts = (
        (len(contents.methods), "run"),
        (len(contents.sweeps), "sweep"),
        (len(contents.studies), "experiment"),
        (len(contents.records), "record"),
    )
    told = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count]
    written = [
        record.text("environment.written") or record.text("written") for record in contents.records
    ]
    latest = max(written, default="")
    when = f", the latest written {latest[:10]}" if latest else ""
    return f"{listed(told)}{when}."

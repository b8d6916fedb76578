"""The page: one HTML file with everything in it, and a policy that forbids it to load anything."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dissensus._version import __version__
from dissensus.measures import MARKED
from dissensus.show.collusion_figures import all_lines
from dissensus.show.contents import Contents
from dissensus.show.explorer import explorers
from dissensus.show.figure import format_number
from dissensus.show.figures import FIGURES
from dissensus.show.metrics import METRICS, SWEEP_METRICS
from dissensus.show.overview import columns
from dissensus.show.pictures import data_uri
from dissensus.show.plot import plot_json
from dissensus.show.sweep_files import debiased_share_of, judged_space


def page_text(contents: Contents, out: Path, title: str | None = None) -> str:
    """The page as text; links to records are relative to ``out``."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup

        plotly = files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ValueError(
            "the report needs jinja2 and plotly: pip install 'dissensus[report]'"
        ) from error
    loader = PackageLoader("dissensus.show")
    settings: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    page = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **settings)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.filters |= {"data_uri": data_uri, "shown": format_number}
    page.filters["address"] = lambda file: quote(os.path.relpath(file.resolve(), out.resolve()))
    css, *scripts = (
        files("dissensus.show").joinpath("templates", name).read_text("utf-8")
        for name in ("page.css", "plots.js", "page.js")
    )
    plotly, script = plotly.replace("</script", "<\\/script"), "".join(scripts)
    figures = {
        name: figure
        for name, kind in FIGURES.items()
        if (figure := kind.make(contents)) is not None
    }
    plots = [
        {
            "name": name,
            "views": [{"choice": view.choice, **plot_json(view.plot)} for view in figure.views],
        }
        for name, figure in figures.items()
    ]
    sets = explorers(contents)
    return page.get_template("page.html").render(
        version=__version__,
        policy=_policy(plotly, script),
        own_title=title,
        css=Markup(css),
        plotly=Markup(plotly),
        script=Markup(script),
        data={"plots": plots, "explorers": [explorer.values for explorer in sets]},
        contents=contents,
        columns=columns(contents),
        marked=MARKED,
        figures=figures,
        kinds=FIGURES,
        explorers=sets,
        sweep_metrics={name: METRICS[name] for name in SWEEP_METRICS},
        sweep_lines=all_lines(contents),
        judged_space=judged_space,
        debiased_share_of=debiased_share_of,
    )


def _policy(*scripts: str) -> str:
    """A policy under which only these scripts run, and nothing is loaded from anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )

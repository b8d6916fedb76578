"""The report: run folders, sweeps and records in, one web page out.

:func:`build` makes the page, :func:`draw_figure` one figure of it, :func:`read` gives its contents.
Nothing is trained or attacked: every number comes from a file, and the page says from which: the
files of a run folder, ``diagnosis.json``, ``ood/ood.json`` and ``robustness/record.json`` with the
images beside them, and ``summary.json`` and ``cells/*.json`` of a sweep. A record that is older
than the run's last training is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dissensus.tools.lazy import lazy_attributes
from dissensus.tools.verbs import collect, option

if TYPE_CHECKING:
    from dissensus.show.figures import FIGURES
    from dissensus.show.reader import read

__all__ = ["FIGURES", "DrawFigure", "Report", "build", "draw_figure", "read"]


@dataclass(frozen=True)
class Report:
    """Options of :func:`build`."""

    out: Path = option(Path("report"), "The folder of the page, or a name that ends in .html.")
    title: str | None = option(None, "The page's title.", default_text="from the data")


def build(paths: Sequence[str | Path], options: Report | None = None, **settings: Any) -> Path:
    """Make the report of everything at ``paths``; returns the path of the page.

    ``paths`` are run folders, sweep folders, records (``ood.json``, ``robustness/record.json``), or
    folders of them. Runs appear in the order given. Content that no file has is left out, and the
    page says which command would fill it. The same files give the same page. Needs jinja2 and
    plotly: ``pip install 'dissensus[report]'``.

    The settings are those of :class:`Report`: ``build(["runs/adp"], out="report", title="ADP")``.
    """
    from dissensus.show.page import page_text
    from dissensus.show.reader import read
    from dissensus.tools.files import lock_folder, write_text

    options = collect(Report, options, settings)
    out = Path(options.out)
    file = out if out.suffix == ".html" else out / "index.html"
    with lock_folder(file.parent, name=f".{file.name}.lock"):
        write_text(file, page_text(read(paths), file.parent, options.title))
    return file


@dataclass(frozen=True)
class DrawFigure:
    """Options of :func:`draw_figure`."""

    out: Path | None = option(None, "fig.svg or fig.png.", default_text="NAME.svg")
    view: str | None = option(None, "A part of the name of a view.", default_text="the first")


def draw_figure(
    name: str,
    paths: Sequence[str | Path] = ("runs",),
    options: DrawFigure | None = None,
    **settings: Any,
) -> Path:
    """Draw one of ``FIGURES`` from the files at ``paths``, for a paper; returns its path.

    The settings are those of :class:`DrawFigure`. Needs matplotlib: ``dissensus[plots]``.
    """
    from dissensus.show import save
    from dissensus.show.figures import FIGURES
    from dissensus.show.reader import read
    from dissensus.tools.specs import check_name

    options = collect(DrawFigure, options, settings)
    file = Path(options.out or f"{name}.svg")
    if file.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"the figure must end in .svg or .png, got {file.name}")
    check_name(name, FIGURES, "figure")
    figure = FIGURES[name].make(read(paths))
    if figure is None:
        needs = FIGURES[name].needs.replace("`", "")
        raise ValueError(f"the files have no data for {name}; it needs {needs}")
    return save(figure.view(options.view), file)


#: These need torch.
__getattr__ = lazy_attributes(
    "dissensus.show", {"FIGURES": "figures:FIGURES", "read": "reader:read"}
)

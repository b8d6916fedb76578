"""Pages that the build makes: results, the API reference, examples, quotations of records."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

import dissensus
from dissensus.papers.base import PAPERS
from dissensus.papers.page import markdown_table

sys.path.insert(0, str(Path(__file__).parent))  # the build loads this file alone
from records import RESULTS, expand

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

EXAMPLES = RESULTS.parent / "examples"

#: Modules of the public interface that are not names of the package itself.
MORE_ROOMS = ("sklearn", "training.distributed")


def rooms() -> list[str]:
    """The modules that the reference shows, one page each."""
    named = [getattr(dissensus, name) for name in dissensus.__all__]
    modules = [value.__name__ for value in named if isinstance(value, ModuleType)]
    return sorted({*MORE_ROOMS, *(name.removeprefix("dissensus.") for name in modules)})


def reference_pages() -> dict[str, str]:
    """The Markdown of the reference by path: an overview, then the rooms."""
    places = {name: place.split(":") for name, place in dissensus._EXPORTS.items() if ":" in place}
    names = [
        [f"[`ds.{name}`][{_anchor(*place)}]", _summary(getattr(dissensus, name))]
        for name, place in places.items()
    ]
    modules = [[f"[`dissensus.{room}`]({room}.md)", _summary(_room(room))] for room in rooms()]
    overview = [
        "# Public names",
        "",
        "What `import dissensus as ds` gives. `ds.__version__` is the version as a string.",
        "",
        *markdown_table(["name", "what it is"], names),
        "",
        "The rooms, each with all of its names:",
        "",
        *markdown_table(["room", "what is in it"], modules),
    ]
    pages = {"reference/index.md": "\n".join(overview)}
    return pages | {f"reference/{room}.md": _room_page(room) for room in rooms()}


def _room_page(room: str) -> str:
    """All names of a room; a name that is a file of the room, too, has to be asked for."""
    lines = [
        f"# dissensus.{room}",
        "",
        f"::: dissensus.{room}",
        *_options("show_root_heading: false"),
    ]
    for name in _room(room).__all__:
        anchor, place = _anchor(room, name), f"dissensus.{room}.{name}"
        if anchor != place:
            lines += ["", f'<a id="{place}"></a>', "", f"::: {anchor}"]
            lines += _options(f"heading: {name}", f"toc_label: {name}")
    return "\n".join(lines) + "\n"


def _options(*lines: str) -> list[str]:
    return ["    options:", *(f"      {line}" for line in lines)]


def _room(name: str) -> ModuleType:
    return import_module(f"dissensus.{name}")


def _anchor(room: str, name: str) -> str:
    """Where a name is documented: in its room, or in the file that is called as it is."""
    place = f"dissensus.{room}.{name}"
    shadowed = hasattr(_room(room), "__path__") and find_spec(place) is not None
    return f"{getattr(_room(room), name).__module__}.{name}" if shadowed else place


def _summary(entry: object) -> str:
    return (inspect.getdoc(entry) or "").partition("\n")[0]


def example_page(introduction: str) -> str:
    """Every script of ``examples/``, in full."""
    lines = introduction.splitlines()
    for path in sorted(EXAMPLES.glob("*.py")):
        lines += ["", f"## {path.name}", "", "``` { .py .example }", path.read_text().rstrip()]
        lines += ["```"]
    return "\n".join(lines) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of results and the rooms into the navigation."""
    assert config.nav is not None
    sections = {name: entry for entry in config.nav for name in entry}
    results = [{f"Results, {path.stem}": f"results/{path.name}"} for path in _result_pages()]
    sections["Measured"]["Measured"][1:1] = results
    sections["Reference"]["Reference"] = list(reference_pages())
    return config


def _result_pages() -> list[Path]:
    """The papers in their order, then other pages."""
    papers = [RESULTS / f"{paper}.md" for paper in PAPERS]
    found = sorted(RESULTS.glob("*.md"))
    return [path for path in papers if path in found] + [p for p in found if p not in papers]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside ``docs/``: results with their figures and records, and the API."""
    for path in sorted(RESULTS.rglob("*")):
        name = f"results/{path.relative_to(RESULTS).as_posix()}"
        if path.suffix == ".md":
            files.append(File.generated(config, name, content=_literal(path.read_text())))
        elif path.suffix in (".json", ".svg") and not ignored(path):
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, text in reference_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def ignored(path: Path) -> bool:
    """Whether a file of results is of the machine it was made on, and not kept."""
    return "cells" in path.parts or path.stem.endswith("-quick")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in the quotes of pages that are written by hand."""
    if page.file.generated_by is not None:
        return markdown
    if page.file.src_uri == "examples.md":
        return example_page(markdown)
    return expand(markdown, "../" * page.file.src_uri.count("/"))


def _literal(text: str) -> str:
    """A page of results with the star of ``k*`` kept from meaning emphasis."""
    return text.replace("k*", "k\\*")

"""The documentation site: `make docs` builds it into site/, and warnings are errors.

Pages are the repository's Markdown files, read in place, so their links also work on a code host.
Only the reference is generated, from the docstrings.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import dissensus

DOCS = Path(__file__).parent
#: A name in a link to its source file.
CODE = re.compile(r"\[`(\w+(?:\.\w+)+)`\]\((?:\.\./)*src/dissensus/[\w/]+\.py\)")

project = "Dissensus"
release = dissensus.__version__
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**",
    "results/*.md",
    "results/bench/README.md",
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

myst_heading_anchors = 3
smartquotes = False  # they would turn the dashes of command-line options into en dashes
autodoc_member_order = "bysource"  # for a module: the order of its __all__
autodoc_inherit_docstrings = False
add_module_names = False
python_maximum_signature_line_length = 88
copybutton_exclude = ".linenos, .gp, .go"  # neither prompts nor output

html_theme = "furo"
html_title = "Dissensus"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
html_extra_path = ["extra"]  # leads from the top of the site to the README
html_copy_source = False

#: The pages of the sidebar.
NAVIGATION = {
    "Guides": [
        "docs/guides/which-method",
        "docs/guides/collusion",
        "docs/guides/unknown",
        "docs/guides/strangers",
        "docs/guides/robustness",
        "docs/guides/own",
        "docs/guides/sweeps",
        "docs/guides/heads",
        "docs/guides/report",
        "docs/guides/sklearn",
        "docs/guides/export",
        "docs/distributed",
        "docs/ray",
        "docs/large-data",
        "docs/examples",
        "docs/faq",
    ],
    "Measured": [
        "docs/methods",
        "results/README",
        "results/collusion",
        "results/ldr",
        "results/adp",
        "results/tables",
        "results/strangers",
        "docs/benchmarks",
        "results/bench/README",
        "docs/reliability",
    ],
    "Reference": ["docs/reference/index"],
    "Development": ["docs/architecture", "CONTRIBUTING", "SECURITY", "CHANGELOG"],
}

#: Modules of the public interface that are not names of the package itself.
MORE_MODULES = ("sklearn",)


def setup(app: Sphinx) -> None:
    """Generate the reference, and adapt pages to the site."""
    folder = DOCS / "reference"
    folder.mkdir(exist_ok=True)
    for name, text in reference_pages().items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    app.connect("source-read", read_page)
    app.connect("autodoc-skip-member", skip_member)


def read_page(_: Sphinx, page: str, source: list[str]) -> None:
    """Link names to the reference, not to their source file, and add the sidebar."""
    source[0] = CODE.sub(r"{py:obj}`\1 <dissensus.\1>`", source[0])
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            source[0] += _toctree(pages, caption)


def skip_member(_: Sphinx, kind: str, name: str, *__: object) -> bool | None:
    """Skip the methods that scikit-learn adds to estimators for metadata routing."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def reference_pages() -> dict[str, str]:
    """The pages of the reference by file name: an overview, then one for each module."""
    exports = [place.split(":") for place in dissensus._EXPORTS.values() if ":" in place]
    names = [
        [f"{{py:obj}}`ds.{name} <dissensus.{module}.{name}>`", _summary(getattr(dissensus, name))]
        for module, name in exports
    ]
    modules = {name: import_module(f"dissensus.{name}") for name in public_modules()}
    rows = [
        [f"[`dissensus.{name}`]({name}.md)", _summary(module)] for name, module in modules.items()
    ]
    overview = [
        "# Public names",
        "",
        "The names that `import dissensus as ds` provides. `ds.__version__` is the version.",
        "",
        *markdown_table(["name", "what it is"], names),
        "",
        "The modules, each with all of its names:",
        "",
        *markdown_table(["module", "what is in it"], rows),
    ]
    pages = {"index.md": "\n".join(overview) + _toctree(modules)}
    return pages | {f"{name}.md": _module_page(name) for name in modules}


def _module_page(name: str) -> str:
    """The names of a module, without those on its parent's page."""
    module = import_module(f"dissensus.{name}")
    parent = import_module(f"dissensus.{name}".rpartition(".")[0])
    parent_names = parent.__all__ if parent is not dissensus else ()
    own = [one for one in module.__all__ if one not in parent_names]
    lines = [f"# dissensus.{name}", "", "```{eval-rst}", f".. automodule:: dissensus.{name}", ""]
    lines += [line for one in own for line in _entry(module, one)] + ["```"]
    if len(own) < len(module.__all__):
        shared = [one for one in module.__all__ if one in parent_names]
        links = ", ".join(f"{{py:obj}}`~{parent.__name__}.{one}`" for one in shared)
        lines += ["", f"Also in `{parent.__name__}`: {links}."]
    return "\n".join(lines) + "\n"


def _entry(module: ModuleType, name: str) -> list[str]:
    """The directive for a name; autodoc misses the comments of constants from other modules."""
    value, place = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.isclass(value):
        return [f".. autoclass:: {place}", "   :members:", ""]
    if inspect.isroutine(inspect.unwrap(value)):
        return [f".. autofunction:: {place}", ""]
    lines = [f".. py:data:: {name}", f"   :module: {module.__name__}", ""]
    return lines + [f"   {line}" for line in _comment(name, value)] + [""]


def _comment(name: str, value: object) -> list[str]:
    """The lines that begin ``#:`` above a constant, in the module that defines it."""
    for place, module in sorted(sys.modules.items()):
        if place.startswith("dissensus.") and vars(module).get(name) is value:
            docs = ModuleAnalyzer.for_module(place).find_attr_docs()
            if ("", name) in docs:
                return docs["", name]
    return []


def public_modules() -> list[str]:
    """The modules in the reference."""
    named = [getattr(dissensus, name) for name in dissensus.__all__]
    modules = [value.__name__ for value in named if isinstance(value, ModuleType)]
    return sorted({*MORE_MODULES, *(name.removeprefix("dissensus.") for name in modules)})


def markdown_table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def _toctree(pages: Iterable[str], caption: str = "Modules") -> str:
    lines = ["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]
    return "\n\n" + "\n".join(lines) + "\n"


def _summary(entry: object) -> str:
    return (inspect.getdoc(entry) or "").partition("\n")[0]

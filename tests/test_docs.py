"""The documentation tells the truth: it builds without a warning, its links lead somewhere, its
code runs, its commands exist, and it needs no network."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
import typer
from typer.main import get_command

import dissensus
from dissensus.cli import app
from dissensus.experiments import EXPERIMENTS
from dissensus.experiments.base import select
from dissensus.objectives import OBJECTIVES
from dissensus.objectives import parse as parse_objective
from dissensus.robustness import ATTACKS
from dissensus.robustness import parse as parse_attack
from dissensus.scores import SCORES
from dissensus.scores import parse as parse_score
from tests.markdown import (
    SHELLS,
    dissensus_arguments,
    fenced_blocks,
    inline_commands,
    run_blocks,
    shell_commands,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BROWSERS = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
# A command, an option or a value that does not exist; typer has a copy of click of its own.
WRONG = (KeyError, ValueError, typer.BadParameter.__mro__[1])
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md"]

pytest.importorskip("mkdocs", reason="the docs are built with pip install 'dissensus[docs]'")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- the sources --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if "```python" in path.read_text()],
    ids=name_of,
)
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(
        path, [block for block in fenced_blocks(path.read_text()) if block.language == "python"]
    )


def typed_in(path: Path) -> list[list[str]]:
    """What a page tells its readers to type, in blocks and in sentences, as words."""
    text = path.read_text()
    blocks = [block for block in fenced_blocks(text) if block.language in SHELLS]
    found = [words for block in blocks for words in shell_commands(block.code)]
    return [*found, *inline_commands(text)]


def commands_of(path: Path) -> list[list[str]]:
    """What of it follows ``dissensus``."""
    found = (dissensus_arguments(words) for words in typed_in(path))
    return [arguments for arguments in found if arguments is not None]


def check_command(arguments: list[str]) -> None:
    """Raise unless the command exists and takes these options, and what they name exists."""
    command = get_command(app)
    if not arguments[0].startswith("-"):
        command = command.commands[arguments.pop(0)]  # type: ignore[attr-defined]
    parser = command.make_parser(command.context_class(command))
    given, left, _ = parser.parse_args([word for word in arguments if word != "…"])
    if left:
        raise ValueError(f"{command.name} takes no {left}")
    if given.get("objective"):
        parse_objective(given["objective"])
    for attack in given.get("attacks") or ():
        parse_attack(attack)
    if command.name == "predict":
        for score in given.get("score") or ():
            parse_score(score)
    if command.name == "reproduce":
        select(given.get("names") or (), EXPERIMENTS)


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_commands_and_their_options_exist(path: Path) -> None:
    for arguments in commands_of(path):
        try:
            check_command(list(arguments))
        except WRONG as error:
            pytest.fail(f"{name_of(path)}: dissensus {shlex.join(arguments)}: {error!r}")


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_make_targets_and_examples_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *words in typed_in(path):
        if program == "make":
            assert words[0] in targets, f"{name_of(path)}: make {words[0]}"
        elif program == "python" and words[0].startswith("examples/"):
            script = (ROOT / words[0]).read_text()
            options = [word for word in words if word.startswith("--")]
            assert all(f'"{option}"' in script for option in options), f"{name_of(path)}: {words}"


def test_there_are_commands_to_check() -> None:
    assert sum(len(commands_of(path)) for path in TEXTS) > 50


@pytest.mark.parametrize(
    "words",
    [
        "trian --data digits",
        "train --dta digits",
        "train digits",
        "train --objective ldr:strenght=1",
        "attack runs/a --attacks pgd:esp=0.1",
        "predict runs/a --score psd",
        "reproduce collusion/beta-swep",
    ],
)
def test_wrong_commands_are_noticed(words: str) -> None:
    with pytest.raises(WRONG):
        check_command(words.split())


def table_rows(heading: str) -> dict[str, str]:
    """The rows of a table of the methods page by the name in their first column."""
    section = (DOCS / "methods.md").read_text().partition(f"\n## {heading}\n")[2]
    section = section.partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` (\|.*)$", section, re.MULTILINE))


@pytest.mark.parametrize(
    ("heading", "registry"),
    [("Objectives", OBJECTIVES), ("Scores", SCORES), ("Attacks", ATTACKS)],
)
def test_every_method_is_in_the_table(heading: str, registry: dict[str, object]) -> None:
    rows = table_rows(heading)
    assert list(rows) == list(registry)
    for name, row in rows.items():
        (place,) = re.findall(r"\]\[(dissensus\.[\w.]+)\]", row)
        found = resolved(place)
        entry = registry[name]
        assert found is (entry.func if isinstance(entry, partial) else entry), name


def test_code_that_the_table_names_exists() -> None:
    places = re.findall(r"\]\[(dissensus\.[\w.]+)\]", (DOCS / "methods.md").read_text())
    assert len(places) > 60
    for place in places:
        resolved(place)


def resolved(place: str) -> object:
    module, _, name = place.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:  # a function that is called as its file is
        return getattr(resolved(module), name)


# ---- the site -----------------------------------------------------------------------------------


LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Links(HTMLParser):
    """What a page is made of: its anchors, its links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("next", "prev", "canonical"):
            self.loaded.append(given.get("href", ""))
        if (name := LOADED.get(tag)) and name in given:
            self.loaded.append(given[name])
        if "srcset" in given:
            self.loaded += [part.split()[0] for part in given["srcset"].split(",")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew; a warning stops the build."""
    out = tmp_path_factory.mktemp("docs") / "site"
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text()) for path in sorted(site.rglob("*.html"))}


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # served for any address, so its links begin at the top
            continue
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.relative_to(site)}: no anchor {link}")
    assert not broken, "\n".join(broken[:20])


def test_nothing_is_loaded_from_the_network(site: Path, pages: dict[Path, Links]) -> None:
    outside = [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.loaded
        if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc
    ]
    for sheet in site.rglob("*.css"):
        found = re.findall(
            r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text()
        )
        outside += [f"{sheet.relative_to(site)}: {link}" for link in found]
    assert not outside, "\n".join(outside)


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Links]) -> None:
    overview = pages[site / "reference" / "index.html"]
    rooms = {path.stem for path in (site / "reference").glob("*.html")} - {"index"}
    for name in dissensus.__all__:
        if name not in rooms and name != "__version__":
            linked = [link for link in overview.links if link.endswith(f".{name}")]
            assert linked, f"dissensus.{name} is not in the reference"
    assert {"objectives", "scores", "robustness", "training", "sklearn"} <= rooms
    for room in rooms:
        anchors = pages[site / "reference" / f"{room}.html"].anchors
        names = {f"dissensus.{room}.{name}" for name in import_module(f"dissensus.{room}").__all__}
        assert names <= anchors, f"{room}: {sorted(names - anchors)}"


def test_quotes_are_filled_in_and_figures_are_there(site: Path, pages: dict[Path, Links]) -> None:
    for path in pages:
        assert "{{" not in path.read_text(), path.relative_to(site)
    drawn = [
        link for link in pages[site / "results" / "collusion.html"].loaded if "figures" in link
    ]
    assert len(drawn) == len(list((ROOT / "results" / "collusion" / "figures").glob("*.svg")))


def test_the_benchmarks_page_has_every_record(site: Path) -> None:
    text = (site / "benchmarks.html").read_text()
    for record in (ROOT / "results" / "bench").glob("*.json"):
        assert f"results/bench/{record.name}" in text


# ---- quotes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expand() -> Callable[[str, str], str]:
    return runpy.run_path(str(DOCS / "hooks" / "records.py"))["expand"]


def test_a_quote_is_what_the_record_holds(expand: Callable[[str, str], str]) -> None:
    row = "| weather | 10 | 0.0805"
    assert row in (ROOT / "results" / "collusion.md").read_text()
    quoted = expand('{{ cell("collusion/explosion", "ERR, β = 0", "weather") }}', "")
    assert quoted.startswith("0.0805 ±")


@pytest.mark.parametrize(
    ("quote", "error"),
    [
        ('{{ cell("collusion/explosion", "ERR, β = 3", "weather") }}', "not 'ERR, β = 3'"),
        ('{{ cell("collusion/explosion", "ERR, β = 1", "wether") }}', "0 rows begin"),
        ('{{ cell("collusion/exposion", "ERR, β = 1", "weather") }}', "there is no record"),
        ('{{ verdict("collusion/explosion", "Diversity") }}', "2 claims of"),
        ('{{ bench("fleet", "somebody") }}', "0 measurements"),
        ('{{ cel("x") }}', "there is no quote 'cel'"),
    ],
)
def test_a_quote_of_nothing_stops_the_build(
    expand: Callable[[str, str], str], quote: str, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        expand(quote, "")


def test_docstrings_become_markdown() -> None:
    as_markdown = runpy.run_path(str(DOCS / "hooks" / "docstrings.py"))["as_markdown"]
    text = "Like :func:`parse` and :meth:`core`.\n\n>>> 1 + 1\n2\n\nThen ``more``."
    assert as_markdown(text, "a.b", "a.b.C") == (
        'Like <autoref optional identifier="a.b.parse"><code>parse</code></autoref> and '
        '<autoref optional identifier="a.b.C.core"><code>core</code></autoref>.\n\n\n'
        "```pycon\n>>> 1 + 1\n2\n```\n\nThen ``more``."
    )


# ---- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pages_open_in_a_browser_without_the_network(address: str) -> None:
    """No error in the console, no request elsewhere, and the search finds something."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: one of {', '.join(BROWSERS)}")
    requests, errors = [], []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        for place in ("index.html", "results/ldr.html", "reference/objectives.html"):
            page.goto(f"{address}/{place}")
            page.wait_for_load_state("networkidle")
        page.keyboard.press("s")
        page.keyboard.type("collusion")
        page.wait_for_selector(".md-search-result__link")
        browser.close()
    assert not errors
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []

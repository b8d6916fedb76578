"""The built site: no warnings, working links, every public name, nothing from the network."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

import dissensus

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")

pytest.importorskip("sphinx", reason="the docs are built with pip install 'dissensus[docs]'")

pytestmark = pytest.mark.slow  # they build the site


HERE = ("", "data")
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


def from_outside(links: list[str]) -> list[str]:
    """Those that a browser would fetch from another machine."""
    return [link for link in links if urlsplit(link).netloc or urlsplit(link).scheme not in HERE]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew; a warning stops the build."""
    out = tmp_path_factory.mktemp("docs") / "site"
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", str(out)],
        cwd=ROOT,
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
        for link in from_outside(page.loaded)
    ]
    for sheet in site.rglob("*.css"):
        found = re.findall(
            r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text()
        )
        outside += [f"{sheet.relative_to(site)}: {link}" for link in found]
    assert not outside, "\n".join(outside)


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Links]) -> None:
    reference = site / "docs" / "reference"
    overview = pages[reference / "index.html"]
    modules = {path.stem for path in reference.glob("*.html")} - {"index"}
    for name in set(dissensus.__all__) - {"__version__"}:
        module = getattr(getattr(dissensus, name), "__name__", name).removeprefix("dissensus.")
        linked = [link for link in overview.links if link.endswith((f".{name}", f"{module}.html"))]
        assert linked, f"dissensus.{name} is not in the reference"
    assert {"objectives", "scores", "robustness", "training", "sklearn"} <= modules
    for module in modules:
        page = pages[reference / f"{module}.html"]
        here, above = f"dissensus.{module}", f"dissensus.{module}".rpartition(".")[0]
        places = page.anchors | {link.rpartition("#")[2] for link in page.links}
        for name in import_module(here).__all__:
            assert {f"{here}.{name}", f"{above}.{name}"} & places, f"{here}.{name}"


def test_names_of_methods_link_to_the_reference(site: Path, pages: dict[Path, Links]) -> None:
    names = re.findall(r"\[`([\w.]+)`\]\(\.\./src/", (ROOT / "docs" / "methods.md").read_text())
    linked = [link for link in pages[site / "docs" / "methods.html"].links if "reference/" in link]
    anchors = {link.partition("#dissensus.")[2] for link in linked}
    assert len(names) > 60
    assert set(names) <= anchors, sorted(set(names) - anchors)


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
        for place in ("index.html", "results/ldr.html", "docs/reference/objectives.html"):
            page.goto(f"{address}/{place}")
            page.wait_for_load_state("networkidle")
        page.goto(f"{address}/search.html?q=collusion")
        page.wait_for_selector("#search-results li a")
        browser.close()
    assert not errors
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []

"""The page in a real browser: it draws, moves, sorts, fits a phone, and talks to nobody."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dissensus.show.report import build

pytest.importorskip("plotly", reason="the report needs plotly: pip install 'dissensus[report]'")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
READY = "document.documentElement.dataset.ready === 'true'"
SECONDS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: one of {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, headless=True, args=["--no-sandbox"]
        )
        yield opened
        opened.close()


class Opened:
    """A page with all that it complained about and asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(SECONDS)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_function(READY, timeout=SECONDS)

    def do(self, script: str) -> Any:
        return self.page.evaluate(script)

    def data(self, name: str) -> Any:
        """The heights that a plot shows."""
        return self.do(f"document.getElementById('plot-{name}').data.map((trace) => trace.y)")


@pytest.fixture(scope="module")
def file(folders: Path, runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build([*runs, folders / "sweeps" / "beta"], out=tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    wide = {"width": 1280, "height": 900}
    found = Opened(browser, file, viewport=wide, color_scheme="light")
    yield found
    found.context.close()


def test_every_plot_is_drawn_and_nothing_is_asked_of_the_network(opened: Opened) -> None:
    plots = opened.do(
        """[...document.querySelectorAll(".canvas")].map((div) => [
            div.id,
            div.querySelectorAll("svg.main-svg").length,
            div.querySelectorAll(".scatterlayer .trace, .barlayer .trace, .hm").length,
            div.clientHeight,
        ])"""
    )
    assert len(plots) == 11
    for name, layers, traces, height in plots:
        assert layers >= 2, name
        assert traces >= 1, name
        assert height > 150, name
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in opened.requests) == 1


def test_the_slider_moves_the_figure(opened: Opened) -> None:
    slider = opened.page.locator("#explorer-beta")
    slider.focus()
    joint = opened.data("explorer")
    shown = opened.page.locator("#explorer-value")
    assert shown.inner_text() == "β = 1"
    slider.press("ArrowLeft")
    assert shown.inner_text() == "β = 0.5"
    assert slider.get_attribute("aria-valuetext") == "beta 0.5"
    between = opened.data("explorer")
    assert between != joint
    slider.press("Home")
    assert shown.inner_text() == "β = 0"
    title = opened.do("document.getElementById('plot-explorer').layout.annotations[0].text")
    assert "β = 0" in title
    slider.press("End")
    assert opened.data("explorer") == joint
    # Each member's offsets are what is left of it around the ensemble, on average.
    opened.page.select_option("#explorer-mode", "around")
    around = opened.data("explorer")
    offsets = [height for (height,) in around[-3:]]
    assert offsets == pytest.approx([sum(line) / len(line) for line in around[:3]], abs=1e-3)
    assert sum(offsets) == pytest.approx(0, abs=1e-3)
    opened.page.select_option("#explorer-mode", "plain")
    opened.page.select_option("#explorer-output", "3")
    assert opened.data("explorer") != joint
    opened.page.select_option("#explorer-source", "1")
    assert opened.page.locator("#explorer-value").inner_text() == "β = 1"
    assert opened.complaints == []


def test_the_table_sorts_both_ways_also_by_keyboard(opened: Opened) -> None:
    def values(column: int) -> list[float]:
        cells = f"#runs tbody tr td:nth-child({column})"
        texts = opened.page.locator(cells).evaluate_all("all => all.map(c => c.dataset.value)")
        return [float(text) for text in texts if text]

    header = opened.page.locator("#runs thead th").nth(1)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert values(2) == sorted(values(2))
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    assert values(2) == sorted(values(2), reverse=True)
    other = opened.page.locator("#runs thead th").nth(9)  # half of the runs have no value there
    for order in ("ascending", "descending"):
        other.locator("button").press("Space")
        assert other.get_attribute("aria-sort") == order
        assert header.get_attribute("aria-sort") == "none"
        texts = opened.page.locator("#runs tbody tr td:nth-child(10)").all_inner_texts()
        assert texts[-2:] == ["–", "–"]


def test_a_number_tells_where_it_comes_from(opened: Opened) -> None:
    opened.page.locator("#runs a.num").first.press("Enter")
    bar = opened.page.locator("#trace")
    assert "record.json → test." in bar.inner_text()
    assert str(bar.locator("a").get_attribute("href")).endswith("record.json")
    opened.page.keyboard.press("Escape")
    assert not bar.is_visible()


def test_choices_and_switched_off_methods_change_figures(opened: Opened) -> None:
    before = opened.data("roc")
    opened.page.select_option("select[data-plot=roc]", "bma")
    assert opened.data("roc") != before
    opened.page.select_option("select[data-plot=roc]", "pds")
    assert opened.data("roc") == before

    def panels(name: str) -> int:
        return int(opened.do(f"document.getElementById('plot-{name}').data.length"))

    count = panels("members")
    chip = opened.page.locator(".chip").nth(1)
    chip.press("Enter")
    assert chip.get_attribute("aria-pressed") == "false"
    shown = opened.do(
        "document.getElementById('plot-training').data.map((one) => [one.name, one.visible])"
    )
    assert {name for name, visible in shown if visible == "legendonly"} == {"joint"}
    assert panels("members") == count - 1
    assert opened.page.locator("#runs tr.off").count() == 1
    chip.click()
    assert panels("members") == count


def test_dark_is_dark_and_back(opened: Opened) -> None:
    def grounds() -> tuple[str, str]:
        style = "getComputedStyle(document.body).backgroundColor"
        layout = "document.getElementById('plot-roc').layout.paper_bgcolor"
        return opened.do(style), opened.do(layout)

    light = grounds()
    toggle = opened.page.locator("#theme")
    toggle.click()
    assert opened.do("document.documentElement.dataset.theme") == "dark"
    assert toggle.get_attribute("aria-pressed") == "true"
    dark = grounds()
    assert dark[0] != light[0]
    assert dark[0] == dark[1]
    toggle.press("Enter")
    assert grounds() == light


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_figures_are_saved(opened: Opened, kind: str, tmp_path: Path) -> None:
    button = opened.page.locator(f"button[data-plot='members'][data-save='{kind}']")
    with opened.page.expect_download() as waiting:
        button.click()
    download = waiting.value
    assert download.suggested_filename == f"dissensus-members.{kind}"
    download.save_as(tmp_path / "figure")
    content = (tmp_path / "figure").read_bytes()
    start = {"svg": b"<svg", "png": b"\x89PNG"}[kind]
    assert content.startswith(start)
    assert len(content) > 5000
    if kind == "svg":
        assert b"independent" in content
    assert opened.complaints == []


#: Boxes of the legend, and of everything that belongs to axes, of each plot.
BOXES = """[...document.querySelectorAll(".canvas")].map((div) => {
    const box = (one) => { const { left, top, right, bottom } = one.getBoundingClientRect(); return [left, top, right, bottom]; };
    const all = (names) => [...div.querySelectorAll(names)].map(box).filter(([l, t, r, b]) => r > l && b > t);
    return [div.id, all(".legend .bg"), all("[class*=title], [class*=tick] text, .annotation-text"), all("[class^=x][class$=title]"), all("[class^=x][class$=tick] text"), box(div)];
})"""  # noqa: E501


def overlap(one: list[float], other: list[float], room: float = 1.0) -> bool:
    across = min(one[2], other[2]) - max(one[0], other[0])
    return across > room and min(one[3], other[3]) - max(one[1], other[1]) > room


def check_boxes(found: Opened) -> None:
    for name, legends, texts, titles, ticks, frame in found.do(BOXES):
        assert len(legends) <= 1, name
        for legend in legends:
            assert not [text for text in texts if overlap(legend, text)], name
            assert legend[0] >= frame[0], name
            assert legend[2] <= frame[2] + 1, name
        assert not [t for t in titles if any(overlap(t, tick) for tick in ticks)], name


def test_nothing_overlaps_on_a_wide_screen(browser: Any, file: Path) -> None:
    wide = Opened(browser, file, viewport={"width": 1280, "height": 900})
    check_boxes(wide)
    box = "document.getElementById('runs').parentElement"
    assert wide.do(f"{box}.scrollWidth <= {box}.clientWidth")  # the whole overview is seen
    wide.context.close()


def test_a_phone_scrolls_only_down_and_nothing_overlaps(browser: Any, file: Path) -> None:
    small = {"width": 390, "height": 844}
    phone = Opened(browser, file, viewport=small, is_mobile=True, has_touch=True)
    assert phone.do("document.documentElement.scrollWidth") == 390
    widths = phone.do(
        "[...document.querySelectorAll('.canvas svg.main-svg')].map((one) => one.clientWidth)"
    )
    assert max(widths) <= 390
    check_boxes(phone)
    box = "document.getElementById('runs').parentElement"
    assert phone.do(f"{box}.scrollWidth <= {box}.clientWidth")
    cell = phone.page.locator("#runs tbody tr").first.locator("td").first
    assert cell.evaluate("(one) => getComputedStyle(one, '::before').content") == '"accuracy"'
    for summary in phone.page.locator("summary").all():
        summary.evaluate("(one) => { one.parentElement.open = true; }")
    assert phone.do("document.documentElement.scrollWidth") == 390
    assert phone.complaints == []
    phone.context.close()


def oklab(color: str) -> Any:
    """A colour ``rgb(…)`` in a space where distances are those that the eye sees (Ottosson)."""
    channels = np.array([float(part) for part in re.findall(r"[\d.]+", color)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    axes = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(axes) @ np.cbrt(np.array(cones) @ linear)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_members_and_methods_do_not_collide(
    browser: Any, file: Path, scheme: str
) -> None:
    found = Opened(browser, file, color_scheme=scheme, viewport={"width": 900, "height": 800})
    names = [f"{letter}{number}" for letter in "mk" for number in range(8)] + ["accent"]
    colors = found.do(
        f"""{json.dumps(names)}.map((name) => {{
            const probe = document.createElement("span");
            document.body.append(probe);
            probe.style.color = `var(--${{name}})`;
            return getComputedStyle(probe).color;
        }})"""
    )
    places = np.array([oklab(color) for color in colors])
    apart = np.linalg.norm(places[:, None] - places, axis=-1) + np.eye(len(names))
    assert apart.min() > 0.08
    used = {
        name: found.do(f"document.getElementById('plot-{name}').data.map((one) => one.line?.color)")
        for name in ("explorer", "training")
    }
    assert not {*used["explorer"]} & {*used["training"]} - {None}
    found.context.close()


def test_the_system_s_dark_is_heeded_and_focus_is_seen(browser: Any, file: Path) -> None:
    night = Opened(browser, file, color_scheme="dark", viewport={"width": 1000, "height": 800})
    assert night.do("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"
    assert night.page.locator("#theme").inner_text() == "Light"
    night.page.keyboard.press("Tab")
    assert night.do("document.activeElement.className") == "skip"
    assert night.page.locator(".skip").bounding_box()["x"] >= 0
    night.page.keyboard.press("Tab")
    assert night.do("document.activeElement.classList.contains('chip')")
    assert night.do("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    night.context.close()


def test_hostile_text_does_nothing(browser: Any, runs: list[Path], tmp_path: Path) -> None:
    bad = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    run = shutil.copytree(runs[0], tmp_path / "<img src=x onerror=window.hacked=1>")
    for name in ("ood/ood.json", "robustness/record.json", "diagnosis.json"):
        text = (run / name).read_text()
        for word in ("corrupt:2", "pds", "fgsm:eps=0.2", "pgd:eps=0.2", "healthy", "suspicious"):
            text = text.replace(word, json.dumps(bad)[1:-1])
        (run / name).write_text(text)
    page = Opened(browser, build([run], out=tmp_path / "out", title=bad))
    assert page.do("typeof window.hacked") == "undefined"
    assert page.page.title() == bad
    assert page.do("document.querySelectorAll('img[src=x]').length") == 0
    assert page.do("document.querySelectorAll('.canvas a').length") == 0
    assert page.complaints == []
    page.context.close()

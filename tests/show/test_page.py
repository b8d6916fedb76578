"""The page: self-contained, safe, traceable, and honest about what is missing."""

import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from dissensus.show.contents import Record
from dissensus.show.html import Html, element, join_html, script_json
from dissensus.show.report import build

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>{{title}}"


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        last = self.elements[-1][0] if self.elements else ""
        if last == "script" and self.scripts:
            self.scripts[-1] += data
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(autouse=True)
def _small_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotly's script is 5 MB, which a parser in Python need not read."""
    monkeypatch.setattr("dissensus.show.page.plotly_script", lambda: "/* plotly */")


@pytest.fixture
def page(folders: Path, runs: list[Path], tmp_path: Path) -> Path:
    return build([*runs, folders / "sweeps" / "beta"], out=tmp_path / "report")


def test_strangers_are_shown_beside_the_images_they_come_from(
    runs: list[Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs[0], tmp_path / runs[0].name)
    rows = [
        {"method": run.name, "kind": kind, "file": f"{kind}.npz", "image": place}
        for kind in ("known", "stranger")
        for place in range(3)
    ]
    file = run / "ood" / "ood.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "strangers": rows}))
    for number, kind in enumerate(("known", "stranger")):
        np.savez(run / "ood" / f"{kind}.npz", images=np.full((3, 1, 8, 8), number, np.uint8))
    found = Parsed(build([run], out=tmp_path / "report").read_text())
    shown = {image["alt"]: image["src"] for image in found.all("img")}
    assert {f"known {place}" for place in range(3)} | {f"stranger {3 + p}" for p in range(3)} <= (
        set(shown)
    )
    assert shown["known 0"] != shown["stranger 3"]
    assert "Strangers" in found.words
    plain = Parsed(build([runs[0]], out=tmp_path / "plain").read_text())
    assert "Strangers" not in plain.words


def test_the_page_is_one_file_that_loads_nothing(page: Path) -> None:
    assert page.name == "index.html"
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]
    found = Parsed(page.read_text())
    assert [attributes.get("src") for attributes in found.all("script")] == [None, None, None]
    assert [attributes["href"] for attributes in found.all("link")] == ["data:,"]
    assert not found.all("iframe")
    assert found.all("img")
    assert all(str(one["src"]).startswith("data:image/png;base64,") for one in found.all("img"))
    assert all(one["alt"] for one in found.all("img"))
    policy = next(one["content"] for one in found.all("meta") if one.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "http://" not in found.scripts[2]
    assert "https://" not in found.scripts[2]
    assert "{{" not in page.read_text()


def test_every_number_leads_to_its_record(page: Path) -> None:
    """File, key and value in the title of each number are those of the record itself."""
    links = [one for one in Parsed(page.read_text()).all("a") if one.get("class") == "num"]
    assert len(links) > 100
    records: dict[Path, Record] = {}
    checked = 0
    for link in links:
        told, address = str(link["title"]), unquote(str(link["href"]))
        place, _, value = told.rpartition(" = ")
        file, _, key = place.partition(" → ")
        assert (page.parent / address).resolve() == Path(file).resolve()
        if Path(file).suffix != ".json" or key.startswith("mean of"):
            assert Path(file).is_file()
            continue
        if Path(file) not in records:
            records[Path(file)] = Record(Path(file), json.loads(Path(file).read_text()))
        kept: Any = records[Path(file)].at(key)
        assert kept is not None, told
        if isinstance(kept, str):
            assert kept == value
        else:
            assert float(value) == pytest.approx(kept, rel=1e-8), told
        checked += 1
    assert checked > 80


def test_the_same_files_give_the_same_page(page: Path, folders: Path, runs: list[Path]) -> None:
    before = page.read_bytes()
    again = build([*runs, folders / "sweeps" / "beta"], out=page.parent)
    assert again.read_bytes() == before


def test_text_from_files_stays_text(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "<b onclick=window.hacked=1>&amp;'\"")
    for file, changes in {
        "ood/ood.json": {"corrupt:2": HOSTILE, "pds": "<i>pds</i>"},
        "robustness/record.json": {"fgsm:eps=0.2": HOSTILE},
        "diagnosis.json": {"healthy": HOSTILE, "suspicious": HOSTILE, "colluding": HOSTILE},
        "data.json": {'"name": "digits"': f'"name": {json.dumps(HOSTILE)}'},
    }.items():
        text = (run / file).read_text()
        for old, new in changes.items():
            text = text.replace(old, new if old.startswith('"') else json.dumps(new)[1:-1])
        (run / file).write_text(text)
    page = build([run], out=tmp_path / "out.html", title=HOSTILE)
    assert page == tmp_path / "out.html"
    found = Parsed(page.read_text())
    assert len(found.all("script")) == 3
    assert not any(
        "onerror" in attributes or "onclick" in attributes for _, attributes in found.elements
    )
    assert not [one for one in found.all("img") if one["src"] == "x"]
    values = json.loads(found.scripts[0])
    assert HOSTILE in "".join(found.words)
    roc = next(plot for plot in values["plots"] if plot["name"] == "roc")
    titles = [panel["title"] for panel in roc["views"][0]["panels"]]
    assert any("&lt;script&gt;" in title for title in titles)
    assert not any("<" in title for title in titles)


def test_what_is_missing_is_named_with_its_command(runs: list[Path], tmp_path: Path) -> None:
    text = build([runs[3]], out=tmp_path).read_text()
    for command in (
        "dissensus ood RUN --ood corrupt:5",
        "dissensus attack RUN --standard --eps 0.1",
        "dissensus sweep --objective augmented --grid beta=0:1:0.1",
    ):
        assert f"<code>{command}" in text
    names = [plot["name"] for plot in json.loads(Parsed(text).scripts[0])["plots"]]
    assert names == ["codependence", "debiased-share", "training", "members", "ensemble-diversity"]


def test_headings_sort_and_figures_have_words(page: Path) -> None:
    found = Parsed(page.read_text())
    sortable = [one for one in found.all("th") if one.get("aria-sort")]
    assert len(sortable) == 10
    ids = {attributes["id"] for _, attributes in found.elements if "id" in attributes}
    plots = [one for one in found.all("div") if one.get("class") == "canvas"]
    assert len(plots) == 11
    for one in plots:
        assert one["role"] == "img"
        assert one["aria-labelledby"] in ids
    for link in found.all("a"):
        if str(link["href"]).startswith("#"):
            assert str(link["href"])[1:] in ids
    assert len(ids) == sum("id" in attributes for _, attributes in found.elements)


def test_without_plotly_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, runs: list[Path], tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ValueError, match=r"pip install 'dissensus\[report\]'"):
        build([runs[0]], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_elements_escape_by_default() -> None:
    assert element("p", "<b>", Html("<i>x</i>"), None) == "<p>&lt;b&gt;<i>x</i></p>"
    assert element("a", "x", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;">x</a>'
    assert join_html("a", "<") == "a&lt;"
    assert "<" not in script_json({"</script>": ["<!--", "\u2028"]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(float("nan"))

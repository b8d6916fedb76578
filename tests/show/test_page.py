"""The page: self-contained, safe, traceable, and honest about what is missing."""

import base64
import io
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
from dissensus.show.pictures import data_uri, png, shrink
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
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


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
    names = {f"{kind} {place}" for kind in ("known", "stranger") for place in range(3)}
    assert names <= set(shown)
    assert shown["known 0"] != shown["stranger 0"]
    assert "Strangers" in found.words
    plain = Parsed(build([runs[0]], out=tmp_path / "plain").read_text())
    assert "Strangers" not in plain.words


def test_the_page_is_one_file_that_loads_nothing(
    page: Path, folders: Path, runs: list[Path]
) -> None:
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
    assert "http" not in found.scripts[2]
    before = page.read_bytes()
    again = build([*runs, folders / "sweeps" / "beta"], out=page.parent)
    assert again.read_bytes() == before  # the same files give the same page


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
    assert "</script>" in json.dumps(values)  # and yet it ends no element


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


@pytest.mark.parametrize("library", ["plotly", "jinja2"])
def test_without_its_libraries_the_error_says_what_to_install(
    library: str, monkeypatch: pytest.MonkeyPatch, runs: list[Path], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=r"pip install 'dissensus\[report\]'"):
        build([runs[0]], out=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_read_back_to_the_bit(channels: int) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).integers(0, 256, (channels, 5, 7), dtype=np.uint8)
    with image_module.open(io.BytesIO(png(image))) as read:
        np.testing.assert_array_equal(np.asarray(read), np.moveaxis(image, 0, -1).squeeze())


def test_large_pictures_are_averaged_down_and_odd_ones_are_grey() -> None:
    image = np.zeros((3, 200, 300), np.uint8)
    image[:, :4, :4] = 160
    small = shrink(image)
    assert small.shape == (3, 50, 75)
    assert (small[0, 0, 0], small.sum()) == (160, 3 * 160)
    uri = data_uri(np.full((2, 3, 3), 9, np.uint8))
    assert base64.b64decode(uri.partition(",")[2]).startswith(b"\x89PNG")

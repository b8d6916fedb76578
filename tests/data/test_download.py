"""Official files: checked, atomic, never outside their folder; errors that say what to get."""

import gzip
import hashlib
import io
import os
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dissensus.data.dataset import Request
from dissensus.data.download import RemoteFile, content, locate

BODY = b"the official content"
MD5 = "md5:" + hashlib.md5(BODY, usedforsecurity=False).hexdigest()
SHA = "sha256:" + hashlib.sha256(BODY).hexdigest()


class Answer(io.BytesIO):
    """What urlopen returns."""

    def __init__(self, body: bytes, length: int | None = None) -> None:
        super().__init__(body)
        self.headers = {"Content-Length": str(len(body) if length is None else length)}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Answer]], list[str]]:
    def start(answers: dict[str, Answer]) -> list[str]:
        asked: list[str] = []

        def urlopen(request: urllib.request.Request, timeout: float) -> Answer:
            asked.append(request.full_url)
            return answers[request.full_url]

        monkeypatch.setattr(urllib.request, "urlopen", urlopen)
        return asked

    return start


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def get(file: RemoteFile, place: Path, download: bool = True) -> Path:
    return locate([file], ["set"], Request((place,), download=download), what="toy")[file.name]


def test_a_download_is_checked_and_kept(serve: Callable, tmp_path: Path) -> None:
    asked = serve({"https://host/a.bin": Answer(BODY)})
    file = RemoteFile("a.bin", "https://host/a.bin", SHA)
    path = get(file, tmp_path)
    assert path == tmp_path / "set" / "a.bin"
    assert content(path, file) == BODY
    assert get(file, tmp_path) == path
    assert asked == ["https://host/a.bin"]


def test_a_checksum_is_of_the_content_not_of_its_compression(
    serve: Callable, tmp_path: Path
) -> None:
    file = RemoteFile("a.gz", "https://host/a.gz", MD5)
    for level in (1, 9):
        serve({"https://host/a.gz": Answer(gzip.compress(BODY, level, mtime=level))})
        place = tmp_path / str(level)
        assert content(get(file, place), file) == BODY
    (tmp_path / "plain" / "set").mkdir(parents=True)
    (tmp_path / "plain" / "set" / "a").write_bytes(BODY)
    assert content(get(file, tmp_path / "plain"), file) == BODY


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(BODY + b"!"), "https://host/a.bin is not the official file: its sha256 is .* exp"),
        (Answer(b""), "https://host/a.bin is not the official file"),
        (Answer(BODY[:5], length=len(BODY)), r"not be downloaded .*ended after 5 of 20 bytes"),
    ],
)
def test_a_wrong_or_broken_download_is_not_kept(
    serve: Callable, tmp_path: Path, answer: Answer, message: str
) -> None:
    serve({"https://host/a.bin": answer})
    with pytest.raises(ValueError, match=message):
        get(RemoteFile("a.bin", "https://host/a.bin", SHA), tmp_path)
    assert not list(tmp_path.rglob("*.bin"))


def test_a_wrong_file_on_disk_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.bin").write_bytes(b"mine")
    file = RemoteFile("a.bin", "https://host/a.bin", MD5)
    path = get(file, tmp_path)
    with pytest.raises(ValueError, match=r"a.bin is not the official file: its md5 is .*verify=Fa"):
        content(path, file)
    assert content(path, file, verify=False) == b"mine"


def test_without_network_the_error_names_the_file_and_its_place(tmp_path: Path) -> None:
    file = RemoteFile("a.bin", "https://host/a.bin", MD5)
    place = tmp_path / "set" / "a.bin"
    message = rf"toy could not be downloaded \(.*no network.*\): get https://host/a.bin .* {place};"
    with pytest.raises(ValueError, match=message):
        get(file, tmp_path)
    with pytest.raises(ValueError, match=f"toy is not on this machine: get https.*{place}"):
        get(file, tmp_path, download=False)
    inside = RemoteFile("b.csv", "https://host/b.zip", MD5)
    with pytest.raises(ValueError, match=r"get https://host/b.zip and put it at .*set/b.zip"):
        get(inside, tmp_path)
    with pytest.raises(ValueError, match="only http and https"):
        get(RemoteFile("passwd", "file:///etc/passwd", SHA), tmp_path)


def test_downloads_go_to_the_first_folder_that_can_be_written(
    serve: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve({"https://host/a.bin": Answer(BODY)})
    shut, open_ = tmp_path / "shut", tmp_path / "open"
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != shut and allowed(path, mode))
    file = RemoteFile("a.bin", "https://host/a.bin", SHA)
    request = Request((shut, open_))
    assert locate([file], ["set"], request, what="toy")["a.bin"] == open_ / "set" / "a.bin"
    with pytest.raises(ValueError, match=r"no folder to download into .*shut"):
        get(file, shut)


# ---- archives -----------------------------------------------------------------------------------


def test_files_inside_an_archive_come_with_one_download(serve: Callable, tmp_path: Path) -> None:
    """One level of nesting too, as some of UCI's archives have, and from one that lies there."""
    plain = zipped(**{"folder/b.csv": BODY, "c.csv": BODY, "readme": b"-"})
    files = [RemoteFile(name, "https://host/b.zip", SHA) for name in ("b.csv", "c.csv")]
    for number, body in enumerate((plain, zipped(**{"original.zip": plain}))):
        asked = serve({"https://host/b.zip": Answer(body)})
        place = tmp_path / str(number)
        for file in files:
            paths = locate(files, ["set"], Request((place,)), what="toy")
            assert content(paths[file.name], file) == BODY
        assert sorted(path.name for path in (place / "set").iterdir()) == ["b.csv", "c.csv"]
        assert len(asked) == 1
    (tmp_path / "b.zip").write_bytes(plain)
    assert content(get(files[0], tmp_path), files[0]) == BODY


def test_the_archive_and_its_members_are_checked(serve: Callable, tmp_path: Path) -> None:
    serve({"https://host/b.zip": Answer(zipped(**{"b.csv": b"other"}))})
    with pytest.raises(ValueError, match=r"b.csv in https://host/b.zip is not the official file"):
        get(RemoteFile("b.csv", "https://host/b.zip", SHA), tmp_path)
    serve({"https://host/b.zip": Answer(zipped(**{"b.csv": BODY}))})
    file = RemoteFile("b.csv", "https://host/b.zip", SHA, archive_checksum=MD5)
    with pytest.raises(ValueError, match=r"https://host/b.zip is not the official file"):
        get(file, tmp_path)


def tar_of(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for info in members:
            info.size = 3 if info.isreg() else 0
            archive.addfile(info, io.BytesIO(b"bad"))
    return buffer.getvalue()


def unpacked(tmp_path: Path, name: str, raw: bytes) -> list[str]:
    """What lies in a folder after ``a.bin`` was asked for from an archive beside it."""
    place = tmp_path / "outer" / "inner"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(raw)
    get(RemoteFile("a.bin", f"https://host/{name}"), place)
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(place)) for path in found)


@pytest.mark.parametrize(
    "path", ["../a.bin", "folder/../../a.bin", "/tmp/a.bin", "../../set/a.bin"]
)
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, path: str) -> None:
    tar = tar_of(tarfile.TarInfo(path), tarfile.TarInfo("../other"))
    assert unpacked(tmp_path, "x.tar.gz", tar) == ["set/a.bin", "x.tar.gz"]
    (tmp_path / "outer" / "inner" / "set" / "a.bin").unlink()
    made = zipped(**{path: b"bad", "../other": b"bad"})
    assert unpacked(tmp_path, "x.zip", made) == ["set/a.bin", "x.tar.gz", "x.zip"]


@pytest.mark.parametrize(
    ("kind", "target"),
    [(tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "../secret"), (tarfile.FIFOTYPE, "")],
)
def test_links_and_devices_are_not_unpacked(tmp_path: Path, kind: bytes, target: str) -> None:
    info = tarfile.TarInfo("a.bin")
    info.type, info.linkname = kind, target
    with pytest.raises(ValueError, match=r"x.tar.gz does not hold a.bin"):
        unpacked(tmp_path, "x.tar.gz", tar_of(info))
    assert not list(tmp_path.rglob("a.bin"))


def test_damaged_archives(tmp_path: Path) -> None:
    good = tar_of(tarfile.TarInfo("a.bin"))
    for name, data in {
        "cut.tar.gz": good[: len(good) // 2],
        "text.tar.gz": b"<html>not found</html>",
        "text.zip": b"<html>not found</html>",
    }.items():
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            unpacked(tmp_path, name, data)
    (tmp_path / "bad.gz").write_bytes(gzip.compress(BODY)[:-4])
    with pytest.raises(ValueError, match=r"bad.gz is damaged or cut short"):
        content(tmp_path / "bad.gz", RemoteFile("bad.gz", ""))

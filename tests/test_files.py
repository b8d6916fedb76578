"""Files are whole or not there: after a failure, under a umask, and with several writers."""

import os
import stat
import threading
from pathlib import Path

import pytest

from dissensus.files import replace_atomically


@pytest.mark.parametrize("failure", [RuntimeError("disk"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, failure: BaseException
) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")

    def write_half(part: Path) -> None:
        part.write_text("ne")
        raise failure

    with pytest.raises(type(failure)):
        replace_atomically(target, write_half)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_target_is_untouched_until_the_writer_is_done(tmp_path: Path) -> None:
    target = tmp_path / "folders" / "made" / "note.txt"

    def write(part: Path) -> None:
        assert part.parent == target.parent  # a rename is atomic only within one file system
        assert not target.exists()
        part.write_text("whole")

    replace_atomically(target, write)
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int) -> None:
    target = tmp_path / "note.txt"
    before = os.umask(umask)
    try:
        replace_atomically(target, lambda part: part.touch())
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_concurrent_writers_leave_one_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "note.txt"
    texts = [str(number) * 50_000 for number in range(8)]
    ready = threading.Barrier(len(texts) + 1)
    seen: list[str] = []

    def write(text: str) -> None:
        def halves(part: Path) -> None:
            with part.open("w") as file:
                file.write(text[:25_000])
                file.flush()
                file.write(text[25_000:])

        ready.wait()
        for _ in range(5):
            replace_atomically(target, halves)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    ready.wait()
    while any(writer.is_alive() for writer in writers):
        if target.exists():
            seen.append(target.read_text())
    for writer in writers:
        writer.join()
    assert target.read_text() in texts
    assert set(seen) <= set(texts)
    assert list(tmp_path.iterdir()) == [target]

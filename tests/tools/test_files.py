"""Files: whole or not there, and one reader and writer for each format."""

import json
import math
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dissensus.tools.files import (
    LOCK,
    keep_copy,
    lock,
    lock_folder,
    read_json,
    read_npy,
    read_npz,
    read_safetensors,
    read_toml,
    replace_atomically,
    write_csv,
    write_npz,
    write_safetensors,
    write_text,
)


@pytest.mark.parametrize("failure", [RuntimeError("disk"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, failure: BaseException
) -> None:
    target = tmp_path / "made" / "note.txt"
    replace_atomically(target, lambda part: part.write_text("old"))

    def write_half(part: Path) -> None:
        assert part.parent == target.parent  # a rename is atomic only within one file system
        part.write_text("ne")
        raise failure

    with pytest.raises(type(failure)):
        replace_atomically(target, write_half)
    assert target.read_text() == "old"
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


# ---- formats ------------------------------------------------------------------------------------


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", {"name": 0, "é": 1}, [("a,b", 0.5), ('"', None)])
    assert (tmp_path / "a.csv").read_bytes().decode() == 'name,é\n"a,b",0.5\n"""",\n'
    write_text(tmp_path / "a.json", '{"β": [1, null]}')
    assert read_json(tmp_path / "a.json") == {"β": [1, None]}
    write_text(tmp_path / "a.toml", "[training]\nepochs = 3\n")
    assert read_toml(tmp_path / "a.toml") == {"training": {"epochs": 3}}
    arrays = {"x": np.arange(6.0).reshape(2, 3), "names": np.array(["a", "b"])}
    for compress in (True, False):
        write_npz(tmp_path / "a.npz", arrays, compress=compress)
        back = read_npz(tmp_path / "a.npz")
        assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
    np.save(tmp_path / "x.npy", arrays["x"])
    assert np.array_equal(read_npy(tmp_path / "x.npy"), arrays["x"])
    whole = torch.arange(12.0).reshape(3, 4)  # tensors that share memory
    tensors = {"whole": whole, "row": whole[1], "turned": whole.T, "same": whole}
    write_safetensors(tmp_path / "a.safetensors", tensors, {"format": "test"})
    found, metadata = read_safetensors(tmp_path / "a.safetensors")
    assert metadata == {"format": "test"}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("JSON", read_json),
        ("TOML", read_toml),
        (".npy", read_npy),
        (".npz", read_npz),
        ("safetensors", read_safetensors),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    with pytest.raises(ValueError, match=f"there is no file {path}"):
        read(path)
    path.write_bytes(b"\xff{ not [ anything")
    with pytest.raises(ValueError, match=rf"file cannot be read as {kind}: it is damaged, cut sho"):
        read(path)
    if kind[:3] == ".np":
        save = np.savez if kind == ".npz" else np.save
        with path.open("wb") as raw:
            save(raw, np.array([{}], dtype=object))
        with pytest.raises(ValueError, match="holds Python objects, which are never loaded"):
            read(path)


def test_a_file_is_that_of_safetensors_with_metadata_in_order(tmp_path: Path) -> None:
    names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8"]
    shapes: list[tuple[int, ...]] = [(3, 5), (), (0, 4), (7,)]
    tensors = {
        f"{number}.{name}": torch.arange(15)[: math.prod(shape)].reshape(shape).to(type_)
        for name in [*names, "uint8", "bool"]
        for type_ in [getattr(torch, name)]
        for number, shape in enumerate(shapes)
    }
    metadata = {"format": "pt", "ö": "\x1f", **{f"key{n}": str(n) for n in range(9)}}
    own, theirs = tmp_path / "own.safetensors", tmp_path / "theirs.safetensors"
    write_safetensors(own, tensors, metadata)
    with safe_open(own, framework="pt") as file:
        written = file.metadata()
    assert metadata.items() <= written.items()
    save_file(tensors, theirs, written)
    size = own.stat().st_size - int.from_bytes(own.read_bytes()[:8], "little") - 8
    headers = [json.loads(file.read_bytes()[8:-size]) for file in (own, theirs)]
    assert headers[0] == headers[1]
    assert list(headers[0])[1:] == list(headers[1])[1:]
    assert list(headers[0]["__metadata__"]) == sorted(written)
    assert own.read_bytes()[-size:] == theirs.read_bytes()[-size:]


@pytest.mark.parametrize("bit", [0, 31, 62, 63])
def test_a_bit_that_changes_in_two_numbers_is_noticed(bit: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"a": torch.zeros(100, dtype=torch.int64)})
    content = bytearray(path.read_bytes())
    for word in (90, 20):
        content[bit // 8 - 8 * word] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.safetensors is damaged: its content does not match"):
        read_safetensors(path)


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_stays_when_the_file_is_replaced(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object) -> None:
        raise OSError("Operation not supported")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path, copy = tmp_path / "a", tmp_path / "b"
    write_text(path, "old")
    for _ in range(2):  # the second time both are one file already
        keep_copy(path, copy)
    write_text(path, "new")
    assert (path.read_text(), copy.read_text()) == ("new", "old")
    assert sorted(tmp_path.iterdir()) == [path, copy]


# ---- one writer ---------------------------------------------------------------------------------


def test_a_lock_is_for_one_thread_at_a_time_which_may_enter_again(tmp_path: Path) -> None:
    place, errors = tmp_path / "new" / "run", []

    def enter() -> None:
        try:
            with lock_folder(place, wait=0.0):
                pass
        except ValueError as error:
            errors.append(str(error))

    with lock_folder(place), lock_folder(tmp_path / "new" / ".." / "new" / "run"):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert errors[0].startswith(f"process {os.getpid()} on ")
        assert errors[0].endswith("new/run; wait, or choose another folder")
    assert list(tmp_path.iterdir()) == []  # folders that stayed empty are removed again
    enter()
    assert len(errors) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_no_part_in_the_lock(tmp_path: Path) -> None:
    """Workers that load data may outlive a process that was killed; the lock must not."""
    with lock_folder(tmp_path):
        child = os.fork()
        if child == 0:
            os._exit(len(lock._held))
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(ValueError, match="is writing to"):
            lock._acquire(tmp_path / LOCK, "", 0.0)


def test_a_lock_writes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="cannot write to"), lock_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"

"""Atomic writing: a file is there as a whole, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path


def replace_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary neighbour of ``path``, then rename it over ``path``.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> replace_atomically(target, lambda file: file.write_text("whole"))
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('whole', 1)
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    # Made here, not by ``write``, so that two writers can never share it; mode as the umask says.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # a full disk names no file
        raise


def keep_copy(path: Path, copy: Path) -> None:
    """Make ``copy`` what ``path`` is now, if it exists; both are whole at every moment.

    The copy is a second link to the same file where the file system has links. A file that replaces
    ``path`` later leaves it unchanged.
    """
    part = _part(copy)
    try:
        try:
            os.link(path, part)
        except FileNotFoundError:
            return
        except OSError:
            shutil.copyfile(path, part)
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)  # it stays if both were links to one file before


def remove_parts(folder: Path) -> None:
    """Remove the half-written files that kills left in ``folder``; nobody may be writing to it."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    replace_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all."""
    replace_atomically(path, lambda part: part.write_bytes(content))


def _part(path: Path) -> Path:
    """A new name for a half-written neighbour of ``path``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system allows it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
